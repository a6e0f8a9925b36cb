"""Downstream: messages from the distributed brokers to the gateway's own broker.

Messages arrive in a persistent session at each broker. They are stored (the queue drops
known ids), then acknowledged, then published on the own broker in priority order.
"""

import functools
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from edge_agent.queue.base import (
    MessageDraft,
    QueueFileError,
    QueueFullError,
    format_depth,
)
from gateway_daemon.gateway.egress import Lane, LaneStatus
from gateway_daemon.gateway.incoming import BatchQueue, parse_delivery
from gateway_daemon.gateway.subscriptions import filters_by_broker, format_filters
from gateway_daemon.overlay.messages import CarriedMessage, OverlayMessage
from gateway_daemon.overlay.runner import (
    ReceivedMessages,
)
from service_runtime.crash_guard import CrashGuard
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.lifecycle import start_watched_loop
from service_runtime.tls import Endpoint
from service_runtime.watchdog import MAX_SILENCE_S, Heartbeat, LoopWatchdog
from spatial_mqtt.directory import (
    BrokerInfo,
    BrokerTable,
)
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import is_system_topic, maximal_filters
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    ConnectionHandler,
    IncomingMessage,
    RetainHandling,
    Session,
    SessionConnection,
)

log = logging.getLogger(__name__)

RECEIVE_MAXIMUM = 1000
SESSION_EXPIRY_S = 7 * 86_400
RETRY_S = 2.0
IDLE_S = 5.0
"""Longest wait between two heartbeats."""

DRAIN_S = 90.0
"""How long a removed broker must be connected without a message: then it has none left
for us. Longer than it takes to detect a dead link."""

BROKERS_STATE = "downstream/brokers"
"""State of the own broker's queue: addresses of the brokers with a session of ours."""

_maximal = functools.lru_cache(maxsize=1)(maximal_filters)
"""The same filters go to every broker; 1,000 of them take 10 ms."""

Connect = Callable[[Endpoint, Session, ConnectionHandler], SessionConnection]


@dataclass(frozen=True)
class DeliveryParser:
    """Parses messages of distributed brokers.

    Attributes:
        default_priority: Priority of a message that carries none.
        crash_guard: Puts messages aside that ended the gateway twice.
    """

    default_priority: int
    crash_guard: CrashGuard

    def parse(self, message: IncomingMessage) -> MessageDraft | None:
        """The draft of a message; None if it is put aside."""
        return self.crash_guard.decode(
            message.topic,
            message.payload,
            parse_delivery,
            message,
            self.default_priority,
        )


@dataclass(frozen=True)
class ReceivedMessage:
    """A message of a distributed broker, with the subscriber that received it."""

    message: IncomingMessage
    subscriber: "BrokerSubscriber"


def _requests(
    *parts: tuple[frozenset[str], RetainHandling],
) -> list[tuple[list[tuple[str, int]], RetainHandling]]:
    """Arguments of the calls that subscribe to each part that is not empty."""
    return [
        ([(f, 1) for f in sorted(part)], retained) for part, retained in parts if part
    ]


def receiving_session(gateway_id: str) -> Session:
    """The persistent session of a gateway at a distributed broker."""
    return Session(
        f"{gateway_id}-ear",
        expiry_s=SESSION_EXPIRY_S,
        manual_ack=True,
        receive_maximum=RECEIVE_MAXIMUM,
    )


