"""The gateway: selects the broker table, and starts and stops ingress and downstream.

A new broker table is applied in two steps. First the gateway subscribes by the new
table in addition to the old one, and reports that to the Manager. When every gateway
has done so, the Manager publishes "complete", and only then messages are published by
the new table: no message reaches a broker where a subscription is still missing.

At "complete" a gateway of the original Gamma drops its old subscriptions at once. Our
Manager therefore publishes the version of the table before it. Without that, at a
Manager of the original, messages are published by both tables during a change, as the
original's gateways do; subscribers with ids drop the second one.

Source: Gamma (seed 000) section 3.4.
"""

import logging
import math
import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from gateway_daemon.gateway.downstream import Downstream
from gateway_daemon.gateway.egress import Egress
from gateway_daemon.gateway.ingress import Ingress
from gateway_daemon.gateway.manager_link import ManagerLink
from service_runtime.files import write_best_effort
from service_runtime.lifecycle import Service, start_watched_loop
from service_runtime.watchdog import MAX_SILENCE_S, Heartbeat, LoopWatchdog
from spatial_mqtt.directory import (
    BrokerTable,
    decode_broker_table,
    encode_directory_message,
)
from spatial_mqtt.errors import DirectoryError

log = logging.getLogger(__name__)

RECALLED_VALID_S = 60.0
"""How long the table of the last run counts beside those of the Managers."""

COMPLETE_TIMEOUT_S = 60.0
"""A Manager that does not publish "complete" in this time may be down, or may wait for
a gateway that is."""

SETTLE_S, SEND_TIMEOUT_S = 1.0, 20.0
"""Shortest and longest wait for what was stored before messages went to both brokers;
less than the time-out of a Manager."""

LINGER_S = 90.0
"""How long the subscriptions of the old table are kept: other gateways may still
publish by it."""

SETTLE_EVERY_S = 10.0
"""How often moves between lanes that failed, as on a full disk, are tried again."""

LEFTOVERS_S = 45.0
"""When messages that wait for a broker of the old table move to one of the new table:
subscribers leave the old one after `LINGER_S`, on their own clocks."""

POLL_S = 1.0
REROUTE_S = 600.0
"""A new table may move all messages of a broker from one file to another."""


class TableSelector:
    """Selects the broker table that counts, without I/O.

    The newest table counts; of two with the same version (from Managers that a
    partition separates) every gateway selects the same. A Manager that lost its
    registry and restarts its versions is followed when no other has a newer table.

    Args:
        manager_count: Number of Managers.
        now_s: Monotonic seconds.
    """

    def __init__(self, manager_count: int, now_s: float) -> None:
        self._managers = manager_count
        self._recalled_until_s = now_s + RECALLED_VALID_S
        self._by_manager: dict[Hashable, BrokerTable] = {}
        self._recalled: BrokerTable | None = None

    def set_recalled(self, table: BrokerTable) -> None:
        """Set the table of the last run."""
        self._recalled = table

    def add(self, manager: Hashable, table: BrokerTable) -> None:
        """Set the table that a Manager published."""
        self._by_manager[manager] = table

    def latest_of(self, manager: Hashable) -> BrokerTable | None:
        """The last table that a Manager published."""
        return self._by_manager.get(manager)

    def newest(self, now_s: float) -> BrokerTable | None:
        """The table that counts; None before the first one."""
        tables = list(self._by_manager.values())
        is_early = now_s < self._recalled_until_s and len(tables) < self._managers
        if self._recalled is not None and (is_early or not tables):
            tables.append(self._recalled)
        return max(
            tables, key=lambda t: (t.version, encode_directory_message(t)), default=None
        )


