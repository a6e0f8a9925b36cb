"""Lanes when the broker table changes, over real uplinks to brokers that are away."""

import time
from collections.abc import Iterator

import pytest
from conftest import free_port

from edge_agent.queue.base import MessageDraft, Queue
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.publications import SenderProfile
from edge_agent.uplink.rate_limit import RateLimiter
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.gateway.egress import Egress
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable

TOPIC = "/3/1/2"


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """Of the queues."""
    return Clock()


@pytest.fixture
def queues() -> dict[BrokerInfo | None, MemoryQueue]:
    """By their broker."""
    return {}


@pytest.fixture
def lanes(
    clock: Clock, queues: dict[BrokerInfo | None, MemoryQueue]
) -> Iterator[Egress]:
    """A gateway's, before its first table."""

    def make_queue(broker: BrokerInfo | None) -> Queue:
        return queues.setdefault(broker, MemoryQueue("gw", "b", 10**6, clock))

    def make_uplink(_broker: BrokerInfo, queue: Queue) -> Uplink:
        return Uplink(
            queue, SenderProfile("gw"), Connection, RateLimiter(), time.monotonic
        )

    made = Egress(
        make_queue, make_uplink, tls=False, watchdog=LoopWatchdog(time.monotonic)
    )
    yield made
    made.close()


def test_message_that_moves_to_another_lane_keeps_its_age(
    lanes: Egress, clock: Clock, queues: dict[BrokerInfo | None, MemoryQueue]
) -> None:
    """It was late before it came, and waited here for a broker: both count."""
    lanes.put([MessageDraft(3, TOPIC, lambda _id: b"x", age_s=500.0)])
    clock.now_s += 100.0
    broker = BrokerInfo("127.0.0.1", free_port())
    lanes.apply_table(BrokerTable(1, (BrokerEntry("/3", broker),)))

    (moved,) = queues[broker].lease()
    assert queues[broker].age_s(moved) == pytest.approx(600.0)
    assert not queues[None].lease()


def test_area_that_leaves_a_broker_that_is_down_takes_its_messages_along(
    lanes: Egress, queues: dict[BrokerInfo | None, MemoryQueue]
) -> None:
    """Its other areas wait for it, and can still be sent."""
    dead, alive = (BrokerInfo("127.0.0.1", free_port()) for _ in range(2))
    lanes.apply_table(
        BrokerTable(1, (BrokerEntry("/3/1", dead), BrokerEntry("/3/2", dead)))
    )
    lanes.put([
        MessageDraft(p, f"/3/{p % 2 + 1}/0", lambda _id: b"x") for p in (5, 4, 3, 2)
    ])
    lanes.apply_table(
        BrokerTable(2, (BrokerEntry("/3/1", dead), BrokerEntry("/3/2", alive)))
    )

    assert [m.priority for m in queues[alive].lease(9)] == [5, 3]
    assert [m.priority for m in queues[dead].lease(9)] == [4, 2]


def test_message_without_broker_waits_for_the_table_that_names_one(
    lanes: Egress, queues: dict[BrokerInfo | None, MemoryQueue]
) -> None:
    """Tables that name others only do not lose sight of it."""
    broker = BrokerInfo("127.0.0.1", free_port())
    lanes.put([MessageDraft(5, TOPIC, lambda _id: b"x")])
    lanes.apply_table(BrokerTable(1, (BrokerEntry("/4", broker),)))
    lanes.apply_table(
        BrokerTable(2, (BrokerEntry("/4", broker), BrokerEntry("/3", broker)))
    )

    assert [m.topic for m in queues[broker].lease(9)] == [TOPIC]
    assert not queues[None].lease()