class BrokerSubscriber(BaseConnectionHandler):
    """Persistent subscriber session at one distributed broker.

    A broker sends a copy of a message for each filter that matches, so it gets only the
    filters that no other one includes.

    Args:
        gateway_id: Name of the session.
        endpoint: The broker.
        connect: Makes connections.
        on_received: Called with each message, in the network thread.
        on_confirmed: Called when the broker has confirmed subscriptions.

    Attributes:
        connection: Connection of the session; the broker keeps new messages after its
            end.
    """

    def __init__(
        self,
        gateway_id: str,
        endpoint: Endpoint,
        connect: Connect,
        on_received: Callable[[ReceivedMessage], object],
        on_confirmed: Callable[[], object],
    ) -> None:
        self._on_received = on_received
        self._on_confirmed = on_confirmed
        self._lock = threading.Lock()
        self._filters: frozenset[str] = frozenset()
        self._held: frozenset[str] = frozenset()
        self._confirmed: frozenset[str] | None = None
        self._requested: list[frozenset[str] | None] = []
        self.connection = connect(endpoint, receiving_session(gateway_id), self)
        self.connection.start()

    @property
    def is_confirmed(self) -> bool:
        """Whether the broker has confirmed all filters, if it holds topics of any.

        No change waits for another broker that is down.
        """
        with self._lock:
            return not self._held or self._confirmed == self._filters

    def set_filters(
        self, filters: frozenset[str], held: frozenset[str] | None = None
    ) -> None:
        """Subscribe to what these filters match, and to nothing else.

        Make before break: the broker handles the requests in their order. It sends the
        retained messages of a filter that is new or newly held, unless an earlier one
        includes it.

        Args:
            filters: The filters.
            held: Those with topics that the broker is responsible for; None: all. What
                it retains for the others may be outdated.
        """
        needed = _maximal(filters)
        held = needed if held is None else needed & held
        with self._lock:
            before, self._filters = self._filters, needed
            held_before, self._held = self._held, held
            new, gained = needed - before, held - held_before
            gained &= maximal_filters(gained | (held_before - held))
            # At first: an earlier version left subscriptions for all in the session.
            removed = (before or filters) - needed
            requests = _requests(
                (gained & new, RetainHandling.IF_NEW),
                (gained - new, RetainHandling.ALWAYS),
                (new - gained, RetainHandling.NEVER),
            )
            if requests:
                self._requested += [None] * (len(requests) - 1) + [needed]
            elif removed:
                self._confirmed = needed if self._confirmed is not None else None
        for request in requests:
            self.connection.subscribe(*request)
        self.connection.unsubscribe(sorted(removed))

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        # Every filter again: the broker may have lost the session.
        with self._lock:
            filters, held = self._filters, self._held
            requests = _requests(
                (held, RetainHandling.IF_NEW), (filters - held, RetainHandling.NEVER)
            )
            self._requested = [None] * (len(requests) - 1) + [filters] * bool(requests)
        for request in requests:
            self.connection.subscribe(*request)

    def on_down(self, reason: str) -> None:
        with self._lock:
            self._confirmed = None
            self._requested = []

    def on_message(self, message: IncomingMessage) -> None:
        self._on_received(ReceivedMessage(message, self))

    def on_subscribed(self) -> None:
        with self._lock:
            confirmed = self._requested.pop(0) if self._requested else None
            if confirmed is None:
                return
            self._confirmed = confirmed
        log.info(
            "%s confirmed the subscription to %s",
            self.connection.endpoint,
            format_filters(confirmed),
        )
        self._on_confirmed()


@dataclass
class _RemovedBroker:
    """Since when a broker is not in the table, and without a message for us."""

    since_s: float
    idle_since_s: float


