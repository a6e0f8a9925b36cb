"""One MQTT 5 connection that keeps coming back, against a real broker."""

import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import paho.mqtt.client as paho
import pytest
from conftest import Broker, wait_until
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.retained import fetch_retained
from spatial_mqtt.transport import IncomingMessage, Publication, Session


@dataclass
class Recorder:
    """A handler that keeps what it hears."""

    ups: list[tuple[bool, int]] = field(default_factory=list)
    downs: list[str] = field(default_factory=list)
    messages: list[IncomingMessage] = field(default_factory=list)
    published: list[tuple[int, str | None]] = field(default_factory=list)
    subscribed: int = 0

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `ConnectionHandler`."""
        self.ups.append((session_present, receive_maximum))

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""
        self.downs.append(reason)

    def on_message(self, message: IncomingMessage) -> None:
        """See `ConnectionHandler`."""
        self.messages.append(message)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""
        self.published.append((token, refused))

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""
        self.subscribed += 1

    def payloads(self) -> list[bytes]:
        """What arrived, in order."""
        return [message.payload for message in self.messages]


@dataclass
class Link:
    """A connection and what its handler heard."""

    connection: Connection
    heard: Recorder


Connect = Callable[..., Link]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Start connections that end with the test; ready when subscribed."""
    links: list[Link] = []

    def make(broker: Broker, session: Session, base_s: float = 0.05) -> Link:
        heard = Recorder()
        backoff = Backoff(
            random.Random(0), base_s=base_s, cap_s=2 * base_s, urgent_cap_s=0.2
        )
        connection = Connection(broker.endpoint, session, heard, backoff=backoff)
        links.append(Link(connection, heard))
        connection.start()
        wait_until(lambda: heard.ups)
        wait_until(lambda: heard.subscribed or not session.filters)
        return links[-1]

    yield make
    for link in links:
        link.connection.stop()


@pytest.mark.broker
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_message_arrives_with_its_properties(
    broker: Broker, connect: Connect, qos: int
) -> None:
    """Priority, Response Topic and message id travel beside the payload."""
    link = connect(broker, Session("a", filters=(("/1/#", 2),)))
    token = link.connection.publish(
        Publication(
            "/1/2",
            b"\x00\xff",
            qos,
            priority=5,
            response_topic="/custody/a",
            message_id="n:b:7",
            expiry_s=60,
        )
    )
    wait_until(lambda: link.heard.messages and link.heard.published)
    (message,) = link.heard.messages

    assert (message.topic, message.payload) == ("/1/2", b"\x00\xff")
    assert (message.qos, message.retain, message.priority) == (qos, False, 5)
    assert message.response_topic == "/custody/a"
    assert message.message_id == "n:b:7"
    assert link.heard.published == [(token, None)]


@pytest.mark.broker
def test_message_without_properties_has_none(broker: Broker, connect: Connect) -> None:
    """A plain MQTT message is a message."""
    link = connect(broker, Session("a", filters=(("/1", 1),)))
    link.connection.publish(Publication("/1", b"", qos=1))
    wait_until(lambda: link.heard.messages)
    (message,) = link.heard.messages

    assert (message.priority, message.response_topic, message.message_id) == (None,) * 3


@pytest.mark.broker
def test_subscription_lowers_the_qos(broker: Broker, connect: Connect) -> None:
    """A subscriber gets no more than it asked for."""
    link = connect(broker, Session("a", filters=(("/1", 0),)))
    link.connection.publish(Publication("/1", b"x", qos=2))
    wait_until(lambda: link.heard.messages)

    assert link.heard.messages[0].qos == 0


@pytest.mark.broker
def test_subscriptions_come_and_go(broker: Broker, connect: Connect) -> None:
    """A client that moves adds filters and takes others back."""
    link = connect(broker, Session("a", filters=(("/end", 1),)))
    link.connection.subscribe([("/1", 1), ("/2", 1)])
    wait_until(lambda: link.heard.subscribed == 2)
    link.connection.unsubscribe(["/1"])
    for topic in ("/1", "/2", "/end"):
        link.connection.publish(Publication(topic, topic.encode()))
    wait_until(lambda: b"/end" in link.heard.payloads())

    assert link.heard.payloads() == [b"/2", b"/end"]


