"""Leases of brokers, and broker tables that gateways of the original can follow."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from conftest import wait_until

from gateway_daemon.manager import storage
from gateway_daemon.manager.brokers import (
    BrokerConnectors,
    BrokerMessage,
    BrokerSession,
    EventInbox,
)
from gateway_daemon.manager.manager import Manager, ManagerClocks
from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.registry_changes import (
    GRACE_S,
    BrokerLeases,
    add_broker,
    apply_message,
    end_lease,
    find_obstacles,
    forget_server,
    lease_areas,
    leased_areas,
    next_table,
    remove_broker,
)
from gateway_daemon.manager.replication import ManagerView
from service_runtime.tls import Endpoint
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    MAX_AREAS,
    MAX_BEAT_S,
    AreaSetting,
    BrokerEntry,
    BrokerHeartbeat,
    BrokerInfo,
    BrokerTable,
    GatewayNotice,
    encode_directory_message,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import (
    AREA_REQUEST_CONTENT,
    BROKER_ADD,
    BROKER_HEARTBEAT,
    GATEWAY_AREA_REQUEST,
    GATEWAY_NOTICE,
)
from spatial_mqtt.transport import ConnectionHandler, IncomingMessage, Session

EAST, WEST = BrokerInfo("east", 1883), BrokerInfo("west", 1883)

OURS, ORIGINAL = BrokerInfo("ours", 1), BrokerInfo("theirs", 1)
ROOT = BrokerEntry("/", BrokerInfo("10.0.0.1", 1883))
NEW = tuple(BrokerEntry(f"/{n}", BrokerInfo("10.0.0.1", n + 1)) for n in (1, 2, 3))


class NoConnection:
    """Connection that sends nothing; a test calls its handler."""

    endpoint = Endpoint("localhost", 1883)

    def start(self) -> None:
        """Connect to nothing."""

    def stop(self, *, send_disconnect: bool) -> None:
        """Disconnect from nothing."""

    def publish(self, publication: object) -> None:
        """Drop a message."""


def connect_to_nothing(session: Session, handler: ConnectionHandler) -> Connection:
    return cast("Connection", NoConnection())


class RunningManager:
    """A Manager at a clock that stands still, without a broker."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        clocks = ManagerClocks(LoopWatchdog(lambda: self.now_s), lambda: 1)
        self._manager = Manager(
            BrokerConnectors(connect_to_nothing),
            folder / "registry.json",
            Registry("m"),
            clocks,
        )
        self._thread = threading.Thread(target=self._manager.run)
        self._thread.start()

    @property
    def own(self) -> BrokerSession:
        """The session at its own broker."""
        return self._manager.sessions["own"]

    @property
    def registry(self) -> Registry:
        """Its registry."""
        return self._manager.registry

    def announce(self, broker: BrokerInfo, area: str, every_s: float) -> None:
        """A heartbeat arrives, and is applied."""
        payload = encode_directory_message(BrokerHeartbeat(broker, (area,), every_s))
        self.own.on_message(
            IncomingMessage(
                BROKER_HEARTBEAT, payload, 1, False, None, None, None, (0, 1), None
            )
        )
        wait_until(lambda: areas_of(self.registry, broker) == [area])

    def stop(self) -> None:
        """End it."""
        self._manager.stop()
        self._thread.join()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[RunningManager]:
    running = RunningManager(tmp_path)
    yield running
    running.stop()


def leased(*areas: str, registry: Registry | None = None) -> Registry:
    """A registry in which the broker in the east has areas by heartbeats."""
    here = BrokerHeartbeat(EAST, areas, 10.0)
    return lease_areas(registry or Registry("m"), here, 1)[0]


def areas_of(registry: Registry, broker: BrokerInfo) -> list[str]:
    return [e.topic for e in registry.brokers if e.broker_info == broker]


def test_heartbeat_that_changes_nothing_leaves_the_registry() -> None:
    """Otherwise each one would be a new version of the table."""
    registry = leased("/1", "/2")

    assert areas_of(registry, EAST) == ["/1", "/2"]
    assert leased("/1", "/2", registry=registry) == registry


def test_two_messages_of_a_server_on_a_topic_wait_in_their_order() -> None:
    """An announcement repeated behind a request came after it, and it was refused."""
    inbox = EventInbox[BrokerMessage]()
    session = BrokerSession(connect_to_nothing, Session("m"), inbox.put)
    up = encode_directory_message(GatewayNotice(OURS, "up"))
    wish = encode_directory_message(AreaSetting(OURS, topics=("/1",)))
    add = encode_directory_message(ROOT)
    sent = [(GATEWAY_NOTICE, up), (GATEWAY_AREA_REQUEST, wish), (BROKER_ADD, add)]
    for topic, payload in sent * 4:
        session.on_message(
            IncomingMessage(topic, payload, 1, False, None, None, None, (0, 1), "")
        )
    topics = []
    while not inbox.empty():
        topics.append(inbox.get(0).message.topic)

    assert topics[:3] == [topic for topic, _ in sent]
    assert [topics.count(topic) for topic, _ in sent] == [2, 2, 4]


