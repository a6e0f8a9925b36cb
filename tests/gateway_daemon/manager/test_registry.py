"""The registry, tested without a network."""

import msgspec
import pytest

from gateway_daemon.manager.registry import MOVE_INTERVAL_MS, Registry
from gateway_daemon.manager.replication import KeyedRecord, decode_record
from spatial_mqtt.directory import AreaSetting, BrokerEntry, BrokerInfo, GatewayNotice
from spatial_mqtt.errors import DirectoryError

GW1, GW2 = BrokerInfo("h", 1), BrokerInfo("h", 2)
B1, B2 = BrokerEntry("/", BrokerInfo("b", 1)), BrokerEntry("/1/2", BrokerInfo("b", 2))


def registry_with(*gateways: BrokerInfo) -> Registry:
    registry = Registry()
    for gateway in gateways:
        registry = registry.with_notice(GatewayNotice(gateway, "up"))
    return registry


def test_new_gateway_serves_the_whole_world() -> None:
    """Gamma lists a gateway under / until its areas are set."""
    assert registry_with(GW1).gateways == (BrokerEntry("/", GW1),)


def test_gateway_that_comes_back_keeps_its_areas() -> None:
    """An 'up' after a restart is not a new gateway."""
    registry = registry_with(GW1).with_areas(AreaSetting(GW1, topics=("/1/2", "/3")))

    assert registry.with_notice(GatewayNotice(GW1, "up")) == registry


def test_topics_replace_areas_and_the_older_topic_adds_one() -> None:
    """Both of Gamma's forms are honoured, and the list never holds null."""
    registry = registry_with(GW1).with_areas(AreaSetting(GW1, topic="/1"))
    registry = registry.with_areas(AreaSetting(GW1, topic="/2"))
    assert [e.topic for e in registry.gateways] == ["/1", "/2"]

    registry = registry.with_areas(AreaSetting(GW1, topics=("/3",)))
    assert [e.topic for e in registry.gateways] == ["/3"]


def test_gateway_without_areas_is_unlisted_until_it_has_some() -> None:
    """As in Gamma: it stays known, is waited for, and does not list itself again."""
    registry = registry_with(GW1, GW2).with_areas(AreaSetting(GW1, topics=()))
    registry = registry.with_broker(B1).with_notice(GatewayNotice(GW1, "up"))
    assert registry.gateways == (BrokerEntry("/", GW2),)
    assert registry.laggards == (GW1, GW2)

    registry = registry.with_areas(AreaSetting(GW1, topic="/1"))
    assert registry.gateways == (BrokerEntry("/1", GW1), BrokerEntry("/", GW2))


def test_areas_of_an_unknown_gateway_are_refused() -> None:
    """A typing error creates no gateway."""
    with pytest.raises(
        DirectoryError,
        match="a gateway that sent a notice, got 'h:2'",
    ):
        registry_with(GW1).with_areas(AreaSetting(GW2, topics=("/1",)))


def test_brokers_are_sorted_by_area_and_the_version_grows_by_one() -> None:
    """The table is Gamma's: shortest area first."""
    registry = Registry().with_broker(B2).with_broker(B1)

    assert registry.table.brokers == (B1, B2)
    assert registry.version == 2


def test_same_broker_changes_nothing_and_a_second_for_its_area_is_refused() -> None:
    """Gamma logs an error and adds it; we do not."""
    registry = Registry().with_broker(B1)
    assert registry.with_broker(B1) == registry

    with pytest.raises(DirectoryError, match="an area without a broker"):
        registry.with_broker(BrokerEntry("/", BrokerInfo("b", 9)))


def test_update_is_complete_when_every_gateway_applied_it() -> None:
    """The second phase waits for the slowest gateway."""
    registry = registry_with(GW1, GW2).with_broker(B1)
    registry = registry.with_notice(GatewayNotice(GW1, "complete", 1))
    assert not registry.is_complete

    assert registry.with_notice(GatewayNotice(GW2, "complete", 1)).is_complete


def test_gateway_that_starts_has_no_table() -> None:
    """Gamma's Manager takes the version -1 of "up" for what the gateway has."""
    registry = registry_with(GW1).with_broker(B1)
    registry = registry.with_notice(GatewayNotice(GW1, "complete", 1))
    assert registry.is_complete

    assert registry.with_notice(GatewayNotice(GW1, "up")).laggards == (GW1,)


def test_gateway_that_reports_a_table_is_registered() -> None:
    """A gateway of Gamma sends "up" once, before our Manager may be there."""
    registry = Registry().with_broker(B1)
    registry = registry.with_notice(GatewayNotice(GW1, "complete", 1))

    assert registry.gateways == (BrokerEntry("/", GW1),)
    assert registry.is_complete


