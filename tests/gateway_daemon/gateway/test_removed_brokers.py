"""What a distributed broker has stored for a gateway when it leaves the table."""

import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client

from edge_agent.queue.base import format_waiting
from edge_agent.queue.sqlite_queue import SqliteQueue
from gateway_daemon.gateway.downstream import (
    DRAIN_S,
    DeliveryParser,
    Downstream,
)
from gateway_daemon.gateway.egress import ArrivalTimes, Lane
from service_runtime.crash_guard import CrashGuard, DeadLetters
from service_runtime.tls import Endpoint
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable
from spatial_mqtt.transport import ConnectionHandler, Session

pytestmark = pytest.mark.broker

WITHOUT = BrokerTable(2, ())


def connect(
    endpoint: Endpoint, session: Session, handler: ConnectionHandler
) -> Connection:
    backoff = Backoff(random.Random(1), base_s=0.05, cap_s=0.2)
    return Connection(endpoint, session, handler, backoff=backoff)


class _Writer(Client):
    """A client that counts what its broker has acknowledged."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self.published: list[int] = []
        super().__init__(endpoint, name)

    def on_published(self, token: int, refused: str | None) -> None:
        self.published.append(token)


class Gateway:
    """Runs of a gateway's downstream with one client filter, and its clock."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        port = broker.endpoint.port
        entries = (BrokerEntry("/", BrokerInfo("127.0.0.1", port)),)
        self.table = BrokerTable(1, entries)
        self.skipped_s = 0.0
        letters = DeadLetters(folder / "letters")
        self._guard = CrashGuard(folder / "slot", letters, "b").open()
        self._path = folder / "local.db"
        self._thread = threading.Thread()

    def start(self, *tables: BrokerTable) -> None:
        self.queue = SqliteQueue(self._path, "gw", "b", 10**7)
        lane = Lane(self.queue, ArrivalTimes(0.0))
        self.downstream = Downstream(
            "gw", connect, lane, Endpoint("127.0.0.1", 1),
            parser=DeliveryParser(1, self._guard),
            watchdog=LoopWatchdog(lambda: time.monotonic() + self.skipped_s),
        )  # fmt: skip
        self.downstream.set_filters(frozenset({"/1/#"}))
        self.downstream.use_tables(*(tables or (self.table,)))
        self._thread = threading.Thread(
            target=self.downstream.run, args=(lambda: None,)
        )
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.downstream.stop()
            self._thread.join()
            self.downstream.close()

    def let_pass(self) -> None:
        """Let a removed broker be idle for long enough, with a look at the clock."""
        self.skipped_s += 2 * DRAIN_S
        time.sleep(7)

    @property
    def waiting(self) -> str:
        """Number of stored messages by priority."""
        return format_waiting(self.queue.stats())

    @property
    def brokers(self) -> list[BrokerInfo]:
        """Brokers with a connection."""
        return list(self.downstream._subscribers)  # noqa: SLF001


@pytest.fixture
def gateway(broker: Broker, tmp_path: Path) -> Iterator[Gateway]:
    created = Gateway(broker, tmp_path)
    yield created
    created.stop()


def store_twenty(broker: Broker, gateway: Gateway) -> _Writer:
    """Publish messages that the broker stores for the gateway, which has stopped."""
    gateway.start()
    wait_until(lambda: gateway.downstream.is_confirmed)
    gateway.stop()
    writer = _Writer(broker.endpoint, "writer")
    for number in range(20):
        writer.publish("/1/2", b"%d" % number)
    wait_until(lambda: len(writer.published) == 20)
    return writer


def test_removed_broker_delivers_what_it_has_stored_when_it_returns(
    broker: Broker, gateway: Gateway
) -> None:
    """It hangs for longer than the old table counts."""
    writer = store_twenty(broker, gateway)
    writer.connection.stop()
    broker.signal(signal.SIGSTOP)
    gateway.start()
    gateway.downstream.use_tables(WITHOUT)
    gateway.skipped_s += 10 * DRAIN_S
    time.sleep(7)  # two looks at the clock
    broker.signal(signal.SIGCONT)

    wait_until(lambda: gateway.waiting == "1:20")
    gateway.skipped_s += 2 * DRAIN_S
    wait_until(lambda: not gateway.brokers)


def test_removed_broker_that_returns_to_the_table_stays(
    broker: Broker, gateway: Gateway
) -> None:
    """It gets the filters again, over the same connection."""
    gateway.start()
    wait_until(lambda: gateway.downstream.is_confirmed)
    gateway.downstream.use_tables(WITHOUT)
    gateway.downstream.use_tables(gateway.table)
    wait_until(lambda: gateway.downstream.is_confirmed)
    gateway.skipped_s += 2 * DRAIN_S
    time.sleep(6)
    Client(broker.endpoint, "writer").publish("/1/2", b"later")

    wait_until(lambda: gateway.waiting == "1:1")
    gateway.downstream.use_tables(WITHOUT)
    gateway.skipped_s += 2 * DRAIN_S
    wait_until(lambda: not gateway.brokers)


@pytest.mark.parametrize("hangs", [False, True])
def test_broker_that_was_removed_before_a_restart_delivers_what_it_has_stored(
    broker: Broker, gateway: Gateway, hangs: bool
) -> None:
    """Other gateways may still publish there; then it is forgotten."""
    writer = store_twenty(broker, gateway)
    if hangs:
        broker.signal(signal.SIGSTOP)
        gateway.start(WITHOUT)
        gateway.let_pass()
        gateway.stop()
        broker.signal(signal.SIGCONT)
    gateway.start(WITHOUT)
    wait_until(lambda: gateway.waiting == "1:20")
    writer.publish("/1/2", b"by the old table")
    wait_until(lambda: gateway.waiting == "1:21")
    writer.connection.stop()

    gateway.let_pass()
    gateway.skipped_s += 2 * DRAIN_S
    wait_until(lambda: not gateway.brokers)
    gateway.stop()
    gateway.start(WITHOUT)
    assert gateway.brokers == []
