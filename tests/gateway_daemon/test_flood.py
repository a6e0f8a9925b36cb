"""A flooding node at a real broker and gateway does not affect other nodes."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client, Programs

from service_runtime.tls import Endpoint
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.retained import fetch_retained
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


@pytest.fixture
def gateway(
    tmp_path: Path, make_broker: Callable[[], Broker]
) -> Iterator[Callable[[str], Broker]]:
    """A factory: start a gateway with additional settings, return its local broker."""
    programs = Programs(tmp_path)

    def start(more: str) -> Broker:
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
        return local

    yield start
    programs.kill_all()


def test_flood_of_one_node_does_not_delay_alarms_of_others(
    gateway: Callable[[str], Broker],
) -> None:
    """During the flood every alarm is receipted, and the flood is held to its rate."""
    local = gateway(f"node_per_s = {PER_S}")
    started_s = time.monotonic()
    flood = Flood(local.endpoint)
    quiet = Client(local.endpoint, "quiet", "/custody/quiet")
    wait_until(lambda: flood.sent > 10 * PER_S * BURST_S)
    for seq in range(20):
        quiet.publish("/forward/3/1/2/pri5", pack("quiet", seq, 5))
        wait_until(lambda seq=seq: receipted(quiet, "quiet") == seq + 1)
    sent, admitted = flood.sent, flood.stop()
    lasted_s = time.monotonic() - started_s
    quiet.connection.stop()

    # A batch of publications is admitted together.
    assert admitted <= PER_S * (BURST_S + lasted_s) + BURST_SIZE, (admitted, lasted_s)
    assert sent > 2 * admitted
