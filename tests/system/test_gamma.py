"""Our programs mixed with those of the published Gamma, as `gamma_peer` plays them."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from conftest import Broker, wait_until
from gamma_peer import (
    ADD,
    INFO,
    NOTICE,
    SET,
    TABLE,
    Entry,
    GammaBroker,
    GammaClient,
    GammaGateway,
    GammaManager,
    Program,
    info_of,
)
from programs import Client, Programs

from service_runtime.tls import Endpoint
from spatial_mqtt.cells import LEAF_LEVEL, Cell
from spatial_mqtt.topics import cell_topic

pytestmark = pytest.mark.broker

P = TypeVar("P", bound=Program)

LOG_SETTINGS = ("log_dest topic", "log_type subscribe", "log_type unsubscribe")
KOCHI = (33.5588, 133.5312)
"""Its cell is in face 1."""

TOPIC = cell_topic(Cell.at(*KOCHI, LEAF_LEVEL))


class Mix:
    """Programs of both kinds, with a Mosquitto for each.

    Attributes:
        at: Brokers of Managers by name.
        first: The distributed broker of the whole world.
    """

    def __init__(self, make_broker: Callable[..., Broker], folder: Path) -> None:
        self.programs, self.folder, self.make_broker = (
            Programs(folder),
            folder,
            make_broker,
        )
        self.at: dict[str, Broker] = {}
        self.first = make_broker()
        self.originals: list[Program] = []
        self.watchers: dict[str, Client] = {}

    def prepare(self, *names: str) -> None:
        """Start the brokers of Managers, and a client that records the API."""
        for name in names:
            self.at[name] = self.make_broker()
            self.watchers[name] = Client(self.at[name].endpoint, "watcher", "/api/#")

    def manager(self, name: str, more: str = "") -> None:
        """Start one of our Managers, and wait until it serves."""
        count = len(self.watchers[name].on(INFO))
        peers = [broker.url for other, broker in self.at.items() if other != name]
        self.programs.start(
            name,
            "manager",
            f'[manager]\nid = "{name}"\nbroker = "{self.at[name].url}"\n'
            f'peers = {peers}\ndata = "{self.folder}/{name}"\n{more}',
        )
        wait_until(lambda: len(self.watchers[name].on(INFO)) > count)

    def gateway(self, name: str, *areas: str) -> Broker:
        """Start one of our gateways at all Managers; return its broker."""
        local = self.make_broker(*LOG_SETTINGS)
        self.restart_gateway(name, local, *areas)
        return local

    def restart_gateway(self, name: str, local: Broker, *areas: str) -> None:
        urls = [broker.url for broker in self.at.values()]
        self.programs.start(
            name,
            "run",
            f'[gateway]\nid = "{name}"\nbroker = "{local.url}"\n'
            f"managers = {urls}\nareas = {list(areas)}\nbeat_s = 0.5\n"
            f'data = "{self.folder}/{name}"\n',
        )

    def heartbeats(self, manager: str) -> int:
        """Heartbeats of our gateways that were published until now."""
        return len(self.watchers[manager].on(f"{NOTICE}/here"))

    def wait_for_heartbeats(self, manager: str, count: int) -> None:
        """Wait until our gateways have sent more heartbeats."""
        before = self.heartbeats(manager)
        wait_until(lambda: self.heartbeats(manager) >= before + count)

    def ups(self, manager: str, gateway: Endpoint) -> int:
        """How often a gateway has announced its start."""
        notices = map(json.loads, self.watchers[manager].on(NOTICE))
        mine = [n for n in notices if n["broker_info"] == info_of(gateway)]
        return [n["status"] for n in mine].count("up")

    def areas(self, manager: str, gateway: Endpoint) -> list[str]:
        """Areas that the list has for a gateway."""
        return [e.topic for e in self.listed(manager) if e.server == gateway]

    def set_areas(self, manager: str, gateway: Endpoint, *areas: str) -> None:
        """Set the areas of a gateway as an administrator."""
        self.request(manager, SET, {"topics": areas, "broker_info": info_of(gateway)})

    def has_own_manager(self, name: str) -> bool:
        """Whether a Manager is one of ours."""
        return (self.folder / f"{name}.toml").exists()

    @property
    def theirs(self) -> list[GammaGateway]:
        """Gateways of the original."""
        return [each for each in self.originals if isinstance(each, GammaGateway)]

    def start(self, program: P) -> P:
        """Start a program of the original."""
        self.originals.append(program)
        program.start()
        return program

    def original_gateway(self, manager: str) -> GammaGateway:
        """Start a gateway of the original, which knows one Manager."""
        local = self.make_broker().endpoint
        return self.start(GammaGateway(self.at[manager].endpoint, local))

    def announce(self, manager: str, area: str) -> Endpoint:
        """Start a broker whose program announces it as the original's does."""
        broker = self.make_broker().endpoint
        self.start(GammaBroker(self.at[manager].endpoint, Entry(area, broker)))
        return broker

    def request(self, manager: str, topic: str, message: object) -> None:
        """Publish a request of an administrator."""
        self.watchers[manager].publish(topic, json.dumps(message).encode())

    def table(self, manager: str) -> dict[str, Endpoint]:
        """Brokers by area, as announced."""
        tables = self.watchers[manager].on(TABLE)
        brokers = json.loads(tables[-1])["brokers"] if tables else ()
        return dict(map(Entry.parse, brokers))

    def versions(self, manager: str) -> list[int]:
        """Versions announced, in order."""
        return [json.loads(t)["version"] for t in self.watchers[manager].on(TABLE)]

    def listed(self, manager: str) -> list[Entry]:
        """The gateway list."""
        lists = self.watchers[manager].on(INFO)
        return [Entry.parse(e) for e in json.loads(lists[-1]) or ()] if lists else []

    def errors(self, manager: str) -> list[str]:
        """Errors published for administrators."""
        return [error.decode() for error in self.watchers[manager].on("/api/errors")]

    def has_stored(self, manager: str, brokers: dict[str, Endpoint]) -> bool:
        """Whether one of our Managers has brokers in its registry, announced or not."""
        stored = (self.folder / manager / "registry.json").read_text()
        return all(str(broker.port) in stored for broker in brokers.values())

    def has_logged(self, name: str, text: str) -> bool:
        """Whether the log of one of our programs has a text."""
        return text in self.log(name)

    def log(self, name: str) -> str:
        """Log of one of our programs."""
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for program in self.originals:
            program.stop()
        for watcher in self.watchers.values():
            watcher.connection.stop()
        self.programs.kill_all()


