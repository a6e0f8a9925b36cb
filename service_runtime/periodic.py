"""Does something again and again, in a thread of its own.

What runs beside a gateway or a Manager.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from service_runtime.lifecycle import start_loop
from service_runtime.watchdog import Beat, Pulse

SILENCE_S = 660.0
"""A new table may hold the lanes for ten minutes, and we look at them."""


class Repeat:
    """Calls something at a steady pace.

    Args:
        calls: What to call; must not block for long.
        every_s: Time between two calls.
        pulse: Listens to our loop.
    """

    def __init__(
        self, calls: Sequence[Callable[[], object]], every_s: float, pulse: Pulse
    ) -> None:
        self._calls = tuple(calls)
        self._every_s = every_s
        self._pulse = pulse
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = start_loop(self._pulse, "repeat", SILENCE_S, self._run)

    def stop(self) -> None:
        """End; a call that runs is waited for."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, beat: Beat) -> None:
        while not self._stop.wait(self._every_s):
            beat()
            for call in self._calls:
                call()


class Part(Protocol):
    """Something that runs beside the main loop."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""