def test_area_that_is_no_longer_requested_is_taken() -> None:
    assert areas_of(leased("/2", "/3", registry=leased("/1", "/2")), EAST) == [
        "/2",
        "/3",
    ]


def test_broker_of_the_settings_is_not_leased() -> None:
    """The end of its heartbeats leaves it in the table."""
    fixed = Registry("m").with_configured_brokers([BrokerEntry("/", EAST)])
    registry = leased("/", "/1", registry=fixed)

    assert leased_areas(registry) == {EAST: ("/1",)}
    assert areas_of(end_lease(registry, EAST, 2)[0], EAST) == ["/"]


def test_taken_area_is_refused_and_the_free_one_given() -> None:
    registry, refusals = lease_areas(
        leased("/1"), BrokerHeartbeat(WEST, ("/1", "/2"), 10.0), 2
    )

    assert areas_of(registry, WEST) == ["/2"]
    (refusal,) = map(str, refusals)
    assert refusal == (
        "topic must be an area without a broker, got '/1 -> west:1883'; "
        "remove its broker east:1883 first"
    )


def test_loser_of_a_race_gets_the_area_when_the_winner_is_gone() -> None:
    """Two Managers gave one area to two brokers before they had each other's records.

    The loser counted the area as leased, and did not request it again.
    """

    def beat(registry: Registry, broker: BrokerInfo, now_ms: int) -> Registry:
        return lease_areas(registry, BrokerHeartbeat(broker, ("/1",), 10.0), now_ms)[0]

    merged = beat(Registry("a"), EAST, 1)
    for key, record in beat(Registry("b"), WEST, 2).records.items():
        merged = merged.with_record(key, record)
    merged = beat(merged, EAST, 3)
    assert areas_of(merged, WEST) == ["/1"]
    assert leased_areas(merged) == {WEST: ("/1",)}

    left, _ = end_lease(merged, WEST, 4)
    assert areas_of(beat(left, EAST, 5), EAST) == ["/1"]


def test_area_that_an_administrator_removed_is_not_requested_again() -> None:
    """Otherwise it could not be taken from a broker that runs."""
    taken = leased("/1", "/2").without_broker(BrokerEntry("/1", EAST), 2)

    assert areas_of(leased("/1", "/2", registry=taken), EAST) == ["/2"]


def test_broker_that_no_manager_sees_is_taken_after_the_grace() -> None:
    """After a start of the Manager, no heartbeat may ever come."""
    leases, registry = BrokerLeases(), replace(leased("/1"), brokers_here=frozenset())
    for now_s in (0.0, GRACE_S - 1):
        registry, _ = leases.end_expired(registry, (now_s, 2))
        assert areas_of(registry, EAST) == ["/1"]

    registry, _ = leases.end_expired(registry, (GRACE_S, 3))
    assert areas_of(registry, EAST) == []


def test_broker_that_another_manager_sees_keeps_its_areas() -> None:
    leases, view = BrokerLeases(), ManagerView("other", brokers=(EAST,))
    registry = leased("/1").with_view(view)
    for now_s in (0.0, GRACE_S, 2 * GRACE_S):
        registry, _ = leases.end_expired(registry, (now_s, 2))
    assert areas_of(registry, EAST) == ["/1"]

    registry = registry.without_view("other")
    for now_s in (2 * GRACE_S, 3 * GRACE_S):
        registry, _ = leases.end_expired(registry, (now_s, 3))
    assert areas_of(registry, EAST) == []


def test_address_of_a_forgotten_broker_is_free() -> None:
    """An administrator gives it to a new certificate."""
    registry = leased("/1").with_owner(EAST, "d1", 1)
    with pytest.raises(DirectoryError, match="that is not yet d1's"):
        registry.with_owner(EAST, "d2", 2)
    forgotten = forget_server(registry, EAST, 2)

    assert areas_of(forgotten, EAST) == []
    assert forgotten.with_owner(EAST, "d2", 3).owner_of(EAST) == "d2"
    with pytest.raises(DirectoryError, match="a gateway that sent a notice"):
        forget_server(forgotten, EAST, 4)


