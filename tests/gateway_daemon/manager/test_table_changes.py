"""Broker tables that gateways of the original Gamma can follow."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway_daemon.manager import storage
from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.replication import ManagerView
from gateway_daemon.manager.table_changes import (
    add_broker,
    find_obstacles,
    next_table,
    remove_broker,
)
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable, GatewayNotice
from spatial_mqtt.errors import DirectoryError

OURS, ORIGINAL = BrokerInfo("ours", 1), BrokerInfo("theirs", 1)
ROOT = BrokerEntry("/", BrokerInfo("10.0.0.1", 1883))
NEW = tuple(BrokerEntry(f"/{n}", BrokerInfo("10.0.0.1", n + 1)) for n in (1, 2, 3))


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
