"""One MQTT 5 connection that keeps coming back: the one file that imports paho.

Every attempt uses a fresh paho client, so that no message hides in a library's
queue across a reconnect: what was not acknowledged goes back to its store, and
the store decides what is sent first. Callbacks run in paho's network thread and
must not block; they hand events to their owner's own loop.
"""

import logging
import random
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from spatial_mqtt.backoff import Backoff
from spatial_mqtt.endpoint import Endpoint, TlsFiles
from spatial_mqtt.link import (
    MQTT_RECEIVE_MAXIMUM,
    NO_TAKER,
    Handler,
    Incoming,
    Publication,
    Session,
)
from spatial_mqtt.topics import ID_PROPERTY, PRIORITY_PROPERTY

log = logging.getLogger(__name__)

_NUMBER = re.compile(r"[1-9][0-9]{0,3}")

CONNECT_TIMEOUT_S: Final = 10.0
WAKE_S: Final = 0.2
NO_MATCHING_SUBSCRIBERS: Final = 0x10


@dataclass
class Connection:
    """A connection to one broker that is re-made until `stop`.

    Attributes:
        endpoint: The broker.
        session: What is asked of it.
        handler: Who hears of it.
        tls: Files for an ``mqtts`` endpoint.
        backoff: Waits between attempts.
        last_reason: Why the last attempt ended, for people.
    """

    endpoint: Endpoint
    session: Session
    handler: Handler
    tls: TlsFiles | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(random.Random()))  # noqa: S311 - jitter
    last_reason: str = ""
    _client: paho.Client | None = None
    _generation: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _hurry: threading.Event = field(default_factory=threading.Event)
    _down: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def is_up(self) -> bool:
        """Whether the broker can be spoken to now."""
        client = self._client
        return client is not None and client.is_connected()

    def start(self) -> None:
        """Begin to connect, in the background."""
        name = f"mqtt {self.session.client_id}@{self.endpoint}"
        self._thread = threading.Thread(target=self._supervise, name=name, daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Something urgent waits: do not sit out a long backoff."""
        self._hurry.set()

    def stop(self, say_goodbye: bool = True) -> None:
        """Disconnect and stay away.

        Args:
            say_goodbye: False drops the link, so that the broker sends our will.
        """
        self._stopping.set()
        client = self._client
        if client is not None and say_goodbye:
            client.disconnect()
        self._down.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def publish(self, publication: Publication) -> int | None:
        """Hand one message to the link.

        Returns:
            A token that `Handler.on_published` will name; None when the link is
            down, and then nothing was sent.
        """
        client = self._client
        if client is None or not client.is_connected():
            return None
        info = client.publish(
            publication.topic,
            publication.payload,
            publication.qos,
            publication.retain,
            _publish_properties(publication),
        )
        return info.mid if info.rc == paho.MQTT_ERR_SUCCESS else None

    def acknowledge(self, message: Incoming) -> None:
        """Acknowledge a delivery; one of an older connection is let go.

        The broker delivers that one again, and duplicate removal drops it.
        """
        generation, mid = message.delivery
        client = self._client
        if client is not None and generation == self._generation:
            client.ack(mid, message.qos)

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        """Add subscriptions for as long as this connection lasts."""
        client = self._client
        if client is not None and filters:
            client.subscribe([(f, _subscribe_options(qos)) for f, qos in filters])

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Take subscriptions back."""
        client = self._client
        if client is not None and filters:
            client.unsubscribe(list(filters))

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            started_s = monotonic()
            reason = self.last_reason = self._connect_once()
            self.backoff.connected_for(monotonic() - started_s)
            if not self._stopping.is_set():
                wait_s = self.backoff.next_s()
                log.info("%s: %s; next try in %.1f s", self.endpoint, reason, wait_s)
                self._rest(wait_s)

    def _rest(self, wait_s: float) -> None:
        """Wait for the next attempt, less long when something urgent turns up."""
        until_s = monotonic() + wait_s
        self._hurry.clear()
        while not self._stopping.is_set() and (left_s := until_s - monotonic()) > 0:
            if self._hurry.wait(min(left_s, WAKE_S)):
                self._hurry.clear()
                until_s = min(until_s, monotonic() + self.backoff.urgent_s())
                self._stopping.wait(max(0.0, until_s - monotonic()))

    def _connect_once(self) -> str:
        """Connect, stay until the link is down, and say why it is."""
        self._generation += 1
        self._down.clear()
        was_up = threading.Event()
        reasons: list[str] = []
        client = self._fresh_client(self._generation, was_up, reasons)
        try:
            client.connect(
                self.endpoint.host,
                self.endpoint.port,
                self.session.keepalive_s,
                clean_start=self.session.expiry_s == 0,
                properties=_connect_properties(self.session),
            )
        except (OSError, ValueError) as error:
            return str(error)
        self._client = client
        client.loop_start()
        if not _wait_any(was_up, self._down, CONNECT_TIMEOUT_S) and not was_up.is_set():
            reasons.append("no answer to CONNECT")
        else:
            self._down.wait()
        self._client = None
        client.loop_stop()
        reason = reasons[0] if reasons else "closed"
        if was_up.is_set():
            self.handler.on_down(reason)
        return reason

    def _fresh_client(
        self, generation: int, was_up: threading.Event, reasons: list[str]
    ) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            self.session.client_id,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=self.session.manual_ack,
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.max_inflight_messages_set(0)
        if self.endpoint.tls:
            files = self.tls or TlsFiles()
            client.tls_set(files.ca, files.certificate, files.key)
        if self.session.will is not None:
            will = self.session.will
            client.will_set(will.topic, will.payload, will.qos, will.retain)
        client.on_socket_open = _no_delay
        client.on_connect = self._connect_callback(was_up, reasons)
        client.on_disconnect = self._disconnect_callback(reasons)
        client.on_message = self._message_callback(generation)
        client.on_publish = self._publish_callback
        client.on_subscribe = self._subscribe_callback
        return client

    def _connect_callback(
        self, was_up: threading.Event, reasons: list[str]
    ) -> Callable[..., None]:
        def on_connect(
            client: paho.Client,
            _userdata: object,
            flags: paho.ConnectFlags,
            code: ReasonCode,
            properties: Properties | None,
        ) -> None:
            if code.is_failure:
                reasons.append(str(code))
                self._down.set()
                return
            filters = self.session.filters
            if filters:
                client.subscribe([(f, _subscribe_options(qos)) for f, qos in filters])
            limit = getattr(properties, "ReceiveMaximum", MQTT_RECEIVE_MAXIMUM)
            self.handler.on_up(flags.session_present, limit)
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
            self.handler.on_message(
                Incoming(
                    topic=message.topic,
                    payload=bytes(message.payload),
                    qos=message.qos,
                    retain=message.retain,
                    priority=_priority(_property(properties, PRIORITY_PROPERTY)),
                    response_topic=getattr(properties, "ResponseTopic", None),
                    message_id=_property(properties, ID_PROPERTY),
                    delivery=(generation, message.mid),
                )
            )

        return on_message

    def _publish_callback(
        self,
        _client: paho.Client,
        _userdata: object,
        mid: int,
        code: ReasonCode,
        _p: object,
    ) -> None:
        self.handler.on_published(mid, _refusal(code))

    def _subscribe_callback(
        self,
        _client: paho.Client,
        _userdata: object,
        _mid: int,
        codes: list[ReasonCode],
        _p: object,
    ) -> None:
        for code in codes:
            if code.is_failure:
                log.error("%s refused a subscription: %s", self.endpoint, code)
        self.handler.on_subscribed()


def _wait_any(
    first: threading.Event, second: threading.Event, timeout_s: float
) -> bool:
    """Wait until one of two events is set; False on time-out."""
    deadline_s = monotonic() + timeout_s
    while monotonic() < deadline_s:
        if first.wait(0.02) or second.is_set():
            return True
    return False


def _no_delay(_client: paho.Client, _userdata: object, sock: Any) -> None:  # noqa: ANN401 - paho's
    # Nagle and delayed ACK together hold QoS 1 to about 330 messages/s.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _subscribe_options(qos: int) -> SubscribeOptions:
    return SubscribeOptions(qos=qos, retainAsPublished=True)


def _connect_properties(session: Session) -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = session.expiry_s
    properties.ReceiveMaximum = session.receive_maximum
    return properties


def _publish_properties(publication: Publication) -> Properties | None:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    named = []
    if publication.priority is not None:
        named.append((PRIORITY_PROPERTY, str(publication.priority)))
    if publication.message_id is not None:
        named.append((ID_PROPERTY, publication.message_id))
    if named:
        properties.UserProperty = named
    if publication.response_topic is not None:
        properties.ResponseTopic = publication.response_topic
    if publication.expiry_s is not None:
        properties.MessageExpiryInterval = publication.expiry_s
    return None if properties.isEmpty() else properties  # type: ignore[no-untyped-call]


def _refusal(code: ReasonCode) -> str | None:
    if code.value == NO_MATCHING_SUBSCRIBERS:
        return NO_TAKER
    return str(code) if code.is_failure else None


def _priority(text: str | None) -> int | None:
    """A priority as sent; the receiver's ladder judges it."""
    is_number = text is not None and _NUMBER.fullmatch(text) is not None
    return int(text) if text is not None and is_number else None


def _property(properties: Properties | None, wanted: str) -> str | None:
    for name, value in getattr(properties, "UserProperty", ()):
        if name == wanted:
            return str(value)
    return None
