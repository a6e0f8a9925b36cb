"""Overlay runners over real brokers."""

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from queue import SimpleQueue
from unittest.mock import Mock, call

import msgspec
import pytest
from conftest import Broker, wait_until
from programs import Client

from edge_agent.queue.base import MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from gateway_daemon.gateway.overlay_fallback import FallbackRules, OverlayFallback
from gateway_daemon.overlay.ddll import PingTimes
from gateway_daemon.overlay.gateway_node import OverlayNode
from gateway_daemon.overlay.keys import GatewayName, OverlayKey
from gateway_daemon.overlay.messages import (
    CarriedMessage,
    LevelPacket,
    LevelSearch,
    MessageCopy,
    NeighbourQuery,
    OverlayMessage,
    PublicationResult,
    encode_frame,
)
from gateway_daemon.overlay.mqtt_transport import MAX_LINKS, UP_WITHIN_S, MqttTransport
from gateway_daemon.overlay.peers import ReplyTimeouts
from gateway_daemon.overlay.runner import OverlayConfig, OverlayRunner, ReceivedMessages
from service_runtime.tls import Endpoint
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.senml import MessageId
from spatial_mqtt.topics import overlay_topic
from spatial_mqtt.transport import Publication

pytestmark = pytest.mark.broker

TOPIC = "/3/1/2/0/1"
SHORT_PINGS = PingTimes(ping_interval_s=1.0, answer_timeout_s=0.5)
SHORT_TIMEOUTS = ReplyTimeouts(
    receipt_timeout_s=0.5, per_copy_s=0.01, report_timeout_s=2.0, suspect_s=5.0
)


class Gateway:
    """One gateway; its clients are reduced to the ids they receive."""

    def __init__(
        self, number: int, broker: Broker, peer: Broker, rate: float | None = None
    ) -> None:
        name = GatewayName(f"/3/1/2/{number % 4}", _info(broker), f"g{number}")
        self.received_ids: list[str] = []
        self.is_full = False
        self.results: list[PublicationResult] = []
        self._outbox: list[tuple[str, int, str]] = []
        self.runner = OverlayRunner(
            OverlayConfig(name, (_info(peer),), rate),
            OverlayNode(
                str(name), random.Random(number).choice, SHORT_PINGS, SHORT_TIMEOUTS
            ),
            lambda later: MqttTransport(
                name.gateway_id, broker.endpoint, Connection, later
            ),
            self.store,
            watchdog=LoopWatchdog(time.monotonic),
        )
        self.runner.source = self
        self.runner.set_filters(frozenset({"/3/1/#"}))
        self.runner.start()

    def store(self, received: ReceivedMessages) -> Collection[str]:
        if self.is_full:
            return [message.id for message, _ in received]
        self.received_ids += [message.id for message, _ in received]
        return ()

    def poll(self, now_s: float) -> None:
        while self._outbox:
            id_, priority, topic = self._outbox.pop()
            self.runner.publish(id_, priority, CarriedMessage(topic, b"ground moves"))

    def publish(self, id_: str, priority: int = 5, topic: str = TOPIC) -> None:
        self._outbox.append((id_, priority, topic))
        self.runner.wake()

    def on_result(self, result: PublicationResult) -> None:
        self.results.append(result)

    def is_complete_for(self, id_: str) -> bool:
        return any(each.message_id == id_ and each.is_complete for each in self.results)


def _info(broker: Broker) -> BrokerInfo:
    return BrokerInfo("127.0.0.1", broker.port)


@pytest.fixture
def gateways(make_broker: Callable[..., Broker]) -> Iterator[list[Gateway]]:
    """Eight gateways on four brokers; each knows only the first one's broker."""
    brokers = [make_broker() for _ in range(4)]
    started = [Gateway(n, brokers[n % 4], brokers[0]) for n in range(8)]
    yield started
    for gateway in started:
        gateway.runner.stop()


