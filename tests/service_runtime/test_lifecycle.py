"""Supervision of a daemon by systemd, and the limit of its log lines."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until

from service_runtime.lifecycle import (
    LOG_EVERY_S,
    MAX_CAUSES,
    MAX_LINES,
    READY_TIMEOUT_S,
    LogLimit,
    SystemdSupervisor,
)
from service_runtime.watchdog import LoopWatchdog, SystemdNotifier

STATUS = "gw:1884 is up; 0 queued"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class NotifySocket:
    """The service manager's end of the notify socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.path = path

    def received(self) -> list[str]:
        lines: list[str] = []
        while True:
            try:
                lines += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return lines

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NotifySocket]:
    notify_socket = NotifySocket(tmp_path / "notify")
    yield notify_socket
    notify_socket.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watchdog(clock: Clock) -> LoopWatchdog:
    return LoopWatchdog(clock)


@pytest.fixture
def supervision(manager: NotifySocket, watchdog: LoopWatchdog) -> SystemdSupervisor:
    return SystemdSupervisor(
        SystemdNotifier(str(manager.path)), watchdog, lambda: STATUS, 3600
    )


def test_watchdog_is_notified_while_every_loop_is_alive(
    supervision: SystemdSupervisor, manager: NotifySocket, watchdog: LoopWatchdog
) -> None:
    """One WATCHDOG=1 per check."""
    with watchdog.watch_loop("uplink", 5):
        supervision.check_loops()

    assert manager.received() == ["WATCHDOG=1"]


