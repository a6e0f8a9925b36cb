"""Tombstones are collected in the end, and no deleted record returns."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gateway_daemon.manager.registry import (
    DAY_MS,
    MAX_PARTITION_DAYS,
    TOMBSTONE_DAYS,
    Registry,
    advance_day,
    collect_tombstones,
    is_forgotten,
)
from gateway_daemon.manager.replication import (
    HybridTimestamp,
    ManagerView,
    Record,
    RecordKey,
    TombstoneHorizon,
)
from spatial_mqtt.directory import BrokerEntry, BrokerInfo

MANAGERS = ("a", "b", "c")
BROKER = BrokerInfo("b", 1)
AREAS = ("/1", "/2", "/3")
TODAY = 20_000


def merged(to: Registry, key: RecordKey, record: Record) -> Registry:
    """Take over a record from another Manager."""
    return to if is_forgotten(to, key, record) else to.with_record(key, record)


class Managers(RuleBasedStateMachine):
    """Three Managers over months, partitioned no longer than the allowed time.

    Views are exchanged at once and records late, so tombstones are collected as early
    as possible.
    """

    def __init__(self) -> None:
        super().__init__()
        self.day = TODAY
        self.known = {me: Registry(me) for me in MANAGERS}
        self.live: dict[str, HybridTimestamp] = {}
        self.met = {(a, b): self.day for a in MANAGERS for b in MANAGERS if a != b}
        self.versions = dict.fromkeys(MANAGERS, 0)

    @initialize(days=st.lists(st.integers(-1, 1), min_size=3, max_size=3))
    def clocks_differ(self, days: list[int]) -> None:
        self.off = dict(zip(MANAGERS, days, strict=True))

    @rule(me=st.sampled_from(MANAGERS), area=st.sampled_from(AREAS))
    def broker_is_added(self, me: str, area: str) -> None:
        self.set_broker(me, area, BROKER)

    @rule(me=st.sampled_from(MANAGERS), area=st.sampled_from(AREAS))
    def broker_is_removed(self, me: str, area: str) -> None:
        if RecordKey("broker", area) in self.known[me].records:
            self.set_broker(me, area, None)

    def set_broker(self, me: str, area: str, broker: BrokerInfo | None) -> None:
        now_ms = (self.day + self.off[me]) * DAY_MS
        self.known[me] = self.known[me].with_value("broker", area, broker, now_ms)

    @rule(to=st.sampled_from(MANAGERS), of=st.sampled_from(MANAGERS))
    def exchange(self, to: str, of: str) -> None:
        if to == of:
            return
        for key, record in self.known[of].records.items():
            self.known[to] = merged(self.known[to], key, record)
        self.met[to, of] = self.day

    @rule(days=st.sampled_from([1, 10, MAX_PARTITION_DAYS]))
    def time_passes(self, days: int) -> None:
        for (to, of), met in list(self.met.items()):
            if self.day + days - met > MAX_PARTITION_DAYS:
                self.exchange(to, of)
        self.day += days
        for me in MANAGERS:
            others = [self.known[of].own_view for of in MANAGERS if of != me]
            for view in others:
                known = self.known[me].with_view(view)
                self.known[me] = collect_tombstones(known, view.horizon)
            today = self.day + self.off[me]
            self.known[me] = advance_day(self.known[me], today, len(others))

    @invariant()
    def versions_never_fall(self) -> None:
        now = {me: registry.version for me, registry in self.known.items()}
        assert all(now[me] >= self.versions[me] for me in MANAGERS)
        self.versions = now

    def teardown(self) -> None:
        everything = {
            key: record
            for me in MANAGERS
            for key, record in self.known[me].records.items()
        }
        latest = {
            key: max(
                (m.records[key] for m in self.known.values() if key in m.records),
                key=lambda record: record.stamp,
            ).value
            for key in everything
        }
        for _ in MANAGERS:
            self.time_passes(0)
            for to in MANAGERS:
                for of in MANAGERS:
                    self.exchange(to, of)
        one, two, three = self.known.values()
        assert one.brokers == two.brokers == three.brokers
        assert one.version == two.version == three.version
        live = [BrokerEntry(key.name, value) for key, value in latest.items() if value]
        assert sorted(map(str, one.brokers)) == sorted(map(str, live))


def test_managers_agree_and_no_deleted_record_returns_over_months() -> None:
    """With changes, late exchanges and collected tombstones in any order."""
    profile = settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(Managers, settings=profile)


def registry_with_tombstone(me: str = "a") -> Registry:
    """A registry in which an area was added and removed today."""
    added = Registry(me).with_value("broker", "/1", BROKER, TODAY * DAY_MS)
    return added.with_value("broker", "/1", None, TODAY * DAY_MS + 1)


def test_tombstone_is_collected_in_time_and_still_counts_in_the_version() -> None:
    """Gamma's rule holds: the version grows by one with each change."""
    registry = registry_with_tombstone()
    days = [TODAY + TOMBSTONE_DAYS, TODAY + TOMBSTONE_DAYS + 1]
    before, after = (advance_day(registry, day, 0) for day in days)

    assert (len(before.records), len(after.records)) == (1, 0)
    assert before.version == after.version == 2
    assert after.with_value("broker", "/1", BROKER, days[1] * DAY_MS).version == 3