@pytest.fixture
def mix(make_broker: Callable[..., Broker], tmp_path: Path) -> Iterator[Mix]:
    created = Mix(make_broker, tmp_path)
    yield created
    created.close()


def routes(gateway: GammaGateway, areas: dict[str, Endpoint]) -> bool:
    """Whether a gateway of the original publishes by a table."""
    return gateway.pending is None and all(
        gateway.server_of(area) == broker for area, broker in areas.items()
    )


def world(broker: Broker) -> str:
    """Settings of a Manager with one broker for the whole world."""
    return f'[[broker]]\ntopic = "/"\nurl = "{broker.url}"\n'


def add_three_brokers_while_one_hangs(
    mix: Mix,
) -> tuple[list[GammaGateway], dict[str, Endpoint]]:
    """Start our Manager and two gateways of the original, of which the second hangs.

    Returns:
        The gateways, and the added brokers by area, which the Manager has stored.
    """
    mix.prepare("a")
    mix.manager("a", world(mix.first))
    gateways = [mix.original_gateway("a") for _ in range(2)]
    wait_until(lambda: all(g.is_started for g in gateways))
    wait_until(lambda: len(mix.listed("a")) == len(gateways))
    gateways[1].pause()
    brokers = {area: mix.announce("a", area) for area in ("/1", "/2", "/3")}
    wait_until(lambda: mix.has_stored("a", brokers))
    return gateways, brokers


