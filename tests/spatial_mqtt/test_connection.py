"""One MQTT 5 connection that reconnects by itself, against a real broker."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import paho.mqtt.client as paho
import pytest
from conftest import Broker, wait_until
from connection_events import Recorder
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from service_runtime.metrics import collect_links
from service_runtime.tls import Endpoint
from spatial_mqtt import tcp
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.codec import MAX_RECEIVED_BYTES
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.custody import encode_correlation
from spatial_mqtt.directory import (
    MAX_HOST_CHARS,
    BrokerEntry,
    BrokerInfo,
    encode_directory_message,
)
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.paho_client import BatchingClient, TakeoverDetector
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import MAX_TOPIC_CHARS
from spatial_mqtt.transport import Publication, Session


@dataclass
class Link:
    """A connection and the events that its handler recorded."""

    connection: Connection
    recorder: Recorder


Connect = Callable[..., Link]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Start connections that are stopped after the test; ready when subscribed."""
    links: list[Link] = []

    def make(broker: Broker, session: Session, base_s: float = 0.05) -> Link:
        recorder = Recorder()
        backoff = Backoff(
            random.Random(0), base_s=base_s, cap_s=2 * base_s, urgent_cap_s=0.2
        )
        connection = Connection(broker.endpoint, session, recorder, backoff=backoff)
        links.append(Link(connection, recorder))
        connection.start()
        wait_until(lambda: recorder.ups)
        wait_until(lambda: recorder.subscribed or not session.filters)
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
    wait_until(lambda: link.recorder.messages and link.recorder.published)
    (message,) = link.recorder.messages

    assert (message.topic, message.payload) == ("/1/2", b"\x00\xff")
    assert (message.qos, message.retain, message.priority) == (qos, False, 5)
    assert message.response_topic == "/custody/a"
    assert message.message_id == "n:b:7"
    assert link.recorder.published == [(token, None)]


@pytest.mark.broker
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_broker_delivers_correlation_data(
    broker: Broker, connect: Connect, qos: int
) -> None:
    """It is read as the properties that it replaces."""
    link = connect(broker, Session("a", filters=(("/1/#", 2),)))
    data = encode_correlation(5, MessageId("n", "0123abcd", 7), "n")
    link.connection.publish(Publication("/1/2", b"x", qos, correlation=data))
    wait_until(lambda: link.recorder.messages)
    (message,) = link.recorder.messages

    assert (message.priority, message.message_id) == (5, "n:0123abcd:7")
    assert message.response_topic == "/custody/n"


def test_publication_at_connack_does_not_stop_both_threads() -> None:
    """After CONNACK paho writes what was published with QoS 2, with its lock held.

    A Manager published its registry when it was connected; with bad luck it and paho's
    thread then waited for each other until the watchdog ended the process.
    """
    policy = tcp.ConnectPolicy(lambda _: True)
    client = BatchingClient(Session("a"), 1, print, print, policy)
    message = [Publication("/1", b"x", qos=2)]
    publisher = threading.Thread(
        target=client.publish_together, args=(message,), daemon=True
    )

    def handle_connack() -> None:
        with client._out_message_mutex:  # noqa: SLF001 - of paho
            publisher.start()
            publisher.join(0.5)  # waits for that lock
            client.loop_write()

    thread = threading.Thread(target=handle_connack, daemon=True)
    thread.start()
    thread.join(30)

    assert not thread.is_alive()
    publisher.join(30)
    assert not publisher.is_alive()


class EndingClient(BatchingClient):
    """paho's thread ends when it has been looked at once, and is then forgotten."""

    _found: threading.Thread | None = None

    @property
    def _thread(self) -> threading.Thread | None:
        found, self._found = self._found, None
        return found

    @_thread.setter
    def _thread(self, thread: threading.Thread | None) -> None:
        self._found = thread


