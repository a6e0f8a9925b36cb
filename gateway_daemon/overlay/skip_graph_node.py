"""Skip Graph node: one key's links on all levels, and whether its publisher rests.

Level 0 contains all keys. To enter level l, the search follows the list below to the
right until a node shares l bits (`LevelSearch`). A node that finds no match starts a
new list at this level and stops climbing. From time to time one level is searched
again, so that lists started concurrently, or separated by a partition, merge.

A publisher sends nothing while its topic has no subscriber. The last publisher of a
topic in key order, the rendezvous point, sees at its right link whether there is one.
This state is passed to the left from publisher to publisher: P messages when the first
subscriber joins or the last one leaves. A packet may be lost, so a suspended publisher
repeats its query.

Both are pure state machines of one key.

Source: Aspnes and Shah, SODA 2003 (the levels); the repeated search is ours. SG-TBPS,
Banno et al., JIP 23(2), 2015 (the suspension; its messages are ours).
"""

from typing import NamedTuple

from gateway_daemon.overlay.ddll import (
    DEFAULT_PING_TIMES,
    LinkSend,
    PingTimes,
    RingLink,
    is_between,
)
from gateway_daemon.overlay.keys import (
    VECTOR_BITS,
    OverlayKey,
    TopicRole,
    common_prefix_bits,
    membership_vector,
)
from gateway_daemon.overlay.messages import (
    HasSubscribers,
    HasSubscribersQuery,
    LevelPacket,
    LevelSearch,
    LevelSearchReply,
    LinkStatus,
    Locate,
    Located,
    NodePacket,
    ProbeRequest,
    RankedNode,
    SkipGraphPacket,
)


class SuspensionSend(NamedTuple):
    """An action: send this packet to a neighbour."""

    to: OverlayKey
    packet: HasSubscribers | HasSubscribersQuery


class PublisherSuspension:
    """State of one publisher.

    Attributes:
        has_subscribers: Whether the topic has subscribers. True until known otherwise:
            an unnecessary message costs less than a lost warning.
    """

    def __init__(self, key: OverlayKey) -> None:
        self.has_subscribers = True
        self._key = key
        self._left: OverlayKey | None = None
        self._right: OverlayKey | None = None

    def set_neighbours(
        self, left: OverlayKey, right: OverlayKey
    ) -> list[SuspensionSend]:
        """Set the links of level 0, after every change of them."""
        is_new = right != self._right
        self._left, self._right = left, right
        if not is_new:
            return []
        if self._is_before(right):
            return [SuspensionSend(right, HasSubscribersQuery())]
        # Ours is the last publisher's key: we are the rendezvous point.
        is_heard = (right.topic, right.role) == (self._key.topic, TopicRole.SUBSCRIBER)
        return self._now(is_heard)

    def repeat_query(self) -> list[SuspensionSend]:
        """Query again while suspended: that a subscriber came may have been lost."""
        right = self._right
        if self.has_subscribers or right is None or not self._is_before(right):
            return []
        return [SuspensionSend(right, HasSubscribersQuery())]

    def receive(
        self, sender: OverlayKey, packet: HasSubscribers | HasSubscribersQuery
    ) -> list[SuspensionSend]:
        """Process a packet of a neighbour; ignore one of a former neighbour."""
        match packet:
            case HasSubscribersQuery():
                return [SuspensionSend(sender, HasSubscribers(self.has_subscribers))]
            case HasSubscribers(is_heard) if sender == self._right:
                return self._now(is_heard)
        return []

    def _now(self, is_heard: bool) -> list[SuspensionSend]:
        is_change, self.has_subscribers = is_heard != self.has_subscribers, is_heard
        left = self._left
        if not is_change or left is None:
            return []
        is_before = self._is_publisher_of_topic(left) and left < self._key
        return [SuspensionSend(left, HasSubscribers(is_heard))] if is_before else []

    def _is_before(self, right: OverlayKey) -> bool:
        return self._is_publisher_of_topic(right) and self._key < right

    def _is_publisher_of_topic(self, key: OverlayKey) -> bool:
        """Whether a key is a publisher's key of our topic.

        On the ring the right neighbour of the last publisher may be the first one
        again; such a key is smaller than ours.
        """
        return (key.topic, key.role) == (self._key.topic, self._key.role)