def publish_until_received(
    gateways: list[Gateway], id_: str, priority: int = 5, reached: int = 8
) -> None:
    """Publish until the overlay reports that so many gateways have the message."""
    for _ in range(60):
        gateways[0].publish(id_, priority)
        deadline_s = time.monotonic() + 10
        before = len(gateways[0].results)
        while len(gateways[0].results) == before and time.monotonic() < deadline_s:
            time.sleep(0.01)
        result = gateways[0].results[-1] if gateways[0].results else None
        if gateways[0].is_complete_for(id_) and result and result.reached == reached:
            return
        time.sleep(0.5)
    raise AssertionError("the overlay did not come together")


def test_every_gateway_receives_a_message_once_over_real_brokers(
    gateways: list[Gateway],
) -> None:
    """They discover each other by the names retained at the brokers."""
    publish_until_received(gateways, "together")
    for priority in (1, 3, 5):
        publish_until_received(gateways, f"m{priority}", priority)
    wait_until(lambda: all("m5" in gateway.received_ids for gateway in gateways))

    for gateway in gateways:
        assert sorted(gateway.received_ids) == ["m1", "m3", "m5", "together"]


def test_gateway_that_left_in_order_is_no_longer_served(
    gateways: list[Gateway],
) -> None:
    """After its packets or a missing answer, no publication waits for it."""
    publish_until_received(gateways, "together")
    gateways[7].runner.stop()
    wait_until(lambda: not gateways[7].runner.status.has_peers)
    publish_until_received(gateways, "later", reached=7)
    wait_until(lambda: all("later" in gateway.received_ids for gateway in gateways[:7]))

    assert "later" not in gateways[7].received_ids