class Gateway:
    """Runs one gateway.

    Clients are served only once there is a route: a broker table from a Manager or
    from the last run, or the overlay when ``route = "overlay"``.

    Args:
        egress: Egress to the brokers.
        ingress: Ingress of messages that clients publish.
        downstream: Downstream messages that clients subscribe to.
        table_path: File of the last broker table.
        clock: Monotonic seconds.
        watchdog: Watchdog of the loops.
    """

    def __init__(
        self,
        egress: Egress,
        ingress: Ingress,
        downstream: Downstream,
        table_path: Path,
        clock: Callable[[], float],
        *,
        watchdog: LoopWatchdog,
    ) -> None:
        self._egress = egress
        self._ingress = ingress
        self._downstream = downstream
        self._table_path = table_path
        self._clock = clock
        self._watchdog = watchdog
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._tables = TableSelector(0, clock())
        self._links: tuple[ManagerLink, ...] = ()
        self._services: tuple[Service, ...] = ()
        self._next: BrokerTable | None = None
        self._next_since_s = 0.0
        self._earlier: dict[BrokerTable, float] = {}
        self._leftovers_from_s = self._settle_at_s = math.inf
        self._unreported: list[tuple[ManagerLink, int]] = []
        self._threads: list[threading.Thread] = []

    def attach(self, manager_links: Sequence[ManagerLink], *services: Service) -> None:
        """Set the links to the Managers and the other services; before `run`."""
        self._tables = TableSelector(len(manager_links), self._clock())
        self._links, self._services = tuple(manager_links), services

    def run(self) -> None:
        """Serve until `stop`."""
        self._downstream.on_confirmed = lambda: self._events.put(self._report_applied)
        self._start("deliveries", self._downstream.run)
        if not self._egress.needs_table:
            self._serve_clients()
        self._recall_table()
        for service in (*self._services, *self._links):
            service.start()
        with self._watchdog.watch_loop("gateway", REROUTE_S) as heartbeat:
            self._handle_events(heartbeat)

    def on_table(self, table: BrokerTable, link: ManagerLink) -> None:
        self._events.put(lambda: self._add_table(table, link))

    def on_complete(self, link: ManagerLink, version: int | None) -> None:
        self._events.put(lambda: self._complete(link, version))

    def stop(self) -> None:
        """End `run`; every message stays in its queue."""
        self._events.put(None)
        for service in (*self._links, *self._services):
            service.stop()
        self._ingress.stop()
        self._downstream.stop()
        for thread in self._threads:
            thread.join()
        self._downstream.close()
        self._egress.close()

    @property
    def is_up(self) -> bool:
        """Whether clients' messages arrive now."""
        return self._ingress.is_up

    def status(self) -> str:
        """Status line: own broker, Managers, and the messages that wait."""
        reached = sum(link.is_up for link in self._links)
        if not self._egress.table.brokers and self._egress.needs_table:
            own = "no broker table yet, clients wait"
        else:
            own = f"own broker {'up' if self._ingress.is_up else 'DOWN'}"
        return "; ".join([
            own,
            f"{reached} of {len(self._links)} managers reached",
            *self._egress.summaries(self._clock()),
            f"for our clients {self._downstream.summary()}",
        ])

    def _handle_events(self, heartbeat: Heartbeat) -> None:
        while True:
            heartbeat()
            try:
                event = self._events.get(timeout=POLL_S)
            except Empty:
                event = self._check_timeouts
            if event is None:
                return
            event()

    def _add_table(self, table: BrokerTable, link: ManagerLink) -> None:
        self._tables.add(link, table)
        self._unreported.append((link, table.version))
        self._follow_newest()
        self._report_applied()

    def _follow_newest(self) -> None:
        """Begin the change to the newest table."""
        table, current = self._tables.newest(self._clock()), self._egress.table
        if table is None or table == (self._next or current):
            return
        if not current.brokers or table.brokers == current.brokers:
            self._next = None
            self._apply(table)
        else:
            self._next, self._next_since_s = table, self._clock()
            self._subscribe()
            if not any(link.announces_ready for link in self._links):
                self._egress.publish_to_both(table)

    def _report_applied(self) -> None:
        if not self._downstream.is_confirmed or not self._is_sent():
            return
        unreported, self._unreported = self._unreported, []
        for link, version in unreported:
            link.report_applied(version)

    def _is_sent(self) -> bool:
        """Whether what was stored before messages went to both brokers has been sent.

        After "complete" gateways of the original receive nothing from the old broker.
        """
        age_s = self._clock() - self._next_since_s
        if not self._egress.publishes_to_both or age_s >= SEND_TIMEOUT_S:
            return True
        return age_s >= SETTLE_S and self._egress.is_sent(age_s)

    def _complete(self, link: ManagerLink, version: int | None) -> None:
        table = self._tables.latest_of(link)
        if table is None or table != self._next or version not in {None, table.version}:
            return
        # What a broker of a Manager retains may be older than what is in use: the
        # Manager replaces it, or the table counts after `COMPLETE_TIMEOUT_S`.
        if table.version >= self._egress.table.version:
            self._apply_next()

    def _apply_next(self) -> None:
        if self._next is not None:
            table, self._next = self._next, None
            self._apply(table)

    def _check_timeouts(self) -> None:
        self._follow_newest()
        self._report_applied()
        if any(self._clock() >= until_s for until_s in self._earlier.values()):
            self._subscribe()
        if self._clock() >= self._leftovers_from_s:
            self._egress.move_leftovers()
        if self._clock() >= self._settle_at_s:
            self._settle_at_s = self._clock() + SETTLE_EVERY_S
            self._egress.settle()
        is_waiting = self._next is not None
        if is_waiting and self._clock() - self._next_since_s >= COMPLETE_TIMEOUT_S:
            log.warning("no manager reported the new table as complete; using it")
            self._apply_next()

    def _apply(self, table: BrokerTable) -> None:
        log.info("broker table %d: %s", table.version, _summary(table))
        self._earlier[self._egress.table] = self._clock() + LINGER_S
        self._egress.apply_table(table)
        self._subscribe()
        self._leftovers_from_s = self._clock() + LEFTOVERS_S
        self._settle_at_s = self._clock() + SETTLE_EVERY_S
        write_best_effort(self._table_path, encode_directory_message(table))
        if table.brokers:
            self._serve_clients()

    def _subscribe(self) -> None:
        """Subscribe by the table, the next one, and those of the last `LINGER_S`."""
        now_s, tables = self._clock(), (self._egress.table, self._next)
        self._earlier = {
            table: until_s
            for table, until_s in self._earlier.items()
            if now_s < until_s and table not in tables
        }
        known = [table for table in tables if table is not None]
        self._downstream.use_tables(*self._earlier, *known)

    def _serve_clients(self) -> None:
        if all(thread.name != "front" for thread in self._threads):
            self._start("front", self._ingress.run)

    def _start(self, name: str, run: Callable[[Heartbeat], None]) -> None:
        self._threads.append(
            start_watched_loop(self._watchdog, name, MAX_SILENCE_S, run)
        )

    def _recall_table(self) -> None:
        try:
            table = decode_broker_table(self._table_path.read_bytes())
        except FileNotFoundError:
            log.info("no broker table yet; clients wait until a manager sends one")
        except (OSError, DirectoryError) as error:
            log.warning("the last broker table cannot be used: %s", error)
        else:
            self._tables.set_recalled(table)
            self._follow_newest()


def _summary(table: BrokerTable) -> str:
    return ", ".join(f"{e.topic} -> {e.broker_info}" for e in table.brokers) or "empty"
