"""A gateway whose disk is full, with real queue files."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import free_port, wait_until
from soak.disk import fill, mounted

from edge_agent.queue.base import COMMIT_PUTS_DEFER_ACKS, MessageDraft, Queue
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.gateway.downstream import (
    BrokerSubscriber,
    DeliveryParser,
    Downstream,
    ReceivedMessage,
)
from gateway_daemon.gateway.egress import ArrivalTimes, Egress, Lane
from service_runtime.crash_guard import CrashGuard, DeadLetters
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Heartbeat, LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable
from spatial_mqtt.transport import IncomingMessage

TOPIC = "/3/1/2"
COUNT = 50


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 megabytes."""
    with mounted(tmp_path / "disk", "16m") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        yield disk


@pytest.fixture
def open_egress(disk: Path) -> Iterator[Callable[[], Egress]]:
    """Opens the lanes of a gateway whose brokers cannot be reached."""
    opened: list[Egress] = []

    def make_queue(broker: BrokerInfo | None) -> Queue:
        name = f"{broker.host}-{broker.port}" if broker else "nowhere"
        path, at = disk / f"{name}.db", COMMIT_PUTS_DEFER_ACKS
        return SqliteQueue(path, "gw", "b", 10**7, durability=at)

    def make_uplink(_broker: BrokerInfo, queue: Queue) -> Uplink:
        profile, limit = SenderProfile("gw"), RateLimiter()
        return Uplink(queue, profile, Connection, limit, time.monotonic)

    def open_one() -> Egress:
        watchdog = LoopWatchdog(time.monotonic)
        opened.append(Egress(make_queue, make_uplink, tls=False, watchdog=watchdog))
        return opened[-1]

    yield open_one
    for egress in opened:
        egress.close()


def table(version: int, *brokers: BrokerInfo) -> BrokerTable:
    """A table that gives `TOPIC` to the last broker."""
    topics = ("/", "/3", "/3/1")
    entries = [BrokerEntry(t, b) for t, b in zip(topics, brokers, strict=False)]
    return BrokerTable(version, tuple(entries))


def broker() -> BrokerInfo:
    return BrokerInfo("127.0.0.1", free_port())


def drafts() -> list[MessageDraft]:
    return [MessageDraft(2, TOPIC, lambda _id: bytes(20_000)) for _ in range(COUNT)]


def waiting(egress: Egress) -> dict[BrokerInfo | None, int]:
    """Messages in each lane that has any."""
    rows = {
        each: sum(depth.rows for depth in status.stats.depth.values())
        for each, status in egress.lane_status().items()
    }
    return {each: count for each, count in rows.items() if count}


def test_lane_that_cannot_be_opened_is_opened_when_there_is_space(
    disk: Path, open_egress: Callable[[], Egress]
) -> None:
    """Neither the gateway nor its other lanes stop, and nothing is lost."""
    old, new = broker(), broker()
    egress = open_egress()
    egress.apply_table(table(1, old))
    egress.put(drafts())
    filler = fill(disk)
    egress.apply_table(table(2, old, new))
    urgent = MessageDraft(5, TOPIC, lambda _id: b"alarm")
    assert egress.put([urgent]) == 1
    egress.settle()
    assert waiting(egress) == {old: COUNT, None: 1}

    filler.unlink()
    egress.settle()
    assert waiting(egress) == {new: COUNT + 1}


@pytest.mark.parametrize("keeps_area", [True, False])
def test_messages_stay_until_the_other_lane_takes_them(
    disk: Path, open_egress: Callable[[], Egress], keeps_area: bool
) -> None:
    """Whether their broker is still in the table or not."""
    old, new = broker(), broker()
    egress = open_egress()
    egress.apply_table(table(1, new, old))
    egress.put(drafts())
    filler = fill(disk)
    egress.apply_table(table(2, *([old] if keeps_area else []), new))
    assert waiting(egress) == {old: COUNT}

    filler.unlink()
    egress.settle()
    assert waiting(egress) == {new: COUNT}
    egress.move_leftovers()
    assert (old in egress.lane_status()) == keeps_area


def test_lane_of_a_lost_table_is_moved(
    disk: Path, open_egress: Callable[[], Egress]
) -> None:
    """A gateway that restarts without its table still has the file of the lane."""
    old, new = broker(), broker()
    before = open_egress()
    before.apply_table(table(1, old))
    before.put(drafts())
    before.close()
    egress = open_egress()
    egress.adopt([old])
    assert waiting(egress) == {old: COUNT}
    egress.apply_table(table(2, new))

    assert waiting(egress) == {new: COUNT}
    assert old not in egress.lane_status()
    egress.apply_table(table(3, old))
    wait_until(lambda: waiting(egress) == {old: COUNT})