@pytest.mark.broker
def test_broker_that_returns_finds_the_subscriptions_again(
    broker: Broker, connect: Connect
) -> None:
    """After a kill -9 the connection comes back by itself, subscriptions and all."""
    link = connect(broker, Session("a", filters=(("/1", 1),)))
    broker.kill()
    wait_until(lambda: link.heard.downs)
    broker.start()
    wait_until(lambda: link.heard.subscribed == 2)
    link.connection.publish(Publication("/1", b"again"))
    wait_until(lambda: link.heard.messages)

    assert link.heard.payloads() == [b"again"]
    assert len(link.heard.ups) == 2


@pytest.mark.broker
def test_link_that_is_down_takes_no_message(broker: Broker, connect: Connect) -> None:
    """None tells the store to keep it; nothing hides in a library's queue."""
    link = connect(broker, Session("a", filters=(("/1", 1),)))
    broker.kill()
    wait_until(lambda: link.heard.downs)

    assert not link.connection.is_up
    assert link.connection.publish(Publication("/1", b"lost")) is None
    broker.start()
    wait_until(lambda: link.heard.subscribed == 2)
    link.connection.publish(Publication("/1", b"kept"))
    wait_until(lambda: link.heard.messages)
    assert link.heard.payloads() == [b"kept"]


def test_connection_that_was_not_started_takes_no_message() -> None:
    """Before the first connection there is no link."""
    connection = Connection(Endpoint("127.0.0.1", 1), Session("a"), Recorder())

    assert connection.publish(Publication("/1", b"x")) is None
    assert not connection.is_up
    connection.subscribe([("/1", 1)])
    connection.unsubscribe(["/1"])
    connection.stop()


@pytest.mark.broker
@pytest.mark.parametrize("say_goodbye", [True, False])
def test_message_that_was_not_acknowledged_comes_again(
    broker: Broker, connect: Connect, *, say_goodbye: bool
) -> None:
    """Until the receiver's word, the broker keeps a message for the session."""
    session = Session("a", (("/1", 1),), expiry_s=60, manual_ack=True)
    first = connect(broker, session)
    for payload in (b"one", b"two"):
        first.connection.publish(Publication("/1", payload))
    wait_until(lambda: len(first.heard.messages) == 2)
    first.connection.acknowledge(first.heard.messages[0])
    first.connection.stop(send_disconnect=say_goodbye)
    second = connect(broker, session)
    wait_until(lambda: second.heard.messages)

    assert second.heard.ups[0][0]
    assert second.heard.payloads() == [b"two"]


@pytest.mark.broker
def test_message_that_was_acknowledged_does_not_come_again(
    broker: Broker, connect: Connect
) -> None:
    """What the receiver has taken over is the receiver's."""
    session = Session("a", (("/1", 1),), expiry_s=60, manual_ack=True)
    first = connect(broker, session)
    first.connection.publish(Publication("/1", b"one"))
    wait_until(lambda: first.heard.messages)
    first.connection.acknowledge(first.heard.messages[0])
    first.connection.stop()
    second = connect(broker, session)
    second.connection.publish(Publication("/1", b"marker"))
    wait_until(lambda: second.heard.messages)

    assert second.heard.payloads() == [b"marker"]


@pytest.mark.broker
def test_delivery_of_an_older_connection_is_let_go(
    broker: Broker, connect: Connect
) -> None:
    """An acknowledgement that comes late does not hit a newer delivery."""
    session = Session("a", (("/1", 1),), expiry_s=60, manual_ack=True)
    link = connect(broker, session)
    link.connection.publish(Publication("/1", b"old"))
    wait_until(lambda: link.heard.messages)
    broker.kill()
    broker.start()
    wait_until(lambda: link.heard.subscribed == 2)
    link.connection.publish(Publication("/1", b"new"))
    wait_until(lambda: len(link.heard.messages) == 2)
    old, new = link.heard.messages
    link.connection.acknowledge(old)

    assert old.delivery[1] == new.delivery[1]
    link.connection.stop()
    again = connect(broker, session)
    wait_until(lambda: again.heard.messages)
    assert again.heard.payloads() == [b"new"]


@pytest.mark.broker
def test_clean_session_forgets(broker: Broker, connect: Connect) -> None:
    """Without an expiry every connection starts from nothing."""
    connect(broker, Session("a", (("/1", 1),))).connection.stop()

    assert connect(broker, Session("a", (("/1", 1),))).heard.ups[0][0] is False


