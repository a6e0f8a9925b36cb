"""The queue in front of a forwarder: the urgent message first, and nobody starves.

A priority that only shortens the path is cosmetic: once a gateway is busy, its queue
is where a message waits.
"""

from collections import deque
from typing import Generic, TypeVar

from spatial_mqtt.priority import LADDER

T = TypeVar("T")

AGEING_S = 2.0
"""So long a wait counts as one priority more."""


class Backlog(Generic[T]):
    """Messages that wait, in the order of their urgency.

    Ageing lifts a message step by step, but never to the top: nothing routine goes
    before an emergency.
    """

    def __init__(self, ageing_s: float = AGEING_S) -> None:
        self._ageing_s = ageing_s
        self._lines: dict[int, deque[tuple[float, T]]] = {
            priority: deque() for priority in LADDER.descending()
        }

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def put(self, item: T, priority: int, now_s: float) -> None:
        """Let a message wait."""
        self._lines[priority].append((now_s, item))

    def take(self, now_s: float) -> T:
        """The message to serve next; of two as urgent, who waits longer.

        Raises:
            IndexError: Nobody waits.
        """
        waiting = [
            (self._urgency(priority, now_s - line[0][0]), -line[0][0], priority)
            for priority, line in self._lines.items()
            if line
        ]
        if not waiting:
            raise IndexError("take from an empty backlog")
        return self._lines[max(waiting)[-1]].popleft()[1]

    def _urgency(self, priority: int, waited_s: float) -> int:
        if priority == LADDER.top:
            return priority
        return min(priority + int(waited_s / self._ageing_s), LADDER.top - 1)
