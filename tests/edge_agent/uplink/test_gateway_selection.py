"""Selection of a gateway: first choice, failover and return."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.uplink.gateway_selection import (
    FailoverTimeouts,
    FetchRetained,
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


class FakeUplink:
    """Records the endpoints that it is switched to."""

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.unserved_since_s: float | None = 0.0
        self.switched_to: list[Endpoint] = []

    def switch_to(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.switched_to.append(endpoint)


class FakeGatewaySource:
    """Gateway source with a settable list and health.

    Attributes:
        gateways: The list, best first.
        cached: The list of an earlier run.
        on_fetch: Called while the list is fetched.
        healthy: Gateways that pass a check.
    """

    def __init__(self, *gateways: Endpoint) -> None:
        self.gateways = list(gateways)
        self.cached: list[Endpoint] = []
        self.on_fetch: Callable[[], object] = lambda: None
        self.healthy: set[Endpoint] = set()

    def cached_gateways(self) -> list[Endpoint]:
        return self.cached

    def ranked_gateways(self) -> list[Endpoint]:
        self.on_fetch()
        return self.gateways

    def is_healthy(self, gateway: Endpoint) -> bool:
        return gateway in self.healthy


class SelectorHarness:
    """A `GatewaySelector` whose threads are replaced by direct calls."""

    def __init__(self, *gateways: Endpoint) -> None:
        self.now_s = 100.0
        self.uplink, self.source = FakeUplink(), FakeGatewaySource(*gateways)
        self.stop = threading.Event()
        self.selector = GatewaySelector(
            self.uplink,
            self.source,
            self.stop,
            lambda: self.now_s,
            FailoverTimeouts(),
        )

    def run_check(self) -> None:
        """Run one check of the list and of better gateways."""
        self.stop.clear()
        self.stop.wait = lambda _s=None: self.stop.set() or True  # type: ignore[method-assign]
        self.selector.run_checks()

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.selector.decide()


@pytest.fixture
def selection() -> SelectorHarness:
    harness = SelectorHarness(NEAR, NEXT, FAR)
    harness.run_check()
    harness.advance(0)
    harness.uplink.unserved_since_s = None
    return harness


def test_best_gateway_is_selected_first(selection: SelectorHarness) -> None:
    """The ranking comes from the Managers and the location."""
    assert selection.uplink.switched_to == [NEAR]


def test_failover_to_the_next_gateway_within_ten_seconds(
    selection: SelectorHarness,
) -> None:
    """A gateway without service is left after 4 s; after the last comes the first."""
    selection.uplink.unserved_since_s = selection.now_s
    selection.advance(3.9)
    assert selection.uplink.switched_to == [NEAR]
    for _ in range(3):
        selection.advance(4.0)

    assert selection.uplink.switched_to == [NEAR, NEXT, FAR, NEAR]


def test_time_doubles_with_each_round_without_service() -> None:
    """Where connecting takes longer than 4 s, no attempt was ever completed."""
    selection = SelectorHarness(NEAR, NEXT)
    selection.run_check()
    selection.advance(0)
    waits = []
    for _ in range(10):
        waits.append(0.0)
        count = len(selection.uplink.switched_to)
        while len(selection.uplink.switched_to) == count:
            selection.advance(0.25)
            waits[-1] += 0.25
    assert waits == [4, 4, 8, 8, 16, 16, 30, 30, 30, 30]

    selection.uplink.unserved_since_s = None
    selection.advance(1.0)
    selection.uplink.unserved_since_s = selection.now_s
    selection.advance(3.9)
    assert selection.uplink.endpoint == NEAR
    selection.advance(0.1)
    assert selection.uplink.endpoint == NEXT


def test_cached_list_is_used_before_the_managers_answer() -> None:
    """Without Managers, each took 5 s of a start before the list was read."""
    selection = SelectorHarness(NEAR)
    selection.source.cached = [NEXT]
    selection.source.on_fetch = lambda: selection.advance(5.0)
    selection.run_check()

    assert selection.uplink.switched_to == [NEXT]


def test_gateway_that_recovers_in_time_is_kept(selection: SelectorHarness) -> None:
    """A restart of a few seconds causes no failover."""
    selection.uplink.unserved_since_s = selection.now_s
    selection.advance(3.0)
    selection.uplink.unserved_since_s = None
    selection.advance(60.0)

    assert selection.uplink.switched_to == [NEAR]


def test_better_gateway_is_selected_again_after_two_checks(
    selection: SelectorHarness,
) -> None:
    """Two successful checks in a row, a minute apart: no flapping to a bad gateway."""
    selection.uplink.unserved_since_s = selection.now_s
    selection.advance(4.0)
    selection.uplink.unserved_since_s = None
    selection.source.healthy = {NEAR}
    selection.run_check()
    selection.advance(1.0)
    assert selection.uplink.endpoint == NEXT
    selection.source.healthy = set()
    selection.run_check()
    selection.source.healthy = {NEAR}
    selection.run_check()
    selection.advance(1.0)
    assert selection.uplink.endpoint == NEXT
    selection.run_check()
    selection.advance(1.0)

    assert selection.uplink.switched_to == [NEAR, NEXT, NEAR]


def test_gateway_that_only_seems_healthy_is_tried_less_and_less_often(
    selection: SelectorHarness,
) -> None:
    """After a power cut a broker may show the offer of a gateway that did not start."""
    selection.source.healthy = {NEAR}
    checks = []
    for _ in range(8):
        selection.uplink.unserved_since_s = selection.now_s
        selection.advance(4.0)
        assert selection.uplink.endpoint == NEXT
        selection.uplink.unserved_since_s = None
        checks.append(0)
        while selection.uplink.endpoint == NEXT:
            selection.run_check()
            selection.advance(1.0)
            checks[-1] += 1
    assert checks == [2, 4, 8, 16, 32, 64, 64, 64]

    selection.advance(3600.0)
    selection.uplink.unserved_since_s = selection.now_s
    selection.advance(4.0)
    selection.uplink.unserved_since_s = None
    for _ in range(2):
        selection.run_check()
    selection.advance(1.0)
    assert selection.uplink.endpoint == NEAR


def test_unlisted_gateway_is_replaced_when_another_is_healthy(
    selection: SelectorHarness,
) -> None:
    """Managers may move an area; a gateway in use is kept until then."""
    selection.source.gateways = [FAR]
    selection.run_check()
    selection.advance(1.0)
    assert selection.uplink.endpoint == NEAR
    selection.source.healthy = {FAR}
    selection.run_check()
    selection.run_check()
    selection.advance(1.0)

    assert selection.uplink.endpoint == FAR


def fetcher(**brokers: bytes) -> FetchRetained:
    def fetch(endpoint: Endpoint, topic: str, timeout_s: float) -> bytes:
        if endpoint.host not in brokers:
            raise BrokerError(str(endpoint), "refused")
        return brokers[endpoint.host]

    return fetch


def managed_gateways(
    folder: Path, fetch: FetchRetained, node: str = "n1"
) -> ManagedGateways:
    managers = [Endpoint("away", 1883), MANAGER]
    return ManagedGateways(managers, "/3/1/2", folder / "gateways.json", fetch, node)


def directory(*hosts: str) -> bytes:
    return encode_directory_message([
        BrokerEntry("/3/1", BrokerInfo(host, 1883)) for host in hosts
    ])


def test_list_is_stored_for_a_start_without_network(tmp_path: Path) -> None:
    """A node that starts without a network uses the last known gateways."""
    online = managed_gateways(
        tmp_path, fetcher(manager=directory("a", "b"))
    ).ranked_gateways()
    offline = managed_gateways(tmp_path, fetcher()).ranked_gateways()

    assert {endpoint.host for endpoint in online} == {"a", "b"}
    assert offline == online


def test_managers_have_more_time_after_none_has_answered(tmp_path: Path) -> None:
    """On a slow link a new node never got a list, and so never a gateway."""
    asked: list[float] = []

    def fetch(endpoint: Endpoint, _topic: str, timeout_s: float) -> bytes:
        asked.append(timeout_s)
        if timeout_s < 20.0:
            raise BrokerError(str(endpoint), f"no answer within {timeout_s:g} s")
        return directory("a")

    gateways = managed_gateways(tmp_path, fetch)
    lists = [[e.host for e in gateways.ranked_gateways()] for _ in range(4)]

    assert lists == [[], [], ["a"], ["a"]]
    assert asked == [5, 5, 10, 10, 20, 20]


def test_only_a_list_that_has_changed_is_written(tmp_path: Path) -> None:
    """It is fetched every minute, and each write wears the card."""
    lists = [directory("a"), directory("a"), directory("b")]
    gateways = managed_gateways(tmp_path, lambda _e, _t, _s: lists.pop(0))
    gateways.ranked_gateways()
    first = gateways.cache.stat().st_ino
    gateways.ranked_gateways()
    second = gateways.cache.stat().st_ino
    gateways.ranked_gateways()

    assert first == second
    assert gateways.cache.read_bytes() == directory("b")


def test_list_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A card may stay read-only for weeks; the list is stored once it is writable."""
    folder = tmp_path / "later"
    gateways = managed_gateways(folder, fetcher(manager=directory("a")))
    for _ in range(3):
        assert [e.host for e in gateways.ranked_gateways()] == ["a"]
    folder.mkdir()
    gateways.ranked_gateways()

    assert caplog.text.count("cannot write") == 1
    assert gateways.cache.read_bytes() == directory("a")


