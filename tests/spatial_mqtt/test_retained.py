"""What a real broker retains."""

from collections.abc import Callable

import pytest
from conftest import Broker, wait_until

from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.retained import fetch_all_retained, fetch_retained
from spatial_mqtt.transport import IncomingMessage, Publication, Session

pytestmark = pytest.mark.broker


class Writer:
    """Retains, and hears that it is done."""

    def __init__(self, broker: Broker, told: dict[str, bytes]) -> None:
        """Connect and publish."""
        self.left = len(told)
        self._told = told
        self._connection = Connection(broker.endpoint, Session("writer"), self)
        self._connection.start()

    def stop(self) -> None:
        """Leave."""
        self._connection.stop()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""
        for topic, payload in self._told.items():
            self._connection.publish(Publication(topic, payload, retain=True))

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_message(self, message: IncomingMessage) -> None:
        """See `ConnectionHandler`."""

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""
        self.left -= 1

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""


@pytest.fixture
def broker(make_broker: Callable[[], Broker]) -> Broker:
    """One that retains two offers and a list."""
    made = make_broker()
    writer = Writer(made, {"/offer/g1": b"one", "/offer/g2": b"two", "/list": b"all"})
    wait_until(lambda: writer.left == 0)
    writer.stop()
    return made


@pytest.mark.parametrize(
    ("asked", "some"),
    [
        ("/offer/g1", {b"one"}),
        ("/offer/+", {b"one", b"two"}),
        ("/#", {b"one", b"two", b"all"}),
    ],
)
def test_one_message_of_a_topic_or_of_a_filter(
    broker: Broker, asked: str, some: set[bytes]
) -> None:
    """Whoever gives receipts at a broker is found without its name."""
    assert fetch_retained(broker.endpoint, asked, "asks", 60) in some


def test_several_are_told_by_their_topics(broker: Broker) -> None:
    """The first must be there; the rest is what there is."""
    found = fetch_all_retained(
        broker.endpoint, ("/list", "/offer/+", "/no"), "asks", 60
    )
    assert found == {"/list": b"all", "/offer/g1": b"one", "/offer/g2": b"two"}


def test_nothing_there_is_told_with_the_broker(broker: Broker) -> None:
    """And with what was asked for."""
    with pytest.raises(BrokerError, match=r"no retained message on /no within 0\.3 s"):
        fetch_retained(broker.endpoint, "/no", "asks", 0.3)