@pytest.mark.broker
def test_receive_maximum_limits_what_is_on_its_way(
    broker: Broker, connect: Connect
) -> None:
    """The broker holds back what the receiver has no room for."""
    link = connect(broker, Session("a", (("/1", 1),), 60, True, receive_maximum=1))
    sender = connect(broker, Session("b"))
    for payload in (b"one", b"two"):
        sender.connection.publish(Publication("/1", payload))
    wait_until(lambda: len(sender.heard.published) == 2 and link.heard.messages)

    assert link.heard.payloads() == [b"one"]
    link.connection.acknowledge(link.heard.messages[0])
    wait_until(lambda: link.heard.payloads() == [b"one", b"two"])


@pytest.mark.broker
def test_will_is_published_when_no_goodbye_was_said(
    broker: Broker, connect: Connect
) -> None:
    """Who vanishes is announced by the broker."""
    watcher = connect(broker, Session("w", (("/will", 1),)))
    will = Publication("/will", b"gone", qos=1)
    connect(broker, Session("a", will=will)).connection.stop(send_disconnect=False)
    wait_until(lambda: watcher.heard.messages)

    assert watcher.heard.payloads() == [b"gone"]


@pytest.mark.broker
def test_will_is_withheld_when_goodbye_was_said(
    broker: Broker, connect: Connect
) -> None:
    """Who leaves in order is not missed."""
    watcher = connect(broker, Session("w", (("/will", 1), ("/end", 1))))
    will = Publication("/will", b"gone", qos=1)
    connect(broker, Session("a", will=will)).connection.stop()
    watcher.connection.publish(Publication("/end", b"end"))
    wait_until(lambda: watcher.heard.messages)

    assert watcher.heard.payloads() == [b"end"]


@pytest.mark.broker
def test_stopped_connection_stays_away(broker: Broker, connect: Connect) -> None:
    """Stop tells the owner that the link is gone, once."""
    link = connect(broker, Session("a"))
    link.connection.stop()

    assert len(link.heard.downs) == 1
    assert not link.connection.is_up
    assert link.connection.publish(Publication("/1", b"x")) is None


@pytest.mark.broker
def test_urgent_message_cuts_a_long_wait_short(
    broker: Broker, connect: Connect
) -> None:
    """With something urgent to send nobody sits out a wait of minutes."""
    link = connect(broker, Session("a"), base_s=300.0)
    broker.kill()
    wait_until(lambda: link.heard.downs)
    broker.start()

    def is_back() -> bool:
        link.connection.reconnect_soon()
        return link.connection.is_up

    wait_until(is_back)


@pytest.mark.broker
def test_small_messages_leave_at_once(broker: Broker, connect: Connect) -> None:
    """Nagle's algorithm is off, or QoS 1 is held to some 330 messages a second."""
    client = connect(broker, Session("a")).connection._client  # noqa: SLF001
    sock = client.socket() if client else None

    assert sock is not None
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.broker
def test_retained_message_is_fetched(broker: Broker, connect: Connect) -> None:
    """A client asks a manager once, and leaves."""
    link = connect(broker, Session("a"))
    link.connection.publish(Publication("/info", b"[]", retain=True))
    wait_until(lambda: link.heard.published)

    assert fetch_retained(broker.endpoint, "/info", "b", timeout_s=10) == b"[]"


@pytest.mark.broker
def test_retained_message_that_is_missing_is_told(broker: Broker) -> None:
    """The error names broker, topic and time."""
    with pytest.raises(
        BrokerError,
        match=rf"^connecting to 127\.0\.0\.1:{broker.port} failed: "
        r"no retained message on /none within 0\.3 s$",
    ):
        fetch_retained(broker.endpoint, "/none", "a", timeout_s=0.3)


@pytest.mark.broker
@pytest.mark.parametrize("told", ["9" * 5000, "0", "-1", "five", "", "１"])
def test_priority_property_of_any_text_keeps_the_link_alive(
    broker: Broker, connect: Connect, told: str
) -> None:
    """A hostile publisher must not end the network thread of a daemon."""
    link = connect(broker, Session("a", filters=(("/1/#", 1),)))
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = ("pri", told)
    stranger = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    stranger.connect("127.0.0.1", broker.port)
    stranger.loop_start()
    stranger.publish("/1/2", b"x", 1, properties=properties).wait_for_publish(5)
    stranger.disconnect()
    stranger.loop_stop()
    wait_until(lambda: link.heard.messages)

    assert link.heard.messages[0].priority is None
    assert link.connection.is_up