def test_message_that_cannot_be_stored_stays_with_its_publisher(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """One gateway's disk is full: the others have each message once, and it later."""
    brokers = [make_broker() for _ in range(3)]
    gateways = [Gateway(n, brokers[n], brokers[0]) for n in range(3)]
    publish_until_received(gateways, "together", reached=3)
    publisher, full, other = gateways
    queue = SqliteQueue(tmp_path / "overlay.db", "g", "boot", 1_000_000)
    rules = FallbackRules(is_route=True)
    fallback = OverlayFallback(queue, rules, time.monotonic)
    full.is_full = True
    fallback.set_overlay(publisher.runner)
    publisher.runner.source = fallback
    ids = [MessageId("n1", "0123abcd", seq) for seq in range(60)]
    texts = [str(each) for each in ids]
    fallback.put([MessageDraft(4, TOPIC, lambda _: b"x", each) for each in ids])
    wait_until(lambda: set(texts) <= set(other.received_ids), 30)
    assert sum(fallback.waiting_by_priority.values()) == len(ids)

    full.is_full = False
    wait_until(lambda: not any(fallback.waiting_by_priority.values()), 60)

    for gateway in gateways:
        assert sorted(gateway.received_ids) == sorted(["together", *texts])
        gateway.runner.stop()
    for thread in threading.enumerate():
        if thread.name == "overlay":  # it leases from the queue until its end
            thread.join(10)
    fallback.close()


@pytest.mark.parametrize("priority", [5, 4])
def test_copies_are_sent_although_upkeep_exceeds_the_rate(
    make_broker: Callable[..., Broker], priority: int
) -> None:
    """An emergency does not wait for the rate; others have half of it."""
    broker = make_broker()
    gateways = [Gateway(number, broker, broker, 1000.0) for number in range(2)]
    try:
        publish_until_received(gateways, "together", reached=2)
        for number in range(30):  # each area is a key more, with pings every second
            topic = f"/3/1/2/{number % 4}/{number // 4 % 4}/{number // 16 % 4}/0/1"
            gateways[0].publish(f"area-{number}", 1, topic)
        gateways[0].publish("m", priority)
        wait_until(lambda: "m" in gateways[1].received_ids)
    finally:
        for gateway in gateways:
            gateway.runner.stop()


def hostile_frames() -> Iterator[bytes]:
    """Well-formed frames with numbers out of range."""
    key = OverlayKey(TOPIC, 1, "/3@127.0.0.1:1!g9")
    payload = msgspec.msgpack.encode(CarriedMessage(TOPIC, b""))
    for packet in (
        LevelPacket(-1, NeighbourQuery()),
        LevelSearch(99, key),
        MessageCopy(0, OverlayMessage("m", 9, payload), key, key, 1),
        MessageCopy(0, OverlayMessage("m", 5, payload), key, key, 1 << 40),
        MessageCopy(0, OverlayMessage("m", 5, b"no message"), key, key, 1),
    ):
        yield encode_frame(OverlayKey("", 0, "g0"), key, packet)


def test_malformed_frames_are_dropped(gateways: list[Gateway]) -> None:
    """Any client may publish to the overlay topic."""
    for junk in (
        b"",
        b"\0",
        b"\1junk",
        b"\0\x95\x93",
        b"x" * 10_000,
        *hostile_frames(),
    ):
        gateways[0].runner.on_frame(junk)
    publish_until_received(gateways, "still there")

    assert gateways[0].received_ids == ["still there"]
    assert Publication(overlay_topic("g0"), b"").topic == "/overlay/node/g0"


@pytest.mark.parametrize(("down", "closed"), [(0, 1), (40, 40)])
def test_invented_senders_open_a_bounded_number_of_connections(
    down: int, closed: int
) -> None:
    """One that is not up makes room, or else the one not used for longest."""
    opened: list[Mock] = []

    def connect(endpoint: Endpoint, *_: object) -> Mock:
        opened.append(Mock(is_up=endpoint.port != down))
        return opened[-1]

    transport = MqttTransport("g0", Endpoint("own", 1), connect, Mock())
    for number in range(1, MAX_LINKS + 50):
        transport.send(BrokerInfo("h", number), "g1", b"", float(number))
    links = opened[1:]
    transport.close_idle(100.0)
    transport.send(BrokerInfo("new", 1), "g1", b"", 101.0)

    assert len(links) == MAX_LINKS
    assert [n for n, each in enumerate(links, 1) if each.stop.called] == [closed]
    assert len(opened) == MAX_LINKS + 2


@pytest.mark.parametrize("after_s", [1.0, UP_WITHIN_S])
def test_new_connection_has_time_to_come_up(
    after_s: float,
) -> None:
    """At the limit, too, a gateway that was not needed before can be reached."""
    opened: list[Mock] = []

    def connect(endpoint: Endpoint, *_: object) -> Mock:
        opened.append(Mock(is_up=endpoint.host != "new"))
        return opened[-1]

    transport = MqttTransport("g0", Endpoint("own", 1), connect, Mock())
    for number in range(1, MAX_LINKS):
        transport.send(BrokerInfo("h", number), "g1", b"", float(number))
    transport.send(BrokerInfo("new", 1), "g2", b"", 300.0)
    transport.close_idle(300.0 + after_s)

    closed = 1 if after_s < UP_WITHIN_S else MAX_LINKS
    assert [n for n, each in enumerate(opened) if each.stop.called] == [closed]


def test_retained_frame_is_ignored(broker: Broker) -> None:
    """The broker would deliver it at each start."""
    events: SimpleQueue[Callable[[], None]] = SimpleQueue()
    stray = Client(broker.endpoint, "stray")
    stray.publish(overlay_topic("g0"), b"retained", retain=True)
    transport = MqttTransport("g0", broker.endpoint, Connection, events.put)
    transport.handler = handler = Mock()
    transport.start("", (), 0.0)

    def has_frame() -> bool:
        stray.publish(overlay_topic("g0"), b"live")
        while not events.empty():
            events.get()()
        return bool(handler.on_frame.called)

    wait_until(has_frame)
    transport.stop()
    stray.connection.stop()

    assert handler.on_frame.call_args_list[0] == call(b"live")
