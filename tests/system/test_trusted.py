"""The whole way with certificates on every link: node, gateway, broker, backend."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from trust_bench import Person, Town, TrustedBroker
from way_back_bench import Agent, judge_level, write_keys

from demo.processes import Processes
from demo.witness import ToReal, judge
from spatial_mqtt.cells import Cell
from spatial_mqtt.client import Client
from spatial_mqtt.custody import Receipt
from spatial_mqtt.endpoint import TlsFiles
from spatial_mqtt.envelope import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.link import Publication
from spatial_mqtt.topics import cell_topic

pytestmark = [pytest.mark.system, pytest.mark.broker]

HERE = (33.5588, 133.5312)
CELL = cell_topic(Cell.at(*HERE))
AREA = "/1/2/2"

NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
gather_s = 0
managers = ["mqtts://{manager.nodes}"]
[queue]
path = "{folder}/node.db"
window_s = 0
[simulation]
start = "2026-07-01T00:00:00+09:00"
[[sensor]]
kind = "wire"
name = "wire"
pin = 27
interval_s = 30
"""
MANAGER = """
[manager]
id = "m1"
broker = "mqtts://{manager.daemons}"
data = "{folder}/manager"
[[broker]]
topic = "/"
url = "mqtts://{distributed.daemons}"
"""
GATEWAY = """
[gateway]
id = "gw-1"
broker = "mqtts://{gateway.daemons}"
public = "mqtts://{gateway.nodes}"
managers = ["mqtts://{manager.daemons}"]
areas = ["{area}"]
data = "{folder}/gateway"
notice_keys = ["{folder}/office.pub"]
"""
BACKEND = """
[backend]
data = "{folder}/backend"
[ingest]
id = "ingest-0"
broker = "mqtts://{distributed.daemons}"
"""
NOTIFIER = """
[backend]
data = "{folder}/backend"
[notify]
id = "ingest-0-notify"
brokers = ["mqtts://{manager.daemons}"]
key_file = "{folder}/office"
every_s = 1
calm_s = 1
"""
LAMP = """
[node]
id = "kochi-0002"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["mqtts://{manager.nodes}"]
[queue]
path = "{folder}/lamp.db"
[notices]
keys = ["{folder}/office.pub"]
[[alarm]]
name = "lamp"
pin = 5
[[sensor]]
kind = "node"
name = "box"
interval_s = 3600
"""
PROGRAMS = {
    "m1": ("gateway_daemon", "manager", MANAGER),
    "gw-1": ("gateway_daemon", "run", GATEWAY),
    "ingest-0": ("backend_spark", "ingest", BACKEND),
    "kochi-0001": ("edge_agent", "run", NODE),
}


class System:
    """A town's brokers and programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_keys(folder)
        self.town = Town(folder / "ca")
        self.files: dict[str, TlsFiles] = {
            "m1": self.town.issue("manager", "m1"),
            "gw-1": self.town.issue("gateway", "gw-1", AREA),
            "ingest-0": self.town.issue("backend", "ingest-0"),
            "kochi-0001": self.town.issue("node", "kochi-0001", CELL),
            "kochi-0002": self.town.issue("node", "kochi-0002", CELL),
            "mayor": self.town.issue("admin", "mayor"),
            "analyst": self.town.issue("client", "analyst"),
        }
        self.brokers = {
            kind: TrustedBroker(folder, self.town, kind, owner)
            for kind, owner in (
                ("manager", "m1"),
                ("gateway", "gw-1"),
                ("distributed", "d1"),
            )
        }
        self.processes = Processes(folder)
        for name, (module, command, text) in PROGRAMS.items():
            config = self.config(name, text)
            self.processes.python(name, module, command, "--config", str(config))

    def config(self, name: str, text: str = "", owner: str | None = None) -> Path:
        path = self.folder / f"{name}.toml"
        tls = self.files[owner or name]
        rows = "".join(f'{k} = "{v}"\n' for k, v in vars(tls).items() if v)
        told = text.format(**self.brokers, folder=self.folder, area=AREA)
        path.write_text(f"{told}\n[tls]\n{rows}")
        return path

    def send(self, count: int) -> list[str]:
        lines = "\n".join(
            json.dumps({"pri": 1 + n % 5, "e": [{"n": "test", "v": float(n)}]})
            for n in range(count)
        )
        config = str(self.folder / "kochi-0001.toml")
        return self.run("edge_agent", "send", "--config", config, said=lines).split()

    def run(self, module: str, *words: str, said: str | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            input=said,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def archived(self) -> set[str]:
        now_s = time.time()
        to_real = ToReal(now_s, now_s, 1.0)
        return set(judge({}, self.folder / "backend" / "log", [], to_real).arrivals)

    def stop(self) -> None:
        self.processes.stop()
        for broker in self.brokers.values():
            broker.kill()


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


def test_message_comes_to_the_backend_and_to_analysts_over_tls_alone(
    system: System,
) -> None:
    """From a node's queue to the log and to a client, with receipts at each hop."""
    sent = system.send(20)
    wait_until(lambda: set(sent) <= system.archived(), 120)

    got: list[str] = []
    with listener(system, got):
        sent = system.send(5)
        wait_until(lambda: got.count(CELL) >= 5, 120)

    manager = f"mqtts://{system.brokers['manager'].daemons}"
    desk = ["admin", "--manager", manager, "--config", str(system.config("mayor"))]
    listed = system.run("gateway_daemon", *desk, "gateways")
    assert AREA in listed, "the gateway's own word on its areas was heard"
    gateway = f"mqtts://localhost:{system.brokers['gateway'].port}"
    system.run("gateway_daemon", *desk, "set-area", gateway, "/1/2")
    assert "/1/2 " in system.run("gateway_daemon", *desk, "gateways")
    # Receipts: nothing but the last minutes' own readings is held.
    log = (system.folder / "kochi-0001.log").read_text()
    assert "gives receipts: custody ends on its disk" in log
    for name in PROGRAMS:
        text = (system.folder / f"{name}.log").read_text()
        assert "Not authorized" not in text, name
        assert "PRIVATE" not in text, name


