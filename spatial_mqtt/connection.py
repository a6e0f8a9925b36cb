"""MQTT 5 connection that reconnects until it is stopped, and its back-off.

Every attempt uses a new paho client, so that no message stays in a queue of the library
across a reconnect: unacknowledged messages return to their store, which decides what is
sent first. Callbacks run in paho's network thread and must not block; they pass events
to the owner's loop.

The back-off uses decorrelated jitter, so that thousands of nodes that lost one gateway
do not reconnect in step. Each wait is drawn between the base and three times the last
one, up to a cap. It is reset only after a connection has lasted for a stable period, so
that a broker that accepts and drops at once is not flooded.
"""

import errno
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from service_runtime import tls
from service_runtime.tls import Endpoint, TlsFiles
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt import codec, tcp
from spatial_mqtt.codec import describe_reason_code
from spatial_mqtt.paho_client import (
    CLOSED,
    MAX_MQTT_PACKET_BYTES,
    NO_SUBACK,
    TAKEOVER_WARNING,
    BatchingClient,
    TakeoverDetector,
    TopicAliases,
)
from spatial_mqtt.topics import AGE_PROPERTY, ID_PROPERTY, PRIORITY_PROPERTY
from spatial_mqtt.transport import (
    MQTT_RECEIVE_MAXIMUM,
    ConnectionHandler,
    IncomingMessage,
    Publication,
    RetainHandling,
    SentPublication,
    Session,
)


@dataclass
class Backoff:
    """Back-off of one connection.

    Attributes:
        rng: Source of randomness.
        base_s: Shortest wait.
        cap_s: Longest wait.
        urgent_cap_s: Longest first wait while an urgent message is queued.
        urgent_max_cap_s: Limit to which that cap grows with attempts that the other
            machine refused: in a storm every node has urgent messages, and they must
            not all reconnect at once.
        stable_s: A connection that lasted this long resets the wait.
    """

    rng: random.Random
    base_s: float = 0.5
    cap_s: float = 60.0
    urgent_cap_s: float = 2.0
    urgent_max_cap_s: float = 8.0
    stable_s: float = 30.0
    _last_s: float = 0.0
    _refused_count: int = 0

    def next_wait_s(self, *, was_answered: bool = True) -> float:
        """Draw the next wait, between the base and the cap.

        Args:
            was_answered: Whether the other machine answered the failed attempt.
        """
        self._refused_count += was_answered
        ceiling_s = max(self.base_s, self._last_s) * 3
        self._last_s = min(self.cap_s, self.rng.uniform(self.base_s, ceiling_s))
        return self._last_s

    def urgent_wait_s(self) -> float:
        """Draw a wait for an urgent message: short, yet random over many nodes."""
        grown_s = self.urgent_cap_s * 1.25 ** max(0, min(self._refused_count - 1, 20))
        cap_s = max(self.urgent_cap_s, min(self.urgent_max_cap_s, grown_s))
        return self.rng.uniform(min(0.1, cap_s), cap_s)

    def report_connection_time(self, lasted_s: float) -> None:
        """Reset the wait if the last connection was stable."""
        if lasted_s >= self.stable_s:
            self._last_s = 0.0
            self._refused_count = 0


log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 10.0
NO_CONNACK: Final = "no answer to CONNECT"
NOTHING_ARRIVES: Final = "nothing arrives"
MAX_SUBACK_LIMIT_S: Final = 60.0
"""`CONNECT_TIMEOUT_S` is also the limit for the answer to SUBSCRIBE. It doubles up to
this with each connection without one: a slow broker must not get more for it."""
CALLBACK_TIMEOUT_S: Final = 60.0
"""Longest time that a callback may block paho's thread."""
WAKE_INTERVAL_S: Final = 0.2
ROUTE_JITTER_S: Final = 0.5
"""Longest wait after a route appeared where there was none."""
MAX_OBSOLETE: Final = 10_000
"""Further subscriptions that are removed while the link is down stay in the session."""


