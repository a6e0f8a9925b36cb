"""Sends one message through an overlay that is at rest, and says what it cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway_daemon.overlay.delay import COST, Cost
from gateway_daemon.overlay.split import Part

Forward = Callable[[int, int, int], Sequence[Part[int]]]
"""What a node does with a range: (own rank, low, high) to parts."""


class Arrival(NamedTuple):
    """A copy at a node.

    Attributes:
        hops: Overlay transmissions since the publisher.
        at_ms: When it arrived.
    """

    hops: int
    at_ms: float


AT_ONCE = Arrival(0, 0.0)


@dataclass(frozen=True)
class Spread:
    """What became of a message.

    Attributes:
        arrivals: First arrival by rank, of subscribers only.
        messages: All overlay transmissions.
        widest: Most copies that one node sent.
        doubles: Copies beyond the first that subscribers received.
    """

    arrivals: Mapping[int, Arrival]
    messages: int
    widest: int
    doubles: int


def spread(
    start: Part[int], forward: Forward, at: Arrival = AT_ONCE, cost: Cost = COST
) -> Spread:
    """Follow a range multicast to its end.

    Args:
        start: The first node and the subscribers' range.
        forward: What every node does.
        at: When and after how many hops the first node got the message.
        cost: What a hop costs; larger ranges are sent first.
    """
    arrivals: dict[int, Arrival] = {}
    waiting = [(start, at)]
    messages = widest = doubles = 0
    while waiting:
        (own, low, high), here = waiting.pop()
        if start.low <= own < start.high:
            doubles += own in arrivals
            arrivals.setdefault(own, here)
        parts = sorted(forward(own, low, high), key=lambda p: p.low - p.high)
        messages += len(parts)
        widest = max(widest, len(parts))
        for number, part in enumerate(parts, 1):
            then_ms = here.at_ms + cost.at_child(number)
            waiting.append((part, Arrival(here.hops + 1, then_ms)))
    return Spread(arrivals, messages, widest, doubles)
