"""A gateway put together: presence at Managers, lanes to brokers, and both ways.

A new broker table is taken in two steps. First we listen where it says, and go on
listening where the old one said; then we tell the Manager. When every gateway has
done so the Manager says "complete", and only then is published by the new table:
nothing is published to a broker where somebody does not listen yet.

Source: Gamma (seed 000) section 3.4.

Which of several Managers' broker tables counts. No I/O.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from gateway_daemon.gateway.downstream import Deliveries
from gateway_daemon.gateway.egress import Lanes
from gateway_daemon.gateway.ingress import Front
from gateway_daemon.gateway.manager_link import Presence
from service_runtime.files import write_best_effort
from service_runtime.lifecycle import start_loop
from service_runtime.periodic import Part
from service_runtime.watchdog import Beat, Pulse
from spatial_mqtt.directory import BrokerTable, decode_table, encode
from spatial_mqtt.errors import DirectoryError

TRUST_RECALLED_S = 60.0
"""So long the table of the last run counts beside those that Managers tell."""


class Tables:
    """The last table that each Manager told, and the one of the last run.

    The newest counts: of two with one version (Managers that a partition keeps
    apart) every gateway takes the same. A Manager that lost its registry, and starts
    to count anew, is believed when no other knows better.

    Args:
        managers: How many there are.
        now_s: Monotonic seconds.
    """

    def __init__(self, managers: int, now_s: float) -> None:
        self._managers = managers
        self._recalled_until_s = now_s + TRUST_RECALLED_S
        self._told: dict[Hashable, BrokerTable] = {}
        self._recalled: BrokerTable | None = None

    def recall(self, table: BrokerTable) -> None:
        """The table of the last run."""
        self._recalled = table

    def tell(self, manager: Hashable, table: BrokerTable) -> None:
        """A Manager published a table."""
        self._told[manager] = table

    def of(self, manager: Hashable) -> BrokerTable | None:
        """What a Manager told last."""
        return self._told.get(manager)

    def newest(self, now_s: float) -> BrokerTable | None:
        """The table that counts; None before the first one."""
        tables = list(self._told.values())
        is_early = now_s < self._recalled_until_s and len(tables) < self._managers
        if self._recalled is not None and (is_early or not tables):
            tables.append(self._recalled)
        return max(tables, key=lambda t: (t.version, encode(t)), default=None)


log = logging.getLogger(__name__)

COMPLETE_WITHIN_S = 60.0
"""A Manager that does not say "complete" in this time may be gone, or wait for a
gateway that is."""

LINGER_S = 90.0
"""Other gateways may publish by the old table for so long; we listen there too."""

LOOK_S = 1.0
SILENCE_S = 60.0
REROUTE_S = 600.0
"""A new table may move all that waits for a broker from one file to another."""


class Gateway:
    """Runs one gateway.

    Clients are served only once a broker table is known, from a Manager or from
    the last run: a message that is taken must have somewhere to go. By the overlay
    alone it has.

    Args:
        lanes: The ways to the brokers.
        front: The client side, for what clients publish.
        deliveries: The client side, for what clients listen to.
        table_path: File that keeps the last broker table.
        clock: Monotonic seconds.
        pulse: Listens to our loops.
    """

    def __init__(
        self,
        lanes: Lanes,
        front: Front,
        deliveries: Deliveries,
        table_path: Path,
        clock: Callable[[], float],
        *,
        pulse: Pulse,
    ) -> None:
        self._lanes = lanes
        self._front = front
        self._deliveries = deliveries
        self._table_path = table_path
        self._clock = clock
        self._pulse = pulse
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._tables = Tables(0, clock())
        self._presences: tuple[Presence, ...] = ()
        self._parts: tuple[Part, ...] = ()
        self._next: BrokerTable | None = None
        self._next_since_s = 0.0
        self._lingers_until_s: float | None = None
        self._to_tell: list[tuple[Presence, int]] = []
        self._threads: list[threading.Thread] = []

    def attach(self, presences: Sequence[Presence], *parts: Part) -> None:
        """Name who speaks to Managers and what else runs with us; before `run`."""
        self._tables = Tables(len(presences), self._clock())
        self._presences, self._parts = tuple(presences), parts

    def run(self) -> None:
        """Serve until `stop`."""
        self._deliveries.on_settled = lambda: self._events.put(self._tell_applied)
        self._start("deliveries", self._deliveries.run)
        if not self._lanes.needs_table:
            self._open()
        self._recall_table()
        for part in (*self._parts, *self._presences):
            part.start()
        with self._pulse.expects("gateway", REROUTE_S) as beat:
            self._serve(beat)

    def on_table(self, table: BrokerTable, presence: Presence) -> None:
        """A Manager published a broker table."""
        self._events.put(lambda: self._take(table, presence))

    def on_complete(self, presence: Presence) -> None:
        """A Manager says that every gateway listens by its newest table."""
        self._events.put(lambda: self._complete(presence))

    def stop(self) -> None:
        """End `run`, leaving every message in its queue."""
        self._events.put(None)
        for part in (*self._presences, *self._parts):
            part.stop()
        self._front.stop()
        self._deliveries.stop()
        for thread in self._threads:
            thread.join()
        self._deliveries.close()
        self._lanes.close()

    @property
    def is_up(self) -> bool:
        """Whether clients' messages reach us now."""
        return self._front.is_up

    def status(self) -> str:
        """One line for a person: who is reached, and what waits."""
        reached = sum(presence.is_up for presence in self._presences)
        if not self._lanes.table.brokers and self._lanes.needs_table:
            own = "no broker table yet, clients wait"
        else:
            own = f"own broker {'up' if self._front.is_up else 'DOWN'}"
        return "; ".join([
            own,
            f"{reached} of {len(self._presences)} managers reached",
            *self._lanes.status(self._clock()),
            f"for our clients {self._deliveries.status()}",
        ])

    def _serve(self, beat: Beat) -> None:
        while True:
            beat()
            try:
                event = self._events.get(timeout=LOOK_S)
            except Empty:
                event = self._look
            if event is None:
                return
            event()

    def _take(self, table: BrokerTable, presence: Presence) -> None:
        self._tables.tell(presence, table)
        self._to_tell.append((presence, table.version))
        self._follow()
        self._tell_applied()

    def _follow(self) -> None:
        """Go the way to the table that counts now."""
        table, current = self._tables.newest(self._clock()), self._lanes.table
        if table is None or table == (self._next or current):
            return
        if not current.brokers or table.brokers == current.brokers:
            self._next = None
            self._use(table)
        else:
            self._next, self._next_since_s = table, self._clock()
            self._deliveries.use(current, table)

    def _tell_applied(self) -> None:
        if not self._deliveries.is_settled:
            return
        told, self._to_tell = self._to_tell, []
        for presence, version in told:
            presence.applied(version)

    def _complete(self, presence: Presence) -> None:
        if self._tables.of(presence) == self._next:
            self._switch()

    def _switch(self) -> None:
        if self._next is not None:
            table, self._next = self._next, None
            self._use(table)

    def _look(self) -> None:
        self._follow()
        until_s = self._lingers_until_s
        if until_s is not None and self._next is None and self._clock() >= until_s:
            self._lingers_until_s = None
            self._deliveries.use(self._lanes.table)
        waits = self._next is not None
        if waits and self._clock() - self._next_since_s >= COMPLETE_WITHIN_S:
            log.warning("no manager says that the new table is complete; using it")
            self._switch()

    def _use(self, table: BrokerTable) -> None:
        log.info("broker table %d: %s", table.version, _words(table))
        old = self._lanes.table
        self._lanes.apply(table)
        self._deliveries.use(old, table)
        self._lingers_until_s = self._clock() + LINGER_S
        self._remember_table(table)
        if table.brokers:
            self._open()

    def _open(self) -> None:
        """Serve clients from now on."""
        if all(thread.name != "front" for thread in self._threads):
            self._start("front", self._front.run)

    def _start(self, name: str, run: Callable[[Beat], None]) -> None:
        self._threads.append(start_loop(self._pulse, name, SILENCE_S, run))

    def _recall_table(self) -> None:
        try:
            table = decode_table(self._table_path.read_bytes())
        except FileNotFoundError:
            log.info("no broker table yet; clients wait until a manager sends one")
        except (OSError, DirectoryError) as error:
            log.warning("the last broker table cannot be used: %s", error)
        else:
            self._tables.recall(table)
            self._follow()

    def _remember_table(self, table: BrokerTable) -> None:
        write_best_effort(self._table_path, encode(table))


def _words(table: BrokerTable) -> str:
    return ", ".join(f"{e.topic} -> {e.broker_info}" for e in table.brokers) or "empty"
