"""The uplink's loop: before every send, the most urgent message is chosen anew.

The backlog stays in the queue, never in the MQTT client or the kernel, so a
message of priority 5 overtakes all of it.

What an uplink hears: the events of its connections, and what else it listens for.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from edge_agent.queue.base import Queue, QueueFileError
from edge_agent.uplink.in_flight import Custody, Due, Flight
from edge_agent.uplink.publications import Load, Loader, Sender
from edge_agent.uplink.rate_limit import Throttle, wire_bytes
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Beat, unheard
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import Offer, Receipt
from spatial_mqtt.errors import ReceiptError
from spatial_mqtt.topics import OFFER_FILTER, custody_topic, matches
from spatial_mqtt.transport import ConnectionHandler, Incoming, Session


@dataclass(frozen=True)
class Ear:
    """What else is listened for on the link.

    Attributes:
        filters: MQTT filters.
        hear: Called in the uplink's loop with each message; must not block.
    """

    filters: tuple[str, ...] = ()
    hear: Callable[[Incoming], object] = lambda _: None


class Answer(NamedTuple):
    """What the broker said of a publication, and when."""

    link: "Link"
    token: int
    refused: str | None
    at_s: float


class Loop(Protocol):
    """Who runs events in its own loop."""

    def post(self, event: Callable[[], None], link: "Link") -> None:
        """Run an event of a link, unless that link is history."""

    def answered(self, answer: Answer) -> None:
        """The broker acknowledged or refused a publication."""

    def on_ready(self, receive_maximum: int, round_trip_s: float) -> None:
        """The link is up and our receipts are subscribed."""

    def on_lost(self, reason: str) -> None:
        """The link is gone."""

    def on_message(self, incoming: Incoming) -> None:
        """Something arrived."""


class Link:
    """Handler of one connection: hands its events to the uplink's loop."""

    def __init__(self, loop: Loop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._receive_maximum = 0
        self._up_at_s = 0.0

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._receive_maximum = receive_maximum
        self._up_at_s = self._clock()

    def on_subscribed(self) -> None:
        limit, trip_s = self._receive_maximum, self._clock() - self._up_at_s
        self._loop.post(lambda: self._loop.on_ready(limit, trip_s), self)

    def on_down(self, reason: str) -> None:
        self._loop.post(lambda: self._loop.on_lost(reason), self)

    def on_message(self, message: Incoming) -> None:
        self._loop.post(lambda: self._loop.on_message(message), self)

    def on_published(self, token: int, refused: str | None) -> None:
        self._loop.answered(Answer(self, token, refused, self._clock()))


log = logging.getLogger(__name__)

IDLE_POLL_S = 0.25
"""Another process may put into our queue file; look that often."""

URGENT_FROM = 4
"""Priorities that do not wait out a long backoff."""

BURST = 64
"""Publications that are written together at most."""

EXCESS_BYTES = 200
"""A write may go so far beyond its room: a small message, 50 ms at 30 kbps."""

TOGETHER_BYTES = 8192
"""So much of one priority is taken before the next is chosen."""

ACK_BATCH = 64
ACK_WITHIN_S = 0.2

Connect = Callable[[Endpoint, Session, ConnectionHandler], Connection]


class Uplink:
    """Drains one queue to one broker at a time.

    Args:
        queue: Where messages come from; this is its only leaser.
        sender: Who sends, and how.
        connect: Makes a connection to an endpoint.
        throttle: How much may be sent when.
        clock: Monotonic seconds.
        ear: What else is listened for.
    """

    def __init__(
        self,
        queue: Queue,
        sender: Sender,
        connect: Connect,
        throttle: Throttle,
        clock: Callable[[], float],
        *,
        ear: Ear | None = None,
    ) -> None:
        self._queue = queue
        self._ear = ear or Ear()
        self._sender = sender
        self._connect = connect
        self._throttle = throttle
        self._clock = clock
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._answers: deque[Answer] = deque()
        self._waits_for_answers = True
        self._flight = Flight(
            sender.limits, sender.custody, needs_taker=not sender.is_relay
        )
        self._loader = Loader(queue, sender, self._flight)
        self._connection: Connection | None = None
        self._link: Link | None = None
        self._acks: list[int] = []
        self._acks_since_s = 0.0
        self._stop = threading.Event()
        self.down_since_s: float | None = clock()
        self.unserved_since_s: float | None = clock()

    @property
    def endpoint(self) -> Endpoint | None:
        """The broker in use."""
        return self._connection.endpoint if self._connection else None

    def use(self, endpoint: Endpoint) -> None:
        """Drain to this broker from now on."""
        old, self._link = self._connection, None
        if old is not None:
            old.stop()
        self._events.put(self._on_down)
        link = self._link = Link(self, self._clock)
        session = Session(
            client_id=self._sender.id,
            filters=(
                (custody_topic(self._sender.id), 1),
                (OFFER_FILTER, 1),
                *((each, 1) for each in self._ear.filters),
            ),
            keepalive_s=self._sender.keepalive_s,
        )
        self._connection = self._connect(endpoint, session, link)
        self._connection.start()

    def wake(self) -> None:
        """Say that something was put into the queue."""
        self._events.put(_nothing)

    def run(self, beat: Beat = unheard) -> None:
        """Send until `stop`."""
        while not self._stop.is_set():
            beat()
            self._take_answers()
            wait_s = self._send_what_may_go()
            self._hurry_if_urgent()
            self._settle()
            self._watch_service()
            self._take_events(wait_s)
        self._settle(everything=True)

    def stop(self) -> None:
        """End the loop; what is unreceipted stays in the queue."""
        self._stop.set()
        self.wake()
        if self._connection is not None:
            self._connection.stop()

    def post(self, event: Callable[[], None], link: Link) -> None:
        """Run an event of a link in our loop, unless that link is history."""
        self._events.put(lambda: event() if link is self._link else None)

    def on_ready(self, receive_maximum: int, round_trip_s: float) -> None:
        """The link is up and our receipts are subscribed."""
        offers = self._known_offers()
        self._flight.up(self._clock(), receive_maximum, offers, round_trip_s)
        self.down_since_s = None
        log.info("uplink to %s is up", self.endpoint)

    def on_lost(self, reason: str) -> None:
        """The link is gone."""
        log.warning("uplink to %s is down: %s", self.endpoint, reason)
        self._on_down()

    def answered(self, answer: Answer) -> None:
        """The broker acknowledged or refused a publication; call it in any thread.

        Our loop is woken only if it waits for room. Otherwise that would cost more
        than everything else that is done for a message.
        """
        self._answers.append(answer)
        if self._waits_for_answers:
            self.wake()

    def _take_answers(self) -> None:
        while self._answers:
            link, token, refused, now_s = self._answers.popleft()
            if link is self._link:
                self._take_answer(token, refused, now_s)

    def _take_answer(self, token: int, refused: str | None, now_s: float) -> None:
        for message in self._flight.published(token, refused, now_s):
            log.error(
                "%s refused %s on %s: %s",
                self.endpoint,
                message.id,
                message.topic,
                refused,
            )

    def on_message(self, incoming: Incoming) -> None:
        """A receipt, an offer, or what the ear listens for arrived."""
        try:
            if incoming.topic == custody_topic(self._sender.id):
                self._flight.receipt(Receipt.decode(incoming.payload))
            elif not matches(OFFER_FILTER, incoming.topic):
                self._ear.hear(incoming)
            elif incoming.payload:
                self._flight.offered(Offer.decode(incoming.payload))
        except ReceiptError as error:
            log.warning("%s on %s from %s", error, incoming.topic, self.endpoint)

    def _on_down(self) -> None:
        self._take_answers()  # what was answered need not go again
        self._flight.down()
        self._loader.forget_large()
        if self.down_since_s is None:
            self.down_since_s = self._clock()

    def _send_what_may_go(self) -> float:
        """Send until something stands in the way; seconds to wait for it."""
        self._waits_for_answers = True
        while self._events.empty():
            self._take_answers()
            now_s = self._clock()
            loads, wait_s = self._burst(now_s)
            if not loads:
                self._waits_for_answers = self._loader.next_priority(now_s) is not None
                return wait_s
            if not self._hand_over(loads, now_s):
                return IDLE_POLL_S
        return 0.0

    def _burst(self, now_s: float) -> tuple[list[Load], float]:
        """What goes in the next write, or how long to wait for it.

        Routine messages do not share a write with urgent ones: a segment arrives as
        a whole, so they would delay those, and their window is smaller.
        """
        loads: list[Load] = []
        room, is_urgent = 0, False
        while (priority := self._loader.next_priority(now_s)) is not None:
            if not loads:
                is_urgent = priority >= URGENT_FROM
                room = self._flight.room(now_s, is_urgent=is_urgent)
            elif is_urgent and priority < URGENT_FROM:
                break
            wait_s = self._throttle.wait_s(priority, now_s)
            if wait_s > 0:
                return loads, min(wait_s, IDLE_POLL_S)
            most = min(BURST, self._flight.slots) - len(loads)
            if room <= 0 or most <= 0:
                break
            # What is metered is looked at one by one.
            more = self._loader.loads(
                priority,
                most if self._throttle.is_open else 1,
                min(room, TOGETHER_BYTES),
            )
            if not more:
                break
            room = self._fill(loads, more, room, now_s)
        return loads, IDLE_POLL_S

    def _fill(
        self, loads: list[Load], more: list[Load], room: int, now_s: float
    ) -> int:
        """Add what there is room for; the room that is left.

        The first always fits, or what is larger than the window would never go. So
        does what is little too large: half-empty segments would cost more.
        """
        for number, load in enumerate(more):
            size_bytes = wire_bytes(load.packet_bytes, is_first=not loads)
            if loads and (room <= 0 or size_bytes > room + EXCESS_BYTES):
                self._loader.give_back(more[number:])
                return 0
            self._throttle.spend(size_bytes, now_s)
            room -= size_bytes
            loads.append(load)
        return room

    def _hand_over(self, loads: list[Load], now_s: float) -> bool:
        """Give a burst to the link; whether it took it."""
        handed = []
        if self._connection is not None:
            publications = [load.publication for load in loads]
            handed = self._connection.publish_together(publications)
        sizes = [
            wire_bytes(packet.size_bytes, is_first=number == 0)
            for number, packet in enumerate(handed)
        ]
        together = sum(sizes)
        for packet, load, size in zip(handed, loads, sizes, strict=False):
            self._flight.sent(
                packet.token,
                load.messages,
                size,
                now_s,
                together,
                is_answered=load.publication.qos > 0,
            )
        if len(handed) < len(loads):
            self._loader.give_back(loads[len(handed) :])
        return len(handed) == len(loads)

    def _hurry_if_urgent(self) -> None:
        """An urgent message cuts the wait for the next attempt to connect."""
        if self.down_since_s is None or self._connection is None:
            return
        for message in self._queue.lease():
            self._queue.release([message.seq])
            if message.priority >= URGENT_FROM:
                self._connection.hurry()

    def _watch_service(self) -> None:
        now_s = self._clock()
        if self._flight.is_served(now_s):
            self.unserved_since_s = None
        elif self.unserved_since_s is None:
            self.unserved_since_s = now_s

    def _settle(self, everything: bool = False) -> None:
        """Tell the queue what was delivered (in batches) and what was not."""
        now_s = self._clock()
        due = self._flight.due(now_s)
        self._note_custody(due)
        if due.release:
            self._queue.release(due.release)
        if due.ack and not self._acks:
            self._acks_since_s = now_s
        self._acks += due.ack
        is_late = now_s - self._acks_since_s >= ACK_WITHIN_S
        is_batch = is_late or len(self._acks) >= ACK_BATCH
        if self._acks and (everything or is_batch):
            self._queue.ack(self._acks)
            self._acks = []

    def _note_custody(self, due: Due) -> None:
        if due.offers:
            offers = {o.receiver: o for o in (*self._known_offers(), *due.offers)}
            told = [[o.receiver, o.filters, o.takes] for o in offers.values()]
            self._remember_offers(json.dumps(told))
        if due.settled is Custody.RECEIPTS:
            log.info("%s gives receipts: custody ends on its disk", self.endpoint)
        elif due.settled is Custody.PUBACK:
            log.warning(
                "%s gives no receipts: custody ends with its PUBACK, which is in "
                "its memory only; messages it loses are lost",
                self.endpoint,
            )

    def _remember_offers(self, told: str) -> None:
        try:
            self._queue.put([], {self._offers_key(): told})
        except QueueFileError as error:
            log.warning("offers of %s are not remembered: %s", self.endpoint, error)

    def _known_offers(self) -> list[Offer]:
        told = json.loads(self._queue.recall(self._offers_key()) or "[]")
        return [
            Offer(receiver, tuple(filters), tuple(takes[0] if takes else ()))
            for receiver, filters, *takes in told  # an older version told no takes
        ]

    def _offers_key(self) -> str:
        return f"uplink/offers/{self.endpoint}"

    def _take_events(self, wait_s: float) -> None:
        try:
            self._events.get(timeout=wait_s if wait_s > 0 else 0.001)()
            while True:
                self._events.get_nowait()()
        except Empty:
            return


def _nothing() -> None:
    """An event that only wakes the loop."""
