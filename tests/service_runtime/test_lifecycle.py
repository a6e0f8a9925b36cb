"""A daemon and its service manager."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until

from service_runtime.lifecycle import READY_TIMEOUT_S, SystemdSupervisor
from service_runtime.systemd import SystemdNotifier
from service_runtime.watchdog import LoopWatchdog

STATUS = "gw:1884 is up; 0 queued"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Manager:
    """Hears everything that is said."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.path = path

    def heard(self) -> list[str]:
        lines: list[str] = []
        while True:
            try:
                lines += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return lines

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pulse(clock: Clock) -> LoopWatchdog:
    return LoopWatchdog(clock)


@pytest.fixture
def supervision(manager: Manager, pulse: LoopWatchdog) -> SystemdSupervisor:
    return SystemdSupervisor(
        SystemdNotifier(str(manager.path)), pulse, lambda: STATUS, 3600
    )


def test_watchdog_is_fed_while_every_loop_lives(
    supervision: SystemdSupervisor, manager: Manager, pulse: LoopWatchdog
) -> None:
    """That is what it is for."""
    with pulse.watch_loop("uplink", 5):
        supervision.check_loops()

    assert manager.heard() == ["WATCHDOG=1"]


def test_one_late_loop_starves_the_watchdog_and_is_named(
    supervision: SystemdSupervisor,
    manager: Manager,
    pulse: LoopWatchdog,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the log and in the status; and it is fed again when the loop is back."""
    with pulse.watch_loop("uplink", 5) as beat, pulse.watch_loop("events", 500):
        clock.now_s += 6
        supervision.check_loops()
        starved = manager.heard()
        beat()
        supervision.check_loops()

    assert starved == ["STATUS=HANGS: uplink is silent for 6 s"]
    assert manager.heard() == ["WATCHDOG=1"]
    assert "uplink is silent for 6 s: the watchdog is not fed" in caplog.text
    assert "all loops are alive again" in caplog.text


def test_ready_is_said_with_a_status(
    supervision: SystemdSupervisor, manager: Manager
) -> None:
    """`systemctl start` returns then, and `systemctl status` has words at once."""
    supervision.report_ready()
    supervision.close()

    assert manager.heard() == ["READY=1", f"STATUS={STATUS}"]


def test_ready_waits_until_others_reach_us(
    manager: Manager, pulse: LoopWatchdog
) -> None:
    """What is sent to a daemon that is ready is taken."""
    is_served = threading.Event()
    asked = threading.Event()

    def serves() -> bool:
        asked.set()
        return is_served.is_set()

    supervision = SystemdSupervisor(
        SystemdNotifier(str(manager.path)),
        pulse,
        lambda: STATUS,
        3600,
        is_serving=serves,
    )
    supervision.report_ready()
    assert asked.wait(60)
    early = manager.heard()
    is_served.set()
    told: list[str] = []
    wait_until(lambda: told.extend(manager.heard()) or len(told) == 2)
    supervision.close()

    assert (early, told) == ([], ["READY=1", f"STATUS={STATUS}"])


def test_ready_does_not_wait_for_ever(
    manager: Manager,
    pulse: LoopWatchdog,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A daemon that works on without its broker is not killed for want of one."""
    asked = threading.Event()

    def serves() -> bool:
        asked.set()
        return False

    supervision = SystemdSupervisor(
        SystemdNotifier(str(manager.path)),
        pulse,
        lambda: STATUS,
        3600,
        is_serving=serves,
    )
    supervision.report_ready()
    assert asked.wait(60)
    clock.now_s += READY_TIMEOUT_S
    told: list[str] = []
    wait_until(lambda: told.extend(manager.heard()) or len(told) == 2)
    supervision.close()

    assert told == ["READY=1", f"STATUS={STATUS}"]
    assert "not served within 30 s; going on" in caplog.text


def test_daemon_that_stops_is_not_hurried(
    supervision: SystemdSupervisor, manager: Manager, pulse: LoopWatchdog, clock: Clock
) -> None:
    """Loops end one by one; only systemd's time for stopping counts."""
    with pulse.watch_loop("uplink", 5):
        supervision.report_stopping()
        clock.now_s += 6
        supervision.check_loops()

    assert manager.heard() == ["STOPPING=1", "STATUS=stopping", "WATCHDOG=1"]


def test_nothing_is_asked_once_stopping_is_said(
    manager: Manager, pulse: LoopWatchdog
) -> None:
    """What the status asks, such as a queue, may be closed then."""
    asked = threading.Event()
    may_answer = threading.Event()

    def slow() -> str:
        if threading.current_thread() is threading.main_thread():
            return STATUS
        asked.set()
        may_answer.wait(5)
        return STATUS

    supervision = SystemdSupervisor(
        SystemdNotifier(str(manager.path)), pulse, slow, 0.01
    )
    supervision.report_ready()
    assert asked.wait(60)
    threading.Timer(0.2, may_answer.set).start()
    supervision.report_stopping()
    was_answered = may_answer.is_set()
    asked.clear()
    supervision.close()

    assert was_answered
    assert not asked.is_set()


def test_status_that_hangs_is_a_late_loop(
    manager: Manager, pulse: LoopWatchdog, clock: Clock
) -> None:
    """It may wait for a lock that a hung loop holds; that must starve the watchdog."""
    hangs, free = threading.Event(), threading.Event()

    def stuck() -> str:
        if threading.current_thread() is not threading.main_thread():
            hangs.set()
            free.wait(60)
        return STATUS

    supervision = SystemdSupervisor(
        SystemdNotifier(str(manager.path)), pulse, stuck, 0.01
    )
    supervision.report_ready()
    wait_until(lambda: "WATCHDOG=1" in manager.heard())
    assert hangs.wait(60)
    clock.now_s += 61
    wait_until(
        lambda: "STATUS=HANGS: status line is silent for 61 s" in manager.heard()
    )
    free.set()
    supervision.close()


def test_environment_says_how_often_to_feed(
    manager: Manager, pulse: LoopWatchdog
) -> None:
    """Several times within the watchdog's time, or one lost datagram would kill."""
    environ = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "200000"}
    supervision = SystemdSupervisor.from_environment(
        environ, os.getpid(), pulse, lambda: STATUS
    )
    supervision.report_ready()
    fed: list[str] = []

    def is_fed_thrice() -> bool:
        fed.extend(line for line in manager.heard() if line == "WATCHDOG=1")
        return len(fed) >= 3

    wait_until(is_fed_thrice)
    supervision.close()
