"""Subscriptions of a gateway at a distributed broker, a real one."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from conftest import Broker, wait_until
from connection_events import Recorder
from programs import Client

from gateway_daemon.gateway.downstream import BrokerSubscriber, ReceivedMessage
from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.transport import ConnectionHandler, Session

pytestmark = pytest.mark.broker

NESTED = frozenset({"/1/#", "/1/2/#", "/1/2/3/#", "/1/+/3/#", "/1/2/3", "/1/2/+"})
AROUND = ("#", "/1/+/#", "/1/+", "/+/2/3")
"""Filters that overlap each of `NESTED`."""


def connect(
    endpoint: Endpoint, session: Session, handler: ConnectionHandler
) -> Connection:
    backoff = Backoff(random.Random(1), base_s=0.05, cap_s=0.2)
    return Connection(endpoint, session, handler, backoff=backoff)


@dataclass
class Gateway:
    """A gateway's subscriber, the messages it got, and clients of the broker.

    Attributes:
        endpoint: The broker.
        got: Messages in the order of arrival.
    """

    endpoint: Endpoint
    got: list[ReceivedMessage] = field(default_factory=list)
    subscriber: BrokerSubscriber | None = None

    def start(self, *filters: str) -> None:
        """Start the daemon; its session may exist."""
        self.subscriber = BrokerSubscriber(
            "gw", self.endpoint, connect, self._receive, lambda: None
        )
        self.subscribe(*filters)

    def subscribe(self, *filters: str, held: tuple[str, ...] | None = None) -> None:
        """Subscribe to these filters only, and wait until that is confirmed."""
        assert self.subscriber is not None
        wanted = None if held is None else frozenset(held)
        self.subscriber.set_filters(frozenset(filters), wanted)
        wait_until(lambda: self.subscriber.is_confirmed)

    def stop(self) -> None:
        """Stop the daemon; the broker keeps the session."""
        if self.subscriber is not None:
            self.subscriber.connection.stop()
        self.subscriber = None

    def counts(self) -> Counter[bytes]:
        """How many copies of each payload arrived."""
        return Counter(each.message.payload for each in self.got)

    def _receive(self, received: ReceivedMessage) -> None:
        self.got.append(received)
        received.subscriber.connection.acknowledge(received.message)


@pytest.fixture
def gateway(broker: Broker) -> Iterator[Gateway]:
    created = Gateway(broker.endpoint)
    yield created
    created.stop()


@pytest.fixture
def make_client(broker: Broker) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(name: str, *filters: str) -> Client:
        clients.append(Client(broker.endpoint, name, *filters))
        return clients[-1]

    yield make
    for each in clients:
        each.connection.stop()


def settle(gateway: Gateway, writer: Client) -> None:
    """Wait until everything that was published before has arrived."""
    last = b"last %d" % len(gateway.got)
    writer.publish("/1/2/3", last)
    wait_until(lambda: gateway.counts()[last])
    time.sleep(0.2)


def test_nested_filters_bring_one_copy(
    gateway: Gateway, make_client: Callable[..., Client]
) -> None:
    """A broker sends a copy for each subscription that matches."""
    gateway.start(*NESTED)
    writer = make_client("writer")
    for number in range(100):
        writer.publish("/1/2/3", b"%d" % number)
    settle(gateway, writer)

    assert set(gateway.counts().values()) == {1}
    assert len(gateway.counts()) == 101


def test_nothing_is_missed_while_filters_come_and_go(
    gateway: Gateway, make_client: Callable[..., Client], chance: random.Random
) -> None:
    """One of the filters always matches, but not always the same."""
    gateway.start(*NESTED)
    writer, sent, stop = make_client("writer"), list[bytes](), threading.Event()

    def write() -> None:
        while not stop.wait(0.001):
            sent.append(b"%d" % len(sent))
            writer.publish("/1/2/3", sent[-1])

    thread = threading.Thread(target=write)
    thread.start()
    assert gateway.subscriber is not None
    for _ in range(150):
        some = chance.sample([*NESTED, *AROUND], chance.randint(1, 8))
        gateway.subscriber.set_filters(frozenset(some) | {"/1/2/3"})
        time.sleep(chance.choice([0, 0.003, 0.01]))
    stop.set()
    thread.join()
    settle(gateway, writer)

    assert gateway.counts().keys() >= set(sent)


@pytest.mark.parametrize("is_narrower_first", [True, False])
def test_retained_message_arrives_once(
    gateway: Gateway, make_client: Callable[..., Client], is_narrower_first: bool
) -> None:
    """Reconnecting, restarting and narrower filters do not repeat it."""
    writer = make_client("writer")
    writer.publish("/1/2/3", b"in both", retain=True)
    writer.publish("/1/4", b"in the wider", retain=True)
    gateway.start("/1/2/#" if is_narrower_first else "/1/#")
    wait_until(lambda: gateway.counts()[b"in both"])
    gateway.subscribe("/1/#", "/1/2/#")
    wait_until(lambda: gateway.counts()[b"in the wider"])
    gateway.subscribe("/1/2/#")
    gateway.stop()
    writer.publish("/1/2/4", b"while away", retain=True)
    gateway.start("/1/2/#")
    settle(gateway, writer)

    # A broker that is asked for a wider filter repeats what the narrower one matched.
    assert gateway.counts()[b"in both"] == (2 if is_narrower_first else 1)
    assert gateway.counts()[b"in the wider"] == 1
    assert gateway.counts()[b"while away"] == 1


def test_retained_message_arrives_when_the_broker_gets_the_area(
    gateway: Gateway, make_client: Callable[..., Client]
) -> None:
    """What a broker without the area retains may be outdated; new messages arrive."""
    writer = make_client("writer")
    writer.publish("/1/2/3", b"before", retain=True)
    for _ in range(2):  # the second time the session exists
        gateway.stop()
        gateway.start("/5/#")
        gateway.subscribe("/5/#", "/1/#", held=("/5/#",))
        settle(gateway, writer)
    writer.publish("/1/2/4", b"plain")
    settle(gateway, writer)
    assert gateway.counts()[b"plain"] == 1
    assert not gateway.counts()[b"before"]

    gateway.subscribe("/5/#", "/1/#", held=("/5/#", "/1/#"))
    wait_until(lambda: gateway.counts()[b"before"])
    gateway.subscribe("/5/#", "/1/2/#", held=("/5/#", "/1/2/#"))
    settle(gateway, writer)
    assert gateway.counts()[b"before"] == 1


def test_broker_that_holds_nothing_is_not_waited_for() -> None:
    """A change of the table completes while it is down."""
    dead = BrokerSubscriber(
        "gw", Endpoint("127.0.0.1", 1), connect, print, lambda: None
    )
    dead.set_filters(frozenset({"/1/#"}), frozenset())
    assert dead.is_confirmed
    dead.set_filters(frozenset({"/1/#"}), frozenset({"/1/#"}))
    assert not dead.is_confirmed
    dead.connection.stop()


def test_filter_that_is_removed_while_the_link_is_down_ends(
    broker: Broker, gateway: Gateway, make_client: Callable[..., Client]
) -> None:
    """The broker keeps it in the session, so it is removed after the reconnect."""
    gateway.start("/1/2/#", "/4/#")
    assert gateway.subscriber is not None
    connection = gateway.subscriber.connection
    connection.backoff.base_s = 1.0
    other = connect(broker.endpoint, Session("gw-ear", expiry_s=600), Recorder())
    other.start()
    wait_until(lambda: not connection.is_up)
    gateway.subscriber.set_filters(frozenset({"/1/2/#"}))
    assert not connection.is_up
    other.stop()
    wait_until(lambda: connection.is_up)
    gateway.subscribe("/1/2/#")
    writer = make_client("writer")
    settle(gateway, writer)
    writer.publish("/4/1", b"unwanted")
    settle(gateway, writer)

    assert not gateway.counts()[b"unwanted"]
