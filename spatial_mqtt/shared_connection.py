"""One MQTT session that several parts of a program use as if each had its own.

A broker that names sessions by certificates allows one session for each, so that no
other certificate can take it over. Each part still has its own subscriptions and
events. A message goes to the parts whose fixed filters match it, else to the part that
has none and subscribes at run time.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Connection
from spatial_mqtt.topics import matches
from spatial_mqtt.transport import (
    ConnectionHandler,
    IncomingMessage,
    Publication,
    RetainHandling,
    SentPublication,
    Session,
    SessionConnection,
)

UNCLAIMED_S = 120.0
"""How long messages wait for a part that starts later; then they are dropped."""


@dataclass(eq=False)
class SharedSession:
    """A part's share of a connection, with the methods of `Connection`.

    Attributes:
        session: Subscriptions of this part. Its client id counts for nothing.
        handler: Receives the events of this part.
        is_started: Whether `start` was called.
        is_up: Whether the connection is established, as reported to the handler.
    """

    session: Session
    handler: ConnectionHandler
    _shared: "SharedConnection"
    is_started: bool = False
    is_up: bool = False

    @property
    def endpoint(self) -> Endpoint:
        """Address of the broker."""
        return self._shared.endpoint

    def start(self) -> None:
        """Start to connect, or use the connection of the other parts."""
        self._shared.start(self)

    def stop(self) -> None:
        """Leave; the last part that leaves disconnects."""
        self._shared.leave(self)

    def reconnect_soon(self) -> None:
        """Shorten the wait for the next attempt."""
        connection = self._shared.connection
        if connection is not None:
            connection.reconnect_soon()

    def renew_if_stuck(self) -> None:
        """Connect all parts anew; see `Connection.renew_if_stuck`."""
        connection = self._shared.connection
        if connection is not None:
            connection.renew_if_stuck()

    def renew_if_unanswered(self, silence_s: float) -> bool:
        """Connect all parts anew; see `Connection.renew_if_unanswered`."""
        connection = self._shared.connection
        return connection is not None and connection.renew_if_unanswered(silence_s)

    def publish(self, publication: Publication) -> int | None:
        """Publish one message; see `Connection.publish`."""
        sent = self.publish_together([publication])
        return sent[0].token if sent else None

    def publish_together(
        self, publications: Sequence[Publication]
    ) -> list[SentPublication]:
        """Publish messages in one write; see `Connection.publish_together`."""
        connection = self._shared.connection
        if connection is None or not self.is_up:
            return []
        return connection.publish_together(publications)

    def acknowledge(self, *messages: IncomingMessage) -> Sequence[IncomingMessage]:
        """Acknowledge deliveries of the current connection."""
        connection = self._shared.connection
        return () if connection is None else connection.acknowledge(*messages)

    def subscribe(
        self,
        filters: Sequence[tuple[str, int]],
        retain_handling: RetainHandling = RetainHandling.ALWAYS,
    ) -> None:
        """Add subscriptions for the current connection."""
        self._shared.subscribe(self, filters, retain_handling)

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Remove subscriptions."""
        connection = self._shared.connection
        if connection is not None:
            connection.unsubscribe(filters)