def test_nodes_spread_over_equal_gateways_in_a_fixed_order(tmp_path: Path) -> None:
    """Each node has its own order, and always the same one."""
    fetch = fetcher(manager=directory("a", "b", "c"))
    firsts = [
        managed_gateways(tmp_path, fetch, f"n{n}").ranked_gateways()[0].host
        for n in range(300)
    ]
    again = [
        managed_gateways(tmp_path, fetch, f"n{n}").ranked_gateways()[0].host
        for n in range(300)
    ]

    assert firsts == again
    assert all(firsts.count(host) > 60 for host in "abc")


@pytest.mark.parametrize(
    ("offer", "is_healthy"),
    [
        (CustodyOffer("gw").encode(), True),
        (CustodyOffer("gw", is_offline=True).encode(), False),
        (b"junk", False),
        (None, False),
    ],
)
def test_gateway_is_healthy_when_its_store_is_online(
    tmp_path: Path, offer: bytes | None, is_healthy: bool
) -> None:
    """A broker that answers may have no gateway that stores messages."""
    fetch = fetcher() if offer is None else fetcher(near=offer)

    assert managed_gateways(tmp_path, fetch).is_healthy(NEAR) is is_healthy


def test_invalid_list_is_skipped(tmp_path: Path) -> None:
    """The next Manager is queried, then the stored list is used."""
    calls = itertools.count()

    def fetch(_endpoint: Endpoint, topic: str, _timeout_s: float) -> bytes:
        assert topic == GATEWAY_INFO
        return b"{" if next(calls) == 0 else directory("a")

    assert [e.host for e in managed_gateways(tmp_path, fetch).ranked_gateways()] == [
        "a"
    ]
