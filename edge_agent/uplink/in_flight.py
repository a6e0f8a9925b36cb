"""What is on its way: bytes in flight, custody, and what to do next. No I/O.

A message is *in flight* until the broker acknowledges it; that is what the
window counts. It then *awaits* a receipt, unless the peer gives none. Only a
receipt (or, towards such a peer, the PUBACK) lets the queue delete it.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from edge_agent.queue.base import Message
from edge_agent.uplink.congestion import Trip, Window
from edge_agent.uplink.rate_limit import SEGMENT_BYTES
from spatial_mqtt.custody import Offer, Receipt
from spatial_mqtt.transport import NO_TAKER

SILENCE_S = 10.0
SLOWEST_BYTES_PER_S = 500.0
"""A broker that answers nothing for `SILENCE_S`, and the time that a link of 4 kbps
takes for what is in flight, is not there any more."""


class Custody(enum.Enum):
    """When a message may leave our queue.

    AUTO becomes RECEIPTS when the peer offers them, PUBACK when it does not.
    """

    AUTO = "auto"
    RECEIPTS = "receipts"
    PUBACK = "puback"


@dataclass(frozen=True)
class Limits:
    """Bounds of the flight.

    Attributes:
        window_bytes: Most bytes in flight; a slow link is given less.
        most_awaiting: Messages without receipt beyond which nothing more is sent.
        resend_after_s: Silence after which a message is sent again.
        offer_grace_s: How long a fresh link may take to offer receipts.
        refused_pause_s: Rest before a message that the broker refused is tried again.
        no_taker_pause_s: Rest of the link when the store behind the broker is away.
    """

    window_bytes: int = 65_536
    most_awaiting: int = 2000
    resend_after_s: float = 15.0
    offer_grace_s: float = 3.0
    refused_pause_s: float = 5.0
    no_taker_pause_s: float = 1.0


@dataclass
class Due:
    """What the loop should tell the queue.

    Attributes:
        ack: Sequence numbers that are delivered.
        release: Sequence numbers to send again.
        settled: The custody mode that was just decided, if any.
        offers: Offers of the peer that were not known before.
    """

    ack: list[int] = field(default_factory=list)
    release: list[int] = field(default_factory=list)
    settled: Custody | None = None
    offers: list[Offer] = field(default_factory=list)


@dataclass(slots=True)
class _Packet:
    """A publication that the broker has not acknowledged."""

    messages: tuple["_Sent", ...]
    trip: Trip
    is_answered: bool


@dataclass(slots=True)
class _Sent:
    """A message on its way; only with its last packet is it all sent."""

    message: Message
    at_s: float
    is_receipted: bool = False


class Flight:
    """The state of one link.

    Args:
        limits: Its bounds.
        custody: When a message may leave our queue.
        needs_taker: Whether a message that nobody subscribes to must not be let go,
            even where no receipts are given: what a node sends is for a gateway;
            what a gateway sends may be for nobody.
    """

    def __init__(
        self,
        limits: Limits,
        custody: Custody = Custody.AUTO,
        *,
        needs_taker: bool = False,
    ) -> None:
        self._limits = limits
        self._needs_taker = needs_taker
        self._configured = custody
        self.custody = custody
        self._is_up = False
        self._up_at_s = 0.0
        self._receive_maximum = 0
        self._in_flight: dict[int, _Packet] = {}
        self._awaiting: dict[int, _Sent] = {}
        self._refused: list[_Sent] = []
        self._offers: dict[str, Offer] = {}
        self._gone: set[str] = set()
        self._no_taker_until_s = 0.0
        self._heard_at_s = 0.0
        self._due = Due()
        self._window = Window(limits.window_bytes)
        self.bytes_in_flight = 0

    def up(
        self,
        now_s: float,
        receive_maximum: int,
        known_offers: Sequence[Offer] = (),
        round_trip_s: float | None = None,
    ) -> None:
        """The link is up and subscribed to our receipts.

        Args:
            now_s: Monotonic time.
            receive_maximum: Most messages in flight that the broker allows.
            known_offers: What this peer offered before. A restarted broker has
                forgotten its retained offers, and must not be taken for a plain one.
            round_trip_s: What subscribing took, the first measure of the link.
        """
        self._is_up = True
        self._no_taker_until_s = 0.0
        self._window.forget()
        if round_trip_s is not None:
            self._window.believe(round_trip_s, now_s)
        self._up_at_s = now_s
        self._receive_maximum = receive_maximum
        self.custody = self._configured
        self._offers = {offer.receiver: offer for offer in known_offers}
        self._gone.clear()
        if self._stores() and self.custody is Custody.AUTO:
            self.custody = Custody.RECEIPTS

    def down(self) -> None:
        """The link is gone: everything unreceipted will be sent again."""
        self._is_up = False
        flying = [s for packet in self._in_flight.values() for s in packet.messages]
        for sent in (*flying, *self._awaiting.values(), *self._refused):
            (self._due.ack if sent.is_receipted else self._due.release).append(
                sent.message.seq
            )
        self._in_flight.clear()
        self._awaiting.clear()
        self._refused.clear()
        self.bytes_in_flight = 0

    def offered(self, offer: Offer) -> None:
        """The peer says that it gives receipts, or that it is away for now."""
        if offer.is_away:
            self._gone.add(offer.receiver)
            offer = replace(offer, is_away=False)
        else:
            self._gone.discard(offer.receiver)
        if self._offers.get(offer.receiver) != offer:
            self._offers[offer.receiver] = offer
            self._due.offers.append(offer)
        is_new_mode = self.custody is not Custody.RECEIPTS and bool(offer.filters)
        if self._configured is Custody.AUTO and is_new_mode:
            self.custody = self._due.settled = Custody.RECEIPTS

    def is_served(self, now_s: float) -> bool:
        """Whether somebody takes our messages: link, broker and store."""
        stores = {offer.receiver for offer in self._stores()}
        has_store = not stores or bool(stores - self._gone)
        return self._is_up and has_store and not self._is_silent(now_s)

    def _is_silent(self, now_s: float) -> bool:
        """Whether the broker has answered nothing for longer than any link takes."""
        if not self._in_flight:
            return False
        patience_s = SILENCE_S + self.bytes_in_flight / SLOWEST_BYTES_PER_S
        return now_s - self._heard_at_s > patience_s

    def room(self, now_s: float, *, is_urgent: bool = False) -> int:
        """Bytes that may be sent now, together; 0 when nothing may go.

        Room is given by the segment, not by the message, or each message would
        travel in a segment of its own. An urgent message need not wait for that:
        its window is a segment larger.
        """
        is_resting = not self._is_up or now_s < self._no_taker_until_s
        is_full = len(self._awaiting) >= self._limits.most_awaiting or self.slots <= 0
        if is_resting or is_full:
            return 0
        window = self._window.bytes(now_s)
        room = window - self.bytes_in_flight
        if is_urgent:
            return max(room + SEGMENT_BYTES, 0)
        is_worth_it = room >= min(window // 2, SEGMENT_BYTES) or not self._in_flight
        return max(room, 0) if is_worth_it else 0

    @property
    def slots(self) -> int:
        """How many publications the broker takes before it answers one."""
        return self._receive_maximum - len(self._in_flight)

    def takes(self, content: str, topic: str) -> bool:
        """Whether the store behind the link reads a content type of ours."""
        return self.custody is Custody.RECEIPTS and any(
            content in offer.takes and offer.gives_for(topic)
            for offer in self._offers.values()
        )

    def takes_any(self, content: str) -> bool:
        """Whether it reads a content type of ours on some topic."""
        return self.custody is Custody.RECEIPTS and any(
            content in offer.takes for offer in self._offers.values()
        )

    def expects_receipt(self, topic: str) -> bool:
        """Whether somebody will receipt a message on a topic, as far as we know."""
        stores = self._stores()
        if self.custody is not Custody.RECEIPTS or not stores:
            return self.custody is not Custody.PUBACK
        return any(offer.gives_for(topic) for offer in stores)

    @property
    def wants_names(self) -> bool:
        """Whether somebody behind the link goes by message ids and priorities."""
        has_relays = any(not offer.filters for offer in self._offers.values())
        return has_relays or self.custody is not Custody.PUBACK

    def _stores(self) -> list[Offer]:
        """Who gives receipts; others only pass on, and want names."""
        return [offer for offer in self._offers.values() if offer.filters]

    def sent(
        self,
        token: int,
        messages: Sequence[Message],
        size_bytes: int,
        now_s: float,
        write_bytes: int | None = None,
        *,
        is_answered: bool = True,
    ) -> None:
        """A publication was handed to the link.

        Args:
            token: Names it in the broker's answer.
            messages: Those that are all sent with it: none with the first pieces
                of a large one, several with a parcel.
            size_bytes: On the wire.
            now_s: Monotonic time.
            write_bytes: Of all that was handed over together; None is itself.
            is_answered: Whether the broker will say that it came. QoS 0 is "published"
                when it is written, which tells nothing of the link.
        """
        if not self._in_flight:
            self._heard_at_s = now_s
        write_bytes = write_bytes or size_bytes
        is_alone = not self._in_flight and write_bytes == size_bytes
        delivered = self._window.delivered_bytes
        trip = Trip(size_bytes, now_s, is_alone, delivered, write_bytes)
        sent = tuple(_Sent(message, now_s) for message in messages)
        self._in_flight[token] = _Packet(sent, trip, is_answered)
        self.bytes_in_flight += size_bytes

    def published(
        self, token: int, refused: str | None, now_s: float
    ) -> tuple[Message, ...]:
        """The broker answered; the messages it refused, if it did."""
        packet = self._in_flight.pop(token, None)
        if packet is None:
            return ()
        self._heard_at_s = now_s
        self.bytes_in_flight -= packet.trip.size_bytes
        if packet.is_answered:
            self._window.acknowledged(packet.trip, now_s)
        for sent in packet.messages:
            self._answered(sent, refused, now_s)
        is_refused = refused not in {None, NO_TAKER}
        return tuple(s.message for s in packet.messages if is_refused)

    def _answered(self, sent: _Sent, refused: str | None, now_s: float) -> None:
        seq = sent.message.seq
        is_kept = self._needs_taker or self.expects_receipt(sent.message.topic)
        if refused == NO_TAKER and is_kept:
            # The broker is there, but the store behind it is not: the message is
            # in nobody's hands. Silence would tell us only much later.
            self._no_taker_until_s = now_s + self._limits.no_taker_pause_s
            self._due.release.append(seq)
            if self._needs_taker:
                self._up_at_s = now_s  # whoever comes may still offer receipts
        elif refused not in {None, NO_TAKER}:
            sent.at_s = now_s
            self._refused.append(sent)
        elif sent.is_receipted or not self.expects_receipt(sent.message.topic):
            self._due.ack.append(seq)
        else:
            self._awaiting[seq] = sent

    def receipt(self, receipt: Receipt) -> int:
        """The next store has these; how many of ours they were."""
        here = [
            seq for seq, sent in self._awaiting.items() if sent.message.id in receipt
        ]
        for seq in here:
            del self._awaiting[seq]
        self._due.ack += here
        flying = [s for packet in self._in_flight.values() for s in packet.messages]
        early = [sent for sent in flying if sent.message.id in receipt]
        for sent in early:
            sent.is_receipted = True
        return len(here) + len(early)

    def due(self, now_s: float) -> Due:
        """What to tell the queue now."""
        grace_over = now_s - self._up_at_s >= self._limits.offer_grace_s
        if self._is_up and self.custody is Custody.AUTO and grace_over:
            self.custody = self._due.settled = Custody.PUBACK
            self._due.ack += self._awaiting
            self._awaiting.clear()
        self._expire(now_s)
        due, self._due = self._due, Due()
        return due

    def _expire(self, now_s: float) -> None:
        silent_since_s = now_s - self._limits.resend_after_s
        # Those that were sent first wait first, or nearly so.
        is_old = takewhile(lambda s: s.at_s <= silent_since_s, self._awaiting.values())
        for seq in [sent.message.seq for sent in is_old]:
            del self._awaiting[seq]
            self._due.release.append(seq)
        rested_since_s = now_s - self._limits.refused_pause_s
        rested = [sent for sent in self._refused if sent.at_s <= rested_since_s]
        self._refused = [sent for sent in self._refused if sent.at_s > rested_since_s]
        self._due.release += [sent.message.seq for sent in rested]