def test_damaged_lane_is_recovered_when_there_is_space(
    disk: Path, open_egress: Callable[[], Egress]
) -> None:
    """The gateway goes on without it, although its messages are not readable."""
    only = broker()
    before = open_egress()
    before.apply_table(table(1, only))
    before.put(drafts())
    before.close()
    (lane,) = disk.glob("127*.db")
    lane.write_bytes(b"\xff" * 100 + lane.read_bytes()[100:])
    filler = fill(disk)
    os.truncate(filler, filler.stat().st_size - 1_500_000)
    egress = open_egress()
    egress.adopt([only])
    egress.apply_table(table(1, only))
    assert egress.put([MessageDraft(5, TOPIC, lambda _id: b"alarm")]) == 1
    egress.settle()
    assert waiting(egress) == {None: 1}

    filler.unlink()
    egress.settle()
    assert waiting(egress) == {only: COUNT + 1}


@dataclass
class Deliveries:
    """Downstream of a gateway, and a subscriber that never connects."""

    downstream: Downstream
    subscriber: BrokerSubscriber

    def message(self, priority: int, payload: bytes) -> ReceivedMessage:
        at = (1, priority)
        incoming = IncomingMessage(TOPIC, payload, 1, False, priority, None, None, at)
        return ReceivedMessage(incoming, self.subscriber)

    def store(self, batch: Sequence[ReceivedMessage], beat: Heartbeat) -> bool:
        return self.downstream._store_until_stop(batch, beat)  # noqa: SLF001

    def arrive(self, message: ReceivedMessage) -> None:
        self.downstream._inbox.put(message)  # noqa: SLF001


@pytest.fixture
def open_deliveries(tmp_path: Path) -> Iterator[Callable[[Queue], Deliveries]]:
    opened: list[Deliveries] = []
    endpoint, clock = Endpoint("127.0.0.1", free_port(), None), time.monotonic
    guard = CrashGuard(tmp_path / "slot", DeadLetters(tmp_path / "letters"), "b").open()

    def open_one(queue: Queue) -> Deliveries:
        downstream = Downstream(
            "gw", Connection, Lane(queue, ArrivalTimes(0.0)), endpoint,
            parser=DeliveryParser(1, guard), watchdog=LoopWatchdog(clock),
        )  # fmt: skip
        subscriber = BrokerSubscriber("gw", endpoint, Connection, id, lambda: None)
        opened.append(Deliveries(downstream, subscriber))
        return opened[-1]

    yield open_one
    for each in opened:
        each.subscriber.connection.stop()
        each.downstream.close()


def test_delivered_alarm_is_stored_before_the_readings_of_its_batch(
    disk: Path, open_deliveries: Callable[[Queue], Deliveries]
) -> None:
    """Readings wait with their broker while the disk is full."""
    queue = SqliteQueue(disk / "local.db", "gw", "b", 10**7)
    deliveries = open_deliveries(queue)
    filler = fill(disk)
    batch = [deliveries.message(1, bytes(300_000)), deliveries.message(5, b"alarm")]
    stored: list[int] = []

    def free_after_first_retry() -> None:
        if not stored:
            stored.extend(message.priority for message in queue.lease(9))
        filler.unlink(missing_ok=True)

    is_stored = deliveries.store(batch, free_after_first_retry)
    rest = [message.priority for message in queue.lease(9)]

    assert (is_stored, stored, rest) == (True, [5], [1])


def test_delivered_alarm_is_stored_while_earlier_readings_wait(
    tmp_path: Path, open_deliveries: Callable[[Queue], Deliveries]
) -> None:
    """It arrives after a batch that does not fit, and would wait as long as that."""
    queue = SqliteQueue(tmp_path / "local.db", "gw", "b", 1_000_000)
    deliveries = open_deliveries(queue)
    stored: list[int] = []

    def stop_after_first_try() -> None:
        stored.extend(message.priority for message in queue.lease(9))
        deliveries.downstream.stop()

    deliveries.arrive(deliveries.message(5, b"alarm"))
    is_stored = deliveries.store(
        [deliveries.message(1, bytes(980_000))], stop_after_first_try
    )

    assert (is_stored, stored) == (False, [5])


def test_more_deliveries_than_the_queue_holds_are_stored_in_parts(
    tmp_path: Path, open_deliveries: Callable[[Queue], Deliveries]
) -> None:
    """Together they never fit, also when the queue is empty."""
    queue = SqliteQueue(tmp_path / "local.db", "gw", "b", 1_000_000)
    deliveries = open_deliveries(queue)
    sent: list[int] = []

    def send_what_is_stored() -> None:
        leased = queue.lease(99)
        sent.extend(message.priority for message in leased)
        queue.ack([message.seq for message in leased])

    batch = [deliveries.message(4, bytes(90_000)) for _ in range(15)]
    assert deliveries.store(batch, send_what_is_stored)
    assert sent == [4] * 15
