"""Distributed brokers that announce themselves by ``gateway-daemon broker``."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from gamma_peer import GammaGateway, GammaManager
from programs import Client, Programs
from trust_bench import IssuingAuthority, Person, TrustedBroker
from trusted_system import tls_section

pytestmark = pytest.mark.broker

TABLE, ERRORS = "/api/brokertable/all/info", "/api/errors"
BEAT_S = 1.0
LEASE_S = 3 * BEAT_S


class System:
    """Managers, each with a watcher of what it publishes, and announced brokers."""

    def __init__(self, make_broker: Callable[..., Broker], folder: Path) -> None:
        self.programs, self.folder, self.make_broker = (
            Programs(folder),
            folder,
            make_broker,
        )
        self.at: dict[str, Broker] = {}
        self.watchers: dict[str, Client] = {}

    def add_managers(self, *names: str) -> None:
        for name in names:
            self.at[name] = self.make_broker()
            self.watchers[name] = Client(self.at[name].endpoint, "watcher", "/api/#")

    def start_manager(self, name: str) -> None:
        peers = [broker.url for other, broker in self.at.items() if other != name]
        self.programs.start(
            name,
            "manager",
            f'[manager]\nid = "{name}"\nbroker = "{self.at[name].url}"\n'
            f'peers = {peers}\ndata = "{self.folder}/{name}"\n',
        )

    def announce(
        self, name: str, broker: Broker, *areas: str, beat_s: float = BEAT_S
    ) -> None:
        managers = [each.url for each in self.at.values()]
        self.programs.start(
            name,
            "broker",
            f'[broker]\nid = "{name}"\nlocal = "{broker.url}"\nbeat_s = {beat_s}\n'
            f"managers = {managers}\nareas = {list(areas)}\n",
        )

    def table(self, manager: str = "a") -> dict[str, int]:
        """Ports of the brokers by area, as published last."""
        tables = self.watchers[manager].on(TABLE)
        brokers = json.loads(tables[-1])["brokers"] if tables else []
        return {each["topic"]: each["broker_info"]["port"] for each in brokers}

    def errors(self, manager: str = "a") -> list[str]:
        return [error.decode() for error in self.watchers[manager].on(ERRORS)]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for watcher in self.watchers.values():
            watcher.connection.stop()
        self.programs.kill_all()


@pytest.fixture
def system(make_broker: Callable[..., Broker], tmp_path: Path) -> Iterator[System]:
    created = System(make_broker, tmp_path)
    yield created
    created.close()


@pytest.fixture
def one(system: System) -> System:
    """One Manager."""
    system.add_managers("a")
    system.start_manager("a")
    return system


def test_broker_is_listed_while_it_runs(one: System) -> None:
    """Killed, it loses its area after the lease; restarted, it has it again."""
    broker = one.make_broker()
    one.announce("east", broker, "/1")
    wait_until(lambda: one.table() == {"/1": broker.port})
    broker.kill()
    wait_until(lambda: one.table() == {})
    assert "is gone" in one.log("east")

    broker.start()
    wait_until(lambda: one.table() == {"/1": broker.port})
    assert one.errors() == []


def test_broker_that_hangs_loses_its_area(one: System) -> None:
    """It accepts connections, and answers nothing."""
    broker = one.make_broker()
    one.announce("east", broker, "/1")
    wait_until(lambda: one.table() == {"/1": broker.port})
    broker.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: one.table() == {}, 90)
    finally:
        broker.signal(signal.SIGCONT)
    wait_until(lambda: one.table() == {"/1": broker.port}, 90)


def test_stop_takes_the_areas_at_once(one: System) -> None:
    """A lease of a minute has not ended."""
    broker = one.make_broker()
    one.announce("east", broker, "/1", "/2", beat_s=60)
    wait_until(lambda: one.table() == dict.fromkeys(("/1", "/2"), broker.port))

    assert one.programs.kill("east", signal.SIGTERM) == 0
    wait_until(lambda: one.table() == {})


def test_program_that_crashes_changes_no_table(one: System) -> None:
    """The messages of its area need not move."""
    broker = one.make_broker()
    one.announce("east", broker, "/1", beat_s=30)
    wait_until(lambda: "lists /1" in one.log("east"))
    one.programs.kill("east")
    one.announce("east", broker, "/1", beat_s=BEAT_S)
    wait_until(lambda: one.log("east").count("lists /1") == 2)
    time.sleep(2 * LEASE_S)

    versions = [json.loads(t)["version"] for t in one.watchers["a"].on(TABLE)]
    assert set(versions) == {1}


def test_second_broker_for_an_area_is_refused(one: System) -> None:
    """It gets its other area, and the taken one when the first broker stops."""
    first, second = one.make_broker(), one.make_broker()
    one.announce("east", first, "/1")
    wait_until(lambda: one.table() == {"/1": first.port})
    one.announce("west", second, "/1", "/2")
    wait_until(lambda: one.table() == {"/1": first.port, "/2": second.port})
    wait_until(one.errors)
    wait_until(lambda: "has the area /1 already" in one.log("west"))
    refusal = (
        "/api/notice/distributedbroker/here: topic must be an area without a broker, "
        f"got '/1 -> 127.0.0.1:{second.port}'; remove its broker "
        f"127.0.0.1:{first.port} first"
    )
    assert one.errors() == [refusal]

    one.programs.kill("east", signal.SIGTERM)
    wait_until(lambda: one.table() == dict.fromkeys(("/1", "/2"), second.port))


def test_area_that_an_administrator_takes_is_not_requested_again(one: System) -> None:
    """A stop and a start of the program, as by systemctl restart, request it again."""
    broker = one.make_broker()
    one.announce("east", broker, "/1", "/2")
    wait_until(lambda: len(one.table()) == 2)
    entry = {
        "topic": "/1",
        "broker_info": {"host": "127.0.0.1", "port": broker.port},
    }
    remove = "/api/tool/distributedbroker/remove"
    one.watchers["a"].publish(remove, json.dumps(entry).encode())
    wait_until(lambda: one.table() == {"/2": broker.port})
    time.sleep(4 * BEAT_S)

    assert one.table() == {"/2": broker.port}

    one.programs.kill("east", signal.SIGTERM)
    wait_until(lambda: one.table() == {})
    one.announce("east", broker, "/1", "/2")
    wait_until(lambda: len(one.table()) == 2)


def test_broker_of_a_manager_that_is_restarted_stays(one: System) -> None:
    """The registry has the lease, also of a broker that died meanwhile, for a time."""
    alive, dead = one.make_broker(), one.make_broker()
    one.announce("east", alive, "/1")
    one.announce("west", dead, "/2")
    wait_until(lambda: one.table() == {"/1": alive.port, "/2": dead.port})
    one.programs.kill("a")
    one.programs.kill("west")
    one.start_manager("a")
    wait_until(lambda: one.log("a").count("the manager is up") == 2)
    time.sleep(2 * LEASE_S)

    assert one.table() == {"/1": alive.port, "/2": dead.port}


def test_managers_agree_on_a_broker_that_one_of_them_sees(system: System) -> None:
    """Both list it, and take its area when it is gone."""
    system.add_managers("a", "b")
    for name in "ab":
        system.start_manager(name)
    broker = system.make_broker()
    managers = [system.at["a"].url]
    system.programs.start(
        "east",
        "broker",
        f'[broker]\nid = "east"\nlocal = "{broker.url}"\nbeat_s = {BEAT_S}\n'
        f'managers = {managers}\nareas = ["/1"]\n',
    )
    for name in "ab":
        wait_until(lambda name=name: system.table(name) == {"/1": broker.port})

    broker.kill()
    for name in "ab":
        wait_until(lambda name=name: system.table(name) == {})


def test_original_manager_lists_the_broker(system: System) -> None:
    """It ignores heartbeats, and is sent the request of the original's program."""
    system.add_managers("a")
    manager = GammaManager(system.at["a"].endpoint)
    manager.start()
    broker = system.make_broker()
    gateway = GammaGateway(system.at["a"].endpoint, system.make_broker().endpoint)
    gateway.start()
    system.announce("east", broker, "/")
    wait_until(lambda: system.table() == {"/": broker.port})
    wait_until(lambda: gateway.is_started)
    time.sleep(6 * BEAT_S)

    assert (manager.errors, manager.ended, gateway.ended) == ([], "", "")
    assert len(manager.brokers) == 1
    gateway.stop()
    manager.stop()