MAX_SEARCH_HOPS = 64
"""Limit of a search along one level; of 64 nodes one shares another bit, if any."""

UPPER_LEVEL_FACTOR = 3.0
"""Factor of the ping interval above level 0, where a crash costs only hops."""


class AddressedPacket(NamedTuple):
    """An action: send this packet to a key."""

    to: OverlayKey
    packet: NodePacket


class SkipGraphNode:
    """One key in all its lists.

    Attributes:
        key: The key.
        links: By level; in the last list it is alone or joining.
    """

    def __init__(self, key: OverlayKey, times: PingTimes = DEFAULT_PING_TIMES) -> None:
        self.key = key
        self._ping_times = (
            times,
            PingTimes(
                times.ping_interval_s * UPPER_LEVEL_FACTOR, times.answer_timeout_s
            ),
        )
        self._vector = _vector(key)
        self.links: list[RingLink[OverlayKey]] = [RingLink(key, times)]
        self._seek_s: float | None = None
        self._is_leaving = False
        self._next_level = 0
        self._entering_since_s = 0.0

    @property
    def has_joined(self) -> bool:
        """Whether it is in level 0, and so reachable."""
        return self.links[0].status is LinkStatus.IN

    def found_ring(self, now_s: float) -> None:
        """Start a ring of one."""
        self.links[0].found_ring(now_s)
        self._seek_s = now_s

    def join(self, near: OverlayKey, now_s: float) -> list[AddressedPacket]:
        """Join, or retry with another node; best the one that `Locate` found."""
        self._seek_s = self._seek_s or now_s
        return self._from(0, self.links[0].join(near, now_s))

    def leave(self, now_s: float) -> list[AddressedPacket]:
        """Leave all lists; `has_left` when the neighbours have confirmed."""
        self._seek_s = None
        self._is_leaving = True
        return [
            mail
            for level, link in enumerate(self.links)
            for mail in self._from(level, link.leave(now_s))
        ]

    @property
    def has_left(self) -> bool:
        """Whether it has left all lists."""
        return all(link.status is LinkStatus.OUT for link in self.links)

    def right_neighbours(self) -> list[RankedNode[OverlayKey]]:
        """Return known nodes right of it, nearest first, without wrapping around."""
        known: dict[OverlayKey, int] = {}
        for level, link in enumerate(self.links):
            if link.status is LinkStatus.IN and self.key < link.right:
                known.setdefault(link.right, 2**level - 1)
        # The left neighbour of a live node repairs if one link between them is broken.
        if (skipped := self.links[0].skipped) is not None and self.key < skipped:
            known.setdefault(skipped, 0)
        return [RankedNode(key, known[key]) for key in sorted(known)]

    def left_neighbours(self) -> list[OverlayKey]:
        """Return known nodes left of it in key order, without wrapping around."""
        known = {link.left for link in self.links if link.status is LinkStatus.IN}
        known.update(self.links[0].lefts)
        return sorted(key for key in known if key < self.key)

    def nearest_left_of(self, key: OverlayKey) -> OverlayKey:
        """Return the known node that is nearest left of a key, itself included."""
        best = self.key
        for link in self.links:
            for other in (link.right, link.left):  # other levels may be outdated
                if is_between(best, other, key):
                    best = other
        return best

    def receive(
        self, sender: OverlayKey, packet: SkipGraphPacket, now_s: float
    ) -> list[AddressedPacket]:
        """Process a packet for this key."""
        done: list[AddressedPacket] = []
        match packet:
            case LevelPacket(level, inner) if level < len(self.links):
                done = self._from(
                    level, self.links[level].receive(sender, inner, now_s)
                )
            case Locate(origin) if self.has_joined:
                near = self.nearest_left_of(origin)
                answer = AddressedPacket(origin, Located())
                done = [answer if near == self.key else AddressedPacket(near, packet)]
            case Located():
                done = self._located(sender, now_s)
            case LevelSearch():
                done = self._seek(packet)
            case LevelSearchReply(level, is_there):
                done = self._climb(level, sender if is_there else None, now_s)
            case ProbeRequest(level) if level < len(self.links):
                done = self._from(level, self.links[level].probe(sender))
        return done

    def probe(self, peer: OverlayKey) -> list[AddressedPacket]:
        """Query a node known from elsewhere."""
        return self._from(0, self.links[0].probe(peer))

    def next_due_s(self) -> float | None:
        """Return when `on_timer` has something to do."""
        dues = (self._seek_s, *(link.next_due_s() for link in self.links))
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def on_timer(self, now_s: float) -> list[AddressedPacket]:
        """Ping neighbours, and search a level."""
        done = [
            mail
            for level, link in enumerate(self.links)
            for mail in self._from(level, link.on_timer(now_s))
        ]
        if self._seek_s is not None and self._seek_s <= now_s:
            self._seek_s = now_s + self._ping_times[0].ping_interval_s
            done += self._search_level(now_s)
        return done

    def _located(self, near: OverlayKey, now_s: float) -> list[AddressedPacket]:
        link = self.links[0]
        if self._is_leaving:  # an answer that came late
            return []
        if link.status is LinkStatus.OUT:
            return self.join(near, now_s)
        link.set_start(near)
        return self._from(0, link.probe(near))

    def _seek(self, packet: LevelSearch) -> list[AddressedPacket]:
        level, origin, hops = packet.level, packet.origin, packet.hops
        if level >= 1 and len(self.links) > level and self._shares(origin, level):
            return [AddressedPacket(origin, LevelSearchReply(level, is_there=True))]
        if level - 1 >= len(self.links):
            return [AddressedPacket(origin, LevelSearchReply(level, is_there=False))]
        right = self.links[level - 1].right
        is_round = right == origin or is_between(self.key, origin, right)
        if is_round or right == self.key or hops >= MAX_SEARCH_HOPS:
            return [AddressedPacket(origin, LevelSearchReply(level, is_there=False))]
        return [AddressedPacket(right, LevelSearch(level, origin, hops + 1))]

    def _shares(self, other: OverlayKey, level: int) -> bool:
        return common_prefix_bits(self._vector, _vector(other)) >= level

    def _search_level(self, now_s: float) -> list[AddressedPacket]:
        """Search the levels in turn; drop those above one where we are alone."""
        while len(self.links) > 1 and self._is_alone(-2):
            self.links.pop()
        top = self.links[-1]
        if len(self.links) > 1 and top.status is not LinkStatus.IN:
            if (
                now_s - self._entering_since_s
                > UPPER_LEVEL_FACTOR * self._ping_times[0].answer_timeout_s
            ):
                self.links.pop()
            return []
        if not self.has_joined or self._is_alone(0):
            return []
        reach = len(self.links) - (1 if self._is_alone(-1) else 0)
        self._next_level = self._next_level % reach + 1
        if self._next_level > VECTOR_BITS:
            return []
        return [
            AddressedPacket(
                self.links[self._next_level - 1].right,
                LevelSearch(self._next_level, self.key),
            )
        ]

    def _is_alone(self, level: int) -> bool:
        link = self.links[level]
        return link.status is LinkStatus.IN and link.right == self.key == link.left

    def _climb(
        self, level: int, found: OverlayKey | None, now_s: float
    ) -> list[AddressedPacket]:
        if level < len(self.links):
            return (
                [AddressedPacket(found, ProbeRequest(level))]
                if found is not None
                else []
            )
        if level > len(self.links) or not self.has_joined:
            return []
        link = RingLink(self.key, self._ping_times[1])
        self.links.append(link)
        self._entering_since_s = now_s
        if found is None:
            link.found_ring(now_s)
            return []
        self._seek_s = now_s + self._ping_times[0].answer_timeout_s
        return self._from(level, link.join(found, now_s))

    @staticmethod
    def _from(level: int, done: list[LinkSend[OverlayKey]]) -> list[AddressedPacket]:
        return [AddressedPacket(to, LevelPacket(level, packet)) for to, packet in done]


def _vector(key: OverlayKey) -> int:
    return membership_vector(f"{key.role} {key.topic} {key.gateway}")
