"""Offers of receipts that a broker has shown before, stored in the queue's file.

A broker that restarts without persistence has lost its retained offers and must not be
treated as one without a store, so an offer is remembered. It is forgotten when the
receiver withdraws it, or when the broker has not repeated it during `MAX_UNSEEN_S` of
connection: an offer that ended while this machine was away would otherwise count for
ever. Time without a connection does not count, nor does a clock that may be wrong.

A gateway has one memory for all its brokers as well, `KnownStores`: where no store is
behind one of them, its messages are held while a store at another one covers them.
"""

import json
import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from edge_agent.queue.base import Queue, QueuedMessage, QueueFileError
from spatial_mqtt.custody import CustodyOffer

log = logging.getLogger(__name__)

MAX_UNSEEN_S = 7 * 86_400.0
"""As long as an ingester's session, which is longer than any repair."""

STORE_INTERVAL_S = 3600.0
"""Interval of storing for how long an offer was not seen; the flash lives longer."""


class OfferMemory:
    """Remembered offers of one broker.

    Args:
        queue: Stores them.
        broker: Address of the broker.
        clock: Monotonic seconds.
        stores: Memory of all brokers, which is kept up to date; None on a node.
    """

    def __init__(
        self,
        queue: Queue,
        broker: str,
        clock: Callable[[], float],
        stores: "KnownStores | None" = None,
    ) -> None:
        self._queue = queue
        self._stores = stores
        self._broker = broker
        self._clock = clock
        self._counted_until_s: float | None = None
        self._offers: dict[str, CustodyOffer] = {}
        self._unseen_s: dict[str, float] = {}
        self._load()

    @property
    def offers(self) -> list[CustodyOffer]:
        """The offers that count."""
        return list(self._offers.values())

    def on_up(self) -> None:
        """Count the time of a connection on which no offer was seen yet."""
        self._counted_until_s = self._clock()
        self._unseen_s = {name: self._unseen_s.get(name, 0.0) for name in self._offers}
        self._share(self.offers)

    def on_down(self) -> None:
        """Stop to count."""
        self._count()
        self._counted_until_s = None

    def on_offer(self, offer: CustodyOffer) -> None:
        """Remember an offer."""
        self._share([offer])
        was_unseen = self._unseen_s.pop(offer.receiver, 0.0) > 0
        if was_unseen or self._offers.get(offer.receiver) != offer:
            self._offers[offer.receiver] = offer
            self._store()

    def on_withdrawn(self, receiver: str) -> None:
        """Forget an offer."""
        if self._stores is not None:
            self._stores.on_end(self._broker, receiver)
        self._unseen_s.pop(receiver, None)
        if self._offers.pop(receiver, None) is not None:
            self._store()

    def forget_unseen(self) -> list[str]:
        """Forget offers that were not seen for long; return their receivers."""
        self._share(self.offers)
        since_s = self._counted_until_s
        if since_s is None or self._clock() - since_s < STORE_INTERVAL_S:
            return []
        self._count()
        gone = [n for n, unseen_s in self._unseen_s.items() if unseen_s >= MAX_UNSEEN_S]
        for receiver in gone:
            log.warning(
                "the offer of %s was not shown by %s for %.0f days of connection: it "
                "does not count any longer",
                receiver,
                self._broker,
                MAX_UNSEEN_S / 86_400,
            )
            self.on_withdrawn(receiver)
        return gone

    def _count(self) -> None:
        """Add the time since the last call to offers that were not seen."""
        if self._counted_until_s is None:
            return
        now_s = self._clock()
        passed_s, self._counted_until_s = now_s - self._counted_until_s, now_s
        if self._unseen_s and passed_s > 0:
            for receiver in self._unseen_s:
                self._unseen_s[receiver] += passed_s
            self._store()

    def _share(self, offers: Sequence[CustodyOffer]) -> None:
        if self._stores is not None:
            self._stores.show(self._broker, offers)

    @property
    def _key(self) -> str:
        return f"uplink/offers/{self._broker}"

    def _load(self) -> None:
        stored = self._queue.get_state(self._key) or "[]"
        try:
            # Earlier versions stored neither takes nor times, and offers of gateways.
            for receiver, filters, *rest in json.loads(stored):
                takes = tuple(rest[0]) if rest else ()
                if filters:
                    offer = CustodyOffer(receiver, tuple(filters), takes)
                    self._offers[receiver] = offer
                    self._unseen_s[receiver] = float(rest[1]) if rest[1:] else 0.0
        except (ValueError, TypeError):
            log.error("offers of %s are damaged: %a", self._broker, stored)  # noqa: TRY400

    def _store(self) -> None:
        rows = [
            [o.receiver, o.filters, o.takes, self._unseen_s.get(o.receiver, 0.0)]
            for o in self._offers.values()
        ]
        try:
            self._queue.put([], {self._key: json.dumps(rows)})
        except QueueFileError as error:
            log.warning("cannot store the offers of %s: %s", self._broker, error)