def test_gateway_of_the_original_keeps_a_broker_that_stops(one: System) -> None:
    """It could not follow the removal, which comes when it is gone."""
    _stop_broker_of_the_original(one).stop()


@pytest.mark.long
def test_broker_that_stopped_is_removed_without_the_gateway_of_the_original(
    one: System,
) -> None:
    """After the grace of an announced broker, which is three minutes."""
    gateway = _stop_broker_of_the_original(one)
    gateway.stop()
    info = {"host": gateway.own.host, "port": gateway.own.port}
    forgotten = json.dumps({"broker_info": info}).encode()
    one.watchers["a"].publish("/api/tool/gatewaybroker/forget", forgotten)
    wait_until(lambda: "/1" not in one.table(), 300)
    assert gateway.ended == ""


def _stop_broker_of_the_original(one: System) -> GammaGateway:
    """Stop one of two announced brokers beside a gateway of the original."""
    first, second = one.make_broker(), one.make_broker()
    one.announce("east", first, "/")
    wait_until(lambda: one.table() == {"/": first.port})
    gateway = GammaGateway(one.at["a"].endpoint, one.make_broker().endpoint)
    gateway.start()
    wait_until(lambda: gateway.is_started)
    one.announce("west", second, "/1")
    wait_until(lambda: one.table() == {"/": first.port, "/1": second.port})
    one.programs.kill("west", signal.SIGTERM)
    wait_until(lambda: any("one that stays in the table" in e for e in one.errors()))
    assert one.table() == {"/": first.port, "/1": second.port}
    return gateway


