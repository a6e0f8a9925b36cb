"""State of the messages in flight and of their custody; no I/O.

A message is in flight until the broker acknowledges it, and counts against the window.
Then it awaits a receipt, unless the peer gives none. Only the receipt (or, without
receipts, the PUBACK) permits its removal from the queue. Even after such a PUBACK, some
are held (`InFlight._end_without_receipt`) and sent again where a store gives receipts.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import takewhile
from typing import NamedTuple

from edge_agent.queue.base import QueuedMessage
from edge_agent.uplink.congestion import CongestionWindow
from edge_agent.uplink.link_rate import SEGMENT_BYTES, LinkEstimate, SendSample
from edge_agent.uplink.offer_memory import HeldMessages, KnownStores
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.priority import LADDER
from spatial_mqtt.transport import NO_SUBSCRIBERS

SILENCE_S = 10.0
MIN_BYTES_PER_S = 500.0
"""A broker is considered dead when it does not answer for `SILENCE_S` plus the time
that a link of 4 kbps takes to send the bytes in flight."""


SILENT_SEGMENT_S = 2.0
"""Time without an answer after which urgent messages may be sent beyond the window, a
segment each time: longer than a full segment takes at 10 kbps."""


MAX_REFUSED_PAUSE_S = 3600.0
MAX_URGENT_REFUSED_PAUSE_S = 60.0
"""Longest pause of a message that is refused again and again. It doubles with each
refusal: many such messages, as of a cell that the node has left, would else take the
link from the others."""

REFUSALS_OF_GATEWAY = 3
EXPIRIES_OF_GATEWAY = 6
"""Refusals of a message, and times that its receipt did not come, that may be the
gateway's fault; further ones are its own."""

MAX_REFUSED_KNOWN = 20_000
"""Messages whose refusals, or missing receipts, are counted."""

MAX_REFUSED_BYTES = 20_000_000
REFUSED_OVERHEAD_BYTES = 1000
"""Refused messages stay leased, in memory: no routine messages are sent above this size
of them, with what the memory of each takes besides topic and payload."""


class CustodyMode(enum.Enum):
    """When a message may leave the queue.

    AUTO becomes RECEIPTS when the peer offers them, and PUBACK when it does not.
    """

    AUTO = "auto"
    RECEIPTS = "receipts"
    PUBACK = "puback"


@dataclass(frozen=True)
class FlightLimits:
    """Limits and timeouts of the messages in flight.

    Attributes:
        window_bytes: Maximum bytes in flight; fewer on a slow link.
        max_awaiting: Maximum number of messages that await a receipt; for an urgent
            one, those of lower priorities do not count.
        resend_after_s: Time without a receipt, from the acknowledgement on, after which
            a message is sent again.
        offer_grace_s: Time that a new link has to offer receipts.
        refused_pause_s: First pause before a refused message is sent again.
        no_subscriber_pause_s: Pause of the link while nothing subscribes to its
            messages.
        held_bytes: Maximum bytes of urgent messages that a node holds without receipts.
    """

    window_bytes: int = 1_048_576
    max_awaiting: int = 2000
    resend_after_s: float = 15.0
    offer_grace_s: float = 3.0
    refused_pause_s: float = 5.0
    no_subscriber_pause_s: float = 1.0
    held_bytes: int = 16_384


@dataclass
class QueueActions:
    """Actions for the uplink's loop.

    Attributes:
        ack: Sequence numbers of delivered messages.
        release: Sequence numbers of messages to send again.
        decided_custody: The custody mode, if it was just decided.
    """

    ack: list[int] = field(default_factory=list)
    release: list[int] = field(default_factory=list)
    decided_custody: CustodyMode | None = None


@dataclass(slots=True)
class _Packet:
    """A publication that the broker has not acknowledged."""

    messages: tuple["_Sent", ...]
    trip: SendSample
    is_answered: bool


