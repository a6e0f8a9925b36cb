"""An authority with certificates, and brokers that are stopped after the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trust_bench import IssuingAuthority, Person, TrustedBroker


@pytest.fixture
def authority(tmp_path: Path) -> IssuingAuthority:
    """A certificate authority."""
    return IssuingAuthority(tmp_path / "ca")


@pytest.fixture
def make_trusted(
    tmp_path: Path, authority: IssuingAuthority
) -> Iterator[Callable[..., TrustedBroker]]:
    """Start brokers with certificates of the authority."""
    brokers: list[TrustedBroker] = []

    def make(kind: str, owner: str) -> TrustedBroker:
        brokers.append(TrustedBroker(tmp_path, authority, kind, owner))
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