def test_late_loop_stops_the_watchdog_and_is_named(
    supervision: SystemdSupervisor,
    manager: NotifySocket,
    watchdog: LoopWatchdog,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the log and in the status; notifications resume when the loop is back."""
    with watchdog.watch_loop("uplink", 5) as beat, watchdog.watch_loop("events", 500):
        clock.now_s += 6
        supervision.check_loops()
        while_late = manager.received()
        beat()
        supervision.check_loops()

    assert while_late == ["STATUS=HANGS: uplink is silent for 6 s"]
    assert manager.received() == ["WATCHDOG=1"]
    assert "uplink is silent for 6 s: the watchdog is not fed" in caplog.text
    assert "all loops are alive again" in caplog.text


def test_ready_is_sent_with_a_status(
    supervision: SystemdSupervisor, manager: NotifySocket
) -> None:
    """So `systemctl status` shows a text as soon as `systemctl start` returns."""
    supervision.report_ready()
    supervision.close()

    assert manager.received() == ["READY=1", f"STATUS={STATUS}"]


def test_ready_waits_until_the_daemon_serves(
    manager: NotifySocket, watchdog: LoopWatchdog
) -> None:
    """Messages sent to a daemon that is ready are accepted."""
    is_served = threading.Event()
    called = threading.Event()

    def is_serving() -> bool:
        called.set()
        return is_served.is_set()

    supervision = SystemdSupervisor(
        SystemdNotifier(str(manager.path)),
        watchdog,
        lambda: STATUS,
        3600,
        is_serving=is_serving,
    )
    supervision.report_ready()
    assert called.wait(60)
    early = manager.received()
    is_served.set()
    messages: list[str] = []
    wait_until(lambda: messages.extend(manager.received()) or len(messages) == 2)
    supervision.close()

    assert (early, messages) == ([], ["READY=1", f"STATUS={STATUS}"])


def test_ready_is_sent_after_a_timeout(
    manager: NotifySocket,
    watchdog: LoopWatchdog,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A daemon that can work without its broker is not killed when there is none."""
    called = threading.Event()

    def is_serving() -> bool:
        called.set()
        return False

    supervision = SystemdSupervisor(
        SystemdNotifier(str(manager.path)),
        watchdog,
        lambda: STATUS,
        3600,
        is_serving=is_serving,
    )
    supervision.report_ready()
    assert called.wait(60)
    clock.now_s += READY_TIMEOUT_S
    messages: list[str] = []
    wait_until(lambda: messages.extend(manager.received()) or len(messages) == 2)
    supervision.close()

    assert messages == ["READY=1", f"STATUS={STATUS}"]
    assert "not served within 30 s; going on" in caplog.text


def test_loops_may_be_late_while_stopping(
    supervision: SystemdSupervisor,
    manager: NotifySocket,
    watchdog: LoopWatchdog,
    clock: Clock,
) -> None:
    """Loops end one by one; only systemd's stop timeout applies."""
    with watchdog.watch_loop("uplink", 5):
        supervision.report_stopping()
        clock.now_s += 6
        supervision.check_loops()

    assert manager.received() == ["STOPPING=1", "STATUS=stopping", "WATCHDOG=1"]


def test_status_is_not_read_after_stopping(
    manager: NotifySocket, watchdog: LoopWatchdog
) -> None:
    """Its sources, such as a queue, may be closed by then."""
    called = threading.Event()
    may_answer = threading.Event()

    def slow() -> str:
        if threading.current_thread() is threading.main_thread():
            return STATUS
        called.set()
        may_answer.wait(5)
        return STATUS

    supervision = SystemdSupervisor(
        SystemdNotifier(str(manager.path)), watchdog, slow, 0.01
    )
    supervision.report_ready()
    assert called.wait(60)
    threading.Timer(0.2, may_answer.set).start()
    supervision.report_stopping()
    was_answered = may_answer.is_set()
    called.clear()
    supervision.close()

    assert was_answered
    assert not called.is_set()


def test_error_in_the_status_line_ends_nothing(
    manager: NotifySocket, watchdog: LoopWatchdog, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and the program becomes ready."""

    def fail() -> str:
        raise ValueError("year 59009 is out of range")

    supervision = SystemdSupervisor(
        SystemdNotifier(str(manager.path)), watchdog, fail, 0.01
    )
    supervision.report_ready()
    messages: list[str] = []
    wait_until(lambda: messages.extend(manager.received()) or len(messages) > 6)
    supervision.close()

    lines = [line for line in messages if line != "WATCHDOG=1"]
    assert lines[:2] == ["READY=1", "STATUS=no status line: see the log"]
    assert caplog.text.count("there is no status line") == 1


def test_hanging_status_is_a_late_loop(
    manager: NotifySocket, watchdog: LoopWatchdog, clock: Clock
) -> None:
    """It may wait for a lock of a hung loop; then the watchdog must not be notified."""
    hangs, free = threading.Event(), threading.Event()

    def stuck() -> str:
        if threading.current_thread() is not threading.main_thread():
            hangs.set()
            free.wait(60)
        return STATUS

    supervision = SystemdSupervisor(
        SystemdNotifier(str(manager.path)), watchdog, stuck, 0.01
    )
    supervision.report_ready()
    wait_until(lambda: "WATCHDOG=1" in manager.received())
    assert hangs.wait(60)
    clock.now_s += 61
    wait_until(
        lambda: "STATUS=HANGS: status line is silent for 61 s" in manager.received()
    )
    free.set()
    supervision.close()


def test_watchdog_interval_is_read_from_the_environment(
    manager: NotifySocket, watchdog: LoopWatchdog
) -> None:
    """Several notifications within the timeout, so that one may be lost."""
    environ = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "200000"}
    supervision = SystemdSupervisor.from_environment(
        environ, os.getpid(), watchdog, lambda: STATUS
    )
    supervision.report_ready()
    notifications: list[str] = []

    def has_three_notifications() -> bool:
        notifications.extend(
            line for line in manager.received() if line == "WATCHDOG=1"
        )
        return len(notifications) >= 3

    wait_until(has_three_notifications)
    supervision.close()


def test_a_cause_is_logged_at_once_and_then_once_a_minute_with_its_count() -> None:
    """The first line comes without delay."""
    clock = Clock()
    limit = LogLimit(clock)
    assert limit.count("a") == 1
    assert [limit.count("a") for _ in range(5)] == [None] * 5
    assert limit.count("b", 7) == 7
    clock.now_s = LOG_EVERY_S
    assert limit.count("a") == 6


def test_invented_causes_are_bounded_in_lines_and_memory() -> None:
    """A sender may use a new topic for each message."""
    clock = Clock()
    limit = LogLimit(clock)
    counts = [limit.count(n) for n in range(10 * MAX_CAUSES)]
    assert len([count for count in counts if count is not None]) == MAX_LINES
    assert len(limit._causes) == MAX_CAUSES  # noqa: SLF001
    clock.now_s = LOG_EVERY_S
    assert limit.count("another") == 1
