"""The gateway's image: it takes messages, tells the time, and loses nothing."""

import contextlib
import socket
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Broker, free_port, wait_until
from image.forms import note, only_long
from image.office import HOST, LOOPBACK, Office, own_address
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
class Station:
    """A gateway's machine, switched off; the office behind it, a node before it."""

    folder: Path
    card: Card
    pi: Pi
    office: Office
    time_port: int

    def promised(self) -> set[int]:
        """Numbers of the messages that left the node's queue, on a receipt."""
        with contextlib.closing(sqlite3.connect(self.folder / "queue.db")) as db:
            kept = {seq for (seq,) in db.execute("SELECT origin_seq FROM message")}
        lines = (self.folder / "ledger").read_text().splitlines()
        return {int(line.split()[0].split(":")[-1]) for line in lines} - kept

    def stratum(self) -> int:
        """Whom the gateway's clock follows, by SNTP (RFC 5905)."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(5)
            client.sendto(b"\x23" + bytes(47), (LOOPBACK, self.time_port))
            return client.recv(48)[1]


@pytest.fixture
def station(tmp_path: Path, make_broker: Callable[..., Broker]) -> Iterator[Station]:
    """A gateway whose card is configured, and a node on a simulated slope."""
    image = built("gateway")
    if own_address() == LOOPBACK:
        pytest.skip("the gateway in QEMU and the office need one address for a broker")
    office = Office(tmp_path, make_broker)
    port, time_port = free_port(), free_port()
    card = Card(image / "sdcard.img", tmp_path / "card.img")
    manager = office.brokers["manager"].port
    settings = GATEWAY.format(port=port, host=HOST, manager=manager)
    (tmp_path / "gateway.toml").write_bytes(settings.replace("\n", "\r\n").encode())
    (tmp_path / "site.conf").write_bytes(BROKER.replace("\n", "\r\n").encode())
    card.put(tmp_path / "gateway.toml", "gateway.toml")
    card.put(tmp_path / "site.conf", "mosquitto/site.conf")
    forwards = (f"tcp:{LOOPBACK}:{port}-:1883", f"udp:{LOOPBACK}:{time_port}-:123")
    (tmp_path / "node.toml").write_text(NODE.format(port=port, folder=tmp_path))
    pi = Pi(image, card, tmp_path, *forwards)
    yield Station(tmp_path, card, pi, office, time_port)
    pi.off()
    office.close()
    card.path.unlink()


def test_what_a_gateway_has_receipted_survives_a_power_cut(station: Station) -> None:
    """Its broker, its daemon and its clock are there from the card's settings alone.

    The distributed broker is away when the plug is pulled: what has left the node's
    queue by then lies on the gateway's card, and nowhere else.
    """
    office, pi = station.office, station.pi
    pi.on()
    config = str(station.folder / "node.toml")
    office.processes.python("node", "edge_agent", "run", "--config", config)
    wait_until(office.archived, BOOT_S)
    note(gateway_power_on_to_archive_s=pi.age_s(), gateway_cpu_s=pi.cpu_s())
    assert 0 < station.stratum() <= 10
    office.brokers["distributed"].kill()
    before = len(station.promised())
    wait_until(lambda: len(station.promised()) > before + 3, 120)
    pi.pull_the_plug()
    promised = station.promised()
    assert promised - office.archived().keys(), "the gateway alone has some"
    assert "gateway.toml: TAKEN" in station.card.read("gateway-report.txt")
    assert "mosquitto/site.conf: TAKEN" in station.card.read("gateway-report.txt")

    office.brokers["distributed"].start()
    pi.on()
    wait_until(lambda: promised <= office.archived().keys(), BOOT_S)
    assert office.duplicates() == 0
