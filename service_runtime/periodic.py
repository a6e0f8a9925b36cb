"""Background services of a daemon: their interface, and calls at a fixed interval."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from service_runtime.lifecycle import start_watched_loop
from service_runtime.watchdog import Heartbeat, LoopWatchdog

PERIODIC_TIMEOUT_S = 660.0
"""Longer than a new broker table may block the lanes that the calls read: 600 s."""


class PeriodicCaller:
    """Calls functions at a fixed interval in a thread.

    Args:
        calls: Functions to call in turn; they must not block for long.
        interval_s: Time between two rounds.
        watchdog: The watchdog of the process.
    """

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        interval_s: float,
        watchdog: LoopWatchdog,
    ) -> None:
        self._calls = tuple(calls)
        self._every_s = interval_s
        self._pulse = watchdog
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = start_watched_loop(
            self._pulse, "repeat", PERIODIC_TIMEOUT_S, self._run
        )

    def stop(self) -> None:
        """Stop after the call in progress."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, heartbeat: Heartbeat) -> None:
        while not self._stop.wait(self._every_s):
            heartbeat()
            for call in self._calls:
                call()


class Service(Protocol):
    """A part of a program that runs beside its main loop."""

    def start(self) -> None:
        """Start."""

    def stop(self) -> None:
        """Stop."""
