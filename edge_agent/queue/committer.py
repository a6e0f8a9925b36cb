"""The thread that ends each commit window; it starts when something waits."""

import threading
from collections.abc import Callable


class Committer:
    """Commits once, at most a window after it was woken.

    Args:
        window_s: Longest wait.
        commit: Does it; whatever it cannot write it wakes us for again.
    """

    def __init__(self, window_s: float, commit: Callable[[], None]) -> None:
        self._window_s = window_s
        self._commit = commit
        self._woken = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something waits. Callers hold one lock among themselves."""
        if self._thread is None:
            # A daemon: a process that forgets to close must still be able to end.
            self._thread = threading.Thread(
                target=self._run, name="queue commits", daemon=True
            )
            self._thread.start()
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """End the thread without a last commit."""
        self._stop.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._woken.wait()
            if self._stop.wait(self._window_s):
                return
            self._woken.clear()
            self._commit()