def test_network_thread_may_end_while_it_is_stopped() -> None:
    """A broker that ended the connection at once sometimes ended the program."""
    policy = tcp.ConnectPolicy(lambda _: True)
    client = EndingClient(Session("a"), 1, print, print, policy)
    thread = threading.Thread(target=threading.Event().wait, args=(0.1,))
    client._thread = thread  # noqa: SLF001 - of paho
    thread.start()

    assert client.loop_stop() == paho.MQTT_ERR_SUCCESS
    assert not thread.is_alive()
    assert client.loop_stop() == paho.MQTT_ERR_INVAL


@pytest.mark.broker
def test_message_without_properties_has_none(broker: Broker, connect: Connect) -> None:
    """Plain MQTT messages are accepted."""
    link = connect(broker, Session("a", filters=(("/1", 1),)))
    link.connection.publish(Publication("/1", b"", qos=1))
    wait_until(lambda: link.recorder.messages)
    (message,) = link.recorder.messages

    assert (message.priority, message.response_topic, message.message_id) == (None,) * 3


@pytest.mark.broker
def test_subscription_lowers_the_qos(broker: Broker, connect: Connect) -> None:
    """A subscriber gets at most the QoS it requested."""
    link = connect(broker, Session("a", filters=(("/1", 0),)))
    link.connection.publish(Publication("/1", b"x", qos=2))
    wait_until(lambda: link.recorder.messages)

    assert link.recorder.messages[0].qos == 0


@pytest.mark.broker
def test_filters_can_be_added_and_removed(broker: Broker, connect: Connect) -> None:
    """For example when a client moves."""
    link = connect(broker, Session("a", filters=(("/end", 1),)))
    link.connection.subscribe([("/1", 1), ("/2", 1)])
    wait_until(lambda: link.recorder.subscribed == 2)
    link.connection.unsubscribe(["/1"])
    for topic in ("/1", "/2", "/end"):
        link.connection.publish(Publication(topic, topic.encode()))
    wait_until(lambda: b"/end" in link.recorder.payloads())

    assert link.recorder.payloads() == [b"/2", b"/end"]


@pytest.mark.broker
def test_subscriptions_are_restored_after_a_broker_restart(
    broker: Broker, connect: Connect
) -> None:
    """After SIGKILL of the broker the connection returns with its subscriptions."""
    link = connect(broker, Session("a", filters=(("/1", 1),)))
    broker.kill()
    wait_until(lambda: link.recorder.downs)
    broker.start()
    wait_until(lambda: link.recorder.subscribed == 2)
    link.connection.publish(Publication("/1", b"again"))
    wait_until(lambda: link.recorder.messages)

    assert link.recorder.payloads() == [b"again"]
    assert len(link.recorder.ups) == 2


def test_disconnected_link_accepts_no_message(broker: Broker, connect: Connect) -> None:
    """None tells the store to keep the message; the library queues nothing."""
    link = connect(broker, Session("a", filters=(("/1", 1),)))
    broker.kill()
    wait_until(lambda: link.recorder.downs)

    assert not link.connection.is_up
    assert link.connection.publish(Publication("/1", b"lost")) is None
    broker.start()
    wait_until(lambda: link.recorder.subscribed == 2)
    link.connection.publish(Publication("/1", b"kept"))
    wait_until(lambda: link.recorder.messages)
    assert link.recorder.payloads() == [b"kept"]


def test_connection_that_was_not_started_accepts_no_message() -> None:
    """Before the first connection there is no link."""
    connection = Connection(Endpoint("127.0.0.1", 1), Session("a"), Recorder())

    assert connection.publish(Publication("/1", b"x")) is None
    assert not connection.is_up
    connection.subscribe([("/1", 1)])
    connection.unsubscribe(["/1"])
    connection.stop()


