"""Attacks of a machine with a valid certificate on others, at real brokers."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import wait_until
from trust_bench import IssuingAuthority, Person, TrustedBroker

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.publications import SenderProfile
from edge_agent.uplink.rate_limit import RateLimiter
from edge_agent.uplink.uplink import Uplink
from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import BATCH_CONTENT, offer_topic
from spatial_mqtt.transport import IncomingMessage, Publication

pytestmark = pytest.mark.broker

CELL = "/3/1/1/2"
REFUSED = "Not authorized"
MAX_ALARM_S = 2.0


class Store(Person):
    """The backend's ingester: makes an offer, reads and receipts what it can read."""

    def __init__(self, broker: TrustedBroker, authority: IssuingAuthority) -> None:
        tls = authority.files("ingest-0")
        super().__init__(broker.daemons, tls, "ingest-0", "/3/#")
        offer = CustodyOffer("ingest-0", ("/3/#",)).encode()
        self.say(offer_topic("ingest-0"), offer, retain=True)

    def on_message(self, message: IncomingMessage) -> None:
        super().on_message(message)
        if message.content is None and message.message_id is not None:
            read = CustodyReceipt.from_ids([MessageId.parse(message.message_id)])
            answer = Publication(message.response_topic or "", read.encode())
            self.connection.publish(answer)


class GatewayUplink:
    """The lane of gateway gw-1 to a distributed broker, on a queue in memory."""

    def __init__(self, broker: TrustedBroker, authority: IssuingAuthority) -> None:
        self.queue = MemoryQueue("gw-1", "boot", 10_000_000)
        tls = authority.files("gw-1")
        self.uplink = Uplink(
            self.queue,
            SenderProfile("gw-1", is_relay=True),
            lambda at, session, handler: Connection(at, session, handler, tls),
            RateLimiter(),
            time.monotonic,
        )
        self._thread = threading.Thread(target=self.uplink.run, daemon=True)
        self._thread.start()
        self.uplink.switch_to(broker.daemons)

    def put(self, priority: int, count: int = 1) -> None:
        draft = MessageDraft(priority, CELL, lambda i: str(i).encode() * 9)
        self.queue.put([draft] * count)
        self.uplink.wake()

    def alarm_s(self) -> float:
        """Time until an alarm has its receipt."""
        acked, began_s = self.queue.stats().acked[5], time.monotonic()
        self.put(5)
        wait_until(lambda: self.queue.stats().acked[5] > acked)
        return time.monotonic() - began_s

    def stop(self) -> None:
        self.uplink.stop()
        self._thread.join()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> IssuingAuthority:
    made = IssuingAuthority(tmp_path_factory.mktemp("ca") / "ca")
    for gateway in ("gw-1", "gw-2"):
        made.issue("gateway", gateway, "/3/1")
    made.issue("backend", "ingest-0")
    made.issue("manager", "m1")
    made.issue("admin", "mayor")
    made.issue("node", "n1", CELL)
    return made


@pytest.fixture(scope="module")
def distributed(
    tmp_path_factory: pytest.TempPathFactory, authority: IssuingAuthority
) -> Iterator[TrustedBroker]:
    made = TrustedBroker(tmp_path_factory.mktemp("d1"), authority, "distributed", "d1")
    yield made
    made.kill()


@pytest.fixture
def join() -> Iterator[Callable[..., Person]]:
    clients: list[Person] = []

    def make(at: Endpoint, *args: object, **more: object) -> Person:
        clients.append(Person(at, *args, **more))  # type: ignore[arg-type]
        return clients[-1]

    yield make
    for client in clients:
        client.stop()


@pytest.fixture
def store(distributed: TrustedBroker, authority: IssuingAuthority) -> Iterator[Store]:
    made = Store(distributed, authority)
    yield made
    made.stop()


@pytest.fixture
def lane(
    distributed: TrustedBroker, authority: IssuingAuthority
) -> Iterator[GatewayUplink]:
    made = GatewayUplink(distributed, authority)
    yield made
    made.stop()


def test_gateway_cannot_make_an_offer_as_if_it_were_a_store(
    distributed: TrustedBroker,
    authority: IssuingAuthority,
    store: Store,
    lane: GatewayUplink,
    join: Callable[..., Person],
) -> None:
    """Another gateway then sent batches that no subscriber can read, for ever."""
    rogue = join(distributed.daemons, authority.files("gw-2"), "gw-2")
    false = CustodyOffer("gw-2", ("#",), (BATCH_CONTENT,)).encode()
    answers = [
        rogue.say(offer_topic(name), false, retain=True)
        for name in ("gw-2", "ingest-0")
    ]
    lane.put(1, 50)

    assert lane.alarm_s() < MAX_ALARM_S
    wait_until(lambda: lane.queue.stats().acked[1] == 50)
    assert {message.content for message in store.got} == {None}
    assert answers == [REFUSED] * 2


def test_offer_under_another_name_than_its_topic_is_ignored(
    distributed: TrustedBroker,
    authority: IssuingAuthority,
    store: Store,
    lane: GatewayUplink,
) -> None:
    """The broker checks the topic only."""
    assert lane.alarm_s() < MAX_ALARM_S
    false = CustodyOffer("ingest-9", ("#",), (BATCH_CONTENT,)).encode()
    store.say(offer_topic("ingest-0"), false)

    assert lane.alarm_s() < MAX_ALARM_S
    known = lane.queue.get_state(f"uplink/offers/{distributed.daemons}") or ""
    assert "ingest-0" in known
    assert "ingest-9" not in known


def test_withdrawn_offer_ends_on_a_link_that_is_up(
    distributed: TrustedBroker, store: Store, lane: GatewayUplink
) -> None:
    """Messages do not wait for receipts that cannot come."""
    assert lane.alarm_s() < MAX_ALARM_S
    store.say(offer_topic("ingest-0"), b"", retain=True)
    key = f"uplink/offers/{distributed.daemons}"
    wait_until(lambda: lane.queue.get_state(key) == "[]")

    store.on_message = lambda _: None  # type: ignore[method-assign]
    assert lane.alarm_s() < 10  # by PUBACK, after the grace for a new offer