def test_the_originals_among_themselves_deliver_and_double(mix: Mix) -> None:
    """A gateway that died blocks an update; until it ends, two brokers deliver."""
    mix.prepare("a")
    manager = mix.start(GammaManager(mix.at["a"].endpoint))
    gateway = mix.original_gateway("a")
    mix.announce("a", "/")
    wait_until(lambda: gateway.is_started)
    client = GammaClient(mix.at["a"].endpoint, *KOCHI)
    client.subscribe_at(*KOCHI)
    wait_until(lambda: client.publish_at(*KOCHI, b"1") or client.received)
    dying = mix.original_gateway("a")
    wait_until(lambda: manager.statuses.get(dying.own) == 0)
    dying.stop()

    mix.announce("a", "/1")
    wait_until(lambda: manager.statuses[gateway.own] == 1)
    client.publish_at(*KOCHI, b"2")
    wait_until(lambda: [p for _, p in client.received].count(b"2") == 2)

    assert gateway.pending is not None
    assert not gateway.ended + manager.ended
    client.close()


def test_brokers_that_start_together_are_announced_one_by_one(mix: Mix) -> None:
    """The original remembers one new broker until "complete"."""
    gateways, brokers = add_three_brokers_while_one_hangs(mix)
    gateways[1].resume()

    wait_until(lambda: all(routes(g, brokers) for g in gateways))
    assert mix.table("a") == {"/": mix.first.endpoint, **brokers}
    assert mix.versions("a") == [1, 2, 3, 4]
    assert [g.ended for g in gateways] == ["", ""]


@pytest.mark.long
def test_waiting_additions_survive_a_kill_of_the_manager(mix: Mix) -> None:
    """The restarted one continues, and repeats no table that a gateway works on."""
    gateways, brokers = add_three_brokers_while_one_hangs(mix)
    wait_until(lambda: gateways[0].pending is not None)
    mix.programs.kill("a")
    mix.manager("a", world(mix.first))
    gateways[1].resume()

    wait_until(lambda: all(routes(g, brokers) for g in gateways))
    assert [g.ended for g in gateways] == ["", ""]
    assert mix.versions("a") == [1, 2, 3, 4]


def test_other_manager_continues_with_waiting_additions(mix: Mix) -> None:
    """It serves the broker of the killed one, which the original's gateway knows."""
    mix.prepare("a", "b")
    for name in "ab":
        mix.manager(name, world(mix.first))
    gateways = [mix.original_gateway("a") for _ in range(2)]
    wait_until(lambda: all(g.is_started for g in gateways))
    wait_until(lambda: len(mix.listed("b")) == len(gateways))
    gateways[1].pause()
    brokers = {
        area: mix.announce(name, area)
        for name, area in (("a", "/1"), ("b", "/2"), ("b", "/3"))
    }
    wait_until(lambda: mix.has_stored("b", brokers))
    wait_until(lambda: gateways[0].pending is not None)
    mix.programs.kill("a")
    wait_until(lambda: "whose manager is away" in mix.log("b"))
    gateways[1].resume()

    wait_until(lambda: all(routes(g, brokers) for g in gateways))
    assert [g.ended for g in gateways] == ["", ""]
    for name in "ab":
        assert mix.table(name) == {"/": mix.first.endpoint, **brokers}


@pytest.mark.parametrize("is_down", [False, True], ids=["first start", "restart"])
def test_original_gateway_that_starts_before_our_manager_is_listed(
    mix: Mix, is_down: bool
) -> None:
    """It announces itself once, and reports its first table once."""
    mix.prepare("a")
    if is_down:
        mix.manager("a", world(mix.first))
        wait_until(lambda: mix.table("a"))
        mix.programs.kill("a")
    gateway = mix.original_gateway("a")
    wait_until(lambda: gateway.is_started == is_down)
    mix.manager("a", world(mix.first))

    wait_until(lambda: mix.areas("a", gateway.own) == ["/"])
    wait_until(lambda: gateway.is_started)
    assert (gateway.errors, gateway.ended) == ([], "")


def test_manager_without_brokers_announces_no_table(mix: Mix) -> None:
    """The original's gateways log an error for an empty one."""
    mix.prepare("a")
    mix.manager("a")
    gateway = mix.original_gateway("a")
    wait_until(lambda: mix.areas("a", gateway.own) == ["/"])
    mix.announce("a", "/")

    wait_until(lambda: gateway.is_started)
    assert gateway.errors == []
    assert mix.versions("a") == [1]