def test_grace_covers_the_longest_interval() -> None:
    """After a start of the Manager the next heartbeat comes up to an interval later."""
    assert GRACE_S == 3 * MAX_BEAT_S == 180


def test_brokers_keep_their_areas_when_the_managers_own_broker_returns(
    manager: RunningManager,
) -> None:
    """Their programs connect again up to ten seconds after the Manager."""
    manager.own.on_up(False, 10)
    manager.announce(EAST, "/1", 10.0)
    manager.own.on_down("restarted")
    wait_until(lambda: not manager.own.is_up)
    manager.now_s += 31.0
    manager.own.on_up(False, 10)
    for area in ("/2", "/3"):
        manager.now_s += 10.0
        manager.announce(WEST, area, 10.0)  # a check came before the second one
    assert areas_of(manager.registry, EAST) == ["/1"]

    manager.now_s += GRACE_S
    manager.announce(WEST, "/2", 10.0)
    wait_until(lambda: areas_of(manager.registry, EAST) == [])


@pytest.mark.parametrize("content", [AREA_REQUEST_CONTENT, None])
def test_request_for_a_manager_of_the_original_is_ignored(content: str | None) -> None:
    """A broker of an administrator would stay for ever."""
    entry = encode_directory_message(BrokerEntry("/1", EAST))
    message = IncomingMessage(
        BROKER_ADD, entry, 1, False, None, None, None, (0, 1), content
    )
    registry = apply_message(Registry("m"), message, 1)

    assert areas_of(registry, EAST) == ([] if content else ["/1"])


@pytest.mark.attack(
    "an announced broker has a host that is no name",
    "every gateway ended, or wrote outside its folder",
)
@pytest.mark.parametrize("host", ["a\0b", "../../etc/a", "/a", "a\nb", "a b"])
def test_broker_with_an_impossible_host_is_refused(host: str) -> None:
    here = BrokerHeartbeat(BrokerInfo(host, 1883), ("/1",), 10.0)
    registry, (refusal,) = lease_areas(Registry("m"), here, 1)

    assert registry.brokers == ()
    assert "broker_info.host must be a name or an address" in str(refusal)


@pytest.mark.parametrize(
    "host", ["east_1.example", "10.0.0.1", "fe80::1%eth0", "[::1]", "山守.example"]
)
def test_broker_with_a_name_or_an_address_is_accepted(host: str) -> None:
    broker = BrokerInfo(host, 1883)
    registry, _ = lease_areas(Registry("m"), BrokerHeartbeat(broker, ("/1",), 10.0), 1)
    assert areas_of(registry, broker) == ["/1"]


@pytest.mark.attack(
    "a broker, or a gateway, requests as many areas as a message has space for",
    "quadratic: 1.4 s of the Manager for 2,000 of 70,000",
)
def test_heartbeat_with_too_many_areas_is_refused() -> None:
    """A Manager compares each with all others, and everyone gets the list."""
    areas = [f"/{number}" for number in range(MAX_AREAS + 1)]
    payload = json.dumps({
        "broker_info": {"host": "east", "port": 1883},
        "topics": areas,
        "every_s": 10.0,
    })
    message = IncomingMessage(
        BROKER_HEARTBEAT, payload.encode(), 1, False, None, None, None, (0, 1), None
    )
    registry = Registry("m")
    with pytest.raises(DirectoryError, match=f"areas must be at most {MAX_AREAS}"):
        BrokerLeases().apply(registry, None, message, (0.0, 0))
    assert len(areas_of(leased(*areas[:MAX_AREAS]), EAST)) == MAX_AREAS


def announce(registry: Registry) -> Registry:
    return replace(registry, announced=next_table(registry))


def apply_by(registry: Registry, *gateways: BrokerInfo) -> Registry:
    version = registry.table.version
    for gateway in gateways:
        registry = registry.with_notice(GatewayNotice(gateway, "complete", version))
    return registry


def registry_with(*gateways: BrokerInfo, manager: str = "a") -> Registry:
    """A Manager whose gateways have its first table; ours sends heartbeats."""
    registry = Registry(manager).with_configured_brokers([ROOT])
    return apply_by(announce(registry).with_heartbeat(OURS), *gateways)


def add_all(registry: Registry) -> Registry:
    for at, entry in enumerate(NEW):
        registry = announce(add_broker(registry, entry, 10 + at))
    return registry


def test_changes_wait_until_every_gateway_has_applied_the_last_one() -> None:
    """Each table has one new broker, in the order of the requests."""
    registry = add_all(registry_with(OURS, ORIGINAL))
    for count in (1, 2, 3):
        assert registry.table == BrokerTable(1 + count, (ROOT, *NEW[:count]))
        registry = announce(apply_by(registry, OURS))
        assert registry.table.version == 1 + count
        registry = announce(apply_by(registry, ORIGINAL))

    assert registry.table == registry.newest_table


