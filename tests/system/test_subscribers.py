"""Clients of two gateways receive messages once while brokers come and go."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from conftest import Broker, wait_until
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from programs import Client, Programs
from sizes import sizes

from gateway_daemon.gateway.gateway import LINGER_S
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.directory import (
    BrokerInfo,
    GatewayNotice,
    encode_directory_message,
)
from spatial_mqtt.senml import MessageId, Pack, Reading, decode_message_id, encode_cbor
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker

LOG_SETTINGS = (
    "log_dest topic",
    "log_type subscribe",
    "log_type unsubscribe",
    "log_type notice",
)


class Deployment:
    """A Manager, two gateways, and two distributed brokers; one is in use."""

    def __init__(
        self,
        programs: Programs,
        make_broker: Callable[..., Broker],
        folder: Path,
        log_settings: tuple[str, ...] = LOG_SETTINGS,
    ) -> None:
        self.programs, self.folder = programs, folder
        self.manager, self.first, self.second = (make_broker() for _ in range(3))
        self.local = {name: make_broker(*log_settings) for name in "ab"}
        programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{self.manager.url}"\ndata = "{folder}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "{self.first.url}"\n',
        )
        for name in self.local:
            self.start(name)

    def start(self, name: str) -> None:
        broker = self.local[name]
        self.programs.start(
            name,
            "run",
            f'[gateway]\nid = "{name}"\nbroker = "{broker.url}"\n'
            f'managers = ["{self.manager.url}"]\ndata = "{self.folder}/{name}"\n',
        )
        fetch_retained(broker.endpoint, offer_topic(name), "probe", 60)

    def add_second(self, area: str, version: int = 2, gateways: str = "ab") -> None:
        """Give an area to the second broker; return when the gateways use it."""
        admin = Client(self.manager.endpoint, "admin")
        info = {"host": "127.0.0.1", "port": self.second.port}
        entry = json.dumps({"topic": area, "broker_info": info}).encode()
        admin.publish("/api/tool/distributedbroker/add", entry)
        table = f"broker table {version}:"
        wait_until(lambda: all(table in self.log(name) for name in gateways), 120)

    def client(self, name: str, at: str, *filters: str) -> Client:
        return Client(self.local[at].endpoint, name, *filters)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture
def make_deployment(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> Iterator[Callable[..., Deployment]]:
    programs = Programs(tmp_path)
    yield lambda **more: Deployment(programs, make_broker, tmp_path, **more)
    programs.kill_all()


@pytest.fixture
def deployment(make_deployment: Callable[..., Deployment]) -> Deployment:
    return make_deployment()


def pack(seq: int, priority: int = 2) -> bytes:
    reading = Reading("rain", "mm", 0.5)
    return encode_cbor(Pack(MessageId("n1", "bb", seq), priority, 1.7e9, (reading,)))


def seqs(client: Client) -> list[int]:
    return [decode_message_id(message.payload)[0].seq for message in client.got]


def test_plain_client_needs_only_a_subscription(deployment: Deployment) -> None:
    """No registration: the gateway detects subscriptions, also with wildcards."""
    near = deployment.client("near", "a", "/3/1/#")
    wide = deployment.client("wide", "b", "/+/1/2/#")
    other = deployment.client("other", "b", "/4/#")
    for name, filter_ in (("a", "/3/1/#"), ("b", "/+/1/2/#")):
        wait_until(lambda n=name, f=filter_: f in deployment.log(n))
    time.sleep(0.5)
    writer = deployment.client("writer", "b")
    for seq in range(20):
        writer.publish("/forward/3/1/2/0/pri2", pack(seq))
    writer.publish("/forward/3/1/2/0", b"plain")
    wait_until(lambda: len(near.got) == 21 and len(wide.got) == 21)
    time.sleep(0.5)

    assert {m.topic for m in near.got} == {"/3/1/2/0"}
    assert [len(c.got) for c in (near, wide, other)] == [21, 21, 0]


def test_client_that_leaves_is_no_longer_served(deployment: Deployment) -> None:
    """Without subscribers, the broker need not send messages over the link."""
    near = deployment.client("near", "a", "/3/1/#")
    wait_until(lambda: "confirmed the subscription to /3/1/#" in deployment.log("a"))
    near.connection.stop()
    wait_until(lambda: "clients subscribe to nothing" in deployment.log("a"))


def test_nothing_is_lost_or_doubled_while_a_broker_is_added(
    deployment: Deployment,
) -> None:
    """The change has two phases, make before break; publishing continues."""
    near = deployment.client("near", "a", "/3/1/#")
    wait_until(lambda: "confirmed the subscription to /3/1/#" in deployment.log("a"))
    time.sleep(0.5)
    writer = deployment.client("writer", "b")
    stop, sent = threading.Event(), []

    def write() -> None:
        while not stop.wait(0.01):
            sent.append(len(sent))
            writer.publish("/forward/3/1/2/0/pri2", pack(sent[-1]))

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: len(near.got) > 30)
    deployment.add_second("/3/1")
    before = len(near.got)
    wait_until(lambda: len(near.got) > before + 50)
    stop.set()
    thread.join()
    wait_until(lambda: len(near.got) >= len(sent))
    time.sleep(1.0)

    assert sorted(seqs(near)) == sent


def test_nothing_is_lost_when_an_area_moves_while_a_gateway_is_away(
    deployment: Deployment,
) -> None:
    """It is away for long; the other broker has stored the messages in its session."""
    near = deployment.client("near", "a", "/3/1/#")
    wait_until(lambda: "confirmed the subscription to /3/1/#" in deployment.log("a"))
    deployment.add_second("/4")
    time.sleep(1.0)
    deployment.programs.kill("a", signal.SIGTERM)
    deployment.add_second("/3/1", 3, gateways="b")
    writer = deployment.client("writer", "b")
    for seq in range(20):
        writer.publish("/forward/3/1/2/0/pri5", pack(seq, 5))
    time.sleep(2.0)  # until the broker has them
    deployment.start("a")
    wait_until(lambda: len(near.got) >= 20)

    assert sorted(seqs(near)) == list(range(20))


@pytest.mark.long
def test_what_waits_for_a_broker_follows_its_area_to_another(
    deployment: Deployment,
) -> None:
    """The broker hangs, and restarts when the subscribers of the area have left it.

    A client of another filter still receives there, so that the broker accepts them.
    """
    near = deployment.client("near", "a", "/3/1/#")
    deployment.client("wide", "b", "/+/1/2/#")
    for name, filter_ in (("a", "/3/1/#"), ("b", "/+/1/2/#")):
        wait_until(lambda n=name, f=filter_: f in deployment.log(n))
    time.sleep(0.5)
    deployment.first.signal(signal.SIGSTOP)
    writer = deployment.client("writer", "b")
    for seq in range(300):
        writer.publish("/forward/3/1/2/0/pri2", pack(seq))
    deployment.add_second("/3/1")
    time.sleep(LINGER_S + 5)
    deployment.first.kill()
    deployment.first.start()
    wait_until(lambda: set(seqs(near)) == set(range(300)))


def test_siren_that_reconnects_before_its_gateway_is_served(
    deployment: Deployment,
) -> None:
    """After a power cut the broker starts before the gateway that reads its log."""
    siren = deployment.client("siren", "a", "/3/1/#")
    wait_until(lambda: "confirmed the subscription to /3/1/#" in deployment.log("a"))
    deployment.programs.kill("a")
    siren.is_ready.clear()
    deployment.local["a"].kill()
    deployment.local["a"].start()
    wait_until(siren.is_ready.is_set)
    deployment.start("a")
    wait_until(
        lambda: deployment.log("a").count("confirmed the subscription to /3/1/#") > 1
    )
    writer = deployment.client("writer", "b")
    writer.publish("/forward/3/1/2/0/pri5", pack(1, 5))
    wait_until(lambda: siren.got)

    assert seqs(siren) == [1]


def test_gateway_killed_in_the_middle_loses_and_doubles_nothing(
    deployment: Deployment,
) -> None:
    """The receiving gateway is killed: its session and its stored ids persist."""
    near = deployment.client("near", "a", "/3/1/#")
    wait_until(lambda: "confirmed the subscription to /3/1/#" in deployment.log("a"))
    time.sleep(0.5)
    writer = deployment.client("writer", "b")
    for seq in range(100):
        writer.publish("/forward/3/1/2/0/pri2", pack(seq))
        if seq == 50:
            deployment.programs.kill("a")
    deployment.start("a")
    wait_until(lambda: set(seqs(near)) == set(range(100)))


@pytest.mark.parametrize("victim", sizes(short="b", long="a"))
def test_plain_messages_repeated_after_a_kill_have_the_same_id(
    deployment: Deployment, victim: str
) -> None:
    """Messages without a pack, from a client of either gateway."""
    near = deployment.client("near", "a", "/3/1/#")
    wait_until(lambda: "confirmed the subscription to /3/1/#" in deployment.log("a"))
    time.sleep(0.5)
    writer = deployment.client("writer", "b")
    for number in range(600):
        writer.publish("/forward/3/1/2/0", b"%d" % number)
        time.sleep(0.001)
        if number in {200, 400}:
            deployment.programs.kill(victim)
            deployment.start(victim)
    wait_until(lambda: {int(p) for p in near.on("/3/1/2/0")} == set(range(600)))
    by_id = {message.message_id: message.payload for message in near.got}

    assert None not in by_id
    assert sorted(map(int, by_id.values())) == list(range(600))


class PropertyReader:
    """Subscriber at a distributed broker that records the properties of messages."""

    def __init__(self, broker: Broker, filter_: str) -> None:
        self.got: list[tuple[bytes, Properties]] = []
        is_subscribed = threading.Event()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, client_id="reader"
        )
        self._client.on_message = lambda _client, _data, m: self.got.append((
            m.payload,
            m.properties,
        ))
        self._client.on_subscribe = lambda *_: is_subscribed.set()
        self._client.connect(broker.endpoint.host, broker.endpoint.port)
        self._client.loop_start()
        self._client.subscribe(filter_, 1)
        assert is_subscribed.wait(60)

    def names(self, payload: bytes) -> set[str]:
        """Names of the properties of a message."""
        wait_until(lambda: payload in dict(self.got))
        return {*dict(self.got)[payload].json()}

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def test_compact_properties_until_a_gateway_does_not_read_them(
    deployment: Deployment,
) -> None:
    """An earlier version of ours, or the original, joins and announces no forms."""
    near = deployment.client("near", "a", "/3/1/#")
    wait_until(lambda: "confirmed the subscription to /3/1/#" in deployment.log("a"))
    reader = PropertyReader(deployment.first, "/3/#")
    writer = deployment.client("writer", "b")
    sent: list[bytes] = []

    def names() -> set[str]:
        sent.append(b"%d" % len(sent))
        writer.publish("/forward/3/1/2/0/pri4", sent[-1])
        return reader.names(sent[-1])

    wait_until(lambda: names() == {"CorrelationData"})
    older = Client(deployment.manager.endpoint, "older")
    info = BrokerInfo("127.0.0.1", 9)
    up = encode_directory_message(GatewayNotice(info, "up"))
    older.publish("/api/notice/gatewaybroker", up)
    wait_until(lambda: names() == {"UserProperty"})
    reader.stop()

    wait_until(lambda: near.on("/3/1/2/0") == sent)
    assert {message.priority for message in near.got} == {4}
    assert len({message.message_id for message in near.got} - {None}) == len(sent)


def test_gamma_client_registers_where_the_broker_logs_no_subscriptions(
    make_deployment: Callable[..., Deployment],
) -> None:
    """As the published Gamma client: SUBSCRIBE, then the filter as plain text."""
    deployment = make_deployment(log_settings=())
    near = deployment.client("near", "a", "/3/1/#")
    near.publish("/api/register", b"/3/1/#")
    wait_until(lambda: "confirmed the subscription to /3/1/#" in deployment.log("a"))
    time.sleep(0.5)
    deployment.client("writer", "b").publish("/forward/3/1/2/0/pri2", pack(1))
    wait_until(lambda: near.got)
    near.publish("/api/unregister", b"/3/1/#")
    wait_until(lambda: "clients subscribe to nothing" in deployment.log("a"))

    assert seqs(near) == [1]
