"""Several Managers: any may be killed, cut off or contradicted; all end up agreeing."""

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
from spatial_mqtt.retained import fetch_retained
from spatial_mqtt.senml import MessageId, Pack, Reading, decode_message_id, encode_cbor
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker

TELLS = ("log_dest topic", "log_type subscribe", "log_type unsubscribe")
INFO, TABLE = "/api/gateway/info/all", "/api/brokertable/all/info"
OVERRULED = "is /3/2, said to manager b; overruled is /3/1, said to a"
ADD, SET = "/api/tool/distributedbroker/add", "/api/tool/gatewaybroker/set"


def info_of(broker: Broker) -> dict[str, object]:
    return {"host": "127.0.0.1", "port": broker.port}


class Town:
    """Managers that know each other through relays, two gateways that know them all."""

    def __init__(
        self,
        programs: Programs,
        make_broker: Callable[..., Broker],
        folder: Path,
        names: str,
    ) -> None:
        self.programs, self.folder, self.make_broker = programs, folder, make_broker
        self.at = {name: make_broker() for name in names}
        self.first = make_broker()
        self.local = {name: make_broker(*TELLS) for name in ("g1", "g2")}
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
        return self.told(name, INFO, [])

    def table(self, name: str) -> dict[str, object]:
        return self.told(name, TABLE, {})

    def told(self, name: str, topic: str, nothing: object) -> object:
        told = self.admin[name].on(topic)
        return json.loads(told[-1]) if told else nothing

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
        for client in self.admin.values():
            client.connection.stop()
        for relay in self.relays.values():
            relay.close()


