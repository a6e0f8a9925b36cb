"""What travels over a link and who hears of it: the seam before any MQTT library.

A handler of a connection that only hears.

Where a broker listens, as settings name it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

MQTT_RECEIVE_MAXIMUM: Final = 65535

NO_TAKER: Final = "no matching subscribers"
"""Reason passed to `ConnectionHandler.on_published` when the broker accepted a message
without subscribers (MQTT 5 reason code 0x10): a failure only for custody."""


class Publication(NamedTuple):
    """A message to publish.

    Attributes:
        topic: Where.
        payload: What.
        qos: 0, 1 or 2.
        retain: Whether the broker keeps it for later subscribers.
        priority: Sent as MQTT 5 user property when given.
        response_topic: Where the receiver may answer (custody receipts).
        message_id: Sent as MQTT 5 user property, for a payload without an id.
        expiry_s: Broker drops it after so many seconds.
        content: MQTT 5's Content Type, of what only our own programs can read.
        age_s: Sent as MQTT 5 user property: how late the message is already.
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


class Handed(NamedTuple):
    """A message that was handed to the link.

    Attributes:
        token: What `ConnectionHandler.on_published` will name.
        size_bytes: Of its packet.
    """

    token: int
    size_bytes: int


class Incoming(NamedTuple):
    """A message that arrived.

    Attributes:
        topic: Where it was published.
        payload: What.
        qos: QoS it was delivered with.
        retain: Whether it is a retained one.
        priority: The user property, as sent; None when absent or no number.
        response_topic: Where an answer is wanted.
        message_id: The user property, as sent.
        delivery: Names this delivery to `Connection.acknowledge`.
        content: The Content Type, as sent.
        age_s: How old the message was when it was sent; None when it was not late.
        is_again: Whether the broker delivers it again, under the same packet id.
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
    is_again: bool = False


class ConnectionHandler(Protocol):
    """What the owner of a connection hears; none of these may block."""

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """The broker accepted us and our subscriptions are on their way."""

    def on_down(self, reason: str) -> None:
        """The connection is gone; every unacknowledged publication with it."""

    def on_message(self, message: Incoming) -> None:
        """A message arrived."""

    def on_published(self, token: int, refused: str | None) -> None:
        """QoS 0: written; QoS 1, 2: the broker acknowledged it.

        Args:
            token: What `publish` returned.
            refused: Why the broker refused it, or `NO_TAKER`; None when all is well.
        """

    def on_subscribed(self) -> None:
        """The broker has confirmed the subscriptions of this connection."""


@dataclass(frozen=True)
class Session:
    """What a connection asks of its broker.

    Attributes:
        client_id: Fixed name of the session.
        filters: Subscriptions made on every connection: (filter, QoS).
        expiry_s: How long the broker keeps the session; 0 starts clean.
        manual_ack: Whether incoming messages wait for `acknowledge`.
        receive_maximum: Most unacknowledged messages the broker may send us.
        keepalive_s: Silence after which either side gives up (x 1.5).
        will: Published by the broker when we vanish.
    """

    client_id: str
    filters: Sequence[tuple[str, int]] = ()
    expiry_s: int = 0
    manual_ack: bool = False
    receive_maximum: int = MQTT_RECEIVE_MAXIMUM
    keepalive_s: int = 30
    will: Publication | None = None


class BaseConnectionHandler:
    """A `ConnectionHandler` that ignores every event; override what matters."""

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """Ignore the event."""

    def on_down(self, reason: str) -> None:
        """Ignore the event."""

    def on_message(self, message: Incoming) -> None:
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
        on_message: Callable[[Incoming], object],
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_message = on_message
        self._on_ready = on_ready

    def on_message(self, message: Incoming) -> None:
        """Pass the message on."""
        self._on_message(message)

    def on_subscribed(self) -> None:
        """Report that the subscriptions are in force."""
        self._on_ready()
