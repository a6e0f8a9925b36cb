"""Overlay node of a gateway: its keys, its publications and its subscriptions.

A gateway has a *home* key for its lifetime, a subscriber key for each area its clients
subscribe to, and a publisher key for each area they publish in. A publication goes to
several areas and ends when all of them have ended.

Pure state machine: methods take the time and collect their output in an `Outbox`.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from gateway_daemon.overlay.ddll import DEFAULT_PING_TIMES, PingTimes, RingLink
from gateway_daemon.overlay.forwarder import Forwarder
from gateway_daemon.overlay.keys import (
    OverlayKey,
    TopicRole,
    publication_areas,
    subscriber_range,
    subscription_area,
    valley_of,
)
from gateway_daemon.overlay.messages import (
    CarriedMessage,
    CopyReceipt,
    DeliverMessage,
    ForwarderAction,
    ForwarderPacket,
    HasSubscribers,
    HasSubscribersQuery,
    Locate,
    MessageCopy,
    OpenPublications,
    OverlayMessage,
    PacketBody,
    PriorityBacklog,
    PublicationDone,
    PublicationResult,
    RangeReport,
    SendPacket,
    decode_carried,
)
from gateway_daemon.overlay.peers import (
    DEFAULT_TIMEOUTS,
    PeerSummary,
    PeerTable,
    ReplyTimeouts,
    RoundTripTimes,
)
from gateway_daemon.overlay.skip_graph_node import (
    AddressedPacket,
    PublisherSuspension,
    SkipGraphNode,
    SuspensionSend,
)
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import is_system_topic, matches


class OutgoingPacket(NamedTuple):
    """A packet to send."""

    to: OverlayKey
    sender: OverlayKey
    packet: PacketBody


@dataclass
class Outbox:
    """Output of a node since the last `pop_outbox`.

    Attributes:
        packets: Packets to send.
        received: Messages to store for our clients before the packets are sent.
        results: Results of our publications.
        reported_ids: Message of each report among the packets, by its place there.
    """

    packets: list[OutgoingPacket] = field(default_factory=list)
    received: list[tuple[OverlayMessage, CarriedMessage]] = field(default_factory=list)
    results: list[PublicationResult] = field(default_factory=list)
    reported_ids: dict[int, str] = field(default_factory=dict)

    def refuse(self, message_ids: Collection[str]) -> None:
        """Report these messages as not whole: they could not be stored."""
        for place, message_id in self.reported_ids.items():
            letter = self.packets[place]
            if message_id in message_ids and isinstance(letter.packet, RangeReport):
                report = msgspec.structs.replace(
                    letter.packet, is_whole=False, is_rest_whole=False
                )
                self.packets[place] = letter._replace(packet=report)
        self.results = [
            each._replace(
                is_complete=each.is_complete and each.message_id not in message_ids
            )
            for each in self.results
        ]


MAX_SEEN = 10_000

MAX_EARLY = 64
"""Copies that wait until a key has joined; the oldest are given up."""

ALONE_TIMEOUT_S = 3.0
"""A node that finds no peer for this long starts a ring, which may merge later."""

BUSY_QUEUE = 4
"""Copies in our queue from which the uplink of the valley counts as narrow."""

JOIN_RATE = 4
"""Join attempts within the timeout of an answer."""

MAX_JOIN_TRIES = 32
"""Join attempts after which the node starts a ring: the peer has crashed."""

JOIN_SPACING = 0.5
"""Interval of the first join attempts of publisher keys, in timeouts of an answer.

