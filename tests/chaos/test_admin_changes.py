"""Which changes of administrators count as lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos.admin_changes import AdminChanges, areas
from conftest import Broker

from gateway_daemon.manager import storage
from gateway_daemon.manager.registry import Registry
from spatial_mqtt.directory import BrokerEntry, BrokerInfo

pytestmark = pytest.mark.broker

BROKER = BrokerInfo("10.0.0.1", 1883)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Files of two Managers."""
    made = [tmp_path / name / "registry.json" for name in ("m-1", "m-2")]
    write_registries(made)
    return made


@pytest.fixture
def changes(
    paths: list[Path], make_broker: Callable[[], Broker]
) -> Iterator[AdminChanges]:
    """An administrator at each of two Managers."""
    made = AdminChanges({path: make_broker().endpoint for path in paths}, BROKER)
    yield made
    made.close()


def write_registries(paths: list[Path], *topics: str) -> None:
    """Write these areas to both registries."""
    known = Registry("m-1")
    for topic in topics:
        known = known.with_broker(BrokerEntry(topic, BROKER), 1)
    for path in paths:
        storage.save_registry(path, storage.RegistrySnapshot.from_registry(known))


FIRST = ("/4/0/1/0/0/0/0/0", "/4/1/1/0/0/0/0/0")
SECOND = ("/4/0/2/0/0/0/0/0", "/4/1/2/0/0/0/0/0")


def test_area_whose_removal_takes_effect_late_is_not_lost(
    changes: AdminChanges, paths: list[Path]
) -> None:
    """The removal may be processed after the file was read for the last time."""
    changes.publish()
    write_registries(paths, *FIRST)
    changes.record()
    changes.publish()
    changes.record()
    write_registries(paths, *SECOND)

    assert changes.contradictions() == []
    assert areas(paths[0]) == {*SECOND}


def test_area_that_vanishes_without_a_removal_is_lost(
    changes: AdminChanges, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An area known to one Manager only is a contradiction."""
    monkeypatch.setattr("chaos.admin_changes.SEEN_WITHIN_S", 0.0)
    changes.publish()
    write_registries(paths, *FIRST)
    changes.record()
    write_registries(paths, FIRST[0])
    lost = changes.contradictions()
    write_registries(paths[:1], *FIRST)

    assert lost == [f"{FIRST[1]} is lost"]
    assert changes.contradictions() == [f"{FIRST[1]} is known to one"]
