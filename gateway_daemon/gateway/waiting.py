"""Urgent messages that found no room: tried again before anything that came later.

Their sender keeps them, and would send them again only when a receipt is overdue;
until then, with room again, whatever came later would pass them. So while the disk is
full what is less urgent is not even tried: room may come between two tries.
"""

from collections import deque
from collections.abc import Callable

from gateway_daemon.gateway.inbox import URGENT_FROM
from gateway_daemon.gateway.intake import Taken

RETRY_S = 0.5

MOST_WAITING = 500
"""More their senders keep alone."""


class Waiting:
    """Holds them in memory; no receipt is given for them meanwhile."""

    def __init__(self) -> None:
        self._held: deque[Taken] = deque(maxlen=MOST_WAITING)
        self._is_disk_full = False

    def add(self, taken: Taken, *, is_disk_full: bool = True) -> None:
        """A message was refused; what is urgent and has an id waits."""
        if taken.draft.priority >= URGENT_FROM and taken.nameless is None:
            self._held.append(taken)
            self._is_disk_full = is_disk_full

    def holds_back(self, taken: Taken) -> bool:
        """Whether a more urgent message must find room first.

        Not a nameless one: nobody sends it again.
        """
        if not self._is_disk_full or taken.nameless is not None:
            return False
        return any(each.draft.priority > taken.draft.priority for each in self._held)

    def wait_s(self) -> float | None:
        """How soon to try again; None when nothing waits."""
        return RETRY_S if self._held else None

    def stored(self, store: Callable[[list[Taken]], list[Taken]]) -> list[Taken]:
        """Try the most urgent one, and when there is room for it all the others.

        Args:
            store: Gives back what it stored; what it refuses it has added here.
        """
        if not self._held:
            return []
        first, *others = sorted(self._held, key=lambda each: -each.draft.priority)
        self._held.clear()
        found = store([first])
        if not found:
            self._held.extend(others)
            return []
        return found + (store(others) if others else [])