def test_gateway_that_does_not_answer_delays_each_change_once() -> None:
    """The Manager names it and continues."""
    registry = apply_by(add_all(registry_with(OURS, ORIGINAL)), OURS)
    assert registry.laggards == (ORIGINAL,)

    assert announce(registry.without_laggards()).table.version == 3


def test_gateways_of_ours_get_all_changes_at_once() -> None:
    """They follow any table."""
    registry = add_all(registry_with(OURS))

    assert registry.table == BrokerTable(4, (ROOT, *NEW))
    assert registry.laggards == (OURS,)


def test_managers_with_the_same_records_announce_the_same_tables() -> None:
    """Whatever the order in which they learn of the changes."""
    first = add_all(registry_with(OURS, ORIGINAL))
    second = registry_with(OURS, manager="b").with_view(
        ManagerView("a", (ORIGINAL,), without_heartbeat=(ORIGINAL,))
    )
    for key in sorted(first.records, reverse=True):
        second = second.with_record(key, first.records[key])
    second = announce(second.with_notice(GatewayNotice(ORIGINAL, "complete", 1)))

    assert second.table == first.table


def test_waiting_changes_survive_a_restart(tmp_path: Path) -> None:
    """The original's gateways do not report again what they applied."""
    path = tmp_path / "registry.json"
    before = apply_by(add_all(registry_with(OURS, ORIGINAL)), ORIGINAL)
    storage.save_registry(path, storage.RegistrySnapshot.from_registry(before))
    after = storage.load_registry(path, "a")

    assert after == before
    assert after.laggards == (OURS,)
    assert after.table == BrokerTable(2, (ROOT, NEW[0]))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (BrokerEntry("/1", BrokerInfo("north", 1)), "broker_info.host must be"),
        (BrokerEntry("/1", BrokerInfo("::1", 1)), "use its IPv4 address"),
        (BrokerEntry("/1", ROOT.broker_info), "a broker of its own for each area"),
        (BrokerEntry("/1/2", NEW[0].broker_info), "add a broker for /1 first"),
    ],
)
def test_addition_that_originals_cannot_follow_is_refused(
    entry: BrokerEntry, reason: str
) -> None:
    """The error names rule, gateway and remedy; without such a gateway it is valid."""
    named = rf"{reason}.*\(theirs:1\)|\(theirs:1\).*{reason}"
    with pytest.raises(DirectoryError, match=named):
        add_broker(registry_with(OURS, ORIGINAL), entry, 2)

    assert entry in add_broker(registry_with(OURS), entry, 2).brokers


def test_area_around_a_known_one_is_refused() -> None:
    """An original would drop the small area."""
    small = BrokerEntry("/1", NEW[0].broker_info)
    registry = Registry("a").with_broker(small, 1)
    registry = announce(registry.with_notice(GatewayNotice(ORIGINAL, "complete", 1)))

    with pytest.raises(DirectoryError, match="area that does not contain /1"):
        add_broker(registry, ROOT, 2)


def test_removal_is_refused_once_the_broker_is_announced() -> None:
    """A change that waits can be withdrawn."""
    registry = add_all(registry_with(OURS, ORIGINAL))
    withdrawn = announce(remove_broker(registry, NEW[2], 20))
    assert NEW[2] not in withdrawn.brokers

    with pytest.raises(DirectoryError, match=r"\(theirs:1\).*admin forget"):
        remove_broker(registry, NEW[0], 20)
    assert remove_broker(registry_with(OURS), ROOT, 20).brokers == ()


def test_table_from_elsewhere_that_originals_cannot_follow_is_reported() -> None:
    """It is older than the gateway, or another Manager's."""
    registry = registry_with(OURS).with_broker(
        BrokerEntry("/1/2", BrokerInfo("north", 1)), 2
    )
    assert list(find_obstacles(registry)) == []

    late = registry.with_notice(GatewayNotice(ORIGINAL, "up"))
    reasons = list(find_obstacles(late))
    assert len(reasons) == 2
    assert all("(theirs:1)" in reason for reason in reasons)


def test_registry_that_cannot_be_read_is_refused_with_a_remedy(tmp_path: Path) -> None:
    """As the file of a bad block, it ended the Manager with a traceback."""
    with pytest.raises(
        storage.RegistryFileError, match=r"Is a directory.*move it away"
    ):
        storage.load_registry(tmp_path, "a")