@dataclass(slots=True)
class _Sent:
    """A message that was sent, or acknowledged since, and when.

    Attributes:
        message: The message.
        at_s: Monotonic time of the sending, then that of the acknowledgement.
        is_receipted: Whether its receipt came before the acknowledgement.
    """

    message: QueuedMessage
    at_s: float
    is_receipted: bool = False


class _Refused(NamedTuple):
    """A message that the broker refused, in the order in which they are sent again."""

    until_s: float
    message: QueuedMessage
    size_bytes: int


class InFlight:
    """Messages in flight on one link.

    Args:
        limits: Limits and timeouts.
        custody: When a message may leave the queue.
        needs_subscriber: Whether a message without subscribers must be kept even
            without receipts, and an urgent one until there are some: true for a node,
            which needs a gateway; false for a gateway, whose messages may have no
            subscribers.
        stores: Stores at all brokers of a gateway.

    Attributes:
        custody: The mode in force.
        held: Messages that are held until a store gives a receipt.
    """

    def __init__(
        self,
        limits: FlightLimits,
        custody: CustodyMode = CustodyMode.AUTO,
        *,
        needs_subscriber: bool = False,
        stores: KnownStores | None = None,
    ) -> None:
        self._limits = limits
        self._stores, self._stores_version = stores, 0
        self.held = HeldMessages(limits.held_bytes if needs_subscriber else math.inf)
        self._needs_subscriber = needs_subscriber
        self._configured = custody
        self.custody = custody
        self._is_up = False
        self._up_at_s = 0.0
        self._receive_maximum = 0
        self._in_flight: dict[int, _Packet] = {}
        # Those in flight whose receipts have come, and packet ids without a PUBACK.
        self._stored, self._unconfirmed = set[int](), set[int]()
        self._awaiting: dict[int, _Sent] = {}
        self._has_subscriber = True
        self._refused: list[_Refused] = []  # a heap
        self._refused_bytes = 0
        self._refusals: dict[int, int] = {}
        self._is_refusing = False
        self._expiries: dict[int, int] = {}
        self._expired: set[int] = set()
        self._is_storing = True
        self._offers: dict[str, CustodyOffer] = {}
        self._offline: set[str] = set()
        self._paused_until_s = self._last_answer_s = 0.0
        self._due = QueueActions()
        self._window = CongestionWindow(limits.window_bytes)

    def messages(self) -> list[QueuedMessage]:
        """Messages that this link keeps leased; may be called from any thread."""
        sent = [s for packet in list(self._in_flight.values()) for s in packet.messages]
        sent += list(self._awaiting.values())
        refused = [each.message for each in list(self._refused)]
        return [s.message for s in sent] + refused + self.held.messages()

    def link_estimate(self) -> LinkEstimate | None:
        """What is known of the link; None while its rate is unknown."""
        return self._window.estimate()

    def on_up(
        self,
        now_s: float,
        receive_maximum: int,
        known_offers: Sequence[CustodyOffer] = (),
        round_trip_s: float | None = None,
        known_link: LinkEstimate | None = None,
    ) -> None:
        """Start on a link that is up, with its receipts subscribed.

        Args:
            now_s: Monotonic time.
            receive_maximum: Maximum number of publications in flight.
            known_offers: Earlier offers of this peer. A restarted broker has lost its
                retained offers and must not be treated as one without a store.
            round_trip_s: Duration of the subscription, the first round-trip sample.
            known_link: Estimate of an earlier connection to the same broker.
        """
        self._is_up = True
        self._paused_until_s = 0.0
        self._window = CongestionWindow(self._limits.window_bytes, known_link)
        if round_trip_s is not None:
            self._window.on_rtt_sample(round_trip_s)
        self._up_at_s = now_s
        self._receive_maximum = receive_maximum
        self.custody = self._configured
        self._has_subscriber, self._is_refusing = True, False
        self._on_stored()
        is_puback = self._configured is CustodyMode.PUBACK
        offers = () if is_puback else known_offers
        self._offers = {offer.receiver: offer for offer in offers}
        self._offline.clear()
        if self._offers and self.custody is CustodyMode.AUTO:
            self.custody = CustodyMode.RECEIPTS
        self._release_held()

    def on_down(self) -> None:
        """End with a lost link: everything without a receipt is to be sent again."""
        self._is_up = False
        in_flight = [s for packet in self._in_flight.values() for s in packet.messages]
        self._due.release += [refused.message.seq for refused in self._refused]
        for sent in (*in_flight, *self._awaiting.values()):
            (self._due.ack if sent.is_receipted else self._due.release).append(
                sent.message.seq
            )
        for each in (self._in_flight, self._stored, self._unconfirmed):
            each.clear()
        self._awaiting.clear()
        self._refused.clear()
        self._refused_bytes = 0
        self._window = CongestionWindow(self._limits.window_bytes)

    def on_offer(self, offer: CustodyOffer) -> None:
        """Handle an offer of receipts, or the notice that a receiver is offline.

        An offer without filters gives no receipts; earlier gateways make such offers.
        """
        if not offer.filters:
            return
        if offer.is_offline:
            self._offline.add(offer.receiver)
            offer = replace(offer, is_offline=False)
        else:
            self._offline.discard(offer.receiver)
            self._has_subscriber = True
        self._offers[offer.receiver] = offer
        is_new_mode = self.custody is not CustodyMode.RECEIPTS
        if self._configured is CustodyMode.AUTO and is_new_mode:
            self.custody = self._due.decided_custody = CustodyMode.RECEIPTS
        self._release_held()

    def on_withdrawn(self, receiver: str, now_s: float) -> None:
        """Handle the end of an offer; the remaining ones count from now on.

        Everything without a receipt is sent again: it may have been sent in a form
        that only this receiver reads, or wait for its receipt.
        """
        if self._offers.pop(receiver, None) is None:
            return
        packets = self._in_flight.values()
        sent = [s for p in packets for s in p.messages] + [*self._awaiting.values()]
        for each in sent:
            (self._due.ack if each.is_receipted else self._due.release).append(
                each.message.seq
            )
        for packet in packets:
            packet.messages = ()
        self._awaiting.clear()
        if not self._offers:
            self.custody, self._up_at_s = self._configured, now_s

    def is_served(self, now_s: float) -> bool:
        """Whether messages can be delivered: link, broker and store are available.

        An offer may be remembered, or be older than a restart of the broker: its store
        must also be a subscriber, and give receipts. Without an offer a subscriber must
        be there, such as a Gamma gateway. A broker that refuses, as one with an old
        list of rights, does not serve: others may.
        """
        stores = self._offers.keys()
        is_online = not stores or bool(stores - self._offline)
        has_store = is_online and self._has_subscriber and self._is_storing
        accepts = has_store and not self._is_refusing
        is_silent = self.silence_s(now_s) > self.silence_limit_s
        return self._is_up and accepts and not is_silent

    def silence_s(self, now_s: float) -> float:
        """Time for which the broker has answered none of the bytes in flight."""
        is_waiting = self._in_flight or (self._unconfirmed and self.free_slots <= 0)
        return now_s - self._last_answer_s if is_waiting else 0.0

    @property
    def silence_limit_s(self) -> float:
        """Longest time without an answer on the slowest link."""
        return SILENCE_S + self._window.bytes_in_flight / MIN_BYTES_PER_S

    @property
    def has_urgent(self) -> bool:
        """Whether an urgent message is in flight."""
        sent = (s for packet in self._in_flight.values() for s in packet.messages)
        return any(LADDER.is_urgent(each.message.priority) for each in sent)

    def sendable_bytes(self, now_s: float, priority: int = LADDER.default) -> int:
        """Bytes that may be sent now in a write of a priority; 0 when none may be.

        Less than a segment is not returned, so that small messages share segments, and
        less than the largest recent message only from half a window on.
        An urgent message waits neither for that nor for the pace, and its window is a
        segment larger, or several if the broker does not answer: after an outage its
        answers may come seconds later than the link carries messages again.
        """
        is_paused = not self._is_up or now_s < self._paused_until_s
        is_full = self._holds_too_many(priority) or self.free_slots <= 0
        if is_paused or is_full:
            return 0
        limit_bytes = self._window.limit_bytes
        if LADDER.is_urgent(priority):
            segments = 1 + int(self.silence_s(now_s) / SILENT_SEGMENT_S)
            free_bytes = limit_bytes - self._window.bytes_in_flight
            return max(free_bytes + segments * SEGMENT_BYTES, 0)
        free_bytes = self._window.free_bytes(now_s)
        is_idle = not self._in_flight
        whole_bytes = max(SEGMENT_BYTES, self._window.largest_bytes)
        fills_segment = is_idle or free_bytes >= min(limit_bytes // 2, whole_bytes)
        return max(free_bytes, 0) if fills_segment else 0

    def _holds_too_many(self, priority: int) -> bool:
        """Whether too many messages are held to send another one of a priority.

        A gateway that stores no routine messages may still store urgent ones.
        """
        held = 0 if self._needs_subscriber else len(self.held)
        count, most = len(self._awaiting) + held, self._limits.max_awaiting
        if not LADDER.is_urgent(priority):
            return count >= most or self._refused_bytes >= MAX_REFUSED_BYTES
        if count >= most:
            awaiting = self._awaiting.values()
            count = sum(sent.message.priority >= priority for sent in awaiting)
            count += self.held.count(priority) if held else 0
        return count >= most

    def pace_wait_s(self, now_s: float) -> float | None:
        """Time until the pace permits a segment; None when it is not the limit."""
        return self._window.wait_s(now_s) if self._is_up else None

    @property
    def free_slots(self) -> int:
        """Number of further publications that the broker's receive maximum permits."""
        return self._receive_maximum - len(self._in_flight) - len(self._unconfirmed)

    def reads_priority(self, topic: str) -> bool:
        """Whether the topic may have its ``priN``; a Gamma gateway would drop it."""
        return any(offer.covers(topic) for offer in self._offers.values())

    def accepts(self, content: str, topic: str) -> bool:
        """Whether a topic has stores, and all of them decode a content type."""
        has_receipts = self.custody is CustodyMode.RECEIPTS
        has_stores = has_receipts and self.expects_receipt(topic)
        return has_stores and self.stores_take(content, topic)

    def stores_take(self, form: str, topic: str) -> bool:
        """Whether every store of a topic, if any, reads a form; False if unknown."""
        is_known = bool(self._offers) or self.custody is CustodyMode.PUBACK
        return is_known and all(
            form in offer.takes
            for offer in self._offers.values()
            if offer.covers(topic)
        )

    def accepts_any(self, content: str) -> bool:
        """Whether some store, on any topic, decodes a content type."""
        return self.custody is CustodyMode.RECEIPTS and any(
            content in offer.takes for offer in self._offers.values()
        )

    def expects_receipt(self, topic: str) -> bool:
        """Whether a receipt can come for a message on a topic; True if undecided."""
        if self.custody is not CustodyMode.RECEIPTS or not self._offers:
            return self.custody is not CustodyMode.PUBACK
        return any(offer.covers(topic) for offer in self._offers.values())

    def on_sent(
        self,
        token: int,
        messages: Sequence[QueuedMessage],
        size_bytes: int,
        now_s: float,
        write_bytes: int | None = None,
        *,
        is_answered: bool = True,
    ) -> None:
        """Add a publication that was passed to the connection.

        Args:
            token: Its token in `on_published`.
            messages: Messages that are completely sent with it: none for the first
                chunks of a large one, several for a batch.
            size_bytes: Its size on the wire.
            now_s: Monotonic time.
            write_bytes: Total size of its write; None if it was written alone.
            is_answered: Whether the broker acknowledges it. QoS 0 is "published" when
                it is written, and what was refused before it was sent at once: neither
                measures the link.
        """
        if not self._in_flight:
            self._last_answer_s = now_s
        trip = self._window.on_sent(size_bytes, now_s, write_bytes or size_bytes)
        sent = tuple(_Sent(message, now_s) for message in messages)
        self._in_flight[token] = _Packet(sent, trip, is_answered)

    def on_published(
        self, token: int, refused: str | None, now_s: float
    ) -> tuple[QueuedMessage, ...]:
        """Handle the broker's answer; return the messages that it refused."""
        self._stored.discard(token)
        self._unconfirmed.discard(token)
        packet = self._in_flight.pop(token, None)
        if packet is None:
            return ()
        self._last_answer_s = now_s
        if packet.is_answered:
            self._window.on_ack(packet.trip, now_s)
        else:
            self._window.on_done(packet.trip)
        for sent in packet.messages:
            self._answered(sent, refused, now_s)
        is_refused = refused not in {None, NO_SUBSCRIBERS}
        return tuple(s.message for s in packet.messages if is_refused)

    def _answered(self, sent: _Sent, refused: str | None, now_s: float) -> None:
        seq = sent.message.seq
        if refused not in {None, NO_SUBSCRIBERS} and not sent.is_receipted:
            self._refuse(sent.message, now_s)
            return
        self._is_refusing = False
        self._refusals.pop(seq, None)
        self._has_subscriber = refused != NO_SUBSCRIBERS or not self._needs_subscriber
        is_kept = self._needs_subscriber or self.expects_receipt(sent.message.topic)
        if refused == NO_SUBSCRIBERS and is_kept:
            # The store behind the broker is offline: the broker has discarded the
            # message, so send it again without waiting for the receipt to time out.
            self._paused_until_s = now_s + self._limits.no_subscriber_pause_s
            self._due.release.append(seq)
            if self._needs_subscriber:
                self._up_at_s = now_s  # a new subscriber may still offer receipts
        elif sent.is_receipted:
            self._due.ack.append(seq)
        elif not self.expects_receipt(sent.message.topic):
            self._end_without_receipt(sent.message)
        else:
            sent.at_s = now_s  # on a slow link, long after it was sent
            self._awaiting[seq] = sent

    def _refuse(self, message: QueuedMessage, now_s: float) -> None:
        """Keep a refused message for a pause that doubles with each refusal."""
        count = self._refusals.pop(message.seq, 0) + 1
        self._refusals[message.seq] = count
        if len(self._refusals) > MAX_REFUSED_KNOWN:
            del self._refusals[next(iter(self._refusals))]
        self._is_refusing |= self._needs_subscriber and count <= REFUSALS_OF_GATEWAY
        is_urgent = LADDER.is_urgent(message.priority)
        most_s = MAX_URGENT_REFUSED_PAUSE_S if is_urgent else MAX_REFUSED_PAUSE_S
        doublings = min(count - 1, 30)  # more would overflow some day
        pause_s = min(most_s, self._limits.refused_pause_s * 2.0**doublings)
        size_bytes = len(message.topic) + len(message.payload) + REFUSED_OVERHEAD_BYTES
        self._refused_bytes += size_bytes
        heappush(self._refused, _Refused(now_s + pause_s, message, size_bytes))

    def on_receipt(self, receipt: CustodyReceipt) -> int:
        """Handle a receipt; return how many of the sent messages it covers."""
        self._on_stored()
        seqs = [
            seq for seq, sent in self._awaiting.items() if sent.message.id in receipt
        ]
        for seq in seqs:
            del self._awaiting[seq]
            self._expiries.pop(seq, None)
        self._due.ack += seqs
        count = len(seqs)
        for token, packet in self._in_flight.items():
            early = [sent for sent in packet.messages if sent.message.id in receipt]
            for sent in early:
                sent.is_receipted = True
            count += len(early)
            if early and all(sent.is_receipted for sent in packet.messages):
                self._stored.add(token)
                self._last_answer_s = max(self._last_answer_s, packet.trip.sent_s)
        return count

    def _end_stored(self, now_s: float) -> None:
        """End publications that are stored, but whose PUBACK is lost.

        They would fill the window until the connection ends. Each still counts against
        the broker's receive maximum, and its packet id stays in use.
        """
        for token in list(self._stored):
            packet = self._in_flight[token]
            if now_s - packet.trip.sent_s >= SILENCE_S:
                self._stored.discard(token)
                del self._in_flight[token]
                self._unconfirmed.add(token)
                self._window.on_done(packet.trip)
                self._due.ack += [sent.message.seq for sent in packet.messages]

    def take_actions(self, now_s: float) -> QueueActions:
        """Return the actions that are due, and clear them."""
        is_grace_over = now_s - self._up_at_s >= self._limits.offer_grace_s
        if self._is_up and self.custody is CustodyMode.AUTO and is_grace_over:
            self.custody = self._due.decided_custody = CustodyMode.PUBACK
            for sent in self._awaiting.values():
                self._end_without_receipt(sent.message)
            self._awaiting.clear()
        self._end_stored(now_s)
        self._end_held()
        self._expire(now_s)
        due, self._due = self._due, QueueActions()
        return due

    def _end_without_receipt(self, message: QueuedMessage) -> None:
        """End custody with the PUBACK, unless the message is held.

        It then stays leased, so that it is not sent again to this broker: a node's
        latest urgent ones, so that its queue cannot fill with them, and all of a
        gateway's that a store at another of its brokers covers.
        """
        if self._needs_subscriber:
            is_auto = self._configured is CustodyMode.AUTO
            is_held = is_auto and LADDER.is_urgent(message.priority)
        else:
            is_held = self._stores is not None and self._stores.cover(message.topic)
            is_held &= self._configured is not CustodyMode.PUBACK
        self._due.ack += self.held.add(message) if is_held else [message.seq]

    def _release_held(self) -> None:
        """Send again what is held and what a store behind this broker covers."""
        if self.held and self._offers:
            self._due.release += self.held.take(self.reads_priority)

    def _end_held(self) -> None:
        """End custody of what is held for stores that have ended."""
        stores = self._stores
        if stores is not None and stores.version != self._stores_version:
            self._stores_version = stores.version
            self._due.ack += self.held.take(lambda topic: not stores.cover(topic))

    def _expire(self, now_s: float) -> None:
        sent_before_s = now_s - self._limits.resend_after_s
        # In the order of the times.
        expired = takewhile(lambda s: s.at_s <= sent_before_s, self._awaiting.values())
        for seq in [sent.message.seq for sent in expired]:
            del self._awaiting[seq]
            self._due.release.append(seq)
            if self._needs_subscriber:
                self._note_expired(seq)
        while self._refused and self._refused[0].until_s <= now_s:
            retried = heappop(self._refused)
            self._refused_bytes -= retried.size_bytes
            self._due.release.append(retried.message.seq)

    def _note_expired(self, seq: int) -> None:
        """Count a missing receipt; the second one of a message ends the service.

        In between there was no receipt at all. After a power cut a broker may have its
        stored offers and subscriptions, and acknowledge, without a gateway behind it.
        """
        count = self._expiries.pop(seq, 0) + 1
        self._expiries[seq] = count
        if len(self._expiries) > MAX_REFUSED_KNOWN:
            del self._expiries[next(iter(self._expiries))]
        if self._is_storing and count <= EXPIRIES_OF_GATEWAY:
            self._is_storing = seq not in self._expired
            self._expired.add(seq)

    def _on_stored(self) -> None:
        """Start anew to wait for a receipt, after any receipt or on a new link."""
        self._is_storing = True
        self._expired.clear()