class TrustedSystem:
    """A Manager and an announced broker with certificates, and an administrator."""

    def __init__(self, folder: Path) -> None:
        self.authority = IssuingAuthority(folder / "ca")
        for role, name in (
            ("manager", "m1"),
            ("distributed", "d1"),
            ("distributed", "d2"),
            ("gateway", "gw-1"),
            ("admin", "mayor"),
        ):
            self.authority.issue(role, name, *(["/"] if role == "gateway" else []))
        self.manager = TrustedBroker(folder, self.authority, "manager", "m1")
        self.broker = TrustedBroker(folder, self.authority, "distributed", "d1")
        self.programs, self.people = Programs(folder), list[Person]()
        self.admin = self.join("mayor", TABLE, ERRORS)
        self._start(
            "m1",
            "manager",
            f'[manager]\nbroker = "mqtts://{self.manager.daemons}"\n'
            f'data = "{folder}/manager"\n',
        )
        self._start(
            "d1",
            "broker",
            f'[broker]\nid = "d1"\nlocal = "mqtts://{self.broker.daemons}"\n'
            f'managers = ["mqtts://{self.manager.daemons}"]\n'
            'areas = ["/1"]\nbeat_s = 1\n',
        )

    def join(self, name: str, *filters: str) -> Person:
        tls = self.authority.files(name)
        self.people.append(Person(self.manager.daemons, tls, name, *filters))
        return self.people[-1]

    def table(self) -> list[tuple[str, int]]:
        tables = [m.payload for m in self.admin.got if m.topic == TABLE]
        entries = json.loads(tables[-1])["brokers"] if tables else []
        return [(e["topic"], e["broker_info"]["port"]) for e in entries]

    def close(self) -> None:
        for person in self.people:
            person.stop()
        self.programs.kill_all()
        self.manager.kill()
        self.broker.kill()

    def _start(self, name: str, command: str, settings: str) -> None:
        tls = tls_section(self.authority.files(name))
        self.programs.start(name, command, settings + tls)


@pytest.fixture
def trusted(tmp_path: Path) -> Iterator[TrustedSystem]:
    created = TrustedSystem(tmp_path)
    yield created
    created.close()


def test_broker_speaks_for_itself_only(trusted: TrustedSystem) -> None:
    """Its address belongs to its certificate, and other roles announce no brokers."""
    port = trusted.broker.daemons.port
    wait_until(lambda: trusted.table() == [("/1", port)])
    down = json.dumps({"broker_info": {"host": "localhost", "port": port}}).encode()
    gateway, other = trusted.join("gw-1"), trusted.join("d2")
    tail = "notice/distributedbroker/down"
    for sender, topic in (
        (gateway, f"/api/from/gw-1/{tail}"),
        (other, f"/api/from/d1/{tail}"),
        (other, f"/api/{tail}"),
    ):
        assert sender.say(topic, down) == "Not authorized"
    assert other.say(f"/api/from/d2/{tail}", down) is None
    refusal = b"that is not yet d1's"
    wait_until(lambda: any(refusal in m.payload for m in trusted.admin.got))
    assert trusted.table() == [("/1", port)]

    assert trusted.programs.kill("d1", signal.SIGTERM) == 0
    wait_until(lambda: trusted.table() == [])