@pytest.mark.broker
@pytest.mark.parametrize("send_disconnect", [True, False])
def test_unacknowledged_message_is_redelivered(
    broker: Broker, connect: Connect, *, send_disconnect: bool
) -> None:
    """The broker keeps a message for the session until it is acknowledged."""
    session = Session("a", (("/1", 1),), expiry_s=60, manual_ack=True)
    first = connect(broker, session)
    for payload in (b"one", b"two"):
        first.connection.publish(Publication("/1", payload))
    wait_until(lambda: len(first.recorder.messages) == 2)
    first.connection.acknowledge(first.recorder.messages[0])
    first.connection.stop(send_disconnect=send_disconnect)
    second = connect(broker, session)
    wait_until(lambda: second.recorder.messages)

    assert second.recorder.ups[0][0]
    assert second.recorder.payloads() == [b"two"]


@pytest.mark.broker
def test_acknowledged_message_is_not_redelivered(
    broker: Broker, connect: Connect
) -> None:
    """The receiver is responsible for it."""
    session = Session("a", (("/1", 1),), expiry_s=60, manual_ack=True)
    first = connect(broker, session)
    first.connection.publish(Publication("/1", b"one"))
    wait_until(lambda: first.recorder.messages)
    first.connection.acknowledge(first.recorder.messages[0])
    first.connection.stop()
    second = connect(broker, session)
    second.connection.publish(Publication("/1", b"marker"))
    wait_until(lambda: second.recorder.messages)

    assert second.recorder.payloads() == [b"marker"]


@pytest.mark.broker
def test_acknowledgement_for_an_older_connection_is_ignored(
    broker: Broker, connect: Connect
) -> None:
    """A late acknowledgement does not apply to a newer delivery with the same id."""
    session = Session("a", (("/1", 1),), expiry_s=60, manual_ack=True)
    link = connect(broker, session)
    link.connection.publish(Publication("/1", b"old"))
    wait_until(lambda: link.recorder.messages)
    broker.kill()
    broker.start()
    wait_until(lambda: link.recorder.subscribed == 2)
    link.connection.publish(Publication("/1", b"new"))
    wait_until(lambda: len(link.recorder.messages) == 2)
    old, new = link.recorder.messages
    link.connection.acknowledge(old)

    assert old.delivery[1] == new.delivery[1]
    link.connection.stop()
    again = connect(broker, session)
    wait_until(lambda: again.recorder.messages)
    assert again.recorder.payloads() == [b"new"]


@pytest.mark.broker
def test_clean_session_keeps_no_state(broker: Broker, connect: Connect) -> None:
    """Without an expiry every connection starts with an empty session."""
    connect(broker, Session("a", (("/1", 1),))).connection.stop()

    assert connect(broker, Session("a", (("/1", 1),))).recorder.ups[0][0] is False


@pytest.mark.broker
def test_receive_maximum_limits_unacknowledged_messages(
    broker: Broker, connect: Connect
) -> None:
    """The broker holds back what exceeds it."""
    link = connect(broker, Session("a", (("/1", 1),), 60, True, receive_maximum=1))
    sender = connect(broker, Session("b"))
    for payload in (b"one", b"two"):
        sender.connection.publish(Publication("/1", payload))
    wait_until(lambda: len(sender.recorder.published) == 2 and link.recorder.messages)

    assert link.recorder.payloads() == [b"one"]
    link.connection.acknowledge(link.recorder.messages[0])
    wait_until(lambda: link.recorder.payloads() == [b"one", b"two"])


@pytest.mark.broker
def test_message_above_the_largest_size_is_not_delivered(
    broker: Broker, connect: Connect
) -> None:
    """A publisher could fill the memory of every subscriber by one of 268 MB.

    A list of 20,000 gateways with the longest names and areas is smaller.
    """
    host, area = "h" * MAX_HOST_CHARS, "/" + "1" * (MAX_TOPIC_CHARS - 1)
    entry = BrokerEntry(area, BrokerInfo(host, 65535))
    listed = encode_directory_message([entry] * 20_000)
    link = connect(broker, Session("a", (("/1", 1),)))
    sender = connect(broker, Session("b"))
    for payload in (listed, bytes(MAX_RECEIVED_BYTES), b"after it"):
        sender.connection.publish(Publication("/1", payload))
    wait_until(lambda: b"after it" in link.recorder.payloads())

    assert link.recorder.payloads() == [listed, b"after it"]
    assert not link.recorder.downs


