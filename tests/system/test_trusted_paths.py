"""Notices to the slope and overlay detours, with certificates on every link."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from notice_bench import Agent, write_keys, write_level
from programs import Programs
from soak.relay import Relay
from trust_bench import IssuingAuthority, Person, TrustedBroker
from trusted_system import GATEWAY, PROGRAMS, System, tls_section

from spatial_mqtt.senml import MessageId, Pack, Reading, decode_message_id, encode_cbor

pytestmark = [pytest.mark.system, pytest.mark.broker]

NOTIFY = """
[backend]
data = "{folder}/backend"
[notify]
brokers = ["mqtts://{manager.daemons}"]
key_file = "{folder}/office"
every_s = 1
calm_s = 1
"""
LAMP = """
[node]
id = "kochi-0001"
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
OFFICE = {
    "m1": PROGRAMS["m1"],
    "gw-1": (*PROGRAMS["gw-1"][:2], GATEWAY + 'notice_keys = ["{folder}/office.pub"]'),
    "notify-0": ("backend_spark", "notify", NOTIFY),
}
TOPIC = "/3/1/2/0"


@pytest.fixture
def office(tmp_path: Path) -> Iterator[System]:
    """A backend with notices, a Manager and a gateway; the node runs in the test."""
    write_keys(tmp_path)
    made = System(tmp_path, OFFICE)
    yield made
    made.stop()


def test_signed_level_switches_the_lamp_over_tls(
    office: System, tmp_path: Path
) -> None:
    """From the backend's table over two brokers to the lamp: on, then off again."""
    text = LAMP.format(**office.brokers, folder=tmp_path)
    text += tls_section(office.files["kochi-0001"])
    with Agent(tmp_path, text) as agent:
        wait_until(lambda: agent.status().get("is_served"), 120)
        write_level(tmp_path / "backend", 4)
        wait_until(lambda: agent.status()["alarms"] == {"lamp": "on"}, 120)
        lit = agent.status()
        write_level(tmp_path / "backend", 1)
        wait_until(lambda: agent.status()["alarms"] == {"lamp": "off"}, 120)

    assert str(lit["notice"]).startswith("level 4 by notice for /")
    assert lit["refused"] is None


class Deployment:
    """A Manager, a distributed broker and two gateways, all with certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, IssuingAuthority(folder / "ca")
        self.files = {
            "m1": self.authority.issue("manager", "m1"),
            "a": self.authority.issue("gateway", "a", "/3"),
            "b": self.authority.issue("gateway", "b", "/3"),
            "n1": self.authority.issue("node", "n1", TOPIC),
            "siren": self.authority.issue("client", "siren"),
            "ingest-0": self.authority.issue("backend", "ingest-0"),
        }
        self.manager = TrustedBroker(folder, self.authority, "manager", "m1")
        self.central = TrustedBroker(folder, self.authority, "distributed", "d1")
        self.local = {
            name: TrustedBroker(folder, self.authority, "gateway", name)
            for name in "ab"
        }
        self.backbone = Relay(self.central.port)
        self.programs = Programs(folder)
        self._start(
            "m1",
            "manager",
            f'[manager]\nid = "m1"\nbroker = "mqtts://{self.manager.daemons}"\n'
            f'data = "{folder}/m1"\n[[broker]]\ntopic = "/"\n'
            f'url = "mqtts://localhost:{self.backbone.port}"\n',
        )
        peers = ", ".join(f'"mqtts://{each.nodes}"' for each in self.local.values())
        for name, place in (("a", TOPIC), ("b", "/3/1/2/1")):
            own = self.local[name]
            self._start(
                name,
                "run",
                f'[gateway]\nid = "{name}"\nbroker = "mqtts://{own.daemons}"\n'
                f'public = "mqtts://{own.nodes}"\ndata = "{folder}/{name}"\n'
                f'managers = ["mqtts://{self.manager.daemons}"]\n'
                f'[overlay]\npeers = [{peers}]\nplace = "{place}"\n'
                "out_of_reach_s = 1.0\n",
            )

    def wait_for_peers(self) -> None:
        # A broker discards messages without a subscriber.
        for text in ("is up on", "overlay: others are reached"):
            wait_until(lambda t=text: all(t in self.log(n) for n in self.local), 120)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def stop(self) -> None:
        self.programs.kill_all()
        self.backbone.close()
        for broker in (self.manager, self.central, *self.local.values()):
            broker.kill()

    def _start(self, name: str, command: str, text: str) -> None:
        self.programs.start(name, command, text + tls_section(self.files[name]))


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    made.stop()


def warning(seq: int, priority: int) -> bytes:
    reading = Reading("tilt", "deg", 9.0)
    pack = Pack(MessageId("n1", "bb", seq), priority, 1.7e9, (reading,))
    return encode_cbor(pack)


def seqs(person: Person) -> list[int]:
    return sorted(decode_message_id(message.payload)[0].seq for message in person.got)


def listener(deployment: Deployment) -> Person:
    """A siren at the second gateway, registered and subscribed."""
    broker, siren = deployment.local["b"].nodes, deployment.files["siren"]
    early = Person(broker, siren, "siren")
    wait_until(lambda: early.reaches("/api/register", b"/3/1/#"), 120)
    early.stop()
    return Person(broker, siren, "siren", "/3/1/#")


def test_warning_bypasses_a_cut_backbone_over_tls(
    deployment: Deployment,
) -> None:
    """Only urgent messages; the rest follows after the repair, nothing twice."""
    files, local = deployment.files, deployment.local
    siren = listener(deployment)
    central = deployment.central.daemons
    backend = Person(central, files["ingest-0"], "ingest-0", "/3/#")
    wait_until(
        lambda: "confirmed the subscription to /3/1/#" in deployment.log("b"), 120
    )
    node = Person(local["a"].nodes, files["n1"], "n1", "/custody/n1")

    def publish(seq: int, priority: int) -> None:
        topic = f"/from/n1{TOPIC}/pri{priority}"
        assert node.say(topic, warning(seq, priority)) is None

    deployment.wait_for_peers()
    publish(1, 5)
    wait_until(lambda: seqs(siren) == [1] == seqs(backend), 120)
    deployment.backbone.cut()
    publish(2, 2)
    publish(3, 5)
    wait_until(lambda: seqs(siren) == [1, 3], 120)
    deployment.backbone.restore()
    wait_until(lambda: seqs(siren) == [1, 2, 3], 120)
    wait_until(lambda: set(seqs(backend)) == {1, 2, 3}, 120)

    assert all(
        "Not authorized" not in deployment.log(name) for name in ("a", "b", "m1")
    )
    for person in (siren, backend, node):
        person.stop()
