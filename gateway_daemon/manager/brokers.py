"""Broker sessions of a Manager, and the publication of its registry on them.

A session is at the Manager's own broker or at the broker of another Manager.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import Queue
from typing import TypeVar

import msgspec

from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.registry_changes import API_TOPICS, find_subject
from gateway_daemon.manager.replication import (
    KeyedRecord,
    ManagerView,
    Record,
    RecordKey,
)
from service_runtime.errors import FieldError
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import decode_broker_table, encode_directory_message
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import (
    BROKER_READY,
    BROKER_TABLE,
    BROKER_UPDATE,
    COMPLETE,
    ERRORS,
    GATEWAY_INFO,
    GATEWAY_LOCATIONS,
    GATEWAY_NOTICE,
    MANAGER_LOAD,
    MANAGER_RECORDS,
    MANAGER_VIEW,
    parse_named_api_topic,
    record_topic,
)
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    ConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

DIRECTORY_QOS = 2
KEEPALIVE_S = 10
PEERS_WAIT_S = 5.0
"""How long a Manager that starts waits for the records of the others before it
publishes a list and a table, which may be older than those its broker retains."""

NOTICE_EXPIRY_S = 86_400
"""How long a Manager may be down without missing a notice."""

Connect = Callable[[Session, ConnectionHandler], Connection]


@dataclass(frozen=True)
class BrokerConnectors:
    """Functions that connect to brokers.

    Attributes:
        own: To the Manager's own broker.
        peers: To the brokers of the other Managers.
        notices: To the Manager's own broker, for a session that stores the notices of
            gateways while the Manager is down; None on a link with certificates, which
            allow one session.
    """

    own: Connect
    peers: Sequence[Connect] = ()
    notices: Connect | None = None


@dataclass(frozen=True)
class BrokerUp:
    """A broker is connected; its retained messages will follow."""

    session: "BrokerSession"


@dataclass(frozen=True)
class BrokerDown:
    """A broker is disconnected."""

    session: "BrokerSession"


@dataclass(frozen=True)
class BrokerMessage:
    """A message arrived at a broker."""

    session: "BrokerSession"
    message: IncomingMessage


@dataclass(frozen=True)
class NoticesSubscribed:
    """The broker stores and delivers the notices of gateways from now on."""


BrokerEvent = BrokerUp | BrokerDown | BrokerMessage | NoticesSubscribed


class EventInbox(Queue[T]):
    """Events of other threads for a Manager's loop, in their order.

    Of messages of a server about itself on one topic at most two wait: a third replaces
    the second. Otherwise all others wait behind a gateway that sends more notices than
    the loop handles. The first one stays before what follows it, such as a request
    after the announcement of a start.
    """

    def _init(self, maxsize: int) -> None:
        self._events: OrderedDict[object, T] = OrderedDict()

    def _qsize(self) -> int:
        return len(self._events)

    def _put(self, item: T) -> None:
        key = _subject_key(item) if isinstance(item, BrokerMessage) else object()
        place = key, (key, 0) in self._events
        self._events.pop(place, None)
        self._events[place] = item

    def _get(self) -> T:
        return self._events.popitem(last=False)[1]


def _subject_key(event: BrokerMessage) -> object:
    """Equal for messages of which the last one counts."""
    try:
        _, topic = parse_named_api_topic(event.message.topic)
        subject = find_subject(topic, event.message)
    except FieldError:
        subject = None  # the loop reports it
    if subject is None:
        return object()
    return event.session, event.message.topic, subject


class BrokerSession(BaseConnectionHandler):
    """Session of a Manager at one broker.

    Args:
        connect: Makes the connection.
        session: Client id, subscriptions and will.
        on_event: Receives events; called in the network thread, must not block.

    Attributes:
        is_up: Whether the broker is connected, according to the events processed.
        is_subscribed: Whether the broker has confirmed the subscriptions.
        view: Last view of the broker's own Manager in this connection; None before it,
            and for our own. One of an earlier connection may be outdated.
        last_view: Its last view while it was running.
        retained: Gateway list and broker table that the broker retains, as far as
            known, by their topics.
    """

    def __init__(
        self,
        connect: Connect,
        session: Session,
        on_event: Callable[[BrokerEvent], object],
    ) -> None:
        self.is_up = self.is_subscribed = False
        self.view: ManagerView | None = None
        self.last_view: ManagerView | None = None
        self.retained: dict[str, bytes] = {}
        self._echoes: dict[str, bytes] = {}
        self._on_event = on_event
        self._connection = connect(session, self)

    def __str__(self) -> str:
        """Address of the broker."""
        return str(self._connection.endpoint)

    @property
    def is_orphaned(self) -> bool:
        """Whether the broker is up and its Manager is not."""
        return self.is_up and self.view is not None and self.view.is_away

    def begin(self) -> None:
        """Store that the broker is connected; what it retains is not yet known."""
        self.is_up = True
        self.retained.clear()
        self._echoes.clear()

    def end(self) -> None:
        """Store that the broker is disconnected."""
        self.is_up, self.view = False, None

    def publish_directory(self, topic: str, payload: bytes) -> None:
        """Publish a gateway list or broker table."""
        self.publish(topic, payload)
        self.retained[topic] = self._echoes[topic] = payload

    def on_directory(self, message: IncomingMessage) -> None:
        """Store a gateway list or broker table that the broker retains.

        What comes before the echo of our last one is replaced by it.
        """
        topic, payload = message.topic, message.payload
        if topic not in self._echoes:
            self.retained[topic] = payload
        elif payload == self._echoes[topic]:
            del self._echoes[topic]

    def on_view(self, view: ManagerView) -> None:
        """Store a view of the broker's own Manager."""
        self.view = view
        if not view.is_away:
            self.last_view = view

    def start(self) -> None:
        """Start to connect."""
        self._connection.start()

    def stop(self, *, leaves_will: bool = False) -> None:
        """Disconnect; with `leaves_will` the broker publishes the will."""
        self._connection.stop(send_disconnect=not leaves_will)

    def publish(self, topic: str, payload: bytes, *, retain: bool = True) -> None:
        """Publish a message; it is lost while the broker is disconnected."""
        self._connection.publish(Publication(topic, payload, DIRECTORY_QOS, retain))

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._on_event(BrokerUp(self))

    def on_down(self, reason: str) -> None:
        self.is_subscribed = False
        log.warning("the manager's broker %s is gone: %s", self, reason)
        self._on_event(BrokerDown(self))

    def on_message(self, message: IncomingMessage) -> None:
        self._on_event(BrokerMessage(self, message))

    def on_subscribed(self) -> None:
        self.is_subscribed = True
        log.info("the manager is up on %s", self)