class Downstream:
    """Moves messages that clients subscribe to from the brokers to the own broker.

    Args:
        gateway_id: Name of the sessions.
        connect: Makes connections to distributed brokers.
        lane: Queue and uplink for the own broker.
        own_broker: The own broker; its messages need no transport.
        watchdog: Watchdog of the loops.

    Attributes:
        parser: Parses the messages.
        on_confirmed: Called when a broker has confirmed subscriptions, in a network
            thread.
    """

    def __init__(
        self,
        gateway_id: str,
        connect: Connect,
        lane: Lane,
        own_broker: Endpoint,
        *,
        parser: DeliveryParser,
        watchdog: LoopWatchdog,
    ) -> None:
        self._watchdog = watchdog
        self._id = gateway_id
        self._connect = connect
        self._lane = lane
        self._own_broker = own_broker
        self.parser = parser
        self.on_confirmed: Callable[[], object] = lambda: None
        self._inbox: BatchQueue[ReceivedMessage] = BatchQueue(
            watchdog.clock,
            lambda received: LADDER.is_urgent(received.message.priority or 0),
        )
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._subscribers: dict[BrokerInfo, BrokerSubscriber] = {}
        self._removed: dict[BrokerInfo, _RemovedBroker] = {}
        self._filters: frozenset[str] = frozenset()
        self._tables: tuple[BrokerTable, ...] = ()
        self._stored_brokers = lane.queue.get_state(BROKERS_STATE)
        self._recalled = _parse_brokers(self._stored_brokers)
        self._recalled_until_s = math.inf

    def run(self, heartbeat: Heartbeat) -> None:
        """Serve until `stop`."""
        uplink = self._lane.uplink
        if uplink is not None:
            start_watched_loop(self._watchdog, "local", MAX_SILENCE_S, uplink.run)
            uplink.switch_to(self._own_broker)
        while (batch := self._inbox.next_batch(IDLE_S)) is not None:
            heartbeat()
            if not self._store_until_stop(batch, heartbeat):
                return  # unacknowledged: the broker delivers them again
            self._acknowledge(self._inbox.passed)
            self._end_drained({each.subscriber for each in self._inbox.passed})

    def stop(self) -> None:
        """End `run`; the brokers keep new messages."""
        self._stopping.set()
        with self._lock:
            for subscriber in self._subscribers.values():
                subscriber.connection.stop()
        self._inbox.close()

    def close(self) -> None:
        """Close the store, after `run` ended."""
        if self._lane.uplink is not None:
            self._lane.uplink.stop()
        self._lane.queue.close()

    def store(self, drafts: Sequence[MessageDraft]) -> bool:
        """Store messages for the own broker; whether they are on disk."""
        try:
            self._lane.queue.put(drafts)
        except (QueueFullError, QueueFileError) as error:
            log.error("%d deliveries not stored: %s", len(drafts), error)  # noqa: TRY400
            return False
        if self._lane.uplink is not None:
            self._lane.uplink.wake()
        return True

    def set_filters(self, filters: frozenset[str]) -> None:
        """Set the filters that clients subscribe to."""
        with self._lock:
            self._filters = filters
            self._subscribe()

    def use_tables(self, *tables: BrokerTable) -> None:
        """Subscribe by all of these tables: the old and the new one during a change.

        Make before break: no message is missed in between, and the queue drops
        messages that arrive twice by their id.
        """
        with self._lock:
            self._tables = tables
            self._subscribe()

    @property
    def is_confirmed(self) -> bool:
        """Whether every broker of the newest table has confirmed the subscriptions."""
        with self._lock:
            newest = self._tables[-1].brokers if self._tables else ()
            subscribers = (self._subscribers.get(entry.broker_info) for entry in newest)
            return all(each is None or each.is_confirmed for each in subscribers)

    def summary(self) -> str:
        """Summary of the messages that wait for the own broker."""
        return format_depth(self._lane.queue.stats(), self._lane.queue.oldest_s())

    def lane_status(self) -> LaneStatus:
        """Contents and connection state of the lane to the own broker."""
        return LaneStatus(
            self._lane.queue.stats(), self._lane.queue.ages_s(), self._lane.is_up
        )

    def _subscribe(self) -> None:
        """Subscribe to all filters at every broker of the tables.

        An area may move to another one of them while this gateway is away: the new
        broker then stores the messages in the session that it has already.
        """
        if not self._tables:
            return
        held_by = self._held_by_broker()
        for broker, held in held_by.items():
            self._removed.pop(broker, None)
            subscriber = self._subscribers.get(broker)
            if subscriber is None and self._filters and not self._is_own(broker):
                subscriber = self._subscribers[broker] = self._make_subscriber(broker)
            if subscriber is not None:
                subscriber.set_filters(self._filters, held)
        now_s = self._watchdog.clock()
        for broker in self._subscribers.keys() - held_by.keys() - self._removed.keys():
            self._removed[broker] = _RemovedBroker(now_s, now_s)
            self._subscribers[broker].set_filters(frozenset())
        self._recalled_until_s = min(self._recalled_until_s, now_s + DRAIN_S)
        self._store_brokers()

    def _held_by_broker(self) -> dict[BrokerInfo, frozenset[str]]:
        """Filters with topics that each broker is responsible for, by any table.

        For a while also the brokers of the last run, without any: they may have stored
        messages, and other gateways may publish there until they have the new table.
        """
        held_by = dict.fromkeys(self._recalled, frozenset[str]())
        for table in self._tables:
            for broker, held in filters_by_broker(self._filters, table).items():
                held_by[broker] = held_by.get(broker, frozenset()) | held
        return held_by

    def _store_brokers(self) -> None:
        """Store for the next run which brokers may have messages for us."""
        known = sorted(self._recalled | self._subscribers.keys())
        text = msgspec.json.encode(known).decode()
        if text == self._stored_brokers:
            return
        try:
            self._lane.queue.put((), {BROKERS_STATE: text})
        except (QueueFullError, QueueFileError) as error:
            log.warning(
                "the list of brokers with our sessions is not stored: %s", error
            )
        else:
            self._stored_brokers = text

    def _end_drained(self, busy: Iterable[BrokerSubscriber]) -> None:
        """End the subscribers of removed brokers that have no messages left for us.

        Such a broker may be down, or behind a slow link.
        """
        now_s = self._watchdog.clock()
        with self._lock:
            if self._recalled and now_s >= self._recalled_until_s:
                self._recalled = frozenset()
                self._subscribe()
            busy = set(busy)
            for broker, removed in list(self._removed.items()):
                subscriber = self._subscribers[broker]
                if subscriber in busy or not subscriber.connection.is_up:
                    removed.idle_since_s = now_s
                is_drained = now_s - removed.idle_since_s >= DRAIN_S
                if is_drained or now_s - removed.since_s >= SESSION_EXPIRY_S:
                    del self._removed[broker], self._subscribers[broker]
                    subscriber.connection.stop()
                    self._store_brokers()

    def _make_subscriber(self, broker: BrokerInfo) -> BrokerSubscriber:
        endpoint = Endpoint(broker.host, broker.port, self._own_broker.tls)
        return BrokerSubscriber(
            self._id,
            endpoint,
            self._connect,
            self._inbox.put,
            lambda: self.on_confirmed(),  # noqa: PLW0108 - may change
        )

    def _is_own(self, broker: BrokerInfo) -> bool:
        own = self._own_broker
        return (broker.host, broker.port) == (own.host, own.port)

    def _store_until_stop(
        self, batch: Sequence[ReceivedMessage], heartbeat: Heartbeat
    ) -> bool:
        """Store a batch, with retries; whether it is on disk.

        Urgent messages that arrive meanwhile are stored with it.
        """
        drafts = self._parse(batch)
        while drafts and not self.store(drafts):
            drafts += self._parse(self._inbox.take_urgent())
            drafts = self._store_singly(drafts, heartbeat)
            self._end_drained(self._subscribers.values())  # all may have sent more
            if drafts and self._stopping.wait(RETRY_S):
                return False
        return True

    def _store_singly(
        self, drafts: Sequence[MessageDraft], heartbeat: Heartbeat
    ) -> list[MessageDraft]:
        """Store what has space, the most urgent first; return the others.

        All of them may be more than the queue holds. On a full disk only alarms have
        space, and only without the others.
        """
        waiting = sorted(drafts, key=lambda draft: -draft.priority)
        while len(drafts) > 1 and waiting and self.store(waiting[:1]):
            del waiting[0]
            heartbeat()
        heartbeat()
        return waiting

    def _parse(self, batch: Sequence[ReceivedMessage]) -> list[MessageDraft]:
        parsed = [
            self.parser.parse(received.message)
            for received in batch
            if not is_system_topic(received.message.topic)
        ]
        return [draft for draft in parsed if draft is not None]

    def _acknowledge(self, passed: Sequence[ReceivedMessage]) -> None:
        for subscriber in {received.subscriber for received in passed}:
            subscriber.connection.acknowledge(
                *(each.message for each in passed if each.subscriber is subscriber)
            )


