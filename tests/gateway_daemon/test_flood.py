"""A flooding node at a real broker and gateway does not affect other nodes."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_table import timed
from conftest import Broker, wait_until
from programs import Client, Programs

from service_runtime.tls import Endpoint
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import offer_topic
from spatial_mqtt.transport import Publication

pytestmark = pytest.mark.broker

PER_S = 20.0
BURST_S = 10.0
BURST_SIZE = 200


def pack(node: str, seq: int, priority: int) -> bytes:
    reading = Reading("rain", "mm", 0.5)
    return encode_cbor(Pack(MessageId(node, "bb", seq), priority, 1.7e9, (reading,)))


def receipted(client: Client, node: str) -> int:
    """Number of a node's messages that were receipted."""
    found = set()
    for payload in client.on(f"/custody/{node}"):
        for low, high in CustodyReceipt.decode(payload).ranges[node, "bb"]:
            found |= set(range(low, high + 1))
    return len(found)


class Flood:
    """Publishes readings as fast as the broker takes them, until stopped."""

    def __init__(self, at: Endpoint) -> None:
        self.sent = 0
        self._client = Client(at, "flood", "/custody/flood")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> int:
        """Stop publishing and return how many messages were receipted."""
        self._stop.set()
        self._thread.join()
        count = receipted(self._client, "flood")
        self._client.connection.stop()
        return count

    def _run(self) -> None:
        while not self._stop.is_set():
            burst = [
                Publication("/forward/3/1/1/pri1", pack("flood", self.sent + n, 1))
                for n in range(BURST_SIZE)
            ]
            accepted = self._client.connection.publish_together(burst)
            self.sent += len(accepted)
            self._stop.wait(0.02)


def alarm_s(quiet: Client, topic: str, seq: int) -> float:
    """Seconds until the next alarm of the node ``quiet`` has its receipt."""

    def send() -> None:
        quiet.publish(topic, pack("quiet", seq, 5))
        wait_until(lambda: receipted(quiet, "quiet") == seq + 1)

    return timed(send)[0]


@pytest.fixture
def gateway(
    tmp_path: Path, make_broker: Callable[[], Broker]
) -> Iterator[Callable[[str], tuple[Broker, Broker]]]:
    """A factory: start a gateway with more settings; local and distributed broker."""
    programs = Programs(tmp_path)

    def start(more: str) -> tuple[Broker, Broker]:
        manager, local, distributed = (make_broker() for _ in range(3))
        programs.start(
            "manager",
            "manager",
            f'[manager]\nbroker = "{manager.url}"\ndata = "{tmp_path}/manager"\n'
            f'[[broker]]\ntopic = "/"\nurl = "{distributed.url}"\n',
        )
        programs.start(
            "gateway",
            "run",
            f'[gateway]\nid = "gw-1"\nbroker = "{local.url}"\nareas = ["/3"]\n'
            f'managers = ["{manager.url}"]\ndata = "{tmp_path}/gateway"\n{more}\n',
        )
        fetch_retained(local.endpoint, offer_topic("gw-1"), "probe", 120)
        return local, distributed

    yield start
    programs.kill_all()


@pytest.mark.attack("one node sends all that it can", "1.0 s behind the flood")
def test_flood_of_one_node_does_not_delay_alarms_of_others(
    gateway: Callable[[str], tuple[Broker, Broker]], report: Callable[..., None]
) -> None:
    """During the flood every alarm is receipted, and the flood is held to its rate."""
    local, _ = gateway(f"node_per_s = {PER_S}")
    started_s = time.monotonic()
    flood = Flood(local.endpoint)
    quiet = Client(local.endpoint, "quiet", "/custody/quiet")
    wait_until(lambda: flood.sent > 10 * PER_S * BURST_S)
    waits_s = [alarm_s(quiet, "/forward/3/1/2/pri5", seq) for seq in range(20)]
    sent, admitted = flood.sent, flood.stop()
    lasted_s = time.monotonic() - started_s
    quiet.connection.stop()
    report(bystander_s=waits_s)

    # A batch of publications is admitted together.
    assert admitted <= PER_S * (BURST_S + lasted_s) + BURST_SIZE, (admitted, lasted_s)
    assert sent > 2 * admitted


@pytest.mark.attack("priority 5 of one node fills the queue", "no receipt in 30 s")
def test_alarms_of_one_node_do_not_take_the_place_of_anothers(
    gateway: Callable[[str], tuple[Broker, Broker]],
    tmp_path: Path,
    report: Callable[..., None],
) -> None:
    """With the uplink down, one node fills the queue with priority 5.

    The other's alarms are stored and receipted within two seconds.
    """
    local, distributed = gateway("[queue]\nmax_bytes = 1000000\n")
    distributed.kill()
    greedy = Client(local.endpoint, "greedy", "/custody/greedy")
    quiet = Client(local.endpoint, "quiet", "/custody/quiet")
    quiet.publish("/forward/3/1/2/pri4", pack("quiet", 0, 4))
    wait_until(lambda: receipted(quiet, "quiet") == 1)
    for seq in range(400):
        greedy.publish("/forward/3/1/1/pri5", large_pack("greedy", seq))
    for seq in range(400, 500):  # the gap that is too small for a large one
        greedy.publish("/forward/3/1/1/pri5", pack("greedy", seq, 5))
    waits_s = [alarm_s(quiet, "/forward/3/1/2/pri5", seq) for seq in range(1, 11)]
    admitted = receipted(greedy, "greedy")
    assert admitted < 300
    for client in (greedy, quiet):
        client.connection.stop()

    report(bystander_s=waits_s)
    assert max(waits_s[1:]) < 2, waits_s
    lanes = tmp_path / "gateway" / "lanes"
    rows = [
        row
        for path in lanes.glob("*.db")
        for row in sqlite3.connect(path).execute("SELECT node, priority FROM message")
    ]
    assert rows.count(("quiet", 4)) == 1, "and no alarm of the other was evicted"
    assert rows.count(("quiet", 5)) == 10
    log = (tmp_path / "gateway.log").read_text()
    assert 1 <= log.count("the share of greedy is full") < 5


def large_pack(node: str, seq: int) -> bytes:
    reading = Reading("wire", None, "x" * 5000)
    return encode_cbor(Pack(MessageId(node, "bb", seq), 5, 1.7e9, (reading,)))
