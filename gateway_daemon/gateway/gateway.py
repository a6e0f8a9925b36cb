"""A gateway put together: presence at Managers, lanes to brokers, front to clients."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from gateway_daemon.gateway.front import Front
from gateway_daemon.gateway.lanes import Lanes
from gateway_daemon.gateway.presence import Presence
from spatial_mqtt.directory import BrokerTable, decode_table, encode
from spatial_mqtt.errors import DirectoryError

log = logging.getLogger(__name__)


class Gateway:
    """Runs one gateway.

    Clients are served only once a broker table is known, from a Manager or from
    the last run: a message that is taken must have somewhere to go.

    Args:
        lanes: The ways to the brokers.
        front: The client side.
        table_path: File that keeps the last broker table.
    """

    def __init__(self, lanes: Lanes, front: Front, table_path: Path) -> None:
        self._lanes = lanes
        self._front = front
        self._table_path = table_path
        self._tables: SimpleQueue[tuple[BrokerTable, Presence | None] | None] = (
            SimpleQueue()
        )
        self._presences: list[Presence] = []
        self._front_thread: threading.Thread | None = None

    def run(self, presences: Sequence[Presence]) -> None:
        """Serve until `stop`."""
        self._presences = list(presences)
        self._recall_table()
        for presence in self._presences:
            presence.start()
        while (told := self._tables.get()) is not None:
            self._apply(*told)

    def on_table(self, table: BrokerTable, presence: Presence) -> None:
        """A Manager published a broker table."""
        self._tables.put((table, presence))

    def stop(self) -> None:
        """End `run`, leaving every message in its queue."""
        self._tables.put(None)
        for presence in self._presences:
            presence.stop()
        self._front.stop()
        if self._front_thread is not None:
            self._front_thread.join()
        self._lanes.close()

    def _apply(self, table: BrokerTable, presence: Presence | None) -> None:
        if table != self._lanes.table:
            self._lanes.apply(table)
            log.info("broker table %d: %s", table.version, _words(table))
            self._remember_table(table)
        if presence is not None:
            presence.applied(table.version)
        if table.brokers and self._front_thread is None:
            self._front_thread = threading.Thread(target=self._front.run, name="front")
            self._front_thread.start()

    def _recall_table(self) -> None:
        try:
            table = decode_table(self._table_path.read_bytes())
        except FileNotFoundError:
            log.info("no broker table yet; clients wait until a manager sends one")
        except (OSError, DirectoryError) as error:
            log.warning("the last broker table cannot be used: %s", error)
        else:
            self._tables.put((table, None))

    def _remember_table(self, table: BrokerTable) -> None:
        fresh = self._table_path.with_suffix(".new")
        fresh.write_bytes(encode(table))
        fresh.replace(self._table_path)


def _words(table: BrokerTable) -> str:
    return ", ".join(f"{e.topic} -> {e.broker_info}" for e in table.brokers) or "empty"
