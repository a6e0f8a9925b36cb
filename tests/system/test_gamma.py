"""Our programs mixed with those of the published Gamma, as `gamma_peer` plays them."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from conftest import Broker, wait_until
from gamma_peer import (
    Entry,
    GammaBroker,
    GammaClient,
    GammaGateway,
    GammaManager,
    Program,
)

pytestmark = pytest.mark.broker

P = TypeVar("P", bound=Program)

KOCHI = (33.5588, 133.5312)
"""Its cell is in face 1."""


@pytest.fixture
def started() -> Iterator[Callable[[P], P]]:
    """Start programs of the original, which end with the test."""
    running: list[Program] = []

    def start(program: P) -> P:
        program.start()
        running.append(program)
        return program

    yield start
    for program in running:
        program.stop()


def test_the_originals_among_themselves_deliver_and_double(
    make_broker: Callable[[], Broker], started: Callable[[P], P]
) -> None:
    """A gateway that died blocks an update; until it ends, two brokers deliver."""
    at, local, other, first, second = (make_broker() for _ in range(5))
    manager = started(GammaManager(at.endpoint))
    gateway = started(GammaGateway(at.endpoint, local.endpoint))
    started(GammaBroker(at.endpoint, Entry("/", first.endpoint)))
    wait_until(lambda: gateway.is_started)
    client = GammaClient(at.endpoint, *KOCHI)
    client.subscribe_at(*KOCHI)
    wait_until(lambda: client.publish_at(*KOCHI, b"1") or client.received)
    dying = started(GammaGateway(at.endpoint, other.endpoint))
    wait_until(lambda: manager.statuses.get(other.endpoint) == 0)
    dying.stop()

    started(GammaBroker(at.endpoint, Entry("/1", second.endpoint)))
    wait_until(lambda: manager.statuses[local.endpoint] == 1)
    client.publish_at(*KOCHI, b"2")
    wait_until(lambda: [p for _, p in client.received].count(b"2") == 2)

    assert gateway.pending is not None
    assert not gateway.ended + manager.ended
    client.close()
