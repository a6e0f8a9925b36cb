"""Uplink: sends the messages of a queue to one broker at a time.

Each write is chosen anew, most urgent first. The backlog stays in the queue, not in the
MQTT client or the kernel, so a message of priority 5 overtakes all of it.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import NamedTuple

from edge_agent.queue.base import Queue, QueuedMessage, QueueFileError
from edge_agent.uplink.in_flight import CustodyMode, InFlight, QueueActions
from edge_agent.uplink.link_rate import LinkEstimate, RateLimiter, wire_bytes
from edge_agent.uplink.offer_memory import HeldMessages, OfferMemory
from edge_agent.uplink.scheduler import (
    OutgoingPublication,
    PublicationBuilder,
    SenderProfile,
)
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Heartbeat, no_heartbeat
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.errors import ReceiptError, TopicError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import (
    OFFER_FILTER,
    custody_topic,
    matches,
    parse_offer_topic,
)
from spatial_mqtt.transport import (
    ConnectionHandler,
    IncomingMessage,
    Publication,
    SentPublication,
    Session,
    SessionConnection,
)


@dataclass(frozen=True)
class ExtraSubscriptions:
    """Additional subscriptions on the link.

    Attributes:
        filters: MQTT topic filters.
        on_message: Called in the uplink's thread with each message; must not block.
    """

    filters: tuple[str, ...] = ()
    on_message: Callable[[IncomingMessage], object] = lambda _: None


class _PublishResult(NamedTuple):
    """The broker's answer to a publication, and its monotonic time."""

    link: "_LinkHandler"
    token: int
    refused: str | None
    at_s: float


class _LinkHandler:
    """Handler of one connection: passes its events to the uplink's thread.

    The connection may be lost and be up again before that thread handles the first of
    these events. Until it has handled both, nothing is sent: the messages of the lost
    link still count as sent, and less urgent ones would be sent before them.

    Attributes:
        connection: The connection; set before it is started.
    """

    connection: SessionConnection | None = None

    def __init__(self, uplink: "Uplink", clock: Callable[[], float]) -> None:
        self._uplink = uplink
        self._clock = clock
        self._receive_maximum = 0
        self._up_at_s = 0.0
        self._early: list[IncomingMessage] | None = None
        self._lost_count = 0
        self._opened_after: int | None = None

    def publish(self, publications: Sequence[Publication]) -> list[SentPublication]:
        """Publish in one write, unless a loss or a new link is not handled yet."""
        if self.connection is None or self._opened_after != self._lost_count:
            return []
        return self.connection.publish_together(publications)

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._receive_maximum = receive_maximum
        self._up_at_s = self._clock()
        self._early = []

    def on_subscribed(self) -> None:
        limit, round_trip_s = self._receive_maximum, self._clock() - self._up_at_s
        lost_count = self._lost_count
        self._uplink.post(lambda: self._open(lost_count, limit, round_trip_s), self)
        early, self._early = self._early or [], None
        for message in early:
            self.on_message(message)

    def on_down(self, reason: str) -> None:
        self._lost_count += 1
        self._uplink.post(lambda: self._uplink.on_link_down(reason), self)

    def on_message(self, message: IncomingMessage) -> None:
        # A broker may send the retained offer before it confirms the subscription.
        if self._early is not None:
            self._early.append(message)
        else:
            self._uplink.post(lambda: self._uplink.on_message(message), self)

    def on_published(self, token: int, refused: str | None) -> None:
        self._uplink.on_answer(_PublishResult(self, token, refused, self._clock()))

    def _open(self, lost_count: int, limit: int, round_trip_s: float) -> None:
        """Permit to send; runs in the uplink's thread."""
        self._opened_after = lost_count
        self._uplink.on_link_up(limit, round_trip_s)


log = logging.getLogger(__name__)

IDLE_POLL_S = 0.25
"""Poll interval of the queue, for messages that another process has put."""

SILENT_LINK_S = 4.0
"""Time without an answer after which a connection that is stuck is renewed."""

RENEWAL_AFTER = 2.0
"""A connection whose broker does not answer is renewed after this many times the limit
at which another gateway is used: with several, that comes first."""

