"""Offers of receipts that a broker has shown before, stored in the queue's file.

A broker that restarts without persistence has lost its retained offers and must not be
treated as one without a store, so an offer is remembered. It is forgotten when the
receiver withdraws it, or when the broker has not repeated it during `MAX_UNSEEN_S` of
connection: an offer that ended while this machine was away would otherwise count for
ever. Time without a connection does not count, nor does a clock that may be wrong.
"""

import json
import logging
from collections.abc import Callable

from edge_agent.queue.base import Queue, QueueFileError
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
    """

    def __init__(self, queue: Queue, broker: str, clock: Callable[[], float]) -> None:
        self._queue = queue
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

    def on_down(self) -> None:
        """Stop to count."""
        self._count()
        self._counted_until_s = None

    def on_offer(self, offer: CustodyOffer) -> None:
        """Remember an offer."""
        was_unseen = self._unseen_s.pop(offer.receiver, 0.0) > 0
        if was_unseen or self._offers.get(offer.receiver) != offer:
            self._offers[offer.receiver] = offer
            self._store()

    def on_withdrawn(self, receiver: str) -> None:
        """Forget an offer."""
        self._unseen_s.pop(receiver, None)
        if self._offers.pop(receiver, None) is not None:
            self._store()

    def forget_unseen(self) -> list[str]:
        """Forget offers that were not seen for long; return their receivers."""
        since_s = self._counted_until_s
        if since_s is None or self._clock() - since_s < STORE_INTERVAL_S:
            return []
        self._count()
        gone = [n for n, unseen_s in self._unseen_s.items() if unseen_s >= MAX_UNSEEN_S]
        for receiver in gone:
            log.warning(
                "%s has not shown the offer of %s for %.0f days of connection: it does "
                "not count any longer",
                self._broker,
                receiver,
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
