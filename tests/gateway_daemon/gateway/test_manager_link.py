"""Link of a gateway to a Manager's broker: forms that others read, and load meters."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client

from gateway_daemon.gateway.manager_link import CpuMeter, ManagerLink, TopicMeter
from spatial_mqtt.connection import Connection
from spatial_mqtt.custody import COMPACT_FORM
from spatial_mqtt.directory import (
    MAX_CELLS,
    AreaSetting,
    BrokerEntry,
    BrokerInfo,
    BrokerTable,
    GatewayLocation,
    encode_directory_message,
)
from spatial_mqtt.topics import GATEWAY_INFO, gateway_location_topic

pytestmark = pytest.mark.broker

OWN, PEER, OTHER = (BrokerInfo("127.0.0.1", port) for port in (1001, 1002, 1003))


class NoTables:
    """Ignores the Manager's tables."""

    def on_table(self, table: BrokerTable, link: ManagerLink) -> None:
        pass

    def on_complete(self, link: ManagerLink, version: int | None) -> None:
        pass


@dataclass
class Directory:
    """A Manager's broker, what is retained there, and the link of a gateway."""

    broker: Broker
    link: ManagerLink
    manager: Client

    def list_gateways(self, *gateways: BrokerInfo) -> None:
        entries = [BrokerEntry("/", each) for each in gateways]
        payload = encode_directory_message(entries)
        self.manager.publish(GATEWAY_INFO, payload, retain=True)

    def describe(self, name: str, gateway: BrokerInfo, *reads: str) -> None:
        location = GatewayLocation(gateway, reads=reads)
        self._retain(name, encode_directory_message(location))

    def describe_wrongly(self, name: str) -> None:
        self._retain(name, b"{}")

    def remove(self, name: str) -> None:
        self._retain(name, b"")

    def _retain(self, name: str, payload: bytes) -> None:
        self.manager.publish(gateway_location_topic(name), payload, retain=True)

    def wait_for(self, *, compact: bool) -> None:
        wait_until(lambda: self.link.has_compact_peers == compact)


@pytest.fixture
def directory(make_broker: Callable[[], Broker]) -> Iterator[Directory]:
    broker = make_broker()
    link = ManagerLink(
        "gw",
        AreaSetting(OWN, topics=()),
        lambda session, handler: Connection(broker.endpoint, session, handler),
        NoTables(),
        time.monotonic,
        has_certificates=False,
    )
    manager = Client(broker.endpoint, "manager")
    created = Directory(broker, link, manager)
    link.start()
    yield created
    link.stop()
    created.manager.connection.stop()


def test_compact_form_once_all_others_read_it(directory: Directory) -> None:
    """Without the Manager's list nothing is known of the others."""
    directory.describe("peer", PEER, COMPACT_FORM)
    time.sleep(0.2)
    assert not directory.link.has_compact_peers
    directory.list_gateways(OWN)
    directory.wait_for(compact=True)
    directory.list_gateways(OWN, PEER, OTHER)
    directory.wait_for(compact=False)
    directory.describe("other", OTHER, COMPACT_FORM)
    directory.wait_for(compact=True)


def test_earlier_version_of_a_gateway_ends_the_compact_form(
    directory: Directory,
) -> None:
    """It retains no forms, or nothing, on the topic of the version before."""
    directory.describe("peer", PEER, COMPACT_FORM)
    directory.list_gateways(OWN, PEER)
    for end in (
        lambda: directory.remove("peer"),
        lambda: directory.describe("peer", PEER),
        lambda: directory.describe("rogue", PEER),
        lambda: directory.describe_wrongly("peer"),
    ):
        directory.wait_for(compact=True)
        end()
        directory.wait_for(compact=False)
        directory.remove("rogue")
        directory.describe("peer", PEER, COMPACT_FORM)


def test_gateway_that_is_listed_no_longer_counts(directory: Directory) -> None:
    """Its session may hold messages for its return."""
    directory.list_gateways(OWN)
    directory.wait_for(compact=True)
    directory.list_gateways(OWN, PEER)
    directory.wait_for(compact=False)
    directory.list_gateways(OWN)
    directory.describe("other", OTHER, COMPACT_FORM)
    time.sleep(0.2)

    assert not directory.link.has_compact_peers


def test_nothing_is_known_while_the_manager_is_away(directory: Directory) -> None:
    """Gateways may join at other Managers; afterwards everything is read again."""
    directory.describe("peer", PEER, COMPACT_FORM)
    directory.list_gateways(OWN, PEER)
    directory.wait_for(compact=True)
    directory.broker.kill()
    directory.wait_for(compact=False)
    directory.broker.start()  # its retained messages are lost
    directory.manager.connection.stop()
    directory.manager = Client(directory.broker.endpoint, "manager")
    directory.list_gateways(OWN, PEER)
    time.sleep(0.2)
    assert not directory.link.has_compact_peers
    directory.describe("peer", PEER, COMPACT_FORM)
    directory.wait_for(compact=True)


def test_rates_cover_the_time_between_two_reads() -> None:
    """Each read resets the counts."""
    times = iter([0.0, 10.0, 12.0])
    meter = TopicMeter(lambda: next(times))
    meter.count(["/3/1"] * 30 + ["/3/2"] * 10)

    report = meter.read()
    assert (report.per_s, report.cells) == (4.0, (("/3/1", 3.0), ("/3/2", 1.0)))
    assert meter.read().cells == ()


def test_only_the_busiest_topics_are_named() -> None:
    """The others are included in the sum."""
    times = iter([0.0, 1.0])
    meter = TopicMeter(lambda: next(times))
    for number in range(MAX_CELLS + 5):
        meter.count([f"/3/{number}"] * (number + 1))
    report = meter.read()

    assert len(report.cells) == MAX_CELLS
    assert report.cells[0] == (f"/3/{MAX_CELLS + 4}", MAX_CELLS + 5)
    assert report.per_s == sum(range(MAX_CELLS + 6))


def test_cpu_load_is_the_share_of_ticks_that_are_not_idle(tmp_path: Path) -> None:
    """Fields as in proc(5); iowait counts as idle."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1\n")
    cpu = CpuMeter(stat)
    stat.write_text("cpu  160 0 115 820 5 0 0 0 0 0\ncpu0 1 1 1\n")

    assert cpu.read() == 0.75
    assert 0.0 <= CpuMeter().read() <= 1.0