class StoredNotices(BaseConnectionHandler):
    """Session at the Manager's own broker that stores notices while it is down.

    A gateway of the original Gamma sends each notice once.

    Args:
        connect: Makes the connection.
        on_notice: Receives notices; called in the network thread, must not block.
        on_subscribed: Called when the broker has confirmed the subscription, in the
            network thread.

    Attributes:
        is_subscribed: Whether it has, in the current connection.
    """

    def __init__(
        self,
        connect: Connect,
        on_notice: Callable[[IncomingMessage], object],
        on_subscribed: Callable[[], object],
    ) -> None:
        self.is_subscribed = False
        session = Session(
            "yamamori-manager-notices",
            ((GATEWAY_NOTICE, 1),),
            expiry_s=NOTICE_EXPIRY_S,
            keepalive_s=KEEPALIVE_S,
        )
        self._on_notice = on_notice
        self._on_subscribed = on_subscribed
        self._connection = connect(session, self)

    def on_message(self, message: IncomingMessage) -> None:
        self._on_notice(message)

    def on_down(self, reason: str) -> None:
        self.is_subscribed = False

    def on_subscribed(self) -> None:
        self.is_subscribed = True
        self._on_subscribed()

    def start(self) -> None:
        """Start to connect."""
        self._connection.start()

    def stop(self) -> None:
        """Disconnect; the broker keeps the session."""
        self._connection.stop()