@dataclass(eq=False)
class SharedConnection:
    """Connection to one broker for several parts; handler of the real connection.

    Attributes:
        endpoint: Address of the broker.
        template: The MQTT session; a part's will is added. With manual
            acknowledgement, parts that do not acknowledge subscribe with QoS 0: what
            they receive then never waits behind unacknowledged messages of another.
        connect: Makes the real connection.
        clock: Monotonic seconds.
        connection: The real connection; None before the first part starts.
    """

    endpoint: Endpoint
    template: Session
    connect: Callable[[Session, ConnectionHandler], Connection]
    clock: Callable[[], float]
    connection: Connection | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _parts: list[SharedSession] = field(default_factory=list)
    _up_parts: tuple[SharedSession, ...] = ()
    _subscribing: deque[SharedSession] = field(default_factory=deque)
    _unclaimed: list[IncomingMessage] = field(default_factory=list)
    _up: tuple[bool, int] | None = None
    _up_since_s: float = 0.0

    def join(self, session: Session, handler: ConnectionHandler) -> SharedSession:
        """Add a part; it takes part once it is started."""
        part = SharedSession(session, handler, self)
        with self._lock:
            self._parts.append(part)
        return part

    def start(self, part: SharedSession) -> None:
        """Start a part, and the connection with the first one."""
        with self._lock:
            part.is_started = True
            is_first = self.connection is None
            if is_first:
                self._up = None
                wills = [p.session.will for p in self._parts if p.session.will]
                session = replace(self.template, will=wills[0] if wills else None)
                self.connection = self.connect(session, self)
            connection = self.connection
        if is_first and connection is not None:
            connection.start()
        else:
            self._report_up(part)

    def leave(self, part: SharedSession) -> None:
        """End a part, and the connection with the last one."""
        with self._lock:
            if part not in self._parts:
                return
            self._parts.remove(part)
            self._set_up(part, False)
            connection = self.connection
            is_last = not any(each.is_started for each in self._parts)
            if is_last:
                self.connection, self._up = None, None
        if connection is None:
            return
        if is_last:
            connection.stop()
        else:
            connection.unsubscribe([filter_ for filter_, _ in part.session.filters])

    def subscribe(
        self,
        part: SharedSession,
        filters: Sequence[tuple[str, int]],
        retain_handling: RetainHandling,
    ) -> None:
        """Subscribe for a part; `on_subscribed` of its handler follows."""
        with self._lock:  # the broker confirms in the order of the requests
            if self.connection is None or self._up is None or not filters:
                return
            self._subscribing.append(part)
            if self.template.manual_ack and not part.session.manual_ack:
                filters = [(filter_, 0) for filter_, _ in filters]
            self.connection.subscribe(filters, retain_handling)

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        with self._lock:
            self._up = session_present, receive_maximum
            self._up_since_s = self.clock()
            self._subscribing.clear()
            self._unclaimed.clear()
            parts = list(self._parts)
        for part in parts:
            self._report_up(part)

    def on_down(self, reason: str) -> None:
        with self._lock:
            self._up = None
            parts = self._up_parts
            for part in parts:
                self._set_up(part, False)
        for part in parts:
            part.handler.on_down(reason)

    def on_message(self, message: IncomingMessage) -> None:
        parts = self._parts_for(message)
        for part in parts:
            part.handler.on_message(message)
        if not message.qos or not self.template.manual_ack:
            return
        connection = self.connection
        if not parts:
            self._hold(message)
        elif connection and not any(part.session.manual_ack for part in parts):
            # It has QoS 1 because a filter of another part, such as `#`, matches too.
            connection.acknowledge(message)

    def on_published(self, token: int, refused: str | None) -> None:
        # A token belongs to one part; the others do not know it and ignore it.
        for part in self._up_parts:
            part.handler.on_published(token, refused)

    def on_subscribed(self) -> None:
        if self._subscribing:
            part = self._subscribing.popleft()
            if part.is_up:
                part.handler.on_subscribed()

    def _report_up(self, part: SharedSession) -> None:
        """Report to a part that the connection is up, once for each connection."""
        with self._lock:
            up = self._up
            if up is None or not part.is_started or part.is_up:
                return
            self._set_up(part, True)
            held: list[IncomingMessage] = []
            if not part.session.filters:
                held, self._unclaimed = self._unclaimed, []
        part.handler.on_up(*up)
        self.subscribe(part, part.session.filters, part.session.retain_handling)
        for message in held:
            part.handler.on_message(message)

    def _parts_for(self, message: IncomingMessage) -> list[SharedSession]:
        parts = self._up_parts
        fixed = [
            part
            for part in parts
            if any(matches(each, message.topic) for each, _ in part.session.filters)
        ]
        return fixed or [part for part in parts if not part.session.filters]

    def _hold(self, message: IncomingMessage) -> None:
        """Keep a message for a part that starts later; the broker limits how many."""
        with self._lock:
            self._unclaimed.append(message)
            if self.clock() - self._up_since_s < UNCLAIMED_S:
                return
            unwanted, self._unclaimed = self._unclaimed, []
            connection = self.connection
        if connection is not None:
            connection.acknowledge(*unwanted)

    def _set_up(self, part: SharedSession, value: bool) -> None:
        part.is_up = value
        self._up_parts = tuple(each for each in self._parts if each.is_up)


class ConnectionPool:
    """Connections of a program, with one session at each broker with certificates.

    Without certificates every session has a connection of its own.

    Args:
        template: The MQTT session at each broker; see `SharedConnection`.
        connect: Makes real connections.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        template: Session,
        connect: Callable[[Endpoint, Session, ConnectionHandler], Connection],
        clock: Callable[[], float],
    ) -> None:
        self._template = template
        self._connect = connect
        self._clock = clock
        self._shared: dict[Endpoint, SharedConnection] = {}
        self._lock = threading.Lock()

    def connect(
        self, endpoint: Endpoint, session: Session, handler: ConnectionHandler
    ) -> SessionConnection:
        """Make a connection, or share of one, that is not started yet."""
        if not endpoint.tls:
            return self._connect(endpoint, session, handler)
        with self._lock:
            shared = self._shared.get(endpoint)
            if shared is None:
                shared = self._shared[endpoint] = SharedConnection(
                    endpoint,
                    self._template,
                    lambda real, events: self._connect(endpoint, real, events),
                    self._clock,
                )
        return shared.join(session, handler)
