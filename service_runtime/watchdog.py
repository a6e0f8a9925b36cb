"""Which loops of a process are alive. No thread, no I/O: whoever asks, is told.

A loop says how long it may be silent, and beats. A process with one loop that
hangs looks healthy from outside; so one late loop is enough to end it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Beat = Callable[[], None]


def unheard() -> None:
    """A beat that nobody listens for."""


@dataclass(eq=False)
class _Loop:
    """One loop, or one piece of work."""

    name: str
    silence_s: float
    last_s: float


class Pulse:
    """Listens to all loops of a process.

    Attributes:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._loops: list[_Loop] = []
        self._threads: dict[str, Callable[[], bool]] = {}

    @contextmanager
    def expects(self, name: str, silence_s: float) -> Iterator[Beat]:
        """Listen for the beats of a loop until the block ends.

        A piece of work that should end in time is a loop that never beats.

        Args:
            name: For people; several may share it.
            silence_s: How long it may go without a beat.
        """
        loop = _Loop(name, silence_s, self.clock())

        def beat() -> None:
            loop.last_s = self.clock()

        with self._lock:
            self._loops.append(loop)
        try:
            yield beat
        finally:
            with self._lock:
                self._loops.remove(loop)

    def watch(self, name: str, is_alive: Callable[[], bool]) -> None:
        """Ask somebody who cannot beat, such as a thread of a library."""
        self._threads[name] = is_alive

    def silences_s(self) -> dict[str, float]:
        """For how long each loop is silent; the longest of several of one name."""
        now_s = self.clock()
        with self._lock:
            told = sorted((now_s - loop.last_s, loop.name) for loop in self._loops)
        return {name: silence_s for silence_s, name in told}

    def late(self) -> tuple[str, ...]:
        """Names of those that are silent for too long; empty when all live."""
        now_s = self.clock()
        with self._lock:
            loops = list(self._loops)
        silent = [
            f"{loop.name} is silent for {now_s - loop.last_s:.0f} s"
            for loop in loops
            if now_s - loop.last_s > loop.silence_s
        ]
        dead = [
            f"{name} is dead" for name, lives in self._threads.items() if not lives()
        ]
        return (*silent, *dead)