def make_sessions(manager_id: str, *, has_notices: bool) -> tuple[Session, Session]:
    """Return the sessions at a Manager's own broker, and at those of other Managers.

    Args:
        manager_id: Id of the Manager.
        has_notices: Whether `StoredNotices` subscribes to the notices at its own.
    """
    # The view last: with it, a Manager may begin to serve the broker, and publishes no
    # table that is retained already.
    shared = MANAGER_RECORDS, BROKER_TABLE, MANAGER_VIEW
    topics = (*API_TOPICS, GATEWAY_LOCATIONS, *shared)
    stored = {GATEWAY_NOTICE} if has_notices else set()
    at_own = (*(t for t in topics if t not in stored), GATEWAY_INFO, MANAGER_LOAD)
    away = ManagerView(manager_id, is_away=True)
    will = Publication(MANAGER_VIEW, msgspec.json.encode(away), retain=True)
    name = "yamamori-manager"
    return (
        Session(name, _at_least_once(at_own), keepalive_s=KEEPALIVE_S, will=will),
        Session(
            f"{name}-{manager_id}", _at_least_once(topics), keepalive_s=KEEPALIVE_S
        ),
    )


def _at_least_once(topics: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple((topic, 1) for topic in topics)


class DirectoryPublisher:
    """Publishes a registry.

    Args:
        own: Our own broker, the only one with our records and our view.

    Attributes:
        error_count: How many errors were published.
        adopted: Brokers of other Managers on which we publish the directory too.
        has_announced: Whether `publish_all` was called since our broker is up.
        serves_own: Whether our broker gets the directory, and its changes.
    """

    def __init__(self, own: BrokerSession) -> None:
        self.has_announced = self.serves_own = self._is_echoed = False
        self._own = own
        self._published_view: ManagerView | None = None
        self.error_count = 0
        self.adopted: list[BrokerSession] = []

    def publish_all(self, registry: Registry) -> None:
        """Publish the records, as our broker may have lost them.

        To be called when notices reach us: a gateway of the original Gamma answers list
        and table with one, and sends it once. They follow with `begin_to_serve` when
        our view, which is not retained here, returns: then it is known which records
        and which table the broker retains.
        """
        self.has_announced = True
        for key, record in registry.records.items():
            self._record(key, record)
        view = msgspec.json.encode(registry.own_view)
        self._own.publish(MANAGER_VIEW, view, retain=False)
        self._published_view = None

    def on_echo(self) -> None:
        """Our view has returned: what the broker retains came before it."""
        self._is_echoed = self.has_announced

    def begin_to_serve(self, registry: Registry) -> bool:
        """Publish list and table on our broker, once; whether they were published."""
        if self.serves_own or not self._is_echoed:
            return False
        self.serves_own = True
        self.publish_directory(registry, self._own)
        return True

    def end(self) -> None:
        """Store that our broker is disconnected."""
        self.has_announced = self.serves_own = self._is_echoed = False

    def publish_directory(self, registry: Registry, session: BrokerSession) -> None:
        """Publish gateway list and broker table on one broker."""
        self._publish_list(registry, session)
        self.publish_table(registry, session)

    def publish_changes(self, before: Registry, after: Registry) -> None:
        """Publish what differs between two states of the registry."""
        for key, record in after.records.items():
            if before.records.get(key) != record:
                self._record(key, record)
        for key in before.records.keys() - after.records.keys():
            self.clear_record(key)
        if self.serves_own and (missed := _describe_missed(before, after)):
            self.report_error(missed)
        for session in self._served if self.serves_own else self.adopted:
            if after.gateways != before.gateways:
                self._publish_list(after, session)
            if after.table != before.table:
                self.publish_table(after, session)

    def restore_directory(self, registry: Registry) -> None:
        """Publish what another Manager has replaced on our broker.

        One that served it while we were down may publish until it has our view. Not to
        be called for each message: two Managers of one broker would replace each
        other's lists without a pause.
        """
        if not self.serves_own:
            return
        gateways = encode_directory_message(registry.gateways)
        if self._own.retained.get(GATEWAY_INFO, gateways) != gateways:
            self._publish_list(registry, self._own)
        table = self._own.retained.get(BROKER_TABLE)
        if table is not None and _version_of(table) < registry.table.version:
            self.publish_table(registry, self._own)

    def clear_record(self, key: RecordKey) -> None:
        """Delete a retained record from our broker."""
        self._own.publish(_topic(key), b"")

    def report_error(self, text: str, peers: Sequence[BrokerSession] = ()) -> None:
        """Log an error and publish it for administrators.

        Args:
            text: The error.
            peers: Brokers of Managers that cannot detect it by themselves.
        """
        log.warning("%s", text)
        self.error_count += 1
        for session in {*self._served, *peers}:
            session.publish(ERRORS, text.encode(), retain=False)

    def publish_ready(self, version: int) -> None:
        """Announce to our gateways that every gateway has applied a table."""
        for session in self._served:
            session.publish(BROKER_READY, str(version).encode())

    def publish_complete(self) -> None:
        """Announce that every gateway has applied the newest table."""
        for session in self._served:
            session.publish(BROKER_UPDATE, COMPLETE, retain=False)

    def publish_view(self, view: ManagerView) -> None:
        """Publish our view, if it has changed."""
        if view != self._published_view and self._own.is_up:
            self._own.publish(MANAGER_VIEW, msgspec.json.encode(view))
            self._published_view = view

    def publish_report(self, report: bytes, peers: Sequence[BrokerSession]) -> None:
        """Publish loads and decisions, for administrators of every Manager."""
        for session in (self._own, *peers):
            session.publish(MANAGER_LOAD, report)

    @property
    def _served(self) -> list[BrokerSession]:
        return [self._own, *self.adopted]

    @staticmethod
    def publish_table(registry: Registry, session: BrokerSession) -> None:
        """Publish the table on one broker, unless it retains the same one.

        A gateway of the original Gamma ends when it receives a table again before
        "complete". It refuses a table that has never had a broker.
        """
        table = encode_directory_message(registry.table)
        if registry.table.version and table != session.retained.get(BROKER_TABLE):
            session.publish_directory(BROKER_TABLE, table)

    @staticmethod
    def _publish_list(registry: Registry, session: BrokerSession) -> None:
        gateways = encode_directory_message(registry.gateways)
        session.publish_directory(GATEWAY_INFO, gateways)

    def _record(self, key: RecordKey, record: Record) -> None:
        self._own.publish(_topic(key), msgspec.json.encode(KeyedRecord(key, record)))


def _describe_missed(before: Registry, after: Registry) -> str | None:
    """Describe which gateways have no session at a new broker of the table."""
    known = {entry.broker_info for entry in before.table.brokers}
    new = {entry.broker_info for entry in after.table.brokers} - known
    away = after.away - after.seen_by_others
    if not (known and new and away):
        return None
    brokers, gateways = (", ".join(map(str, sorted(each))) for each in (new, away))
    return (
        f"table {after.table.version}: {brokers} new while {gateways} away: clients "
        "there do not receive what others publish at the new broker until they return"
    )


def _topic(key: RecordKey) -> str:
    return record_topic(f"{key.kind} {key.name}")


def _version_of(table: bytes) -> int:
    try:
        return decode_broker_table(table).version
    except DirectoryError:
        return -1