def test_table_that_originals_cannot_follow_is_refused(mix: Mix) -> None:
    """They keep a removed broker; without them it is accepted."""
    mix.prepare("a")
    mix.manager("a", world(mix.first))
    gateway = mix.original_gateway("a")
    wait_until(lambda: mix.areas("a", gateway.own) == ["/"])
    root = Entry("/", mix.first.endpoint).to_json()
    for topic, entry in (
        (f"{ADD[:-3]}remove", root),
        (ADD, {**root, "topic": "/1"}),
    ):
        mix.request("a", topic, entry)
        wait_until(lambda topic=topic: any(topic in e for e in mix.errors("a")))
    assert all(f"are listed ({gateway.own})" in error for error in mix.errors("a"))
    assert list(mix.table("a")) == ["/"]

    gateway.stop()
    forgotten = {"broker_info": info_of(gateway.own)}
    mix.request("a", "/api/tool/gatewaybroker/forget", forgotten)
    mix.request("a", ADD, {**root, "topic": "/1"})
    wait_until(lambda: list(mix.table("a")) == ["/", "/1"])


def test_broker_of_a_taken_area_is_reported_once(mix: Mix) -> None:
    """The original's program repeats its request for ever."""
    mix.prepare("a")
    mix.manager("a", world(mix.first))
    late = GammaBroker(mix.at["a"].endpoint, Entry("/", mix.make_broker().endpoint))
    mix.start(late)
    wait_until(lambda: late.request_count > 8)

    assert len(mix.errors("a")) == 1
    assert f"{mix.first.endpoint}" in mix.errors("a")[0]


@pytest.mark.parametrize("is_original", [True, False], ids=["theirs", "ours"])
def test_unlisted_gateway_does_not_flood_the_manager(
    mix: Mix, is_original: bool
) -> None:
    """The original's Manager publishes its list after every announcement."""
    mix.prepare("a")
    if is_original:
        manager = mix.start(GammaManager(mix.at["a"].endpoint))
        mix.announce("a", "/")
    else:
        mix.manager("a", world(mix.first))
    mix.original_gateway("a")
    gateway = mix.gateway("g").endpoint
    wait_until(lambda: mix.areas("a", gateway) == ["/"])
    mix.set_areas("a", gateway)
    wait_until(lambda: mix.areas("a", gateway) == [])
    before = mix.ups("a", gateway)
    mix.wait_for_heartbeats("a", 10)

    assert mix.ups("a", gateway) - before <= 4
    assert mix.areas("a", gateway) == []
    if is_original:  # "up" without "complete" would block every change
        wait_until(lambda: not manager.is_updating)
    second = mix.announce("a", "/1")
    wait_until(lambda: mix.table("a").get("/1") == second)


def test_areas_of_an_administrator_stay_at_an_original_manager(mix: Mix) -> None:
    """The settings count until an administrator has set others."""
    mix.prepare("a")
    mix.start(GammaManager(mix.at["a"].endpoint))
    local = mix.gateway("g", "/3")
    wait_until(lambda: mix.areas("a", local.endpoint) == ["/3"])
    mix.set_areas("a", local.endpoint, "/1")
    wait_until(lambda: mix.areas("a", local.endpoint) == ["/1"])
    mix.programs.kill("g")
    ups = mix.ups("a", local.endpoint)
    mix.restart_gateway("g", local, "/3")
    wait_until(lambda: mix.ups("a", local.endpoint) > ups)
    kept = "areas /1, not those of the settings (/3)"
    wait_until(lambda: kept in mix.log("g"))
    mix.wait_for_heartbeats("a", 3)

    assert mix.areas("a", local.endpoint) == ["/1"]


