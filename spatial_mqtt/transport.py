"""Messages, sessions and event handlers of a connection, independent of paho."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from service_runtime.tls import Endpoint

MQTT_RECEIVE_MAXIMUM: Final = 65535

NO_SUBSCRIBERS: Final = "no matching subscribers"
"""Reason passed to `ConnectionHandler.on_published` when the broker accepted a message
without subscribers (MQTT 5 reason code 0x10): a failure only for custody."""


class RetainHandling(enum.IntEnum):
    """When a subscription makes the broker send its retained messages.

    Attributes:
        ALWAYS: With each SUBSCRIBE.
        IF_NEW: Only if the session did not have the subscription.
        NEVER: Not at all.

    Source:
        MQTT 5.0 section 3.8.3.1.
    """

    ALWAYS = 0
    IF_NEW = 1
    NEVER = 2


class Publication(NamedTuple):
    """A message to publish.

    Attributes:
        topic: Topic.
        payload: Payload.
        qos: 0, 1 or 2.
        retain: Whether the broker keeps it for later subscribers.
        priority: Sent as MQTT 5 user property when given.
        response_topic: Topic for the answer (custody receipts).
        message_id: Sent as MQTT 5 user property, for a payload without an id.
        expiry_s: Seconds after which the broker drops the message.
        content: Content Type of MQTT 5, for formats of this system.
        age_s: Sent as MQTT 5 user property: age of a late message.
        correlation: Correlation Data of MQTT 5, of `custody.encode_correlation`: in
            place of `priority`, `message_id` and `response_topic`.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    priority: int | None = None
    response_topic: str | None = None
    message_id: str | None = None
    expiry_s: int | None = None
    content: str | None = None
    age_s: int | None = None
    correlation: bytes | None = None


class SentPublication(NamedTuple):
    """A publication that was passed to the MQTT client.

    Attributes:
        token: Argument of `ConnectionHandler.on_published` for it.
        size_bytes: Size of its packet; 0 if it was refused before it was sent.
    """

    token: int
    size_bytes: int


class IncomingMessage(NamedTuple):
    """A received message.

    Priority, response topic and id are those of its properties or Correlation Data.

    Attributes:
        topic: Topic it was published on.
        payload: Payload.
        qos: QoS of the delivery.
        retain: Whether it was sent because of a subscription, as a retained message.
        priority: User property as sent; None when absent or not a number.
        response_topic: Topic for an answer.
        message_id: User property as sent.
        delivery: Connection number and packet id, for `Connection.acknowledge`.
        content: Content Type as sent.
        age_s: Age when it was sent; None when it was not late.
        is_duplicate: Whether it is a repeated delivery with the same packet id (DUP).
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    priority: int | None
    response_topic: str | None
    message_id: str | None
    delivery: tuple[int, int]
    content: str | None = None
    age_s: int | None = None
    is_duplicate: bool = False


class ConnectionHandler(Protocol):
    """Event handler of a connection; its methods must not block."""

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """The broker accepted the connection; the subscriptions are sent."""

    def on_down(self, reason: str) -> None:
        """The connection was lost, with every unacknowledged publication."""

    def on_message(self, message: IncomingMessage) -> None:
        """A message arrived."""

    def on_published(self, token: int, refused: str | None) -> None:
        """QoS 0: written; QoS 1, 2: the broker acknowledged it.

        Args:
            token: Result of `Connection.publish`.
            refused: Reason of a refusal, or `NO_SUBSCRIBERS`; None on success.
        """

    def on_subscribed(self) -> None:
        """The broker confirmed subscriptions of this connection."""


@dataclass(frozen=True)
class Session:
    """Parameters of an MQTT session.

    Attributes:
        client_id: Fixed name of the session.
        filters: Subscriptions made on every connection: (filter, QoS).
        expiry_s: Time the broker keeps the session; 0 starts a new one.
        manual_ack: Whether incoming messages wait for `acknowledge`.
        receive_maximum: Largest number of unacknowledged messages from the broker.
        keepalive_s: Keep-alive interval; the connection ends after 1.5 times that.
        will: Published by the broker when the connection is lost.
        retain_handling: Retained messages that the subscriptions request.
    """

    client_id: str
    filters: Sequence[tuple[str, int]] = ()
    expiry_s: int = 0
    manual_ack: bool = False
    receive_maximum: int = MQTT_RECEIVE_MAXIMUM
    keepalive_s: int = 30
    will: Publication | None = None
    retain_handling: RetainHandling = RetainHandling.ALWAYS


class SessionConnection(Protocol):
    """A session at a broker, with a connection of its own or a shared one."""

    @property
    def endpoint(self) -> Endpoint:
        """Address of the broker."""

    @property
    def is_up(self) -> bool:
        """Whether the connection is established."""

    def start(self) -> None:
        """Start to connect in the background."""

    def stop(self) -> None:
        """Disconnect for good."""

    def reconnect_soon(self) -> None:
        """Shorten the wait for the next attempt."""

    def renew_if_stuck(self) -> None:
        """Connect anew if TCP would repeat lost data only after a long wait."""

    def renew_if_unanswered(self, silence_s: float) -> bool:
        """Connect anew if the broker has all data, and has sent none for a time."""

    def publish(self, publication: Publication) -> int | None:
        """Publish one message; return its token, or None if it was not sent."""

    def publish_together(
        self, publications: Sequence[Publication]
    ) -> list[SentPublication]:
        """Publish messages in one write; return those that were sent."""

    def acknowledge(self, *messages: IncomingMessage) -> Sequence[IncomingMessage]:
        """Acknowledge deliveries; return those that were acknowledged."""

    def subscribe(
        self,
        filters: Sequence[tuple[str, int]],
        retain_handling: RetainHandling = RetainHandling.ALWAYS,
    ) -> None:
        """Add subscriptions for the current connection."""

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Remove subscriptions."""


Connect = Callable[[Session, ConnectionHandler], SessionConnection]
"""Makes a connection to one broker, not started yet."""


class BaseConnectionHandler:
    """A `ConnectionHandler` that ignores every event; override what matters."""

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """Ignore the event."""

    def on_down(self, reason: str) -> None:
        """Ignore the event."""

    def on_message(self, message: IncomingMessage) -> None:
        """Ignore the event."""

    def on_published(self, token: int, refused: str | None) -> None:
        """Ignore the event."""

    def on_subscribed(self) -> None:
        """Ignore the event."""


class MessageHandler(BaseConnectionHandler):
    """Handler that passes every message to a function.

    Args:
        on_message: Called with each message.
        on_ready: Called when the broker has confirmed the subscriptions.
    """

    def __init__(
        self,
        on_message: Callable[[IncomingMessage], object],
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_message = on_message
        self._on_ready = on_ready

    def on_message(self, message: IncomingMessage) -> None:
        """Call `on_message`."""
        self._on_message(message)

    def on_subscribed(self) -> None:
        """Call `on_ready`."""
        self._on_ready()
