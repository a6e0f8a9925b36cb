"""The gateway's image accepts messages, serves the time, and loses nothing."""

import contextlib
import socket
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Broker, free_port, wait_until
from image.backbone import HOST, LOOPBACK, Backbone, own_address
from image.forms import only_long, record
from image.vm import Card, Pi, built

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.image, only_long]

BOOT_S = 900.0
GATEWAY = """
[gateway]
id = "gw-1"
broker = "mqtt://127.0.0.1:1883"
public = "mqtt://127.0.0.1:{port}"
managers = ["mqtt://{host}:{manager}"]
areas = ["/1/2/2"]
[tls]
allow_plain_mqtt = true
"""
BROKER = "listener 1883\nallow_anonymous true\n"
NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
gateway = "mqtt://127.0.0.1:{port}"
gather_s = 0
[queue]
path = "{folder}/queue.db"
window_s = 0
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
interval_s = 120
[simulation]
start = "2026-07-01T00:00:00+09:00"
speedup = 60
ledger = "{folder}/ledger"
"""


@dataclass
class GatewaySetup:
    """A gateway's machine, switched off, with a backbone and a node."""

    folder: Path
    card: Card
    pi: Pi
    backbone: Backbone
    time_port: int

    def receipted(self) -> set[int]:
        """Sequence numbers of messages that left the node's queue after a receipt."""
        with contextlib.closing(sqlite3.connect(self.folder / "queue.db")) as db:
            kept = {seq for (seq,) in db.execute("SELECT origin_seq FROM message")}
        lines = (self.folder / "ledger").read_text().splitlines()
        return {int(line.split()[0].split(":")[-1]) for line in lines} - kept

    def stratum(self) -> int:
        """Stratum of the gateway's clock, by SNTP (RFC 5905)."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(5)
            client.sendto(b"\x23" + bytes(47), (LOOPBACK, self.time_port))
            return client.recv(48)[1]


@pytest.fixture
def setup(tmp_path: Path, make_broker: Callable[..., Broker]) -> Iterator[GatewaySetup]:
    """A gateway with a configured card, and a simulated node."""
    image = built("gateway")
    if own_address() == LOOPBACK:
        pytest.skip("QEMU and this machine need a common address for a broker")
    backbone = Backbone(tmp_path, make_broker)
    port, time_port = free_port(), free_port()
    card = Card(image / "sdcard.img", tmp_path / "card.img")
    manager = backbone.brokers["manager"].port
    settings = GATEWAY.format(port=port, host=HOST, manager=manager)
    (tmp_path / "gateway.toml").write_bytes(settings.replace("\n", "\r\n").encode())
    (tmp_path / "site.conf").write_bytes(BROKER.replace("\n", "\r\n").encode())
    card.put(tmp_path / "gateway.toml", "gateway.toml")
    card.put(tmp_path / "site.conf", "mosquitto/site.conf")
    forwards = (f"tcp:{LOOPBACK}:{port}-:1883", f"udp:{LOOPBACK}:{time_port}-:123")
    (tmp_path / "node.toml").write_text(NODE.format(port=port, folder=tmp_path))
    pi = Pi(image, card, tmp_path, *forwards)
    yield GatewaySetup(tmp_path, card, pi, backbone, time_port)
    pi.off()
    backbone.close()
    card.path.unlink()


def test_messages_receipted_by_a_gateway_survive_a_power_cut(
    setup: GatewaySetup,
) -> None:
    """Broker, daemon and clock need only the settings on the card.

    The distributed broker is down during the power cut, so messages that have left the
    node's queue are only on the gateway's card.
    """
    backbone, pi = setup.backbone, setup.pi
    pi.on()
    config = str(setup.folder / "node.toml")
    backbone.processes.python("node", "edge_agent", "run", "--config", config)
    wait_until(backbone.archived, BOOT_S)
    record(gateway_power_on_to_archive_s=pi.age_s(), gateway_cpu_s=pi.cpu_s())
    assert 0 < setup.stratum() <= 10
    backbone.brokers["distributed"].kill()
    # Receipts for what is archived may still be on their way.
    wait_until(lambda: len(setup.receipted() - backbone.archived().keys()) > 3, 120)
    pi.cut_power()
    receipted = setup.receipted()
    assert receipted - backbone.archived().keys(), "some are only on the gateway"
    assert "gateway.toml: TAKEN" in setup.card.read("gateway-report.txt")
    assert "mosquitto/site.conf: TAKEN" in setup.card.read("gateway-report.txt")

    backbone.brokers["distributed"].start()
    pi.on()
    wait_until(lambda: receipted <= backbone.archived().keys(), BOOT_S)
    assert backbone.duplicates() == 0