SHOWN_S = 180.0
"""Time after which no lane has an offer: each one shows its own every minute."""


class KnownStores(OfferMemory):
    """Stores at all brokers of a gateway, also at one that was removed.

    Every lane shows its offers again and again. One that no lane shows, as after the
    removal of its broker, lasts until its receiver withdraws it at any broker, or for
    `MAX_UNSEEN_S` that the gateway runs.

    Args:
        queue: Stores them; it must outlive the lanes.
        clock: Monotonic seconds.

    Attributes:
        version: Changes when a store changes or ends.
    """

    def __init__(self, queue: Queue, clock: Callable[[], float]) -> None:
        super().__init__(queue, "any broker", clock)
        self._lock = threading.Lock()
        self._shown_s: dict[str, float] = {}
        self.version = 0
        self.on_up()

    def cover(self, topic: str) -> bool:
        """Whether a store at some broker covers a topic."""
        return any(offer.covers(topic) for offer in self.offers)

    def show(self, broker: str, offers: Iterable[CustodyOffer]) -> None:
        """Add the offers that a lane has, and forget those that no lane has shown."""
        with self._lock:
            for offer in offers:
                place = f"{offer.receiver}@{broker}"
                known = replace(offer, receiver=place, is_offline=False)
                if known not in self.offers:
                    self.version += 1
                    self.on_offer(known)
                self._unseen_s[place] = 0.0  # from now on
                self._shown_s[place] = self._clock()
            self.version += len(self.forget_unseen())

    def on_end(self, broker: str, receiver: str) -> None:
        """Forget a store that a broker ends; also elsewhere, if no lane shows it."""
        now_s, own = self._clock(), f"{receiver}@{broker}"
        with self._lock:
            for place in [offer.receiver for offer in self.offers]:
                shown_s = self._shown_s.get(place, -math.inf)
                is_same = place.partition("@")[0] == receiver
                if place == own or (is_same and now_s - shown_s > SHOWN_S):
                    self.on_withdrawn(place)
                    self.version += 1


class HeldMessages:
    """Messages that were sent to a broker without a store; they stay leased.

    They are not sent again to that broker: a subscriber there would receive them again.
    Methods may be called from any thread.

    Args:
        max_bytes: Size above which the oldest ones leave the queue.
    """

    def __init__(self, max_bytes: float) -> None:
        self._max_bytes = max_bytes
        self._messages: dict[int, QueuedMessage] = {}

    def __len__(self) -> int:
        """Number of messages."""
        return len(self._messages)

    def messages(self) -> list[QueuedMessage]:
        """The messages, oldest first."""
        return list(self._messages.values())

    def count(self, lowest: int) -> int:
        """Number of messages of a priority and above."""
        return sum(each.priority >= lowest for each in self.messages())

    def add(self, message: QueuedMessage) -> list[int]:
        """Add a message; return the sequence numbers of those that leave the queue."""
        self._messages[message.seq] = message
        if self._max_bytes == math.inf:
            return []
        gone: list[int] = []
        size_bytes = sum(len(m.topic) + len(m.payload) for m in self.messages())
        for oldest in self.messages():
            if size_bytes <= self._max_bytes:
                break
            size_bytes -= len(oldest.topic) + len(oldest.payload)
            gone.append(oldest.seq)
        return self.forget(gone)

    def forget(self, seqs: Iterable[int]) -> list[int]:
        """Remove messages; return the sequence numbers that were held."""
        return [seq for seq in seqs if self._messages.pop(seq, None) is not None]

    def take(self, is_taken: Callable[[str], bool]) -> list[int]:
        """Remove messages by their topic; return their sequence numbers."""
        return self.forget([m.seq for m in self.messages() if is_taken(m.topic)])