class Crossing:
    """Plain and original clients at gateways of both kinds.

    Args:
        mix: Has a gateway of ours, and one of the original that serves ``/1``.
        ours: Broker of our gateway.
        manager: Manager that the original's client asks.
    """

    def __init__(self, mix: Mix, ours: Broker, manager: str) -> None:
        self.original = GammaClient(mix.at[manager].endpoint, *KOCHI)
        self.original.subscribe_at(*KOCHI)
        self.plain = Client(ours.endpoint, "plain", "/1/#")
        self.count = 0
        wait_until(self._flows)

    def _flows(self) -> bool:
        """Whether both receive from both; everything sent from now on must arrive."""
        self.send()
        time.sleep(0.2)
        return all(
            any(payload.startswith(kind) for payload in received)
            for kind in (b"plain", b"original")
            for received in self.received()
        )

    def send(self) -> tuple[bytes, bytes]:
        """Publish one message at each gateway; return the payloads."""
        self.count += 1
        plain, original = b"plain %d" % self.count, b"original %d" % self.count
        self.plain.publish(f"/forward{TOPIC}", plain)
        self.original.publish_at(*KOCHI, original)
        return plain, original

    def received(self) -> tuple[list[bytes], list[bytes]]:
        """Payloads received by the plain client and by the original one."""
        return (
            [message.payload for message in self.plain.got],
            [payload for _, payload in self.original.received],
        )

    def check(self, *, plain: tuple[int, int], original: tuple[int, int]) -> None:
        """Send one message each, and expect so many copies at either client."""
        for payload, expected in zip(self.send(), (plain, original), strict=True):
            wait_until(partial(self._has_copies, payload, expected))

    def _has_copies(self, payload: bytes, expected: tuple[int, int]) -> bool:
        found = tuple(received.count(payload) for received in self.received())
        return found == expected

    def close(self) -> None:
        self.original.close()
        self.plain.connection.stop()


@pytest.fixture(params=[True, False], ids=["theirs", "ours"])
def crossing(mix: Mix, request: pytest.FixtureRequest) -> Iterator[Crossing]:
    """Gateways and clients of both kinds at a Manager of either kind."""
    mix.prepare("a")
    if request.param:
        mix.start(GammaManager(mix.at["a"].endpoint))
        mix.announce("a", "/")
    else:
        mix.manager("a", world(mix.first))
    ours = mix.gateway("g")
    theirs, other = mix.original_gateway("a"), mix.original_gateway("a")
    wait_until(
        lambda: {e.server for e in mix.listed("a")} >= {ours.endpoint, other.own}
    )
    mix.set_areas("a", theirs.own, "/1")
    wait_until(lambda: mix.areas("a", theirs.own) == ["/1"])
    created = Crossing(mix, ours, "a")
    yield created
    created.close()


def test_messages_cross_between_both_kinds_of_gateways(
    mix: Mix, crossing: Crossing
) -> None:
    """Before, during and after an update; what the original doubles is counted."""
    theirs, other = mix.theirs
    first = mix.table("a")["/"]
    crossing.check(plain=(1, 1), original=(1, 1))

    other.pause()
    second = mix.announce("a", "/1")
    wait_until(lambda: theirs.pending and theirs.reported == theirs.version)
    wait_until(
        lambda: mix.has_logged("g", f"{second} confirmed the subscription to /1/#")
    )
    is_ours = mix.has_own_manager("a")
    crossing.check(plain=(1, 1 if is_ours else 2), original=(2, 2))
    other.resume()
    wait_until(lambda: mix.has_logged("g", f"/1 -> {second}"))
    # At our Manager ours changes over before the originals drop old subscriptions.
    assert theirs.pending or not is_ours
    wait_until(lambda: all(routes(g, {"/1": second, "/": first}) for g in mix.theirs))
    crossing.check(plain=(1, 1), original=(1, 1))


def test_nothing_is_lost_while_brokers_are_added(mix: Mix, crossing: Crossing) -> None:
    """An original drops its old subscriptions at "complete"; ours publish in time."""
    sent: list[tuple[bytes, bytes]] = []
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.005):
            sent.append(crossing.send())

    sender = threading.Thread(target=send)
    sender.start()
    for area in ("/1", "/1/2"):
        broker = mix.announce("a", area)
        change = f"{area} -> {broker}"
        for gateway in mix.theirs:
            wait_until(partial(routes, gateway, {area: broker}))
        wait_until(partial(mix.has_logged, "g", change))
    stop.set()
    sender.join()

    everything = {payload for both in sent for payload in both}
    wait_until(lambda: all(everything <= set(got) for got in crossing.received()))
    ours = [p for p in crossing.received()[0] if p.startswith(b"plain")]
    assert len(ours) == len(set(ours))
