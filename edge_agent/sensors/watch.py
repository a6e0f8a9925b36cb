"""Looks at something between its readings and tells when it has changed."""

import threading
from collections.abc import Callable


class Watch:
    """A thread that compares what it sees with what it saw.

    Args:
        name: Of the sensor, for the thread and the log.
        look: What is seen now; must not raise.
        on_change: Called in the thread after a change; must not raise.
        period_s: Time between two looks.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], object],
        on_change: Callable[[], object],
        period_s: float,
    ) -> None:
        self._look = look
        self._on_change = on_change
        self._period_s = period_s
        self._seen: object = None
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"watch {name}", daemon=True
        )

    def start(self) -> None:
        """Take the first look, then one after each period."""
        self._seen = self._look()
        self._thread.start()

    def step(self) -> None:
        """Take one look."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            self._on_change()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self.step()