@pytest.mark.broker
def test_will_is_published_after_an_abnormal_disconnect(
    broker: Broker, connect: Connect
) -> None:
    """The broker announces a client that vanished."""
    subscriber = connect(broker, Session("w", (("/will", 1),)))
    will = Publication("/will", b"gone", qos=1)
    connect(broker, Session("a", will=will)).connection.stop(send_disconnect=False)
    wait_until(lambda: subscriber.recorder.messages)

    assert subscriber.recorder.payloads() == [b"gone"]


@pytest.mark.broker
def test_will_is_discarded_after_an_orderly_disconnect(
    broker: Broker, connect: Connect
) -> None:
    """A DISCONNECT packet cancels the will."""
    subscriber = connect(broker, Session("w", (("/will", 1), ("/end", 1))))
    will = Publication("/will", b"gone", qos=1)
    connect(broker, Session("a", will=will)).connection.stop()
    subscriber.connection.publish(Publication("/end", b"end"))
    wait_until(lambda: subscriber.recorder.messages)

    assert subscriber.recorder.payloads() == [b"end"]


@pytest.mark.broker
def test_stopped_connection_does_not_reconnect(
    broker: Broker, connect: Connect
) -> None:
    """`stop` reports the loss of the link once."""
    link = connect(broker, Session("a"))
    link.connection.stop()

    assert len(link.recorder.downs) == 1
    assert not link.connection.is_up
    assert link.connection.publish(Publication("/1", b"x")) is None


class StopBeforeClear(threading.Event):
    """Event of a connection that lets `stop` run just before it is cleared."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.stopping = threading.Thread(target=connection.stop, daemon=True)
        self.was_cleared = False

    def clear(self) -> None:
        self.stopping.start()
        wait_until(self.is_set)
        self.was_cleared = True
        super().clear()


@pytest.mark.broker
def test_stop_ends_a_connection_that_begins_an_attempt(broker: Broker) -> None:
    """The event that ends the wait for the connection's end is not lost."""
    connection = Connection(broker.endpoint, Session("c"), Recorder())
    down = connection._down = StopBeforeClear(connection)  # noqa: SLF001 - forces the race
    connection.start()
    wait_until(lambda: down.was_cleared)
    down.stopping.join(10)

    assert not down.stopping.is_alive()


@pytest.mark.broker
def test_urgent_message_shortens_a_long_wait(broker: Broker, connect: Connect) -> None:
    """An urgent message does not wait for minutes for the next attempt."""
    link = connect(broker, Session("a"), base_s=300.0)
    broker.kill()
    wait_until(lambda: link.recorder.downs)
    broker.start()

    def is_back() -> bool:
        link.connection.reconnect_soon()
        return link.connection.is_up

    wait_until(is_back)