class _Ended(NamedTuple):
    """How an attempt to connect, or a connection, has ended.

    Attributes:
        reason: As text.
        was_answered: Whether the other machine answered.
        lacks_route: Whether this machine has no route to it.
        was_silent: Whether nothing arrived on a connection that it had accepted.
    """

    reason: str
    was_answered: bool = True
    lacks_route: bool = False
    was_silent: bool = False


@dataclass
class Connection:
    """Connection to one broker, renewed until `stop`.

    Attributes:
        endpoint: Address of the broker.
        session: Parameters of the MQTT session.
        handler: Receives the events.
        tls: Files for an ``mqtts`` endpoint.
        backoff: Waits between attempts.
        last_reason: Why the last attempt ended, as text.
        watchdog: Watchdog of paho's thread, which a callback may block.
    """

    endpoint: Endpoint
    session: Session
    handler: ConnectionHandler
    tls: TlsFiles | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(random.Random()))  # noqa: S311 - jitter
    last_reason: str = ""
    watchdog: LoopWatchdog = field(default_factory=lambda: LoopWatchdog(monotonic))
    _client: BatchingClient | None = None
    _filters_lock: threading.RLock = field(default_factory=threading.RLock)
    _obsolete: dict[str, None] = field(default_factory=dict)
    _unsubscribing: deque[tuple[str, ...]] = field(default_factory=deque)
    _generation: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _hurry: threading.Event = field(default_factory=threading.Event)
    _down: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _failures: dict[Any, int] = field(default_factory=dict)
    _misses_answer: bool = False
    _missing_subacks: int = 0
    _takeovers: TakeoverDetector = field(default_factory=TakeoverDetector)

    @property
    def is_up(self) -> bool:
        """Whether the connection is established."""
        client = self._client
        return client is not None and client.is_connected()

    def start(self) -> None:
        """Start to connect in the background."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def reconnect_soon(self) -> None:
        """Shorten the wait for the next attempt: an urgent message is queued."""
        self._hurry.set()

    def renew_if_stuck(self) -> None:
        """Connect anew if TCP would repeat lost data only after a long wait.

        After an outage the wait is up to as long as the outage was. A broker that is
        only slow acknowledges the data in its kernel, and its connection stays.
        """
        client = self._client
        if client is not None and client.is_connected() and client.is_stuck():
            client.abort(NOTHING_ARRIVES)

    def renew_if_unanswered(self, silence_s: float) -> bool:
        """Connect anew if the broker has all data, and has sent none for a time.

        A proxy may keep the connection of a broker that is gone.

        Returns:
            Whether the connection is ended for that.
        """
        client = self._client
        if client is None or not client.is_connected() or client.abort_reason:
            return False
        if client.is_unanswered(silence_s):
            client.abort("no answer, although everything arrives")
        return bool(client.abort_reason)

    def report_missing_answer(self) -> None:
        """Let the next connection use smaller segments: an answer did not arrive."""
        self._misses_answer = True

    @property
    def _segments(self) -> tcp.SegmentLimit:
        return tcp.segment_limit(self.endpoint.host, self.endpoint.port)

    def stop(self, send_disconnect: bool = True) -> None:
        """Disconnect for good.

        Args:
            send_disconnect: Whether to send DISCONNECT; without it the broker publishes
                the will.
        """
        self._stopping.set()
        client = self._client
        if client is not None and send_disconnect:
            client.disconnect()
        self._down.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def publish(self, publication: Publication) -> int | None:
        """Publish one message.

        Returns:
            The token for `ConnectionHandler.on_published`; None when the connection
            is down and the message was not sent.
        """
        handed = self.publish_together([publication])
        return handed[0].token if handed else None

    def publish_together(
        self, publications: Sequence[Publication]
    ) -> list[SentPublication]:
        """Publish messages in one write.

        On a slow link, the overhead of one segment is as large as a small message.

        Returns:
            Token and size of each; fewer when the connection was lost meanwhile.
        """
        client = self._client
        if client is None or not client.is_connected():
            return []
        return client.publish_together(publications)

    def acknowledge(self, *messages: IncomingMessage) -> Sequence[IncomingMessage]:
        """Acknowledge deliveries of the current connection.

        The broker repeats those of an older one, and duplicate removal drops them.

        Returns:
            The messages that were acknowledged.
        """
        client, generation = self._client, self._generation
        if client is None or not client.is_connected():
            return ()
        current = [m for m in messages if m.delivery[0] == generation]
        client.acknowledge(current)
        return current

    def send_heartbeat(self) -> None:
        """Send a heartbeat from a callback that blocks to slow the broker down."""
        client = self._client
        if client is not None:
            client.heartbeat()

    def subscribe(
        self,
        filters: Sequence[tuple[str, int]],
        retain_handling: RetainHandling = RetainHandling.ALWAYS,
    ) -> None:
        """Add subscriptions for the current connection."""
        with self._filters_lock:
            for each, _ in filters:
                self._obsolete.pop(each, None)
            client = self._client
            if client is not None and filters:
                client.request(_with_options(filters, retain_handling))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Remove subscriptions, after a reconnect if the link is down.

        The broker keeps those of a persistent session.
        """
        with self._filters_lock:
            if len(self._obsolete) < MAX_OBSOLETE:
                self._obsolete.update(dict.fromkeys(filters))
            client = self._client
            if client is not None:
                self._send_unsubscribe(client, filters)

    def _send_unsubscribe(self, client: BatchingClient, filters: Sequence[str]) -> None:
        if filters:
            self._unsubscribing.append(tuple(filters))
            client.unsubscribe(list(filters))

    @property
    def _name(self) -> str:
        return f"mqtt {self.session.client_id}@{self.endpoint}"

    def _run(self) -> None:
        tls.note_client_id(
            self, self.endpoint, lambda: self._takeovers.is_suspected(monotonic())
        )
        try:
            self._connect_until_stopped()
        finally:
            tls.forget_link(self)

    def _connect_until_stopped(self) -> None:
        while not self._stopping.is_set():
            started_s = monotonic()
            ended = self._connect_once()
            self.last_reason = ended.reason
            lasted_s = monotonic() - started_s
            self.backoff.report_connection_time(lasted_s)
            was_silent = ended.was_silent or self._misses_answer
            self._segments.report_end(lasted_s, was_silent=was_silent)
            if not self._stopping.is_set():
                wait_s = self.backoff.next_wait_s(was_answered=ended.was_answered)
                log.info(
                    "%s: %s; next try in %.1f s", self.endpoint, ended.reason, wait_s
                )
                self._wait_for_retry(wait_s, lacks_route=ended.lacks_route)

    def _wait_for_retry(self, wait_s: float, *, lacks_route: bool) -> None:
        """Wait for the next attempt.

        The wait is shorter once `reconnect_soon` was called, and ends when a route
        appears where there was none, as with a modem that has dialled in.
        """
        deadline_s = monotonic() + wait_s
        is_urgent = False
        self._hurry.clear()
        while not self._stopping.is_set() and (left_s := deadline_s - monotonic()) > 0:
            if self._hurry.wait(min(left_s, WAKE_INTERVAL_S)):
                self._hurry.clear()
                if not is_urgent:
                    is_urgent = True
                    urgent_s = monotonic() + self.backoff.urgent_wait_s()
                    deadline_s = min(deadline_s, urgent_s)
            if lacks_route and tcp.has_route(self.endpoint.host, self.endpoint.port):
                lacks_route = False
                jitter_s = self.backoff.rng.uniform(0.0, ROUTE_JITTER_S)
                deadline_s = min(deadline_s, monotonic() + jitter_s)

    def _connect_once(self) -> _Ended:
        """Connect, and wait for the end of the connection."""
        self._generation += 1
        self._down.clear()
        if self._stopping.is_set():  # `stop` set both events just before `clear`
            return _Ended("stopped")
        was_up = threading.Event()
        reasons: list[str] = []
        client: BatchingClient | None = None
        try:
            tls.check_link(self.endpoint, self.tls)
            client = self._make_client(self._generation, was_up, reasons)
            self._connect(client)
        except (OSError, ValueError) as error:
            self._takeovers.report_end(str(error), monotonic())
            return self._end_of_attempt(client, error)
        self._client = client
        with self.watchdog.watch_loop(
            self._name, CALLBACK_TIMEOUT_S
        ) as client.heartbeat:
            client.loop_start()
            self._wait_until_down(was_up, reasons)
            self._client = None
            client.loop_stop()
        self._note_address(client, was_up=was_up.is_set())
        reason = _describe_end(client, reasons)
        if was_up.is_set():
            self._warn_of_takeovers(reason)
            self.handler.on_down(reason)
        return self._end_of_connection(reason)

    def _warn_of_takeovers(self, reason: str) -> None:
        if self._takeovers.report_end(reason, monotonic()):
            log.warning(TAKEOVER_WARNING, self.endpoint, self.session.client_id)

    def _connect(self, client: BatchingClient) -> None:
        client.connect(
            self.endpoint.host,
            self.endpoint.port,
            self.session.keepalive_s,
            clean_start=self.session.expiry_s == 0,
            properties=codec.make_connect_properties(self.session),
        )
        tls.note_peer_certificate(self, self.endpoint, client.socket())

    def _end_of_attempt(
        self, client: BatchingClient | None, error: Exception
    ) -> _Ended:
        """The end of an attempt that made no connection."""
        self._note_address(client, was_up=False)
        is_accepted = client is not None and client.peer is not None
        return _Ended(
            tls.describe_tls_error(error),
            was_answered=tcp.was_answered(error),
            lacks_route=getattr(error, "errno", None) == errno.ENETUNREACH,
            was_silent=is_accepted and isinstance(error, TimeoutError),
        )

    def _end_of_connection(self, reason: str) -> _Ended:
        """The end of a connection that TCP, and TLS, had accepted."""
        self._missing_subacks += reason == NO_SUBACK
        is_stuck = reason == NOTHING_ARRIVES
        was_silent = is_stuck or reason in {NO_CONNACK, NO_SUBACK}
        return _Ended(reason, was_answered=not is_stuck, was_silent=was_silent)

    def _note_address(self, client: BatchingClient | None, *, was_up: bool) -> None:
        """Note which address accepted the connection, but no broker answered there."""
        if was_up:
            self._failures.clear()
        elif client is not None and client.peer is not None:
            self._failures[client.peer] = self._generation

    def _wait_until_down(self, was_up: threading.Event, reasons: list[str]) -> None:
        if not _wait_any(was_up, self._down, CONNECT_TIMEOUT_S) and not was_up.is_set():
            reasons.append(NO_CONNACK)
        else:
            self._down.wait()

    def _gives_up(self, waited_s: float) -> bool:
        """Whether to end an attempt to connect by TCP."""
        return self._stopping.is_set() or waited_s > CONNECT_TIMEOUT_S

    def _make_client(
        self, generation: int, was_up: threading.Event, reasons: list[str]
    ) -> BatchingClient:
        client = BatchingClient(
            self.session,
            generation,
            self.handler.on_message,
            self.handler.on_published,
            tcp.ConnectPolicy(
                self._gives_up,
                self._hurry.is_set,
                self._failures,
                self._segments.segment_bytes,
            ),
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        limit_s = CONNECT_TIMEOUT_S * 2.0 ** min(self._missing_subacks, 10)
        client.suback_limit_s = min(limit_s, MAX_SUBACK_LIMIT_S)
        client.max_inflight_messages_set(0)
        if self.endpoint.tls:
            client.tls_set_context(tls.make_ssl_context(self.tls or TlsFiles()))
        if self.session.will is not None:
            will = self.session.will
            client.will_set(will.topic, will.payload, will.qos, will.retain)
        client.on_connect = self._connect_callback(was_up, reasons)
        client.on_disconnect = self._disconnect_callback(reasons)
        client.on_message = self._message_callback(generation)
        client.on_publish = self._publish_callback
        client.on_subscribe = self._subscribe_callback
        client.on_unsubscribe = self._unsubscribe_callback
        return client

    def _connect_callback(
        self, was_up: threading.Event, reasons: list[str]
    ) -> Callable[..., None]:
        def on_connect(
            client: BatchingClient,
            _userdata: object,
            flags: paho.ConnectFlags,
            code: ReasonCode,
            properties: Properties | None,
        ) -> None:
            if code.is_failure:
                reasons.append(str(code))
                self._down.set()
                return
            client.aliases = TopicAliases(
                codec.get_property(properties, "TopicAliasMaximum") or 0
            )
            most_bytes = codec.get_property(properties, "MaximumPacketSize")
            client.max_packet_bytes = most_bytes or MAX_MQTT_PACKET_BYTES
            if filters := self.session.filters:
                client.request(_with_options(filters, self.session.retain_handling))
            limit = getattr(properties, "ReceiveMaximum", MQTT_RECEIVE_MAXIMUM)
            if not flags.session_present:
                self._obsolete.clear()
            self._unsubscribing.clear()
            self.handler.on_up(flags.session_present, limit)
            # After the subscriptions of `on_up`, which may replace some of these.
            with self._filters_lock:
                self._send_unsubscribe(client, tuple(self._obsolete))
            was_up.set()

        return on_connect

    def _disconnect_callback(self, reasons: list[str]) -> Callable[..., None]:
        def on_disconnect(
            _client: paho.Client,
            _userdata: object,
            _flags: object,
            code: ReasonCode,
            _p: object,
        ) -> None:
            reasons.append(str(code))
            self._down.set()

        return on_disconnect

    def _message_callback(self, generation: int) -> Callable[..., None]:
        def on_message(
            _client: paho.Client, _userdata: object, message: paho.MQTTMessage
        ) -> None:
            properties = message.properties
            correlation = codec.get_property(properties, "CorrelationData")
            read = IncomingMessage(
                topic=message.topic,
                payload=bytes(message.payload),
                qos=message.qos,
                retain=message.retain,
                priority=codec.find_user_number(properties, PRIORITY_PROPERTY),
                response_topic=codec.get_property(properties, "ResponseTopic"),
                message_id=codec.find_user_property(properties, ID_PROPERTY),
                delivery=(generation, message.mid),
                content=codec.get_property(properties, "ContentType"),
                age_s=codec.find_user_number(properties, AGE_PROPERTY),
            )
            self.handler.on_message(codec.with_correlation(read, correlation or b""))

        return on_message

    def _publish_callback(
        self,
        _client: paho.Client,
        _userdata: object,
        mid: int,
        code: ReasonCode,
        _p: object,
    ) -> None:
        self.handler.on_published(mid, describe_reason_code(code.value))

    def _subscribe_callback(
        self,
        _client: paho.Client,
        _userdata: object,
        _mid: int,
        codes: list[ReasonCode],
        _p: object,
    ) -> None:
        self._missing_subacks = 0
        for code in codes:
            if code.is_failure:
                log.error("%s refused a subscription: %s", self.endpoint, code)
        self.handler.on_subscribed()

    def _unsubscribe_callback(self, *_: object) -> None:
        """Forget the filters; the broker confirms in the order of the requests."""
        if self._unsubscribing:
            for each in self._unsubscribing.popleft():
                self._obsolete.pop(each, None)


def _describe_end(client: BatchingClient, reasons: Sequence[str]) -> str:
    """Why a connection has ended; the first cause that is known."""
    fault = tls.describe_tls_error(client.fault) if client.fault else ""
    closed = CLOSED if client.is_closed_by_broker else ""
    return client.abort_reason or fault or closed or next(iter(reasons), "closed")


def _wait_any(
    first: threading.Event, second: threading.Event, timeout_s: float
) -> bool:
    """Wait until one of two events is set; False on time-out."""
    deadline_s = monotonic() + timeout_s
    while monotonic() < deadline_s:
        if first.wait(0.02) or second.is_set():
            return True
    return False


def _with_options(
    filters: Sequence[tuple[str, int]], retain_handling: RetainHandling
) -> list[tuple[str, SubscribeOptions]]:
    return [
        (each, SubscribeOptions(qos=qos, retainHandling=retain_handling.value))
        for each, qos in filters
    ]
