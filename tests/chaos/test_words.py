"""What counts as forgotten of what administrators said."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos.words import Words, areas
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
    keep(made)
    return made


@pytest.fixture
def words(paths: list[Path], make_broker: Callable[[], Broker]) -> Iterator[Words]:
    """Two desks."""
    made = Words({path: make_broker().endpoint for path in paths}, BROKER)
    yield made
    made.close()


def keep(paths: list[Path], *topics: str) -> None:
    """Both know these areas."""
    known = Registry("m-1")
    for topic in topics:
        known = known.with_broker(BrokerEntry(topic, BROKER), 1)
    for path in paths:
        storage.save_registry(path, storage.RegistrySnapshot.from_registry(known))


FIRST = ("/4/0/1/0/0/0/0/0", "/4/1/1/0/0/0/0/0")
SECOND = ("/4/0/2/0/0/0/0/0", "/4/1/2/0/0/0/0/0")


def test_area_that_was_taken_back_late_is_not_forgotten(
    words: Words, paths: list[Path]
) -> None:
    """The word may be served after the last look at the file."""
    words.say()
    keep(paths, *FIRST)
    words.note()
    words.say()
    words.note()
    keep(paths, *SECOND)

    assert words.contradictions() == []
    assert areas(paths[0]) == {*SECOND}


def test_area_that_nobody_took_back_is_forgotten(
    words: Words, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that only one of them knows is a contradiction."""
    monkeypatch.setattr("chaos.words.SEEN_WITHIN_S", 0.0)
    words.say()
    keep(paths, *FIRST)
    words.note()
    keep(paths, FIRST[0])
    forgotten = words.contradictions()
    keep(paths[:1], *FIRST)

    assert forgotten == [f"{FIRST[1]} is forgotten"]
    assert words.contradictions() == [f"{FIRST[1]} is known to one"]