def test_departed_gateway_is_unlisted_and_keeps_its_areas() -> None:
    """Its nodes use others, no update waits for it, and it returns unchanged."""
    registry = registry_with(GW1, GW2).with_areas(AreaSetting(GW1, topics=("/1",)))
    registry = registry.with_broker(B1).with_notice(GatewayNotice(GW2, "complete", 1))
    assert not registry.is_complete
    registry = registry.with_departed(GW1)
    assert registry.gateways == (BrokerEntry("/", GW2),)
    assert registry.is_complete

    registry = registry.with_notice(GatewayNotice(GW1, "up"))
    assert registry.gateways == (BrokerEntry("/1", GW1), BrokerEntry("/", GW2))
    assert not registry.is_complete


def test_departure_of_an_unknown_gateway_is_ignored() -> None:
    """A will message may be older than the registry."""
    assert Registry().with_departed(GW1) == Registry()


def test_laggards_can_be_dropped() -> None:
    """They subscribe by both tables, so continuing loses no message."""
    registry = (
        registry_with(GW1, GW2)
        .with_broker(B1)
        .with_notice(GatewayNotice(GW1, "complete", 1))
    )
    assert registry.laggards == (GW2,)

    assert registry.without_laggards().is_complete


def test_gateway_can_be_removed() -> None:
    """For a gateway that was dismantled."""
    registry = registry_with(GW1, GW2).with_departed(GW1).without_gateway(GW1)
    assert registry.gateways == (BrokerEntry("/", GW2),)

    with pytest.raises(DirectoryError, match="sent a notice"):
        registry.without_gateway(GW1)


def test_broker_is_removed_by_its_exact_entry() -> None:
    """A typing error removes nothing; the error lists the entries."""
    registry = Registry().with_broker(B1).with_broker(B2)
    assert registry.without_broker(B2).table.brokers == (B1,)
    assert registry.without_broker(B2).version == 3

    with pytest.raises(DirectoryError, match="one of the table: / -> b:1"):
        registry.without_broker(BrokerEntry("/9", B2.broker_info))


def test_address_belongs_to_the_first_certificate() -> None:
    """Neither another one nor a message without a name counts for it."""
    registry = registry_with(GW1).with_owner(GW1, "gw-1", 1)
    for name in ("gw-2", None):
        refusal = f"not yet gw-1's, got 'h:1 from {name}'"
        with pytest.raises(DirectoryError, match=refusal):
            registry.with_owner(GW1, name, 2)

    assert registry.with_owner(GW1, "gw-1", 3) is registry
    assert (
        registry_with(GW1).with_owner(GW1, None).records == registry_with(GW1).records
    )
    forgotten = registry.without_gateway(GW1, 4)
    assert forgotten.with_owner(GW1, "gw-2", 5).owner_of(GW1) == "gw-2"


def test_certificate_has_one_address() -> None:
    """A gateway that moves keeps its areas; the list does not grow."""
    registry = registry_with(GW1).with_owner(GW1, "gw-1", 1)
    registry = registry.with_areas(AreaSetting(GW1, topics=("/1/2",)), 1)
    with pytest.raises(DirectoryError, match="for an hour after a change, got 'h:2'"):
        registry.with_owner(GW2, "gw-1", MOVE_INTERVAL_MS)
    moved = registry.with_owner(GW2, "gw-1", MOVE_INTERVAL_MS + 1)

    assert moved.gateways == (BrokerEntry("/1/2", GW2),)
    assert (moved.owner_of(GW1), moved.owner_of(GW2)) == (None, "gw-1")
    assert moved.with_notice(GatewayNotice(GW2, "up")).gateways == moved.gateways


def test_certificate_may_move_after_a_clock_was_years_ahead() -> None:
    """Later stamps are ahead, too: it was refused "for an hour", which was years."""
    ahead_ms, now_ms = 2_000_000_000_000, 1_800_000_000_000
    registry = registry_with(GW1).with_owner(GW1, "gw-1", ahead_ms)
    registry = registry.with_areas(AreaSetting(GW1, topics=("/1/2",)), now_ms)
    moved = registry.with_owner(GW2, "gw-1", now_ms)

    assert moved.gateways == (BrokerEntry("/1/2", GW2),)
    with pytest.raises(DirectoryError, match="for an hour after a change"):
        registry.with_owner(GW2, "gw-1", ahead_ms - MOVE_INTERVAL_MS + 1)


def test_owner_survives_encoding() -> None:
    """Managers share it, and the registry's file contains it."""
    registry = registry_with(GW1).with_owner(GW1, "gw-1", 1)
    for key, record in registry.records.items():
        keyed = KeyedRecord(key, record)
        assert decode_record(msgspec.json.encode(keyed)) == keyed
    wrong = b'{"key":{"kind":"owner","name":"h:1"},"record":{"value":["a/b"]}}'
    with pytest.raises(DirectoryError, match="id must be"):
        decode_record(wrong)
