"""What is on its way: bytes in flight, custody, and what to do next. No I/O.

A message is *in flight* until the broker acknowledges it; that is what the
window counts. It then *awaits* a receipt, unless the peer gives none. Only a
receipt (or, towards such a peer, the PUBACK) lets the queue delete it.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from edge_agent.queue.base import Message
from edge_agent.uplink.window import Trip, Window
from spatial_mqtt.custody import Offer, Receipt
from spatial_mqtt.link import NO_TAKER


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

    window_bytes: int = 3000
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


@dataclass
class _Sent:
    message: Message
    trip: Trip
    at_s: float
    is_receipted: bool = False


class Flight:
    """The state of one link."""

    def __init__(self, limits: Limits, custody: Custody = Custody.AUTO) -> None:
        self._limits = limits
        self._configured = custody
        self.custody = custody
        self._is_up = False
        self._up_at_s = 0.0
        self._receive_maximum = 0
        self._in_flight: dict[int, _Sent] = {}
        self._awaiting: dict[int, _Sent] = {}
        self._refused: list[_Sent] = []
        self._offers: dict[str, Offer] = {}
        self._no_taker_until_s = 0.0
        self._due = Due()
        self._window = Window(limits.window_bytes)
        self.bytes_in_flight = 0

    def up(
        self, now_s: float, receive_maximum: int, known_offers: Sequence[Offer] = ()
    ) -> None:
        """The link is up and subscribed to our receipts.

        Args:
            now_s: Monotonic time.
            receive_maximum: Most messages in flight that the broker allows.
            known_offers: What this peer offered before. A restarted broker has
                forgotten its retained offers, and must not be taken for a plain one.
        """
        self._is_up = True
        self._no_taker_until_s = 0.0
        self._window.forget()
        self._up_at_s = now_s
        self._receive_maximum = receive_maximum
        self.custody = self._configured
        self._offers = {offer.receiver: offer for offer in known_offers}
        if known_offers and self.custody is Custody.AUTO:
            self.custody = Custody.RECEIPTS

    def down(self) -> None:
        """The link is gone: everything unreceipted will be sent again."""
        self._is_up = False
        for sent in (
            *self._in_flight.values(),
            *self._awaiting.values(),
            *self._refused,
        ):
            (self._due.ack if sent.is_receipted else self._due.release).append(
                sent.message.seq
            )
        self._in_flight.clear()
        self._awaiting.clear()
        self._refused.clear()
        self.bytes_in_flight = 0

    def offered(self, offer: Offer) -> None:
        """The peer says that it gives receipts."""
        if self._offers.get(offer.receiver) != offer:
            self._offers[offer.receiver] = offer
            self._due.offers.append(offer)
        if self._configured is Custody.AUTO and self.custody is not Custody.RECEIPTS:
            self.custody = self._due.settled = Custody.RECEIPTS

    def has_room(self, now_s: float) -> bool:
        """Whether one more message may be sent."""
        return (
            self._is_up
            and now_s >= self._no_taker_until_s
            and self.bytes_in_flight < self._window.bytes(now_s)
            and len(self._in_flight) < self._receive_maximum
            and len(self._awaiting) < self._limits.most_awaiting
        )

    def sent(self, token: int, message: Message, size_bytes: int, now_s: float) -> None:
        """A message was handed to the link under a token."""
        was_alone = self.bytes_in_flight == 0
        delivered_bytes = self._window.delivered_bytes
        trip = Trip(size_bytes, now_s, was_alone, delivered_bytes)
        self._in_flight[token] = _Sent(message, trip, now_s)
        self.bytes_in_flight += size_bytes

    def published(
        self, token: int, refused: str | None, now_s: float
    ) -> Message | None:
        """The broker answered; the message it refused, if it did."""
        sent = self._in_flight.pop(token, None)
        if sent is None:
            return None
        self.bytes_in_flight -= sent.trip.size_bytes
        self._window.acknowledged(sent.trip, now_s)
        if refused == NO_TAKER and self._expects_receipt(sent.message):
            # The broker is there, but the store behind it is not: the message is
            # in nobody's hands. Silence would tell us only much later.
            self._no_taker_until_s = now_s + self._limits.no_taker_pause_s
            self._due.release.append(sent.message.seq)
            return None
        if refused not in {None, NO_TAKER}:
            sent.at_s = now_s
            self._refused.append(sent)
            return sent.message
        if sent.is_receipted or not self._expects_receipt(sent.message):
            self._due.ack.append(sent.message.seq)
        else:
            self._awaiting[sent.message.seq] = sent
        return None

    def receipt(self, receipt: Receipt) -> int:
        """The next store has these; how many of ours they were."""
        here = [
            seq for seq, sent in self._awaiting.items() if sent.message.id in receipt
        ]
        for seq in here:
            del self._awaiting[seq]
        self._due.ack += here
        early = [s for s in self._in_flight.values() if s.message.id in receipt]
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

    def _expects_receipt(self, message: Message) -> bool:
        if self.custody is not Custody.RECEIPTS or not self._offers:
            return self.custody is not Custody.PUBACK
        return any(offer.gives_for(message.topic) for offer in self._offers.values())

    def _expire(self, now_s: float) -> None:
        silent_since_s = now_s - self._limits.resend_after_s
        for seq in [s for s, x in self._awaiting.items() if x.at_s <= silent_since_s]:
            del self._awaiting[seq]
            self._due.release.append(seq)
        rested_since_s = now_s - self._limits.refused_pause_s
        rested = [sent for sent in self._refused if sent.at_s <= rested_since_s]
        self._refused = [sent for sent in self._refused if sent.at_s > rested_since_s]
        self._due.release += [sent.message.seq for sent in rested]