def _parse_brokers(stored: str | None) -> frozenset[BrokerInfo]:
    try:
        return frozenset(decode_json((stored or "[]").encode(), list[BrokerInfo]))
    except DECODE_ERRORS as error:
        log.warning("the brokers of the last run are not known: %s", error)
        return frozenset()


def make_store(
    store_drafts: Callable[[Sequence[MessageDraft]], bool],
) -> Callable[[ReceivedMessages], Collection[str]]:
    """Make a function that stores messages of the overlay under their original ids.

    It returns the ids of those that could not be stored. If not all fit, the urgent
    ones are stored first.
    """

    def store(received: ReceivedMessages) -> Collection[str]:
        made = [(message.id, _to_draft(message, each)) for message, each in received]
        drafts = {id_: draft for id_, draft in made if draft is not None}
        if not drafts or store_drafts(list(drafts.values())):
            return ()
        refused: list[str] = []
        priorities = {draft.priority for draft in drafts.values()}
        for priority in sorted(priorities, reverse=True):
            ids = [id_ for id_, draft in drafts.items() if draft.priority == priority]
            is_tried = len(priorities) == 1
            if is_tried or not store_drafts([drafts[id_] for id_ in ids]):
                refused += ids
        log.error(
            "%d messages of the overlay not stored; their publishers keep them and "
            "publish them again",
            len(refused),
        )
        return refused

    return store


def _to_draft(message: OverlayMessage, carried: CarriedMessage) -> MessageDraft | None:
    try:
        message_id = MessageId.parse(message.id)
        priority = LADDER.check(message.priority)
    except (EnvelopeError, ValueError) as error:
        log.warning("message of the overlay dropped: %s", error)
        return None
    payload = carried.payload
    return MessageDraft(
        priority, carried.topic, lambda _id: payload, message_id, carried.age_s
    )
