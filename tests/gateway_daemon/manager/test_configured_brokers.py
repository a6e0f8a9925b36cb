"""Brokers of a Manager's settings: an edit counts, a restart does not."""

from pathlib import Path

import msgspec
import pytest

from gateway_daemon.manager import storage
from gateway_daemon.manager.registry import DAY_MS, Registry, advance_day
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable

DAY = 19_000
ALL = "/"


def entry(host: str, area: str = ALL) -> BrokerEntry:
    return BrokerEntry(area, BrokerInfo(host, 8883))


class RestartedManager:
    """A Manager whose registry goes through its file at each start, a day later."""

    def __init__(self, folder: Path, manager_id: str = "north") -> None:
        self.path, self.manager_id = folder / f"{manager_id}.json", manager_id
        self.now_ms = DAY * DAY_MS
        self.registry = Registry(manager_id)

    def start(self, *settings: BrokerEntry) -> BrokerTable:
        """Start with these brokers in the settings; return the table."""
        self.now_ms += DAY_MS
        saved = storage.load_registry(self.path, self.manager_id, self.now_ms)
        self.registry = saved.with_configured_brokers(settings, self.now_ms)
        self.save()
        return self.registry.table

    def save(self) -> None:
        snapshot = storage.RegistrySnapshot.from_registry(self.registry)
        assert storage.save_registry(self.path, snapshot)

    def set_broker(self, area: str, broker: BrokerInfo | None) -> None:
        """Change or remove the broker of an area as an administrator."""
        self.now_ms += 1
        self.registry = self.registry.with_value("broker", area, broker, self.now_ms)
        self.save()

    def merge(self, other: "RestartedManager") -> None:
        for key, record in other.registry.records.items():
            self.registry = self.registry.with_record(key, record)
        self.save()


@pytest.fixture
def north(tmp_path: Path) -> RestartedManager:
    return RestartedManager(tmp_path)


def test_each_edit_of_the_settings_counts(north: RestartedManager) -> None:
    """Not the first one only."""
    for version, host in enumerate(["a", "b", "c", "b", "a"], start=1):
        assert north.start(entry(host)) == BrokerTable(version, (entry(host),))
        assert north.start(entry(host)).version == version


def test_edit_counts_after_a_change_by_an_administrator(
    north: RestartedManager,
) -> None:
    """A restart without an edit keeps what the administrator has set."""
    north.start(entry("a"))
    north.set_broker(ALL, entry("b").broker_info)
    assert north.start(entry("a")).brokers == (entry("b"),)
    assert north.start(entry("c")).brokers == (entry("c"),)

    north.set_broker(ALL, None)
    assert north.start(entry("c")).brokers == ()
    assert north.start(entry("d")).brokers == (entry("d"),)


def test_broker_that_leaves_the_settings_stays(north: RestartedManager) -> None:
    """Its queued messages wait until an administrator removes it."""
    north.start(entry("a"), entry("b", "/1"))
    assert north.start(entry("a")).brokers == (entry("a"), entry("b", "/1"))

    north.set_broker("/1", None)
    north.start(entry("a"))
    assert north.start(entry("a"), entry("b", "/1")).brokers[1:] == (entry("b", "/1"),)


def test_removed_broker_is_not_added_again_after_its_tombstone(
    north: RestartedManager,
) -> None:
    """The administrator added it first, so its tombstone is dropped."""
    north.start(entry("a"))
    north.set_broker("/1", entry("b", "/1").broker_info)
    settings = entry("a"), entry("b", "/1")
    north.start(*settings)
    north.set_broker("/1", None)
    north.registry = advance_day(north.registry, DAY + 1000, 0)
    north.save()

    assert len(north.registry.records) == 1
    assert north.start(*settings).brokers == (entry("a"),)


def test_old_settings_of_another_manager_undo_no_edit(
    north: RestartedManager, tmp_path: Path
) -> None:
    """Settings files are edited one after another."""
    south = RestartedManager(tmp_path, "south")
    for manager in (north, south):
        manager.start(entry("a"))
    for host, before in (("b", "a"), ("c", "b")):
        north.start(entry(host))
        south.merge(north)
        assert south.start(entry(before)).brokers == (entry(host),)
        assert south.start(entry(host)) == north.registry.table


def remove_configured(path: Path) -> None:
    """Make the file of an earlier version, which has no such field."""
    content = msgspec.json.decode(path.read_bytes())
    del content["configured"]
    path.write_bytes(msgspec.json.encode(content))


@pytest.mark.parametrize("is_edited", [False, True])
def test_first_start_with_the_file_of_an_earlier_version(
    north: RestartedManager, *, is_edited: bool
) -> None:
    """It replaces the settings' own value only; the next edit counts."""
    north.start(entry("a"))
    if is_edited:
        north.set_broker(ALL, entry("b").broker_info)
    remove_configured(north.path)

    expected = entry("b" if is_edited else "c")
    assert north.start(entry("c")).brokers == (expected,)
    assert north.start(entry("c")).brokers == (expected,)
    assert north.start(entry("d")).brokers == (entry("d"),)


def test_field_of_a_later_version_is_ignored(north: RestartedManager) -> None:
    """An older program reads the file of a newer one."""
    north.start(entry("a"))
    content = msgspec.json.decode(north.path.read_bytes())
    north.path.write_bytes(msgspec.json.encode({**content, "later": 1}))

    assert storage.load_registry(north.path, "north") == north.registry
