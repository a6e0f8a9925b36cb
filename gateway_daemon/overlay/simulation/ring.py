"""One list under joins, leaves and crashes, in simulated time."""

from collections.abc import Collection
from heapq import heappop, heappush
from itertools import count
from random import Random

from gateway_daemon.overlay.ddll import Link, LinkPacket, Rhythm, Status, To

QUICK = Rhythm(ping_s=1.0, answer_s=0.5)
LATENCY_S = (0.005, 0.100)
"""Least and most time of a packet under way; later ones may pass earlier ones."""


MEETINGS = 0.2
"""So often a node looks at somebody by chance, beside its left neighbour."""


class Ring:
    """Nodes of one list and the packets between them.

    Attributes:
        now_s: Simulated time.
        links: Nodes that are alive, by key.
        cut_off: Nodes behind a cut: no packet passes between them and the others.
        known: Everybody who ever was there, as a directory has it.
        packets: Packets sent so far.
    """

    def __init__(self, seed: int, rhythm: Rhythm = QUICK) -> None:
        self.now_s = 0.0
        self.links: dict[int, Link[int]] = {}
        self.cut_off: set[int] = set()
        self.known: list[int] = []
        self.packets = 0
        self._rhythm = rhythm
        self._chance = Random(seed)
        self._events: list[tuple[float, int, int, tuple[int, LinkPacket[int]] | None]]
        self._events = []
        self._order = count()
        self._planned: dict[int, float] = {}

    def join(self, key: int, near: int | None = None) -> None:
        """Start a node; without anybody near it founds the list."""
        self.known.append(key)
        link = self.links[key] = Link(key, self._rhythm)
        if near is None:
            link.found(self.now_s)
            self._plan(key)
        else:
            self._send(key, link.join(near, self.now_s))

    def leave(self, key: int) -> None:
        """Let a node leave in order."""
        self._send(key, self.links[key].leave(self.now_s))

    def crash(self, key: int) -> None:
        """Stop a node; nobody is told."""
        del self.links[key]
        self._planned.pop(key, None)

    def run(self, for_s: float) -> None:
        """Let time pass."""
        until_s = self.now_s + for_s
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, key, what = heappop(self._events)
            link = self.links.get(key)
            if link is None:
                continue
            if what is None:
                done = link.due(self.now_s)
                if self._chance.random() < MEETINGS:
                    done += link.meet(self._chance.choice(self.known))
            else:
                done = link.receive(*what, self.now_s)
            self._send(key, done)
        self.now_s = until_s

    def inside(self) -> list[int]:
        """Keys of those who are in, in order."""
        return sorted(k for k, link in self.links.items() if link.status is Status.IN)

    def is_whole(self, of: Collection[int] | None = None) -> bool:
        """Whether the links of those who are in are the sorted ring, both ways.

        Args:
            of: Only these, when the network is cut.
        """
        keys = [key for key in self.inside() if of is None or key in of]
        return all(
            self.links[key].right == after and self.links[after].left == key
            for key, after in zip(keys, [*keys[1:], *keys[:1]], strict=True)
        )

    def walk(self, start: int) -> list[int]:
        """Keys along the right links, until they come round or lead nowhere."""
        found, at = [start], self.links[start].right
        while at != start and at in self.links and len(found) <= len(self.links):
            found.append(at)
            at = self.links[at].right
        return found

    def _send(self, key: int, done: list[To[int]]) -> None:
        for to, packet in done:
            self.packets += 1
            if (key in self.cut_off) != (to in self.cut_off):
                continue
            at_s = self.now_s + self._chance.uniform(*LATENCY_S)
            heappush(self._events, (at_s, next(self._order), to, (key, packet)))
        self._plan(key)

    def _plan(self, key: int) -> None:
        due_s = self.links[key].next_due_s()
        if due_s is not None and due_s != self._planned.get(key):
            self._planned[key] = due_s
            heappush(self._events, (due_s, next(self._order), key, None))