def pack(node: str, seq: int) -> bytes:
    reading = Reading("tilt/x", "deg", 9.0)
    return encode_cbor(Pack(MessageId(node, "bb", seq), 5, time.time(), (reading,)))


def test_stolen_card_cannot_speak_as_another_node_of_its_cell(system: System) -> None:
    """Its lie is put aside, counted and not receipted; its own word goes through."""
    thief = Person(
        system.brokers["gateway"].nodes,
        system.files["kochi-0002"],
        "kochi-0002",
        "/custody/kochi-0002",
    )
    wait_until(lambda: _is_taken(thief, f"/from/kochi-0002{CELL}/pri5"), 120)
    aside = system.folder / "gateway" / "impostors.jsonl"
    assert not aside.exists()

    under_its_name = f"/from/kochi-0002{CELL}/pri5"
    assert thief.say(under_its_name, pack("kochi-0001", 7)) is None
    answer = "/custody/kochi-0002"
    assert (
        thief.say(under_its_name, pack("kochi-0001", 8), response_topic=answer) is None
    )
    for topic in (f"/from/kochi-0001{CELL}/pri5", f"/forward{CELL}/pri5"):
        assert thief.say(topic, pack("kochi-0001", 9)) == "Not authorized"
    assert thief.say(under_its_name, pack("kochi-0002", 7)) is None
    wait_until(lambda: "kochi-0002:bb:7" in system.archived(), 120)
    thief.stop()

    told = [json.loads(line)["id"] for line in aside.read_text().splitlines()]
    assert told == ["kochi-0001:bb:7", "kochi-0001:bb:8"]
    assert {m for m in system.archived() if ":bb:" in m} == {
        f"kochi-0002:bb:{seq}" for seq in (1, 7)
    }
    receipts = [Receipt.decode(m.payload) for m in thief.got]
    assert {node for each in receipts for node, _ in each.ranges} == {"kochi-0002"}
    log = (system.folder / "gw-1.log").read_text()
    assert "kochi-0002 says it is kochi-0001:bb:7; put aside" in log


def _is_taken(person: Person, topic: str) -> bool:
    """Whether the gateway listens: the broker knows who would take a message."""
    token = person.connection.publish(Publication(topic, pack("kochi-0002", 1)))
    wait_until(lambda: token in person.answers)
    return person.answers[token or 0] is None


def test_level_comes_back_to_a_lamp_over_tls_alone(system: System) -> None:
    """Signed at the office, by Manager and gateway to the node, and taken back."""
    data = system.folder / "backend"
    config = str(system.config("notifier", NOTIFIER, owner="ingest-0"))
    system.processes.python("notifier", "backend_spark", "notify", "--config", config)
    text = system.config("kochi-0002", LAMP).read_text()
    lamp = system.folder / "lamp"
    lamp.mkdir()
    with Agent(lamp, text) as agent:
        wait_until(lambda: agent.status().get("is_served"), 120)
        judge_level(data, 4)
        wait_until(lambda: agent.status()["alarms"] == {"lamp": "on"}, 120)
        notice = agent.status()["notice"]
        judge_level(data, 1)
        wait_until(lambda: agent.status()["alarms"] == {"lamp": "off"}, 120)
        after = agent.status()

    assert str(notice).startswith("level 4 by notice for /")
    assert (after["notice"], after["refused"]) == (None, None)
    told = (system.folder / "notifier.log").read_text()
    assert "refused" not in told


def test_false_gateway_gets_no_message(system: System, tmp_path: Path) -> None:
    """A node that was sent to a broker of another authority keeps what it has."""
    sent = system.send(3)
    wait_until(lambda: set(sent) <= system.archived(), 120)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    false = TrustedBroker(elsewhere, Town(elsewhere / "ca"), "gateway", "gw-1")
    try:
        tls = system.files["kochi-0001"]
        node = Person(false.nodes, tls, "kochi-0001", wait=False)
        assert node.is_refused("the broker's certificate is of another authority")
        node.stop()
    finally:
        false.kill()
