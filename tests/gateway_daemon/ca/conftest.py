"""A town with certificates, and brokers that end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trust_bench import Person, Town, TrustedBroker


@pytest.fixture
def town(tmp_path: Path) -> Town:
    """An authority."""
    return Town(tmp_path / "ca")


@pytest.fixture
def make_trusted(tmp_path: Path, town: Town) -> Iterator[Callable[..., TrustedBroker]]:
    """Start brokers of the town."""
    brokers: list[TrustedBroker] = []

    def make(kind: str, owner: str) -> TrustedBroker:
        brokers.append(TrustedBroker(tmp_path, town, kind, owner))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture
def join() -> Iterator[Callable[..., Person]]:
    """Connect people, who leave with the test."""
    people: list[Person] = []

    def make(*args: object, **more: object) -> Person:
        people.append(Person(*args, **more))
        return people[-1]

    yield make
    for person in people:
        person.stop()
