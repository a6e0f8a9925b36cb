"""Watchdog for the loops of a process. No thread, no I/O: it is checked by its caller.

Each loop registers with its longest time between two heartbeats. A process with one
hung loop looks healthy from outside, so one late loop is enough to restart it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Heartbeat = Callable[[], None]

MAX_SILENCE_S = 60.0
"""Limit of a loop that itself waits for seconds only: the longest write on a failing
disk. After that the loop counts as hung."""


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