@pytest.mark.broker
def test_small_messages_leave_at_once(broker: Broker, connect: Connect) -> None:
    """Nagle's algorithm is off; with it QoS 1 is limited to about 330 messages/s."""
    client = connect(broker, Session("a")).connection._client  # noqa: SLF001
    sock = client.socket() if client else None

    assert sock is not None
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.broker
def test_packet_of_another_thread_does_not_split_a_message(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes were written into the message of which the kernel took a part."""
    link = connect(broker, Session("a", filters=(("/1", 1),)))
    write = BatchingClient._write_directly  # noqa: SLF001 - forces the race
    parts: list[int] = []

    def write_a_part(client: BatchingClient, data: bytes) -> bytes:
        rest = write(client, data)
        if 0 < len(rest) < len(data):
            parts.append(len(rest))
            other = threading.Thread(
                target=link.connection.subscribe, args=([("/2", 1)],)
            )
            other.start()
            other.join()
        return rest

    monkeypatch.setattr(BatchingClient, "_write_directly", write_a_part)
    payload = bytes(range(256)) * 40_000
    link.connection.publish(Publication("/1", payload, qos=1))
    link.connection.publish(Publication("/2", b"after it", qos=1))
    wait_until(lambda: len(link.recorder.messages) == 2 or link.recorder.downs)

    assert parts
    assert not link.recorder.downs
    assert [m.payload for m in link.recorder.messages] == [payload, b"after it"]


@pytest.mark.broker
def test_retained_message_is_fetched(broker: Broker, connect: Connect) -> None:
    """A client fetches a list from a Manager and disconnects."""
    link = connect(broker, Session("a"))
    link.connection.publish(Publication("/info", b"[]", retain=True))
    wait_until(lambda: link.recorder.published)

    assert fetch_retained(broker.endpoint, "/info", "b", timeout_s=10) == b"[]"


@pytest.mark.broker
def test_missing_retained_message_is_reported(broker: Broker) -> None:
    """The error names broker, topic and time."""
    with pytest.raises(
        BrokerError,
        match=rf"^connecting to 127\.0\.0\.1:{broker.port} failed: "
        r"no retained message on /none within 0\.3 s$",
    ):
        fetch_retained(broker.endpoint, "/none", "a", timeout_s=0.3)


@pytest.mark.broker
@pytest.mark.parametrize("priority", ["9" * 5000, "0", "-1", "five", "", "１"])
def test_invalid_priority_property_keeps_the_link_alive(
    broker: Broker, connect: Connect, priority: str
) -> None:
    """A hostile publisher must not crash the network thread of a daemon."""
    link = connect(broker, Session("a", filters=(("/1/#", 1),)))
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = ("pri", priority)
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    publisher.connect("127.0.0.1", broker.port)
    publisher.loop_start()
    publisher.publish("/1/2", b"x", 1, properties=properties).wait_for_publish(5)
    publisher.disconnect()
    publisher.loop_stop()
    wait_until(lambda: link.recorder.messages)

    assert link.recorder.messages[0].priority is None
    assert link.connection.is_up


@pytest.mark.broker
def test_two_connections_with_one_client_id_are_named_in_the_log(
    broker: Broker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Mosquitto 2.0.11 only closes the older one, 2.0.21 states the reason."""
    connect(broker, Session("gw-1"))
    link = connect(broker, Session("gw-1"))
    before = shared_id(broker)
    wait_until(lambda: "again and again" in caplog.text)

    assert "the same client id, gw-1" in caplog.text
    reasons = {"the broker closed the connection", "Session taken over"}
    assert reasons & set(link.recorder.downs)
    assert [before, shared_id(broker)] == [0, 1]


def shared_id(broker: Broker) -> float:
    """The metric of a broker; connections of earlier tests may have others."""
    samples = collect_links()[1].samples
    values = {sample.labels["broker"]: sample.value for sample in samples}
    return values[str(broker.endpoint)]


@pytest.mark.parametrize(
    ("reasons", "is_warned"),
    [
        (["the broker closed the connection"] * 3, [False, False, True]),
        (["Session taken over"] * 4, [False, False, True, False]),
        (["Keep alive timeout"] * 4, [False] * 4),
        (["the broker closed the connection", "refused"] * 4, [False] * 8),
    ],
)
def test_takeovers_are_recognised_by_their_number(
    reasons: list[str], is_warned: list[bool]
) -> None:
    """One end says nothing, and one warning in ten minutes is enough."""
    detector = TakeoverDetector()
    seen = [detector.report_end(each, 10.0 * n) for n, each in enumerate(reasons)]

    assert seen == is_warned
    assert detector.is_suspected(1219.0) is any(is_warned)
    assert not detector.is_suspected(1220.0)


def test_rare_ends_are_no_takeovers() -> None:
    """A broker that is restarted every day closes its connections, too."""
    detector = TakeoverDetector()
    closed = "the broker closed the connection"

    assert not any(detector.report_end(closed, 301.0 * n) for n in range(10))
