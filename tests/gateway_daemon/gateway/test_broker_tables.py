"""By which broker tables a gateway subscribes while tables change."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway_daemon.gateway.gateway import COMPLETE_TIMEOUT_S, LINGER_S, Gateway
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.directory import BrokerEntry, BrokerInfo, BrokerTable

ROOT, EAST, WEST = (BrokerInfo(host, 1883) for host in ("root", "east", "west"))
FIRST = BrokerTable(1, (BrokerEntry("/", ROOT),))
SECOND = BrokerTable(2, (*FIRST.brokers, BrokerEntry("/3/1", EAST)))
THIRD = BrokerTable(3, (*SECOND.brokers, BrokerEntry("/3/2", WEST)))


class _Link:
    """Link to a Manager that publishes when all gateways are ready."""

    announces_ready = True


class Tables:
    """A gateway without brokers, and the versions that it subscribes by."""

    def __init__(self, path: Path) -> None:
        self.now_s = 1000.0
        self.versions: list[int] = []
        self._link = cast("Any", _Link())
        egress = SimpleNamespace(
            table=BrokerTable(-1, ()),
            needs_table=True,
            publishes_to_both=False,
            apply_table=self._apply,
            move_leftovers=lambda: None,
            settle=lambda: None,
        )
        downstream = SimpleNamespace(use_tables=self._use, is_confirmed=False)
        self._egress = egress
        self._gateway = Gateway(
            cast("Any", egress),
            cast("Any", SimpleNamespace(run=lambda _: None)),
            cast("Any", downstream),
            path,
            lambda: self.now_s,
            watchdog=LoopWatchdog(lambda: self.now_s),
        )
        self._gateway._links = (self._link,)  # noqa: SLF001 - it has no thread here

    def _apply(self, table: BrokerTable) -> None:
        self._egress.table = table

    def _use(self, *tables: BrokerTable) -> None:
        self.versions = [table.version for table in tables]

    @property
    def in_use(self) -> int:
        """Version of the table by which messages are published."""
        return int(self._egress.table.version)

    def publish(self, table: BrokerTable) -> None:
        """A Manager publishes a table."""
        self._gateway._add_table(table, self._link)  # noqa: SLF001

    def complete(self) -> None:
        """All gateways subscribe by it."""
        self._gateway._complete(self._link, None)  # noqa: SLF001

    def wait(self, for_s: float) -> None:
        """Let time pass."""
        self.now_s += for_s
        self._gateway._check_timeouts()  # noqa: SLF001


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """After the first table, for a long time."""
    tables = Tables(tmp_path / "table.json")
    tables.publish(FIRST)
    tables.wait(2 * LINGER_S)
    return tables


def test_two_changes_in_a_row_end_no_subscription_early(tables: Tables) -> None:
    """Other gateways may publish by the first table until its own time is over."""
    tables.publish(SECOND)
    tables.complete()
    tables.wait(5)
    tables.publish(THIRD)
    assert tables.versions == [1, 2, 3]

    tables.complete()
    tables.wait(LINGER_S - 6)
    assert tables.versions == [1, 2, 3]
    tables.wait(2)
    assert tables.versions == [2, 3]
    tables.wait(5)
    assert tables.versions == [3]


def test_older_table_of_a_manager_that_begins_anew_is_not_used_at_once(
    tables: Tables,
) -> None:
    """Its broker may retain it from before, or the Manager not know all records yet."""
    tables.publish(SECOND)
    tables.complete()
    tables.publish(FIRST)
    tables.complete()
    assert tables.in_use == 2
    tables.publish(SECOND)
    tables.wait(COMPLETE_TIMEOUT_S)
    assert tables.in_use == 2


def test_older_table_of_a_manager_without_a_registry_is_used_in_the_end(
    tables: Tables,
) -> None:
    """It does not return to the newer one."""
    tables.publish(SECOND)
    tables.complete()
    tables.publish(FIRST)
    tables.complete()
    tables.wait(COMPLETE_TIMEOUT_S)
    assert tables.in_use == 1