When the brokers are lost, a gateway publishes in many areas at once. The joins of all
gateways at once would fill a narrow link, and emergencies would wait behind them.
"""

MIN_UPPER_LEVELS = 2
"""Upper levels with which a publisher key publishes itself before it knows heads."""

PUBLISHER_IDLE_S = 1800.0
"""A publisher key that is unused for this long is removed."""


class OverlayNode:
    """One gateway.

    Args:
        name: As `GatewayName` formats it.
        choose: Chooses one of several keys at random.
        times: Ping times of the links.
        timeouts: Timeouts of the forwarders.
        numbers: Numbers of their copies.

    Attributes:
        home: Key for the node's lifetime.
        round_trips: Round-trip times of the peers.
        is_backbone_down: Whether the backbone is out of reach, so that only a slow
            radio may be left; set by the owner.
    """

    def __init__(
        self,
        name: str,
        choose: Callable[[Sequence[OverlayKey]], OverlayKey],
        times: PingTimes = DEFAULT_PING_TIMES,
        timeouts: ReplyTimeouts = DEFAULT_TIMEOUTS,
        *,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.home = _home(name)
        self.is_backbone_down = False
        self._name = name
        self._choose = choose
        self._ping_times = times
        self._join_spacing_s = JOIN_SPACING * times.answer_timeout_s
        self._timeouts = timeouts
        self._numbers = numbers
        self.round_trips: RoundTripTimes[OverlayKey] = RoundTripTimes(
            timeouts, lambda key: key.gateway
        )
        self._places: dict[OverlayKey, SkipGraphNode] = {}
        self._forwarders: dict[OverlayKey, Forwarder[OverlayKey]] = {}
        self._suspensions: dict[OverlayKey, PublisherSuspension] = {}
        self._links: dict[OverlayKey, tuple[OverlayKey, OverlayKey]] = {}
        self._used_s: dict[OverlayKey, float] = {}
        self._probe_due_s: dict[OverlayKey, float] = {}
        self._publisher_join_s = -math.inf
        self._contacts = PeerTable(name, times.answer_timeout_s)
        self._filters: frozenset[str] = frozenset()
        self._backlog: PriorityBacklog[OutgoingPacket] = PriorityBacklog()
        self._publications = OpenPublications()
        self._seen: dict[str, None] = {}
        self._own: list[OutgoingPacket] = []
        self._early: dict[OverlayKey, deque[OutgoingPacket]] = {}
        self._tries = 0
        self._todo = Outbox()

    @property
    def has_peers(self) -> bool:
        """Whether another gateway is on our ring."""
        place = self._places.get(self.home)
        if place is None or not place.has_joined:
            return False
        return any(
            key.gateway != self._name
            for each in self._places.values()
            for key in (each.links[0].left, each.links[0].right)
        )

    @property
    def queued_copies(self) -> int:
        """Copies that wait to be sent."""
        return len(self._backlog)

    def joined_keys(self) -> list[OverlayKey]:
        """Return our keys that are in the ring, in order."""
        return sorted(key for key, place in self._places.items() if place.has_joined)

    def neighbours(self, key: OverlayKey) -> tuple[OverlayKey, OverlayKey]:
        """Return left and right neighbour of one of our keys on level 0."""
        link = self._places[key].links[0]
        return link.left, link.right

    def links_of(self, key: OverlayKey) -> Sequence[RingLink[OverlayKey]]:
        """Return the links of one of our keys, by level."""
        return self._places[key].links

    def start(self, now_s: float) -> None:
        """Join as soon as a peer is known."""
        self._add(self.home, now_s)
        self._probe_due_s[self.home] = now_s + ALONE_TIMEOUT_S
        self._settle(now_s)

    def add_peer(self, name: str, now_s: float) -> None:
        """Add a peer by name; it need not be running."""
        if self._contacts.add(name) and self.home in self._places:
            self._send_all(self.home, [AddressedPacket(_home(name), Locate(self.home))])
            self._settle(now_s)

    def peer_summary(self) -> PeerSummary:
        """Return which of the known gateways answer."""
        return self._contacts.summary()

    def set_filters(self, filters: frozenset[str], now_s: float) -> None:
        """Set the filters of our clients."""
        self._filters = filters
        wanted = {
            OverlayKey(subscription_area(each), TopicRole.SUBSCRIBER, self._name)
            for each in filters
        }
        ours = {key for key in self._probe_due_s if key.role == TopicRole.SUBSCRIBER}
        for key in wanted - ours:
            self._add(key, now_s)
        for key in ours - wanted:
            self._leave(key, now_s)
        self._settle(now_s)

    def publish(self, message: OverlayMessage, topic: str, now_s: float) -> None:
        """Publish to all subscribers of a topic; a `PublicationResult` follows.

        Args:
            message: Its payload is an encoded `CarriedMessage`.
            topic: Topic that subscribers see.
            now_s: Now.

        Raises:
            TopicError: The topic cannot be published to.
        """
        stretches = publication_areas(topic)
        self._deliver(message)  # our own clients
        if not self.has_peers:
            self._todo.results.append(
                PublicationResult(message.id, 0, is_complete=False)
            )
            return
        self._publications.begin(message.id, stretches)
        for stretch in stretches:
            key = OverlayKey(stretch, TopicRole.PUBLISHER, self._name)
            self._used_s[key] = now_s
            if key not in self._probe_due_s:
                earliest_s = self._publisher_join_s + self._join_spacing_s
                self._publisher_join_s = max(now_s, earliest_s)
                self._add(key, self._publisher_join_s)
            self._publish(message, key, now_s)
        self._settle(now_s)

    def end_unreached(self, message_id: str) -> None:
        """Report a publication as ended without subscribers."""
        self._todo.results.append(PublicationResult(message_id, 0, is_complete=True))

    def receive(
        self, to: OverlayKey, sender: OverlayKey, packet: PacketBody, now_s: float
    ) -> None:
        """Process a packet for one of our keys; ignore it for an unknown key.

        Raises:
            OverlayError: A message in it does not parse.
        """
        if isinstance(packet, MessageCopy):
            decode_carried(packet.message)
        self._contacts.mark_alive(sender.gateway, now_s)
        self._process(OutgoingPacket(to, sender, packet), now_s)
        self._settle(now_s)

    def next_due_s(self) -> float | None:
        """When `due` has something to do."""
        dues = [place.next_due_s() for place in self._places.values()]
        dues += [forwarder.next_due_s() for forwarder in self._forwarders.values()]
        dues += self._probe_due_s.values()
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def on_timer(self, now_s: float) -> None:
        """Ping neighbours, repeat packets, and probe peers, as far as they are due."""
        for key, place in list(self._places.items()):
            self._send_all(key, place.on_timer(now_s))
        for key, forwarder in list(self._forwarders.items()):
            self._act(key, forwarder.on_timer(now_s), now_s)
        for key, due_s in list(self._probe_due_s.items()):
            if due_s <= now_s:
                self._probe(key, now_s)
        for key, used_s in list(self._used_s.items()):
            if now_s - used_s > PUBLISHER_IDLE_S:
                del self._used_s[key]
                self._leave(key, now_s)
        self._settle(now_s)

    def leave(self, now_s: float) -> None:
        """Leave the overlay in order."""
        for key in list(self._places):
            self._leave(key, now_s)
        self._settle(now_s)

    def pop_copy(
        self, now_s: float, *, is_top_only: bool = False
    ) -> OutgoingPacket | None:
        """Return the next copy to send, urgent first; None if none waits.

        Args:
            now_s: Now.
            is_top_only: Whether to return only a copy of the top priority.
        """
        while self._backlog.has_top or (len(self._backlog) and not is_top_only):
            letter = self._backlog.pop(now_s)
            forwarder = self._forwarders.get(letter.sender)
            if forwarder is not None and isinstance(letter.packet, MessageCopy):
                forwarder.on_sent(letter.packet.number, now_s)
                return letter
        return None

    def pop_outbox(self) -> Outbox:
        """Return and clear the output."""
        todo, self._todo = self._todo, Outbox()
        return todo

    def refuse(self, outbox: Outbox, message_ids: Collection[str]) -> None:
        """Take back the delivery of messages that could not be stored.

        Their publishers are told that they are not complete, and publish them again;
        the next copy is delivered as if it were the first.

        Args:
            outbox: The output with these messages, before it is sent.
            message_ids: Those of its messages that could not be stored.
        """
        for message_id in message_ids:
            self._seen.pop(message_id, None)
            self._publications.refuse(message_id)
        for forwarder in self._forwarders.values():
            forwarder.refuse(message_ids)
        outbox.refuse(message_ids)

    def _add(self, key: OverlayKey, join_s: float) -> None:
        """Add a key that joins at a time."""
        place = self._places[key] = SkipGraphNode(key, self._ping_times)
        self._forwarders[key] = self._forwarder(place)
        if key.role == TopicRole.PUBLISHER and key.topic:
            self._suspensions[key] = PublisherSuspension(key)
        self._probe_due_s[key] = join_s

    def _forwarder(self, place: SkipGraphNode) -> Forwarder[OverlayKey]:
        forwarder = Forwarder(
            place.key,
            place,
            self._timeouts,
            _valley,
            round_trips=self.round_trips,
            numbers=self._numbers,
        )
        forwarder.contacts = self._answering_homes
        return forwarder

    def _answering_homes(self) -> list[OverlayKey]:
        silent = {*self._contacts.summary().silent}
        return [_home(name) for name in self._contacts.names() if name not in silent]

    def _leave(self, key: OverlayKey, now_s: float) -> None:
        self._probe_due_s.pop(key, None)
        self._send_all(key, self._places[key].leave(now_s))

    def _forget(self, key: OverlayKey) -> None:
        tables = (self._places, self._forwarders, self._suspensions, self._links)
        for table in (*tables, self._early):
            table.pop(key, None)

    def _probe(self, key: OverlayKey, now_s: float) -> None:
        """Locate our position by way of a known key: to join, and later to merge rings.

        If more neighbours crash at once than are known, or the network is partitioned,
        the list becomes several rings; these probes merge them. A suspended publisher
        repeats its query.
        """
        place, ping_times = self._places[key], self._ping_times
        self._probe_due_s[key] = now_s + (
            ping_times.ping_interval_s
            if place.has_joined
            else ping_times.answer_timeout_s / JOIN_RATE
        )
        ours = [k for k, each in self._places.items() if each.has_joined and k != key]
        around = (ours, [_home(name) for name in self._contacts.names()])
        if others := [self._choose(keys) for keys in around if keys]:
            peer = self._choose(others) if place.has_joined else others[0]
            self._send_all(key, [AddressedPacket(peer, Locate(key))])
        if suspension := self._suspensions.get(key):
            self._send_suspension(key, suspension.repeat_query())
        if key != self.home:
            return
        if place.has_joined:
            for name in self._contacts.next_to_ping(now_s):
                self._send_all(key, place.probe(_home(name)))
            return
        self._tries += 1
        if place.has_left or self._tries >= MAX_JOIN_TRIES:
            self._tries = 0
            place = self._places[key] = SkipGraphNode(key, ping_times)
            self._forwarders[key] = self._forwarder(place)
            # A ring of one would report the ranges that wait as covered.
            self._early.pop(key, None)
            place.found_ring(now_s)

    def _publish(self, message: OverlayMessage, key: OverlayKey, now_s: float) -> None:
        is_in = self._places[key].has_joined
        is_silent = is_in and not self._suspensions[key].has_subscribers
        # The top priority is sent regardless: a lost warning costs more.
        if is_silent and message.priority < LADDER.top:
            self._end(message.id, key.topic, 0, is_whole=True)
            return
        # A key that has just joined knows only its neighbours, and the copy would pass
        # along all subscribers in turn. `home` knows nodes further away.
        heads = self._forwarders[key].known_heads
        has_view = heads or len(self.links_of(key)) > MIN_UPPER_LEVELS
        own = key if is_in and has_view else self.home
        low, high = subscriber_range(key.topic)
        forwarder = self._updated_forwarder(own)
        if own == self.home:  # its last report may be of another area
            forwarder.known_heads = heads
            forwarder.subscriber_count = self._forwarders[key].subscriber_count
        self._act(own, forwarder.publish(message, low, high, now_s), now_s)

    def _updated_forwarder(self, key: OverlayKey) -> Forwarder[OverlayKey]:
        """Return a forwarder after updating its view of our uplink."""
        forwarder = self._forwarders[key]
        forwarder.queued_copies = self.queued_copies
        forwarder.is_uplink_narrow = (
            self.is_backbone_down or self.queued_copies >= BUSY_QUEUE
        )
        return forwarder

    def _process(self, letter: OutgoingPacket, now_s: float) -> None:
        to, sender, packet = letter
        place = self._places.get(to)
        if place is None:
            return
        self._forwarders[to].mark_alive(sender)
        match packet:
            case MessageCopy() if not place.has_joined:
                # It does not know its neighbours: the range waits, or is split again.
                self._deliver(packet.message)
                self._early.setdefault(to, deque(maxlen=MAX_EARLY)).append(letter)
            case MessageCopy() | CopyReceipt() | RangeReport():
                forwarder = self._updated_forwarder(to)
                self._act(to, forwarder.receive(sender, packet, now_s), now_s)
            case HasSubscribers() | HasSubscribersQuery():
                if to in self._suspensions:
                    packets = self._suspensions[to].receive(sender, packet)
                    self._send_suspension(to, packets)
            case _:
                self._send_all(to, place.receive(sender, packet, now_s))

    def _settle(self, now_s: float) -> None:
        """Process packets between our own keys, and what follows from them."""
        while self._own:
            letters, self._own = self._own, []
            for letter in letters:
                self._process(letter, now_s)
        self._update_keys()
        for key, suspension in list(self._suspensions.items()):
            if self._places[key].has_joined and self._links.get(key) != (
                links := self.neighbours(key)
            ):
                self._links[key] = links
                self._send_suspension(key, suspension.set_neighbours(*links))
        if self._own:
            self._settle(now_s)

    def _update_keys(self) -> None:
        """Take the copies that have waited for a key; forget keys that have left."""
        for key, place in list(self._places.items()):
            if place.has_joined:
                self._own += self._early.pop(key, ())
            elif place.has_left and key not in self._probe_due_s:
                self._forget(key)

    def _send_suspension(
        self, key: OverlayKey, packets: Iterable[SuspensionSend]
    ) -> None:
        self._send_all(key, [AddressedPacket(to, packet) for to, packet in packets])

    def _send_all(self, sender: OverlayKey, mail: Iterable[AddressedPacket]) -> None:
        for to, packet in mail:
            self._send(OutgoingPacket(to, sender, packet))

    def _send(self, letter: OutgoingPacket) -> None:
        if letter.to.gateway == self._name:
            self._own.append(letter)
        else:
            self._todo.packets.append(letter)

    def _act(
        self,
        key: OverlayKey,
        actions: Iterable[ForwarderAction[OverlayKey]],
        now_s: float,
    ) -> None:
        for action in actions:
            match action:
                case DeliverMessage(message):
                    self._deliver(message)
                case PublicationDone(own, count, is_whole):
                    if key == self.home and (is_whole or own.tree == 0):
                        self._learn_heads(own.low.topic, count)
                    if own.tree == 0:
                        self._end(own.message.id, own.low.topic, count, is_whole)
                case SendPacket(to, packet, reported_id):
                    if reported_id and to.gateway != self._name:
                        place = len(self._todo.packets)
                        self._todo.reported_ids[place] = reported_id
                    self._forward(OutgoingPacket(to, key, packet), now_s)

    def _learn_heads(self, area: str, subscriber_count: int) -> None:
        """Give a publisher key the heads of the last publication of `home` there."""
        forwarder = self._forwarders.get(
            OverlayKey(area, TopicRole.PUBLISHER, self._name)
        )
        if forwarder is not None:
            heads = self._forwarders[self.home].known_heads
            forwarder.known_heads = [h for h in heads if h.key.topic == area]
            forwarder.subscriber_count = subscriber_count

    def _forward(self, letter: OutgoingPacket, now_s: float) -> None:
        """Send a packet of a forwarder; copies go through the queue."""
        packet: ForwarderPacket[OverlayKey] = letter.packet  # type: ignore[assignment]
        if not isinstance(packet, MessageCopy) or letter.to.gateway == self._name:
            self._send(letter)
            return
        self._forwarders[letter.sender].on_sent(packet.number, float("inf"))
        self._backlog.push(letter, packet.message.priority, now_s)

    def _deliver(self, message: OverlayMessage) -> None:
        """Deliver a message to our clients once, if a filter matches."""
        if message.id in self._seen:
            return
        topic = (carried := decode_carried(message)).topic
        # At its own broker the gateway may write receipts and notices.
        if is_system_topic(topic) or not any(matches(f, topic) for f in self._filters):
            return
        self._seen[message.id] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        self._todo.received.append((message, carried))

    def _end(self, id_: str, stretch: str, reached: int, is_whole: bool) -> None:
        """End one area of a publication."""
        ended = self._publications.end_area(id_, stretch, reached, is_whole)
        if ended is not None:
            self._todo.results.append(ended)


def _home(name: str) -> OverlayKey:
    return OverlayKey("", TopicRole.PUBLISHER, name)


def _valley(key: OverlayKey) -> str:
    return valley_of(key.gateway)
