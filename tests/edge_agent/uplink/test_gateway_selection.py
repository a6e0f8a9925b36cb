"""Which gateway serves a node: chosen, left, and come back to."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.uplink.gateway_selection import (
    FailoverTimeouts,
    GatewaySelector,
    ManagedGateways,
)
from service_runtime.tls import Endpoint
from spatial_mqtt.custody import CustodyOffer
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, encode_directory_message
from spatial_mqtt.errors import BrokerError
from spatial_mqtt.topics import GATEWAY_INFO

NEAR, NEXT, FAR = (Endpoint(name, 1883) for name in ("near", "next", "far"))
MANAGER = Endpoint("manager", 1883)


class Uplink:
    """An uplink that only remembers what it was told."""

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.unserved_since_s: float | None = 0.0
        self.used: list[Endpoint] = []

    def switch_to(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.used.append(endpoint)


class Listed:
    """Candidates that the test decides on."""

    def __init__(self, *gateways: Endpoint) -> None:
        self.gateways = list(gateways)
        self.well: set[Endpoint] = set()

    def ranked_gateways(self) -> list[Endpoint]:
        return self.gateways

    def is_healthy(self, gateway: Endpoint) -> bool:
        return gateway in self.well


class World:
    """A choice whose threads the test runs by hand."""

    def __init__(self, *gateways: Endpoint) -> None:
        self.now_s = 100.0
        self.uplink, self.listed = Uplink(), Listed(*gateways)
        self.looking = threading.Event()
        self.choice = GatewaySelector(
            self.uplink,
            self.listed,
            self.looking,
            lambda: self.now_s,
            FailoverTimeouts(),
        )

    def look(self) -> None:
        """One look at the list and at better gateways."""
        self.looking.clear()
        self.looking.wait = lambda _s=None: self.looking.set() or True  # type: ignore[method-assign]
        self.choice.run_checks()

    def after(self, seconds: float) -> None:
        self.now_s += seconds
        self.choice.decide()


@pytest.fixture
def world() -> World:
    made = World(NEAR, NEXT, FAR)
    made.look()
    made.after(0)
    made.uplink.unserved_since_s = None
    return made


def test_best_gateway_is_chosen_first(world: World) -> None:
    """The ranking is the Managers' and the place's."""
    assert world.uplink.used == [NEAR]


def test_next_gateway_serves_within_ten_seconds(world: World) -> None:
    """One that fails is left after four, and so is the next; then it begins anew."""
    world.uplink.unserved_since_s = world.now_s
    world.after(3.9)
    assert world.uplink.used == [NEAR]
    for _ in range(3):
        world.after(4.0)

    assert world.uplink.used == [NEAR, NEXT, FAR, NEAR]


def test_gateway_that_serves_again_in_time_is_kept(world: World) -> None:
    """A restart of seconds moves nobody."""
    world.uplink.unserved_since_s = world.now_s
    world.after(3.0)
    world.uplink.unserved_since_s = None
    world.after(60.0)

    assert world.uplink.used == [NEAR]


def test_better_gateway_is_taken_back_when_proven(world: World) -> None:
    """Twice well in a row, a minute apart: no flapping with a bad gateway."""
    world.uplink.unserved_since_s = world.now_s
    world.after(4.0)
    world.uplink.unserved_since_s = None
    world.listed.well = {NEAR}
    world.look()
    world.after(1.0)
    assert world.uplink.endpoint == NEXT
    world.listed.well = set()
    world.look()
    world.listed.well = {NEAR}
    world.look()
    world.after(1.0)
    assert world.uplink.endpoint == NEXT
    world.look()
    world.after(1.0)

    assert world.uplink.used == [NEAR, NEXT, NEAR]


def test_gateway_that_left_the_list_is_left_when_another_is_proven(
    world: World,
) -> None:
    """Managers may move an area; a working gateway is not dropped for a list."""
    world.listed.gateways = [FAR]
    world.look()
    world.after(1.0)
    assert world.uplink.endpoint == NEAR
    world.listed.well = {FAR}
    world.look()
    world.look()
    world.after(1.0)

    assert world.uplink.endpoint == FAR


def fetcher(**brokers: bytes) -> Callable[[Endpoint, str], bytes]:
    def fetch(endpoint: Endpoint, topic: str) -> bytes:
        if endpoint.host not in brokers:
            raise BrokerError(str(endpoint), "refused")
        return brokers[endpoint.host]

    return fetch


def managed(
    folder: Path, fetch: Callable[[Endpoint, str], bytes], node: str = "n1"
) -> ManagedGateways:
    managers = [Endpoint("away", 1883), MANAGER]
    return ManagedGateways(managers, "/3/1/2", folder / "gateways.json", fetch, node)


def listed(*hosts: str) -> bytes:
    return encode_directory_message([
        BrokerEntry("/3/1", BrokerInfo(host, 1883)) for host in hosts
    ])


def test_list_is_remembered_for_a_start_without_network(tmp_path: Path) -> None:
    """A node that boots in the storm finds yesterday's gateways."""
    online = managed(tmp_path, fetcher(manager=listed("a", "b"))).ranked_gateways()
    offline = managed(tmp_path, fetcher()).ranked_gateways()

    assert {endpoint.host for endpoint in online} == {"a", "b"}
    assert offline == online


def test_nodes_spread_over_equal_gateways_and_stay(tmp_path: Path) -> None:
    """Each node has its own order, and always the same one."""
    fetch = fetcher(manager=listed("a", "b", "c"))
    firsts = [
        managed(tmp_path, fetch, f"n{n}").ranked_gateways()[0].host for n in range(300)
    ]
    again = [
        managed(tmp_path, fetch, f"n{n}").ranked_gateways()[0].host for n in range(300)
    ]

    assert firsts == again
    assert all(firsts.count(host) > 60 for host in "abc")


@pytest.mark.parametrize(
    ("told", "is_well"),
    [
        (CustodyOffer("gw").encode(), True),
        (CustodyOffer("gw", is_offline=True).encode(), False),
        (b"junk", False),
        (None, False),
    ],
)
def test_gateway_is_well_when_its_store_is_there(
    tmp_path: Path, told: bytes | None, is_well: bool
) -> None:
    """A broker that answers is not yet a gateway that keeps messages."""
    fetch = fetcher() if told is None else fetcher(near=told)

    assert managed(tmp_path, fetch).is_healthy(NEAR) is is_well


def test_list_that_does_not_parse_is_no_list(tmp_path: Path) -> None:
    """The next Manager is asked, then the memory."""
    calls = itertools.count()

    def fetch(_endpoint: Endpoint, topic: str) -> bytes:
        assert topic == GATEWAY_INFO
        return b"{" if next(calls) == 0 else listed("a")

    assert [e.host for e in managed(tmp_path, fetch).ranked_gateways()] == ["a"]
