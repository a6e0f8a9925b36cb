"""Retained messages of a real broker."""

from collections.abc import Callable

import pytest
from conftest import Broker, wait_until

from spatial_mqtt.client import fetch_all_retained, fetch_retained
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.transport import IncomingMessage, Publication, Session

pytestmark = pytest.mark.broker


class Writer:
    """Publishes retained messages and counts the acknowledgements."""

    def __init__(self, broker: Broker, messages: dict[str, bytes]) -> None:
        """Connect; `on_up` publishes."""
        self.unacknowledged = len(messages)
        self._messages = messages
        self._connection = Connection(broker.endpoint, Session("writer"), self)
        self._connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._connection.stop()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""
        for topic, payload in self._messages.items():
            self._connection.publish(Publication(topic, payload, retain=True))

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_message(self, message: IncomingMessage) -> None:
        """See `ConnectionHandler`."""

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""
        self.unacknowledged -= 1

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""


@pytest.fixture
def broker(make_broker: Callable[[], Broker]) -> Broker:
    """A broker that retains two offers and a list."""
    started = make_broker()
    writer = Writer(
        started, {"/offer/g1": b"one", "/offer/g2": b"two", "/list": b"all"}
    )
    wait_until(lambda: writer.unacknowledged == 0)
    writer.stop()
    return started


@pytest.mark.parametrize(
    ("topic_filter", "payloads"),
    [
        ("/offer/g1", {b"one"}),
        ("/offer/+", {b"one", b"two"}),
        ("/#", {b"one", b"two", b"all"}),
    ],
)
def test_one_message_is_fetched_by_topic_or_filter(
    broker: Broker, topic_filter: str, payloads: set[bytes]
) -> None:
    """So a custody receiver can be found without its name."""
    assert fetch_retained(broker.endpoint, topic_filter, "reader", 60) in payloads


def test_all_retained_messages_are_fetched_by_topic(broker: Broker) -> None:
    """The first topic must be retained; the others are optional."""
    found = fetch_all_retained(
        broker.endpoint, ("/list", "/offer/+", "/no"), "reader", 60
    )
    assert found == {"/list": b"all", "/offer/g1": b"one", "/offer/g2": b"two"}


def test_missing_message_is_reported_with_the_broker(broker: Broker) -> None:
    """The error also names the topic."""
    with pytest.raises(BrokerError, match=r"no retained message on /no within 0\.3 s"):
        fetch_retained(broker.endpoint, "/no", "reader", 0.3)
