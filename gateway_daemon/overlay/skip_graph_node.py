"""Skip Graph node: the links of one key on all levels, and the search for more.

Level 0 contains all keys. To enter level l, the search follows the list below to the
right until a node shares l bits (`LevelSearch`). A node that finds no match starts a
new list at this level and stops climbing. From time to time one level is searched
again, so that lists started concurrently, or separated by a partition, merge. Pure
state machine of one key.

Source: Aspnes and Shah, SODA 2003 (the levels); the repeated search is ours.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gateway_daemon.overlay.ddll import (
    RHYTHM,
    Link,
    LinkPacket,
    Rhythm,
    Status,
    To,
    is_between,
)
from gateway_daemon.overlay.keys import BITS, Key, common_bits, vector_of
from gateway_daemon.overlay.messages import Placed
from gateway_daemon.overlay.publisher_suspension import AskHeard, Heard

MOST_HOPS = 64
"""Limit of a search along one level; of 64 nodes one shares another bit, if any."""

SLOWER = 3.0
"""Factor of the ping interval above level 0, where a crash costs only hops."""


@dataclass(frozen=True)
class OnLevel:
    """A link packet for the list of one level."""

    level: int
    packet: LinkPacket[Key]


@dataclass(frozen=True)
class Locate:
    """Search for the nearest node left of ``origin``, sent to ever nearer nodes."""

    origin: Key


@dataclass(frozen=True)
class Located:
    """Answer to `Locate`: the sender is the nearest node that it knows."""


@dataclass(frozen=True)
class Seek:
    """Search for a node that shares ``level`` bits, sent right one level below."""

    level: int
    origin: Key
    hops: int = 0


@dataclass(frozen=True)
class Found:
    """Answer to `LevelSearch`: the sender matches, or no node does."""

    level: int
    is_there: bool


@dataclass(frozen=True)
class Meet:
    """Request to query the sender, which is in the list of this level."""

    level: int


PlacePacket = OnLevel | Locate | Located | Seek | Found | Meet
Said = PlacePacket | Heard | AskHeard


class Mail(NamedTuple):
    """An action: send this packet to a key."""

    to: Key
    packet: Said


class Place:
    """One key in all its lists.

    Attributes:
        key: The key.
        links: By level; in the last list it is alone or joining.
    """

    def __init__(self, key: Key, times: Rhythm = RHYTHM) -> None:
        self.key = key
        self._rhythms = (
            times,
            Rhythm(times.ping_interval_s * SLOWER, times.answer_timeout_s),
        )
        self._vector = _vector(key)
        self.links: list[Link[Key]] = [Link(key, times)]
        self._seek_s: float | None = None
        self._next_level = 0
        self._entering_since_s = 0.0

    @property
    def has_joined(self) -> bool:
        """Whether it is in level 0, and so reachable."""
        return self.links[0].status is Status.IN

    def found_ring(self, now_s: float) -> None:
        """Start a ring of one."""
        self.links[0].found_ring(now_s)
        self._seek_s = now_s

    def join(self, near: Key, now_s: float) -> list[Mail]:
        """Join, or retry with another node; best the one that `Locate` found."""
        self._seek_s = self._seek_s or now_s
        return self._from(0, self.links[0].join(near, now_s))

    def leave(self, now_s: float) -> list[Mail]:
        """Leave all lists; `has_left` when the neighbours have confirmed."""
        self._seek_s = None
        return [
            mail
            for level, link in enumerate(self.links)
            for mail in self._from(level, link.leave(now_s))
        ]

    @property
    def has_left(self) -> bool:
        """Whether it has left all lists."""
        return all(link.status is Status.OUT for link in self.links)

    def right_neighbours(self) -> list[Placed[Key]]:
        """Return known nodes right of it, nearest first, without wrapping around."""
        known: dict[Key, int] = {}
        for level, link in enumerate(self.links):
            if link.status is Status.IN and self.key < link.right:
                known.setdefault(link.right, 2**level - 1)
        return [Placed(key, known[key]) for key in sorted(known)]

    def left_neighbours(self) -> list[Key]:
        """Return known nodes left of it in key order, without wrapping around."""
        known = {link.left for link in self.links if link.status is Status.IN}
        known.update(self.links[0].lefts)
        return sorted(key for key in known if key < self.key)

    def nearest_left_of(self, key: Key) -> Key:
        """Return the known node that is nearest left of a key, itself included."""
        best = self.key
        for link in self.links:
            for other in (link.right, link.left):  # other levels may be outdated
                if is_between(best, other, key):
                    best = other
        return best

    def receive(self, sender: Key, packet: PlacePacket, now_s: float) -> list[Mail]:
        """Process a packet for this key."""
        done: list[Mail] = []
        match packet:
            case OnLevel(level, inner) if level < len(self.links):
                done = self._from(
                    level, self.links[level].receive(sender, inner, now_s)
                )
            case Locate(origin) if self.has_joined:
                near = self.nearest_left_of(origin)
                answer = Mail(origin, Located())
                done = [answer if near == self.key else Mail(near, packet)]
            case Located():
                done = self._located(sender, now_s)
            case Seek():
                done = self._seek(packet)
            case Found(level, is_there):
                done = self._climb(level, sender if is_there else None, now_s)
            case Meet(level) if level < len(self.links):
                done = self._from(level, self.links[level].probe(sender))
        return done

    def probe(self, peer: Key) -> list[Mail]:
        """Query a node known from elsewhere."""
        return self._from(0, self.links[0].probe(peer))

    def next_due_s(self) -> float | None:
        """Return when `on_timer` has something to do."""
        dues = (self._seek_s, *(link.next_due_s() for link in self.links))
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def on_timer(self, now_s: float) -> list[Mail]:
        """Ping neighbours, and search a level."""
        done = [
            mail
            for level, link in enumerate(self.links)
            for mail in self._from(level, link.on_timer(now_s))
        ]
        if self._seek_s is not None and self._seek_s <= now_s:
            self._seek_s = now_s + self._rhythms[0].ping_interval_s
            done += self._search_level(now_s)
        return done

    def _located(self, near: Key, now_s: float) -> list[Mail]:
        link = self.links[0]
        if link.status is Status.OUT:
            return self.join(near, now_s)
        link.set_start(near)
        return self._from(0, link.probe(near))

    def _seek(self, packet: Seek) -> list[Mail]:
        level, origin, hops = packet.level, packet.origin, packet.hops
        if level >= 1 and len(self.links) > level and self._shares(origin, level):
            return [Mail(origin, Found(level, is_there=True))]
        if level - 1 >= len(self.links):
            return [Mail(origin, Found(level, is_there=False))]
        right = self.links[level - 1].right
        is_round = right == origin or is_between(self.key, origin, right)
        if is_round or right == self.key or hops >= MOST_HOPS:
            return [Mail(origin, Found(level, is_there=False))]
        return [Mail(right, Seek(level, origin, hops + 1))]

    def _shares(self, other: Key, level: int) -> bool:
        return common_bits(self._vector, _vector(other)) >= level

    def _search_level(self, now_s: float) -> list[Mail]:
        """Search the levels in turn; drop those above one where we are alone."""
        while len(self.links) > 1 and self._is_alone(-2):
            self.links.pop()
        top = self.links[-1]
        if len(self.links) > 1 and top.status is not Status.IN:
            if (
                now_s - self._entering_since_s
                > SLOWER * self._rhythms[0].answer_timeout_s
            ):
                self.links.pop()
            return []
        if not self.has_joined or self._is_alone(0):
            return []
        reach = len(self.links) - (1 if self._is_alone(-1) else 0)
        self._next_level = self._next_level % reach + 1
        if self._next_level > BITS:
            return []
        return [
            Mail(
                self.links[self._next_level - 1].right, Seek(self._next_level, self.key)
            )
        ]

    def _is_alone(self, level: int) -> bool:
        link = self.links[level]
        return link.status is Status.IN and link.right == self.key == link.left

    def _climb(self, level: int, found: Key | None, now_s: float) -> list[Mail]:
        if level < len(self.links):
            return [Mail(found, Meet(level))] if found is not None else []
        if level > len(self.links) or not self.has_joined:
            return []
        link = Link(self.key, self._rhythms[1])
        self.links.append(link)
        self._entering_since_s = now_s
        if found is None:
            link.found_ring(now_s)
            return []
        self._seek_s = now_s + self._rhythms[0].answer_timeout_s
        return self._from(level, link.join(found, now_s))

    @staticmethod
    def _from(level: int, done: list[To[Key]]) -> list[Mail]:
        return [Mail(to, OnLevel(level, packet)) for to, packet in done]


def _vector(key: Key) -> int:
    return vector_of(f"{key.role} {key.topic} {key.gateway}")
