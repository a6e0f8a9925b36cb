"""Watchdog for the loops of a process, and what the process reports to systemd.

Each loop registers with its longest time between two heartbeats. A process with one
hung loop looks healthy from outside, so one late loop is enough to restart it. The
watchdog has no thread and no I/O: its caller checks it, and feeds that of systemd.

Source: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3).
"""

import array
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

Heartbeat = Callable[[], None]

MAX_SILENCE_S = 60.0
"""Limit of a loop that itself waits for seconds only: the longest write on a failing
disk. After that the loop counts as hung."""

FIRST_PASSED_FD: Final = 3
SEND_TIMEOUT_S: Final = 5.0
"""Limit, so that a hung service manager does not hang the daemon."""


def no_heartbeat() -> None:
    """Heartbeat of a loop that is not watched."""


@dataclass(eq=False)
class _Loop:
    """A registered loop."""

    name: str
    silence_s: float
    last_s: float


class LoopWatchdog:
    """Watchdog for all loops of a process.

    Attributes:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._loops: list[_Loop] = []
        self._threads: dict[str, Callable[[], bool]] = {}

    @contextmanager
    def watch_loop(self, name: str, max_silence_s: float) -> Iterator[Heartbeat]:
        """Watch a loop until the block ends; yields its heartbeat function.

        Work with a time limit is a loop without heartbeats.

        Args:
            name: Name for the log and the metrics; need not be unique.
            max_silence_s: Longest time between two heartbeats.
        """
        loop = _Loop(name, max_silence_s, self.clock())

        def heartbeat() -> None:
            loop.last_s = self.clock()

        with self._lock:
            self._loops.append(loop)
        try:
            yield heartbeat
        finally:
            with self._lock:
                self._loops.remove(loop)

    def watch_thread(self, name: str, is_alive: Callable[[], bool]) -> None:
        """Watch something without heartbeats, such as a thread of a library."""
        self._threads[name] = is_alive

    def silence_by_loop_s(self) -> dict[str, float]:
        """Time since the last heartbeat by name; the longest of loops of one name."""
        return self._longest_by_name(lambda _: 1.0)

    def silence_share_by_loop(self) -> dict[str, float]:
        """The same as a share of the loop's own limit; a late loop is above 1."""
        return self._longest_by_name(lambda loop: loop.silence_s)

    def _longest_by_name(self, unit_s: Callable[[_Loop], float]) -> dict[str, float]:
        now_s = self.clock()
        with self._lock:
            silences = sorted(
                ((now_s - loop.last_s) / unit_s(loop), loop.name)
                for loop in self._loops
            )
        return {name: silence for silence, name in silences}

    def find_late_loops(self) -> tuple[str, ...]:
        """Loops that are late and threads that have ended; empty when all are alive."""
        now_s = self.clock()
        with self._lock:
            loops = list(self._loops)
        silent = [
            f"{loop.name} is silent for {now_s - loop.last_s:.0f} s"
            for loop in loops
            if now_s - loop.last_s > loop.silence_s
        ]
        dead = [
            f"{name} is dead"
            for name, is_alive in self._threads.items()
            if not is_alive()
        ]
        return (*silent, *dead)


class SystemdNotifier:
    """Sends notifications to systemd; does nothing without it.

    Args:
        address: ``NOTIFY_SOCKET``: a path, or a name that begins with ``@``; empty
            without systemd.
    """

    def __init__(self, address: str = "") -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def send(self, *lines: str, fds: Sequence[int] = ()) -> None:
        """Send assignments such as ``READY=1`` in one datagram.

        An error is logged only: systemd kills the process by itself when it misses
        the watchdog for too long.
        """
        if not self._address:
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(SEND_TIMEOUT_S)
            try:
                sender.connect(self._address)
                sender.sendmsg(["\n".join(lines).encode()], rights if fds else [])
            except OSError as error:
                log.warning("cannot send %s to systemd: %s", lines[0], error)

    def send_status(self, text: str) -> None:
        """Set the line that ``systemctl status`` shows."""
        self.send(f"STATUS={_one_line(text)}")

    def store_fd(self, name: str, fd: int) -> None:
        """Store a copy of a descriptor in systemd, for the next process of the unit.

        `read_inherited_fds` returns it after a restart, a crash or a kill, if the
        unit has ``FileDescriptorStoreMax=``. A descriptor stored before under the
        name is removed. systemd drops a descriptor whose other end is closed.

        Args:
            name: Up to 255 printable ASCII characters without a colon.
            fd: The descriptor; it stays open in this process.
        """
        self.forget_fd(name)
        self.send("FDSTORE=1", f"FDNAME={name}", fds=[fd])

    def forget_fd(self, name: str) -> None:
        """Remove the stored descriptor of a name."""
        self.send("FDSTOREREMOVE=1", f"FDNAME={name}")


def read_inherited_fds(environ: Mapping[str, str], pid: int) -> dict[str, int]:
    """Descriptors that systemd passed at the start, by name.

    Child processes do not inherit them. The caller must close all of them, and
    remove those from the store that it does not use.

    Args:
        environ: Environment of the process.
        pid: Id of the process: the variables of a parent are ignored.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return {}
    count = int(environ.get("LISTEN_FDS", "0"))
    names = environ.get("LISTEN_FDNAMES", "").split(":")[:count]
    found = {name: FIRST_PASSED_FD + index for index, name in enumerate(names)}
    for fd in found.values():
        os.set_inheritable(fd, False)
    return found


def read_watchdog_timeout_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Watchdog time-out of the unit; None without one."""
    timeout_us = environ.get("WATCHDOG_USEC")
    if timeout_us is None or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(timeout_us) / 1e6


def _one_line(words: str) -> str:
    return " ".join(words.split())