@pytest.mark.parametrize(
    ("day", "is_forgotten"), [(TODAY + 1000, True), (TODAY, False), (0, False)]
)
def test_slowest_clock_decides(day: int, is_forgotten: bool) -> None:
    """A fast clock collects nothing early; a Manager without a day is waited for."""
    registry = registry_with_tombstone().with_view(ManagerView("b", day=day))

    assert (not advance_day(registry, TODAY + 1000, 1).records) == is_forgotten


def test_nothing_is_collected_while_a_manager_is_away() -> None:
    """It may still hold the deleted record."""
    assert advance_day(registry_with_tombstone(), TODAY + 1000, 1).records


def test_tombstone_of_a_configured_broker_is_kept() -> None:
    """Otherwise the next start would add the broker again."""
    named = Registry("a").with_configured_brokers([BrokerEntry("/1", BROKER)])
    registry = named.with_value("broker", "/1", None, TODAY * DAY_MS)
    after = advance_day(registry, TODAY + 1000, 0)

    assert after.with_configured_brokers([BrokerEntry("/1", BROKER)]).brokers == ()


def test_record_from_an_old_backup_does_not_return() -> None:
    """Other Managers reject it; a new Manager must learn the horizon first."""
    added = Registry("b").with_value("broker", "/1", BROKER, TODAY * DAY_MS)
    ((key, record),) = added.records.items()
    after = advance_day(registry_with_tombstone(), TODAY + 1000, 0)
    new = Registry("c", created_ms=(TODAY + 1000) * DAY_MS)
    new = collect_tombstones(new, after.horizon)

    assert is_forgotten(after, key, record)
    assert not is_forgotten(new, key, record)
    tombstone = next(iter(registry_with_tombstone().records.values()))
    assert is_forgotten(new, key, tombstone)


def test_horizon_of_a_clock_that_was_ahead_forgets_no_new_record() -> None:
    """The only Manager's clock was years ahead; another one is added afterwards."""
    ahead = advance_day(registry_with_tombstone(), TODAY + 3650, 0)
    earlier_version = replace(ahead, day=TODAY + 1)
    first = advance_day(ahead, TODAY + 1, 1)
    added_ms = (TODAY + 1) * DAY_MS
    second = advance_day(Registry("b", created_ms=added_ms), TODAY + 1, 1)
    first, second = (
        collect_tombstones(me.with_view(other.own_view), other.horizon)
        for me, other in ((first, second), (second, earlier_version))
    )
    changed = second.with_value("broker", "/2", BROKER, added_ms + 1)
    changed = changed.with_value("broker", "/3", BROKER, added_ms + 1)
    changed = changed.with_value("broker", "/3", None, added_ms + 2)
    changed = advance_day(changed, TODAY + 2, 1)

    for key, record in changed.records.items():
        first = merged(first, key, record)
    assert first.brokers == changed.brokers == (BrokerEntry("/2", BROKER),)
    assert first.records.keys() == changed.records.keys()
    assert len(changed.records) == 2
    assert first.version == changed.version == 5


@given(st.lists(st.builds(TombstoneHorizon, st.integers(0, 5), st.integers(0, 5))))
def test_horizons_only_go_forward(received: list[TombstoneHorizon]) -> None:
    """In any order of arrival from other Managers."""
    registries = [Registry("a")]
    for horizon in received:
        registries.append(collect_tombstones(registries[-1], horizon))

    assert all(a.horizon <= b.horizon for a, b in pairwise(registries))
    assert all(a.version <= b.version for a, b in pairwise(registries))