@pytest.fixture
def make_town(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> Iterator[Callable[[str], Town]]:
    programs = Programs(tmp_path)
    towns: list[Town] = []

    def make(names: str) -> Town:
        towns.append(Town(programs, make_broker, tmp_path, names))
        return towns[-1]

    yield make
    for town in towns:
        town.close()
    programs.kill_all()


class Load:
    """A node at one gateway and an analyst at the other, for as long as it runs."""

    def __init__(self, town: Town) -> None:
        self.analyst = Client(town.local["g2"].endpoint, "analyst", "/3/1/#")
        self._node = Client(town.local["g1"].endpoint, "node")
        self._stop = threading.Event()
        self.sent = 0
        wait_until(lambda: "clients listen to /3/1/#" in town.log("g2"))
        wait_until(self.flows)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def flows(self) -> bool:
        """The way is open from end to end; what is sent from now on must arrive."""
        self._publish()
        time.sleep(0.2)
        return len(self.arrived()) > 0

    def arrived(self) -> list[MessageId]:
        return [decode_message_id(m.payload)[0] for m in self.analyst.got]

    def end(self) -> None:
        """Stop sending and see every message arrive, once."""
        self._stop.set()
        self._thread.join()
        first = min(each.seq for each in self.arrived())
        wait_until(lambda: len(set(self.arrived())) == self.sent - first + 1, 60)
        assert len(self.arrived()) == len(set(self.arrived()))

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._publish()

    def _publish(self) -> None:
        self.sent += 1
        reading = Reading("rain", "mm", 0.5)
        pack = Pack(MessageId("n1", "boot", self.sent), 2, 1.7e9, (reading,))
        self._node.publish("/forward/3/1/2/pri2", encode_cbor(pack))


def test_what_is_said_to_one_manager_all_publish(
    make_town: Callable[[str], Town],
) -> None:
    """The same list, the same table, the same version, byte for byte."""
    town = make_town("ab")
    second = town.add_broker("a", "/3")
    town.set_areas("b", "g1", "/3/1", "/3/2")

    for name in "ab":
        wait_until(lambda name=name: town.holds(name, town.first, second))
        wait_until(lambda name=name: town.areas(name, "g1") == ["/3/1", "/3/2"])
    for topic in (INFO, TABLE):
        told = [town.admin[name].on(topic)[-1] for name in "ab"]
        assert told[0] == told[1]


@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_kill_of_any_manager_changes_nothing_for_clients(
    make_town: Callable[[str], Town], victim: str
) -> None:
    """Messages flow on, changes are made, and its broker still tells who serves."""
    town = make_town("abc")
    load = Load(town)
    town.programs.kill(victim)
    other = "b" if victim == "a" else "a"
    second = town.add_broker(other, "/3")
    town.set_areas(other, "g1", "/3/1")
    for name in "abc":  # also on the broker whose manager is dead
        wait_until(lambda name=name: town.holds(name, town.first, second))
        wait_until(lambda name=name: town.areas(name, "g1") == ["/3/1"])
    asked = town.add_broker(victim, "/3/1")  # and it takes orders
    wait_until(lambda: town.holds(other, town.first, second, asked))
    load.end()

    town.start_manager(victim)
    own = f"is up on {town.at[victim].endpoint}"
    wait_until(lambda: town.log(victim).count(own) == 2)
    town.set_areas(victim, "g1", "/3/2")
    wait_until(lambda: town.areas(other, "g1") == ["/3/2"])
    wait_until(lambda: town.holds(victim, town.first, second, asked))


def test_loss_of_a_managers_whole_machine_changes_nothing_for_clients(
    make_town: Callable[[str], Town],
) -> None:
    """Gateways and administrators go on at the other one, and it catches up."""
    town = make_town("ab")
    load = Load(town)
    town.programs.kill("a")
    town.at["a"].kill()
    second = town.add_broker("b", "/3/1")
    wait_until(lambda: town.holds("b", town.first, second))
    load.end()

    town.at["a"].start()
    town.start_manager("a")
    wait_until(lambda: town.holds("a", town.first, second))
    wait_until(lambda: len(town.listed("a")) == 2)


def test_contradiction_across_a_partition_is_settled_and_told(
    make_town: Callable[[str], Town],
) -> None:
    """The later word wins everywhere; both sides hear that one was overruled."""
    town = make_town("ab")
    town.cut()
    town.set_areas("a", "g1", "/3/1")
    wait_until(lambda: town.areas("a", "g1") == ["/3/1"])
    town.set_areas("b", "g1", "/3/2")
    wait_until(lambda: town.areas("b", "g1") == ["/3/2"])
    added = {
        name: town.add_broker(name, f"/{number}")
        for name, number in (("a", 1), ("b", 2))
    }
    assert town.areas("a", "g1") == ["/3/1"]

    town.restore()
    wait_until(lambda: town.areas("a", "g1") == ["/3/2"])
    both = (town.first, added["a"], added["b"])
    for name in "ab":
        wait_until(lambda name=name: town.holds(name, *both))
        wait_until(lambda name=name: told_of_conflict(town, name))
    assert OVERRULED in town.log("a") + town.log("b")
    assert town.areas("b", "g1") == ["/3/2"]
    assert town.table("a") == town.table("b")
    assert town.table("a")["version"] == 3


def told_of_conflict(town: Town, name: str) -> bool:
    told = [e.decode() for e in town.admin[name].on("/api/errors")]
    return any(OVERRULED in error for error in told)


def test_messages_flow_through_a_partition_of_managers(
    make_town: Callable[[str], Town],
) -> None:
    """Gateways that reach both take the newest table; nothing is lost or doubled."""
    town = make_town("ab")
    load = Load(town)
    town.cut()
    second = town.add_broker("a", "/3/1")
    wait_until(lambda: town.holds("a", town.first, second))
    wait_until(lambda: f"/3/1 -> 127.0.0.1:{second.port}" in town.log("g1"))
    third = town.add_broker("b", "/3")
    wait_until(lambda: town.holds("b", town.first, third))
    town.restore()
    for name in "ab":
        wait_until(lambda name=name: town.holds(name, town.first, third, second))
    load.end()


def test_restart_of_all_forgets_nothing(make_town: Callable[[str], Town]) -> None:
    """Not what was set, not what was taken out though the settings name it."""
    town = make_town("ab")
    town.set_areas("a", "g2", "/3/3")
    entry = {"topic": "/", "broker_info": info_of(town.first)}
    remove = "/api/tool/distributedbroker/remove"
    town.admin["b"].publish(remove, json.dumps(entry).encode())
    second = town.add_broker("a", "/3")
    for name in "ab":
        wait_until(lambda name=name: town.holds(name, second))
        wait_until(lambda name=name: town.areas(name, "g2") == ["/3/3"])
    before = town.table("a")
    for name in "ab":
        town.programs.kill(name)
        town.at[name].kill()
    for name in "ab":
        town.admin[name].got.clear()
        town.at[name].start()
        town.start_manager(name)

    for name in "ab":
        wait_until(lambda name=name: town.areas(name, "g2") == ["/3/3"])
        wait_until(lambda name=name: town.table(name) == before)


def test_gateway_of_gamma_is_served_by_all_through_the_one_it_knows(
    make_town: Callable[[str], Town],
) -> None:
    """It is listed everywhere, waited for, and outlives the program it knew."""
    town = make_town("ab")
    broker = town.make_broker()
    gamma = Client(town.at["a"].endpoint, "gamma", "/api/brokertable/#")
    say(gamma, broker, {"status": "up", "version": -1})
    for name in "ab":
        wait_until(lambda name=name: len(town.listed(name)) == 3)
    town.programs.kill("a")
    second = town.add_broker("b", "/3")
    wait_until(lambda: town.holds("a", town.first, second))
    wait_until(lambda: newest(gamma) == 2)
    wait_until(lambda: reports(town, "b") == 2)
    assert completed(gamma) < 2
    assert "broker table 2" not in town.log("g1")
    say(gamma, broker, {"status": "complete", "version": 2})

    wait_until(lambda: completed(gamma) == 2)
    wait_until(lambda: "broker table 2" in town.log("g1"))
    gamma.connection.stop()


def newest(gamma: Client) -> int:
    return int(json.loads(gamma.on(TABLE)[-1])["version"])


def completed(gamma: Client) -> int:
    """Version of the table that was newest when it was last said to be complete."""
    told = [(m.topic, m.payload) for m in gamma.got]
    done = max(
        (at for at, said in enumerate(told) if said[1] == b"complete"), default=0
    )
    versions = [json.loads(p)["version"] for topic, p in told[:done] if topic == TABLE]
    return max(versions, default=0)


def reports(town: Town, name: str) -> int:
    """How many gateways of ours reported the second table."""
    told = town.admin[name].on("/api/notice/gatewaybroker")
    seen = {
        json.dumps(n["broker_info"]) for n in map(json.loads, told) if n["version"] == 2
    }
    return len(seen)


def say(gamma: Client, broker: Broker, more: dict[str, object]) -> None:
    notice = {"broker_info": info_of(broker), **more}
    gamma.publish("/api/notice/gatewaybroker", json.dumps(notice).encode())


def test_manager_with_the_id_of_another_is_told_so(
    make_town: Callable[[str], Town], tmp_path: Path, make_broker: Callable[[], Broker]
) -> None:
    """A copied settings file is found out, not merged in silence."""
    town = make_town("ab")
    twin = make_broker()
    town.programs.start(
        "twin",
        "manager",
        f'[manager]\nid = "a"\nbroker = "{twin.url}"\ndata = "{tmp_path}/twin"\n'
        f'peers = ["{town.at["a"].url}"]\n',
    )
    watcher = Client(Endpoint("127.0.0.1", twin.port), "watcher", "/api/errors")

    wait_until(lambda: "manager.id 'a' is also the id of" in town.log("twin"))
    watcher.connection.stop()
