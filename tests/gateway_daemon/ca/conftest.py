"""An authority with certificates, and brokers that are stopped after the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trust_bench import Person, Town, TrustedBroker


@pytest.fixture
def town(tmp_path: Path) -> Town:
    """A certificate authority."""
    return Town(tmp_path / "ca")


@pytest.fixture
def make_trusted(tmp_path: Path, town: Town) -> Iterator[Callable[..., TrustedBroker]]:
    """Start brokers with certificates of the authority."""
    brokers: list[TrustedBroker] = []

    def make(kind: str, owner: str) -> TrustedBroker:
        brokers.append(TrustedBroker(tmp_path, town, kind, owner))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture
def join() -> Iterator[Callable[..., Person]]:
    """Connect clients that are disconnected after the test."""
    clients: list[Person] = []

    def make(*args: object, **more: object) -> Person:
        clients.append(Person(*args, **more))
        return clients[-1]

    yield make
    for client in clients:
        client.stop()
