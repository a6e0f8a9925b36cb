"""The whole path with certificates on every link: node, gateway, broker, backend."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_table import timed
from conftest import wait_until
from hostile_cbor import deflate, nested_references
from trust_bench import IssuingAuthority, Person, TrustedBroker
from trusted_system import AREA, CELL, HERE, PROGRAMS, System

from backend_spark.tables.reader import open_tables
from spatial_mqtt.client import Client
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import BATCH_CONTENT, FRAGMENT_CONTENT

pytestmark = [pytest.mark.system, pytest.mark.broker]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path)
    yield made
    made.stop()


def listener(system: System, got: list[str]) -> Client:
    client = Client(
        [f"mqtts://{system.brokers['manager'].nodes}"],
        "analyst",
        lambda message: got.append(message.topic),
        tls=system.files["analyst"],
    )
    wait_until(lambda: _is_connected(client))
    client.subscribe_around(*HERE, radius_km=0.5)
    return client


def _is_connected(client: Client) -> bool:
    try:
        client.connect(*HERE)
    except ConnectionError:
        return False
    return True


def test_message_reaches_the_backend_and_analysts_over_tls_only(
    system: System,
) -> None:
    """From a node's queue to the log and to a client, with receipts on each hop."""
    sent = system.send(20)
    wait_until(lambda: set(sent) <= system.archived(), 120)

    got: list[str] = []
    with listener(system, got):
        gateway_log = system.folder / "gw-1.log"
        wait_until(lambda: "confirmed the subscription" in gateway_log.read_text(), 120)
        sent = system.send(5)
        wait_until(lambda: got.count(CELL) >= 5, 120)

    manager = f"mqtts://{system.brokers['manager'].daemons}"
    admin = ["admin", "--manager", manager, "--config", str(system.config("mayor"))]
    listed = system.run("gateway_daemon", *admin, "gateways")
    assert AREA in listed, "the Manager lists the areas that the gateway announced"
    gateway = f"mqtts://localhost:{system.brokers['gateway'].port}"
    system.run("gateway_daemon", *admin, "set-area", gateway, "/1/2")
    assert "/1/2 " in system.run("gateway_daemon", *admin, "gateways")
    log = (system.folder / "kochi-0001.log").read_text()
    assert "gives receipts: custody ends on its disk" in log
    for name in PROGRAMS:
        text = (system.folder / f"{name}.log").read_text()
        assert "Not authorized" not in text, name
        assert "PRIVATE" not in text, name


def pack(node: str, seq: int) -> bytes:
    reading = Reading("tilt/x", "deg", 9.0)
    return encode_cbor(Pack(MessageId(node, "bb", seq), 5, time.time(), (reading,)))


def test_stolen_card_cannot_impersonate_another_node_of_its_cell(
    system: System,
) -> None:
    """Such messages are quarantined without a receipt; its own messages pass."""
    thief = Person(
        system.brokers["gateway"].nodes,
        system.files["kochi-0002"],
        "kochi-0002",
        "/custody/kochi-0002",
    )
    own_topic = f"/from/kochi-0002{CELL}/pri5"
    wait_until(lambda: thief.reaches(own_topic, pack("kochi-0002", 1)), 120)
    quarantine = system.folder / "gateway" / "impostors.jsonl"
    assert not quarantine.exists()

    assert thief.say(own_topic, pack("kochi-0001", 7)) is None
    answer = "/custody/kochi-0002"
    assert thief.say(own_topic, pack("kochi-0001", 8), response_topic=answer) is None
    for topic in (f"/from/kochi-0001{CELL}/pri5", f"/forward{CELL}/pri5"):
        assert thief.say(topic, pack("kochi-0001", 9)) == "Not authorized"
    assert thief.say(own_topic, pack("kochi-0002", 7)) is None
    wait_until(lambda: "kochi-0002:bb:7" in system.archived(), 120)
    thief.stop()

    quarantined = [
        json.loads(line)["id"] for line in quarantine.read_text().splitlines()
    ]
    assert quarantined == ["kochi-0001:bb:7", "kochi-0001:bb:8"]
    assert {m for m in system.archived() if ":bb:" in m} == {
        f"kochi-0002:bb:{seq}" for seq in (1, 7)
    }
    receipts = [CustodyReceipt.decode(m.payload) for m in thief.got]
    assert {node for each in receipts for node, _ in each.ranges} == {"kochi-0002"}
    log = (system.folder / "gw-1.log").read_text()
    assert "kochi-0002 publishes under the id kochi-0001:bb:7; put aside" in log


def poisons() -> Iterator[tuple[bytes, str | None]]:
    """Payloads and content types that once stopped a gateway or the backend."""
    item = nested_references(12)
    record = pack("kochi-0002", 3)[2:]  # without the list and the map
    pairs = pack("kochi-0002", 3)[1] & 0x1F
    behind_the_id = b"\x81" + bytes([0xA0 + pairs + 1]) + record + b"\x61x" + item
    assert len(behind_the_id) < 600
    for payload in (item, b"\x81\xa1" + item + b"\x00", behind_the_id):
        yield payload, None
        yield deflate(payload), BATCH_CONTENT
        yield payload, FRAGMENT_CONTENT


@pytest.mark.attack(
    "nested shared references in CBOR, as message, batch and parcel",
    "no receipt in 26 s; gateway killed at 614 MiB, alerts at 9.1 GB",
)
def test_poison_of_a_stolen_card_delays_no_alarm(
    system: System, report: Callable[..., None]
) -> None:
    """No program ends, grows or stops; the next alarm of another node passes."""
    backend = str(system.folder / "ingest-0.toml")
    system.processes.python("alerts", "backend_spark", "alerts", "--config", backend)
    thief = Person(
        system.brokers["gateway"].nodes, system.files["kochi-0002"], "kochi-0002"
    )
    topic = f"/from/kochi-0002{CELL}/pri5"
    wait_until(lambda: thief.reaches(topic, pack("kochi-0002", 1)), 120)
    pids = {name: system.processes.pid(name) for name in (*PROGRAMS, "alerts")}
    for payload, content in poisons():
        thief.say(topic, payload, content=content)

    def send() -> None:
        sent = system.send(1)
        wait_until(lambda: set(sent) <= system.archived(), 60)

    waits_s = timed(send, 10)
    tables = open_tables(system.folder / "backend")
    wait_until(lambda: len(tables.alerts()) >= 4, 60)
    thief.stop()
    memory_mib = [resident_bytes(pid) / 2**20 for pid in pids.values()]
    report(memory_mib=memory_mib, bystander_s=waits_s)

    assert {n: system.processes.pid(n) for n in pids} == pids
    assert all(resident_bytes(pid) < 400e6 for pid in pids.values())
    assert "semantic tag 28" in (system.folder / "gw-1.log").read_text()


def resident_bytes(pid: int) -> int:
    """Memory of a running process; fails when it has ended."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def test_false_gateway_gets_no_message(system: System, tmp_path: Path) -> None:
    """A node refuses a broker whose certificate is from another authority."""
    sent = system.send(3)
    wait_until(lambda: set(sent) <= system.archived(), 120)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    impostor = TrustedBroker(
        elsewhere, IssuingAuthority(elsewhere / "ca"), "gateway", "gw-1"
    )
    try:
        tls = system.files["kochi-0001"]
        node = Person(impostor.nodes, tls, "kochi-0001", wait=False)
        assert node.is_refused("the broker's certificate is of another authority")
        node.stop()
    finally:
        impostor.kill()
