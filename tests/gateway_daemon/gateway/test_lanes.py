"""Lanes when the broker table changes, over real uplinks to brokers that are away."""

import time
from collections.abc import Iterator

import pytest
from conftest import free_port

from edge_agent.queue.base import Draft, Queue
from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.loads import Sender
from edge_agent.uplink.throttle import Throttle
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.gateway.lanes import Lanes
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo, BrokerTable, Entry
from spatial_mqtt.pulse import Pulse

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
) -> Iterator[Lanes]:
    """A gateway's, before its first table."""

    def make_queue(broker: BrokerInfo | None) -> Queue:
        return queues.setdefault(broker, MemoryQueue("gw", "b", 10**6, clock))

    def make_uplink(_broker: BrokerInfo, queue: Queue) -> Uplink:
        return Uplink(queue, Sender("gw"), Connection, Throttle(), time.monotonic)

    made = Lanes(make_queue, make_uplink, tls=False, pulse=Pulse(time.monotonic))
    yield made
    made.close()


def test_message_that_moves_to_another_lane_keeps_its_age(
    lanes: Lanes, clock: Clock, queues: dict[BrokerInfo | None, MemoryQueue]
) -> None:
    """It was late before it came, and waited here for a broker: both count."""
    lanes.put([Draft(3, TOPIC, lambda _id: b"x", age_s=500.0)])
    clock.now_s += 100.0
    broker = BrokerInfo("127.0.0.1", free_port())
    lanes.apply(BrokerTable(1, (Entry("/3", broker),)))

    (moved,) = queues[broker].lease()
    assert queues[broker].age_s(moved) == pytest.approx(600.0)
    assert not queues[None].lease()
