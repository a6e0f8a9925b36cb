"""Several Managers converge after kills, partitions and conflicting changes."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client, Programs
from soak.relay import Relay

from service_runtime.tls import Endpoint
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.senml import MessageId, Pack, Reading, decode_message_id, encode_cbor
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker

LOG_SETTINGS = ("log_dest topic", "log_type subscribe", "log_type unsubscribe")
INFO, TABLE = "/api/gateway/info/all", "/api/brokertable/all/info"
OVERRULED = "is /3/2, set at manager b; overruled is /3/1, set at a"
ADD, SET = "/api/tool/distributedbroker/add", "/api/tool/gatewaybroker/set"


def info_of(broker: Broker) -> dict[str, object]:
    return {"host": "127.0.0.1", "port": broker.port}


class Deployment:
    """Managers connected through relays, and two gateways that use all of them."""

    def __init__(
        self,
        programs: Programs,
        make_broker: Callable[..., Broker],
        folder: Path,
        names: str,
    ) -> None:
        self.programs, self.folder, self.make_broker = programs, folder, make_broker
        self.loads: list[Load] = []
        self.at = {name: make_broker() for name in names}
        self.first = make_broker()
        self.local = {name: make_broker(*LOG_SETTINGS) for name in ("g1", "g2")}
        self.relays = {
            (me, other): Relay(self.at[other].port)
            for me in names
            for other in names
            if me != other
        }
        for name in names:
            self.start_manager(name)
        for name in self.local:
            self.start_gateway(name)
        self.admin = {n: Client(self.at[n].endpoint, "admin", "/api/#") for n in names}
        wait_until(lambda: all(len(self.listed(n)) == 2 for n in names))

    def start_manager(self, name: str) -> None:
        ports = [r.port for (me, _), r in self.relays.items() if me == name]
        peers = [f"mqtt://127.0.0.1:{port}" for port in ports]
        self.programs.start(
            name,
            "manager",
            f'[manager]\nid = "{name}"\nbroker = "{self.at[name].url}"\n'
            f'peers = {peers}\ndata = "{self.folder}/{name}"\n'
            f'[[broker]]\ntopic = "/"\nurl = "{self.first.url}"\n',
        )

    def start_gateway(self, name: str) -> None:
        urls = [broker.url for broker in self.at.values()]
        self.programs.start(
            name,
            "run",
            f'[gateway]\nid = "{name}"\nbroker = "{self.local[name].url}"\n'
            f'managers = {urls}\nareas = ["/3"]\ndata = "{self.folder}/{name}"\n',
        )
        fetch_retained(self.local[name].endpoint, offer_topic(name), "probe", 120)

    def listed(self, name: str) -> list[dict[str, object]]:
        return self.newest(name, INFO, [])

    def table(self, name: str) -> dict[str, object]:
        return self.newest(name, TABLE, {})

    def newest(self, name: str, topic: str, default: object) -> object:
        payloads = self.admin[name].on(topic)
        return json.loads(payloads[-1]) if payloads else default

    def areas(self, name: str, gateway: str) -> list[object]:
        info = info_of(self.local[gateway])
        return [e["topic"] for e in self.listed(name) if e["broker_info"] == info]

    def add_broker(self, name: str, area: str) -> Broker:
        broker = self.make_broker()
        entry = {"topic": area, "broker_info": info_of(broker)}
        self.admin[name].publish(ADD, json.dumps(entry).encode())
        return broker

    def set_areas(self, name: str, gateway: str, *areas: str) -> None:
        setting = {"topics": areas, "broker_info": info_of(self.local[gateway])}
        self.admin[name].publish(SET, json.dumps(setting).encode())

    def cut(self) -> None:
        for relay in self.relays.values():
            relay.cut()

    def restore(self) -> None:
        for relay in self.relays.values():
            relay.restore()

    def holds(self, name: str, *brokers: Broker) -> bool:
        entries = self.table(name).get("brokers", [])
        return [e["broker_info"] for e in entries] == [info_of(b) for b in brokers]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for load in self.loads:
            load.stop()
        for client in self.admin.values():
            client.connection.stop()
        for relay in self.relays.values():
            relay.close()


@pytest.fixture
def make_deployment(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> Iterator[Callable[[str], Deployment]]:
    programs = Programs(tmp_path)
    deployments: list[Deployment] = []

    def make(names: str) -> Deployment:
        deployments.append(Deployment(programs, make_broker, tmp_path, names))
        return deployments[-1]

    yield make
    for deployment in deployments:
        deployment.close()
    programs.kill_all()


class Load:
    """Continuous traffic from a node at one gateway to an analyst at the other."""

    def __init__(self, deployment: Deployment) -> None:
        self.analyst = Client(deployment.local["g2"].endpoint, "analyst", "/3/1/#")
        self._node = Client(deployment.local["g1"].endpoint, "node")
        self._stop = threading.Event()
        self.sent = 0
        wait_until(lambda: "clients subscribe to /3/1/#" in deployment.log("g2"))
        wait_until(self.flows)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        deployment.loads.append(self)

    def flows(self) -> bool:
        """Whether messages arrive; everything sent from now on must arrive."""
        self._publish()
        time.sleep(0.2)
        return len(self.arrived()) > 0

    def arrived(self) -> list[MessageId]:
        return [decode_message_id(m.payload)[0] for m in self.analyst.got]

    def end(self) -> None:
        """Stop sending, and check that every message arrives once."""
        self.stop()
        first = min(each.seq for each in self.arrived())
        wait_until(lambda: len(set(self.arrived())) == self.sent - first + 1, 60)
        assert len(self.arrived()) == len(set(self.arrived()))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._publish()

    def _publish(self) -> None:
        self.sent += 1
        reading = Reading("rain", "mm", 0.5)
        pack = Pack(MessageId("n1", "boot", self.sent), 2, 1.7e9, (reading,))
        self._node.publish("/forward/3/1/2/pri2", encode_cbor(pack))


def test_change_at_one_manager_is_published_by_all(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """List, table and version are equal byte for byte."""
    deployment = make_deployment("ab")
    second = deployment.add_broker("a", "/3")
    deployment.set_areas("b", "g1", "/3/1", "/3/2")

    for name in "ab":
        wait_until(lambda name=name: deployment.holds(name, deployment.first, second))
        wait_until(lambda name=name: deployment.areas(name, "g1") == ["/3/1", "/3/2"])
    for topic in (INFO, TABLE):
        payloads = [deployment.admin[name].on(topic)[-1] for name in "ab"]
        assert payloads[0] == payloads[1]


@pytest.mark.parametrize(
    "victim", ["a", *(pytest.param(name, marks=pytest.mark.long) for name in "bc")]
)
def test_kill_of_any_manager_changes_nothing_for_clients(
    make_deployment: Callable[[str], Deployment], victim: str
) -> None:
    """Traffic and changes continue; its broker still publishes the gateways."""
    deployment = make_deployment("abc")
    load = Load(deployment)
    deployment.programs.kill(victim)
    other = "b" if victim == "a" else "a"
    second = deployment.add_broker(other, "/3")
    deployment.set_areas(other, "g1", "/3/1")
    for name in "abc":  # also on the broker of the killed Manager
        wait_until(lambda name=name: deployment.holds(name, deployment.first, second))
        wait_until(lambda name=name: deployment.areas(name, "g1") == ["/3/1"])
    third = deployment.add_broker(victim, "/3/1")  # it also accepts changes
    wait_until(lambda: deployment.holds(other, deployment.first, second, third))
    load.end()

    deployment.start_manager(victim)
    own = f"is up on {deployment.at[victim].endpoint}"
    wait_until(lambda: deployment.log(victim).count(own) == 2)
    deployment.set_areas(victim, "g1", "/3/2")
    wait_until(lambda: deployment.areas(other, "g1") == ["/3/2"])
    wait_until(lambda: deployment.holds(victim, deployment.first, second, third))


def test_loss_of_a_managers_machine_changes_nothing_for_clients(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """Gateways and administrators use the other one; the lost one catches up."""
    deployment = make_deployment("ab")
    load = Load(deployment)
    deployment.programs.kill("a")
    deployment.at["a"].kill()
    second = deployment.add_broker("b", "/3/1")
    wait_until(lambda: deployment.holds("b", deployment.first, second))
    load.end()

    deployment.at["a"].start()
    deployment.start_manager("a")
    wait_until(lambda: deployment.holds("a", deployment.first, second))
    wait_until(lambda: len(deployment.listed("a")) == 2)


def test_manager_that_lost_registry_and_broker_publishes_nothing_older(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """It has the table from the other one; its settings name one broker of two."""
    deployment = make_deployment("ab")
    second = deployment.add_broker("a", "/3/1")
    wait_until(lambda: deployment.holds("b", deployment.first, second))
    deployment.programs.kill("a")
    deployment.at["a"].kill()
    (deployment.folder / "a/registry.json").unlink()
    deployment.at["a"].start()
    deployment.admin["a"].connection.stop()
    watcher = Client(deployment.at["a"].endpoint, "admin", "/api/#")
    deployment.admin["a"] = watcher
    deployment.start_manager("a")
    wait_until(lambda: deployment.holds("a", deployment.first, second))
    wait_until(lambda: len(deployment.listed("a")) == 2)
    deployment.set_areas("a", "g1", "/3/2")
    wait_until(lambda: deployment.areas("b", "g1") == ["/3/2"])

    assert {json.loads(table)["version"] for table in watcher.on(TABLE)} == {2}
    assert all(json.loads(listed) for listed in watcher.on(INFO))


def test_conflict_across_a_partition_is_resolved_and_reported(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """The later change wins everywhere; both sides publish the overruled one."""
    deployment = make_deployment("ab")
    deployment.cut()
    deployment.set_areas("a", "g1", "/3/1")
    wait_until(lambda: deployment.areas("a", "g1") == ["/3/1"])
    deployment.set_areas("b", "g1", "/3/2")
    wait_until(lambda: deployment.areas("b", "g1") == ["/3/2"])
    added = {
        name: deployment.add_broker(name, f"/{number}")
        for name, number in (("a", 1), ("b", 2))
    }
    assert deployment.areas("a", "g1") == ["/3/1"]

    deployment.restore()
    wait_until(lambda: deployment.areas("a", "g1") == ["/3/2"])
    both = (deployment.first, added["a"], added["b"])
    for name in "ab":
        wait_until(lambda name=name: deployment.holds(name, *both))
        wait_until(lambda name=name: reports_conflict(deployment, name))
    assert OVERRULED in deployment.log("a") + deployment.log("b")
    assert deployment.areas("b", "g1") == ["/3/2"]
    assert deployment.table("a") == deployment.table("b")
    assert deployment.table("a")["version"] == 3


def reports_conflict(deployment: Deployment, name: str) -> bool:
    errors = [e.decode() for e in deployment.admin[name].on("/api/errors")]
    return any(OVERRULED in error for error in errors)


def test_messages_flow_through_a_partition_of_managers(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """Gateways that reach both use the newest table; nothing is lost or doubled."""
    deployment = make_deployment("ab")
    load = Load(deployment)
    deployment.cut()
    second = deployment.add_broker("a", "/3/1")
    wait_until(lambda: deployment.holds("a", deployment.first, second))
    wait_until(lambda: f"/3/1 -> 127.0.0.1:{second.port}" in deployment.log("g1"))
    third = deployment.add_broker("b", "/3")
    wait_until(lambda: deployment.holds("b", deployment.first, third))
    deployment.restore()
    for name in "ab":
        wait_until(
            lambda name=name: deployment.holds(name, deployment.first, third, second)
        )
    load.end()


def test_restart_of_all_managers_keeps_all_changes(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """Areas that were set, and brokers removed although the settings list them."""
    deployment = make_deployment("ab")
    deployment.set_areas("a", "g2", "/3/3")
    entry = {"topic": "/", "broker_info": info_of(deployment.first)}
    remove = "/api/tool/distributedbroker/remove"
    deployment.admin["b"].publish(remove, json.dumps(entry).encode())
    second = deployment.add_broker("a", "/3")
    for name in "ab":
        wait_until(lambda name=name: deployment.holds(name, second))
        wait_until(lambda name=name: deployment.areas(name, "g2") == ["/3/3"])
    before = deployment.table("a")
    for name in "ab":
        deployment.programs.kill(name)
        deployment.at[name].kill()
    for name in "ab":
        deployment.admin[name].got.clear()
        deployment.at[name].start()
        deployment.start_manager(name)

    for name in "ab":
        wait_until(lambda name=name: deployment.areas(name, "g2") == ["/3/3"])
        wait_until(lambda name=name: deployment.table(name) == before)


def test_gamma_gateway_is_served_by_all_through_one_manager(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """It is listed everywhere and waited for, also after that Manager is killed."""
    deployment = make_deployment("ab")
    broker = deployment.make_broker()
    gamma = Client(deployment.at["a"].endpoint, "gamma", "/api/brokertable/#")
    notify(gamma, broker, {"status": "up", "version": -1})
    for name in "ab":
        wait_until(lambda name=name: len(deployment.listed(name)) == 3)
    deployment.programs.kill("a")
    second = deployment.add_broker("b", "/3")
    wait_until(lambda: deployment.holds("a", deployment.first, second))
    wait_until(lambda: newest(gamma) == 2)
    wait_until(lambda: reports(deployment, "b") == 2)
    assert completed(gamma) < 2
    assert "broker table 2" not in deployment.log("g1")
    notify(gamma, broker, {"status": "complete", "version": 2})

    wait_until(lambda: completed(gamma) == 2)
    wait_until(lambda: "broker table 2" in deployment.log("g1"))
    gamma.connection.stop()


def newest(gamma: Client) -> int:
    return int(json.loads(gamma.on(TABLE)[-1])["version"])


def completed(gamma: Client) -> int:
    """Version of the newest table when it was last reported complete."""
    received = [(m.topic, m.payload) for m in gamma.got]
    done = max(
        (at for at, each in enumerate(received) if each[1] == b"complete"), default=0
    )
    versions = [
        json.loads(p)["version"] for topic, p in received[:done] if topic == TABLE
    ]
    return max(versions, default=0)


def reports(deployment: Deployment, name: str) -> int:
    """How many of our gateways reported the second table."""
    notices = deployment.admin[name].on("/api/notice/gatewaybroker")
    seen = {
        json.dumps(n["broker_info"])
        for n in map(json.loads, notices)
        if n["version"] == 2
    }
    return len(seen)


def notify(gamma: Client, broker: Broker, more: dict[str, object]) -> None:
    notice = {"broker_info": info_of(broker), **more}
    gamma.publish("/api/notice/gatewaybroker", json.dumps(notice).encode())


def test_manager_with_a_duplicate_id_logs_an_error(
    make_deployment: Callable[[str], Deployment],
    tmp_path: Path,
    make_broker: Callable[[], Broker],
) -> None:
    """A copied settings file is detected, not merged silently."""
    deployment = make_deployment("ab")
    duplicate = make_broker()
    deployment.programs.start(
        "duplicate",
        "manager",
        f'[manager]\nid = "a"\nbroker = "{duplicate.url}"\n'
        f'data = "{tmp_path}/duplicate"\n'
        f'peers = ["{deployment.at["a"].url}"]\n',
    )
    watcher = Client(Endpoint("127.0.0.1", duplicate.port), "watcher", "/api/errors")

    message = "manager.id 'a' is also the id of"
    wait_until(lambda: message in deployment.log("duplicate"))
    watcher.connection.stop()