RENEWALS_FORGOTTEN_S = 3600.0
"""Time after which the wait for the next renewal is the first one again."""

MAX_BURST = 64
"""Maximum number of publications in one write."""

LINK_STORE_INTERVAL_S = 60.0
"""Interval of comparing the known link with the stored one, and of ending offers."""

MAX_EXCESS_BYTES = 200
"""A write may exceed the window by a small message, 50 ms at 30 kbps."""

MAX_LEASE_BYTES = 8192
"""Maximum bytes leased of one priority before the next is chosen."""

ACK_BATCH = 64
ACK_DELAY_S = 0.2

Connect = Callable[[Endpoint, Session, ConnectionHandler], SessionConnection]


class Uplink:
    """Sends the messages of one queue to one broker at a time.

    Args:
        queue: The queue; nothing else may lease from it.
        sender: Identity and settings.
        connect: Creates a connection to an endpoint.
        rate_limiter: Rate limit of the link.
        clock: Monotonic seconds.
        extra: Additional subscriptions.

    Attributes:
        down_since_s: Monotonic time since when the link is down; None while it is up.
        unserved_since_s: Monotonic time since when messages are not accepted; None if
            they are.
    """

    def __init__(
        self,
        queue: Queue,
        sender: SenderProfile,
        connect: Connect,
        rate_limiter: RateLimiter,
        clock: Callable[[], float],
        *,
        extra: ExtraSubscriptions | None = None,
    ) -> None:
        self._queue = queue
        self._extra = extra or ExtraSubscriptions()
        self._sender = sender
        self._connect = connect
        self._limiter = rate_limiter
        self._clock = clock
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._answers: deque[_PublishResult] = deque()
        self._wakes_on_answers = True
        is_node, stores = not sender.is_relay, sender.stores
        self._in_flight = InFlight(
            sender.limits, sender.custody, needs_subscriber=is_node, stores=stores
        )
        self._builder = PublicationBuilder(queue, sender, self._in_flight)
        self._offers: OfferMemory | None = None
        self._connection: SessionConnection | None = None
        self._link: _LinkHandler | None = None
        self._acks: list[int] = []
        self._acks_since_s = 0.0
        self._link_key = ""
        self._link_stored_s = 0.0
        self._renewals = 0
        self._renewed_s = -RENEWALS_FORGOTTEN_S
        self._stop = threading.Event()
        self.down_since_s: float | None = clock()
        self.unserved_since_s: float | None = clock()

    @property
    def endpoint(self) -> Endpoint | None:
        """The broker in use."""
        return self._connection.endpoint if self._connection else None

    @property
    def gives_receipts(self) -> bool:
        """Whether the broker in use gives receipts, or may still offer them."""
        return self._in_flight.custody is not CustodyMode.PUBACK

    @property
    def held_count(self) -> int:
        """Number of messages that are held until a store gives a receipt."""
        return len(self._in_flight.held)

    @property
    def held(self) -> HeldMessages:
        """Messages that are held until a store gives a receipt."""
        return self._in_flight.held

    @property
    def in_flight(self) -> list[QueuedMessage]:
        """Messages that the link keeps leased, see `InFlight.messages`."""
        return self._in_flight.messages()

    @property
    def lowest_permitted(self) -> int:
        """Lowest priority that the rate limit permits now."""
        return self._limiter.lowest_permitted(self._clock())

    @property
    def withheld_count(self) -> int:
        """Number of messages of another node that are not sent."""
        return self._builder.withheld_count

    def switch_to(self, endpoint: Endpoint) -> None:
        """Switch to a broker."""
        old, self._link = self._connection, None
        if old is not None:
            old.stop()
        self._events.put(self._on_down)
        link = self._link = _LinkHandler(self, self._clock)
        session = Session(
            client_id=self._sender.id,
            filters=(
                (custody_topic(self._sender.id), 1),
                (OFFER_FILTER, 1),
                *((each, 1) for each in self._extra.filters),
            ),
            keepalive_s=self._sender.keepalive_s,
        )
        link.connection = self._connection = self._connect(endpoint, session, link)
        self._connection.start()

    def wake(self) -> None:
        """Wake the loop after messages were put into the queue."""
        self._events.put(lambda: None)

    def run(self, beat: Heartbeat = no_heartbeat) -> None:
        """Send until `stop`."""
        while not self._stop.is_set():
            beat()
            self._handle_answers()
            # Before the next selection: less urgent messages would pass those that
            # a lost link or an offer has returned.
            self._settle()
            wait_s = self._send_all()
            self._hurry_if_urgent()
            self._renew_silent_link()
            self._update_unserved_since()
            self._run_events(wait_s)
        self._settle(everything=True)

    def stop(self) -> None:
        """End the loop; messages without a receipt stay in the queue."""
        self._stop.set()
        self.wake()
        if self._connection is not None:
            self._connection.stop()

    def post(self, event: Callable[[], None], link: _LinkHandler) -> None:
        """Run an event in the loop; drop it if its link has been replaced."""
        self._events.put(lambda: event() if link is self._link else None)

    def on_link_up(self, receive_maximum: int, round_trip_s: float) -> None:
        """Start to send: the link is up and the receipts are subscribed."""
        self._link_key = f"uplink/link/{self.endpoint}"
        broker, stores = str(self.endpoint), self._sender.stores
        self._offers = OfferMemory(self._queue, broker, self._clock, stores)
        self._offers.on_up()
        self._in_flight.on_up(
            self._clock(),
            receive_maximum,
            self._offers.offers,
            round_trip_s,
            self._stored_link(),
        )
        self.down_since_s = None
        log.info("uplink to %s is up", self.endpoint)

    def on_link_down(self, reason: str) -> None:
        """Release the messages in flight: the link is down."""
        log.warning("uplink to %s is down: %s", self.endpoint, reason)
        self._on_down()

    def on_answer(self, answer: _PublishResult) -> None:
        """Queue the broker's answer to a publication; may be called from any thread.

        The loop is woken only if the answer can let it send more: waking it for each
        one would cost more than everything else that is done for a message.
        """
        self._answers.append(answer)
        if self._wakes_on_answers:
            self.wake()

    def _handle_answers(self) -> None:
        while self._answers:
            link, token, refused, now_s = self._answers.popleft()
            if link is self._link:
                self._handle_answer(token, refused, now_s)

    def _handle_answer(self, token: int, refused: str | None, now_s: float) -> None:
        for each in self._in_flight.on_published(token, refused, now_s):
            what = (self.endpoint, each.id, each.topic, refused)
            log.error("%s refused %s on %s: %s", *what)

    def on_message(self, incoming: IncomingMessage) -> None:
        """Handle a receipt, an offer, or a message of the additional subscriptions."""
        try:
            if incoming.topic == custody_topic(self._sender.id):
                self._in_flight.on_receipt(CustodyReceipt.decode(incoming.payload))
            elif not matches(OFFER_FILTER, incoming.topic):
                self._extra.on_message(incoming)
            else:
                self._on_offer(parse_offer_topic(incoming.topic), incoming.payload)
        except (ReceiptError, TopicError) as error:
            log.warning("%s on %s from %s", error, incoming.topic, self.endpoint)

    def _on_offer(self, receiver: str, payload: bytes) -> None:
        """Handle an offer, or its withdrawal by an empty payload.

        The topic names the receiver, because the broker checks only who may write it.
        """
        if not payload:
            self._end_offer(receiver)
            return
        offer = CustodyOffer.decode(payload)
        if offer.receiver != receiver:
            rule = f"{receiver}, as in its topic"
            raise ReceiptError("receiver", rule, offer.receiver)
        self._in_flight.on_offer(offer)
        if self._offers is not None and offer.filters:
            self._offers.on_offer(replace(offer, is_offline=False))

    def _end_offer(self, receiver: str) -> None:
        if self._offers is not None:
            self._offers.on_withdrawn(receiver)
        self._in_flight.on_withdrawn(receiver, self._clock())
        self._builder.release_large()  # its first chunks may have gone to that receiver

    def _on_down(self) -> None:
        if self._offers is not None:
            self._offers.on_down()
        self._store_link(self._clock())
        self._handle_answers()  # acknowledged messages are not sent again
        self._in_flight.on_down()
        self._builder.release_large()
        if self.down_since_s is None:
            self.down_since_s = self._clock()

    def _send_all(self) -> float:
        """Send as much as is permitted; return the seconds to wait for more."""
        while self._events.empty():
            self._handle_answers()
            now_s = self._clock()
            loads, wait_s = self._burst(now_s)
            if not loads and self._wakes_on_answers and self._answers:
                continue  # they came before they could wake the loop
            if not loads:
                return wait_s
            if not self._publish(loads, now_s) or not self._wakes_on_answers:
                return IDLE_POLL_S
        return 0.0

    def _burst(self, now_s: float) -> tuple[list[OutgoingPublication], float]:
        """Publications of the next write, and the seconds to wait if there are none.

        Routine messages do not share a write with urgent ones: a segment arrives as
        a whole, so they would delay the urgent ones, and their window is smaller.
        """
        loads: list[OutgoingPublication] = []
        free_bytes, is_urgent = 0, False
        while True:
            priority = self._next_priority(now_s)
            self._wakes_on_answers = priority is not None
            if priority is None:
                break
            if not loads:
                is_urgent = LADDER.is_urgent(priority)
                free_bytes = self._in_flight.sendable_bytes(now_s, priority)
            elif is_urgent and not LADDER.is_urgent(priority):
                break
            wait_s = self._limiter.wait_s(priority, now_s)
            if wait_s > 0:
                return loads, min(wait_s, IDLE_POLL_S)
            limit = min(MAX_BURST, self._in_flight.free_slots) - len(loads)
            if free_bytes <= 0 or limit <= 0:
                break
            # With a rate limit, one by one.
            more = self._builder.build_burst(
                priority,
                limit if self._limiter.is_unlimited else 1,
                min(free_bytes, MAX_LEASE_BYTES),
            )
            if not more and self._next_priority(now_s) in {None, priority}:
                break  # otherwise a more urgent message was put meanwhile
            free_bytes = self._add_fitting(loads, more, free_bytes, now_s)
        pace_wait_s = self._in_flight.pace_wait_s(now_s)
        return loads, min(IDLE_POLL_S, pace_wait_s or IDLE_POLL_S)

    def _next_priority(self, now_s: float) -> int | None:
        lowest = self._limiter.lowest_permitted(now_s)
        return self._builder.next_priority(now_s, lowest)

    def _add_fitting(
        self,
        loads: list[OutgoingPublication],
        more: list[OutgoingPublication],
        free_bytes: int,
        now_s: float,
    ) -> int:
        """Add publications that fit to a write; return the bytes that are left.

        The first always fits, or one larger than the window would never be sent. One
        that is slightly too large fits, too: half-empty segments would cost more.
        """
        for number, load in enumerate(more):
            size_bytes = wire_bytes(load.packet_bytes, is_first=not loads)
            if loads and (
                free_bytes <= 0 or size_bytes > free_bytes + MAX_EXCESS_BYTES
            ):
                self._builder.put_back(more[number:])
                return 0
            self._limiter.spend(size_bytes, now_s)
            free_bytes -= size_bytes
            loads.append(load)
        return free_bytes

    def _publish(self, loads: list[OutgoingPublication], now_s: float) -> bool:
        """Pass a write to the connection; whether it accepted all of it."""
        link = self._link
        publications = [load.publication for load in loads]
        packets = link.publish(publications) if link is not None else []
        sizes = [
            wire_bytes(packet.size_bytes, is_first=number == 0)
            for number, packet in enumerate(packets)
        ]
        write_bytes = sum(sizes)
        for packet, load, size in zip(packets, loads, sizes, strict=False):
            self._in_flight.on_sent(
                packet.token,
                load.messages,
                size,
                now_s,
                write_bytes,
                is_answered=load.publication.qos > 0 and packet.size_bytes > 0,
            )
        if len(packets) < len(loads):
            self._builder.release(loads[len(packets) :])
        return len(packets) == len(loads)

    def _hurry_if_urgent(self) -> None:
        """Reconnect at once while an urgent message is waiting."""
        if self.down_since_s is None or self._connection is None:
            return
        for message in self._queue.lease():
            self._queue.release([message.seq])
            if LADDER.is_urgent(message.priority):
                self._connection.reconnect_soon()

    def _renew_silent_link(self) -> None:
        """Connect anew where TCP waits for long, or the broker does not answer."""
        connection = self._connection
        silence_s = self._in_flight.silence_s(self._clock())
        is_silent = silence_s > SILENT_LINK_S and self.down_since_s is None
        if is_silent and connection is not None:
            connection.renew_if_stuck()
            self._renew_unanswered_link(connection, silence_s)

    def _renew_unanswered_link(
        self, connection: SessionConnection, silence_s: float
    ) -> None:
        """Connect anew where everything arrives, but urgent messages get no answer.

        The wait doubles up to the keep-alive: a broker that answers too slowly must not
        get more connections for it.
        """
        now_s = self._clock()
        if now_s - self._renewed_s > RENEWALS_FORGOTTEN_S:
            self._renewals = 0
        first_s = RENEWAL_AFTER * self._in_flight.silence_limit_s
        most_s = max(first_s, self._sender.keepalive_s)
        limit_s = min(first_s * 2.0**self._renewals, most_s)
        if silence_s <= limit_s or not self._has_urgent(now_s):
            return
        if connection.renew_if_unanswered(limit_s):
            self._renewals, self._renewed_s = self._renewals + 1, now_s

    def _has_urgent(self, now_s: float) -> bool:
        """Whether an urgent message is in flight, or waits."""
        waiting = self._next_priority(now_s)
        is_waiting = waiting is not None and LADDER.is_urgent(waiting)
        return is_waiting or self._in_flight.has_urgent

    def _update_unserved_since(self) -> None:
        now_s = self._clock()
        if self._in_flight.is_served(now_s):
            self.unserved_since_s = None
        elif self.unserved_since_s is None:
            self.unserved_since_s = now_s

    def _settle(self, everything: bool = False) -> None:
        """Acknowledge delivered messages in batches, and release undelivered ones."""
        now_s = self._clock()
        due = self._in_flight.take_actions(now_s)
        self._handle_custody(due)
        if due.release:
            self._queue.release(due.release)
        if due.ack and not self._acks:
            self._acks_since_s = now_s
        self._acks += due.ack
        is_late = now_s - self._acks_since_s >= ACK_DELAY_S
        is_batch = is_late or len(self._acks) >= ACK_BATCH
        if self._acks and (everything or is_batch):
            self._queue.ack(self._acks)
            self._acks = []
        if everything or now_s - self._link_stored_s >= LINK_STORE_INTERVAL_S:
            self._store_link(now_s)
            for receiver in self._offers.forget_unseen() if self._offers else ():
                self._end_offer(receiver)

    def _handle_custody(self, due: QueueActions) -> None:
        if due.decided_custody is CustodyMode.RECEIPTS:
            log.info("%s gives receipts: custody ends on its disk", self.endpoint)
        elif due.decided_custody is CustodyMode.PUBACK:
            log.warning(
                "%s gives no receipts: custody ends with its PUBACK, although the "
                "message is only in its memory; messages that it loses are lost%s",
                self.endpoint,
                "; those that a store at another broker covers are held"
                if self._sender.is_relay
                else "; the latest urgent ones are held",
            )

    def _store_link(self, now_s: float) -> None:
        """Store what is known of the link, if it has changed by a factor of two."""
        self._link_stored_s = now_s
        link = self._in_flight.link_estimate()
        if link is None:
            return
        stored = self._stored_link()
        if stored is None or not link.is_like(stored):
            try:
                self._queue.put([], {self._link_key: json.dumps(link)})
            except QueueFileError as error:
                log.warning("cannot store the rate of %s: %s", self.endpoint, error)

    def _stored_link(self) -> LinkEstimate | None:
        stored = self._queue.get_state(self._link_key)
        if stored is None:
            return None
        try:
            return LinkEstimate.parse(json.loads(stored))
        except (ValueError, TypeError):
            log.error("%s is damaged: %a", self._link_key, stored)  # noqa: TRY400
            return None

    def _run_events(self, wait_s: float) -> None:
        try:
            self._events.get(timeout=wait_s if wait_s > 0 else 0.001)()
            while True:
                self._events.get_nowait()()
        except Empty:
            return
