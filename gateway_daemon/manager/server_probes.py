"""Probes of servers: whether they accept connections, and the rates of brokers.

Gateways of this product leave a last will. Gamma's gateways and plain brokers do not,
so only a probe detects that they are down.

Source: mosquitto(8), ``$SYS/broker/publish/messages/received``: PUBLISH packets since
the broker's start, published every ``sys_interval`` (10 s) when the count has changed.
Other brokers may not publish it.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway_daemon.manager.registry import Registry
from service_runtime.lifecycle import start_watched_loop
from service_runtime.watchdog import (
    MAX_SILENCE_S,
    Heartbeat,
    LoopWatchdog,
    no_heartbeat,
)
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.topics import RECEIVED_COUNT
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    ConnectionHandler,
    IncomingMessage,
    Session,
)

COUNT_STALE_S = 30.0
"""A count that has not changed for this long means a rate of zero."""

Connect = Callable[[BrokerInfo, Session, ConnectionHandler], Connection]


class BrokerRateMonitor:
    """Monitors the message counters of a set of brokers.

    Args:
        manager_id: Id of the Manager, for the names of the sessions.
        connect: Makes connections.
        clock: Monotonic seconds.
    """

    def __init__(
        self, manager_id: str, connect: Connect, clock: Callable[[], float]
    ) -> None:
        self._session = Session(f"yamamori-rates-{manager_id}", ((RECEIVED_COUNT, 0),))
        self._connect = connect
        self._clock = clock
        self._counters: dict[BrokerInfo, tuple[ReceivedCounter, Connection]] = {}

    def rates_per_s(self) -> dict[BrokerInfo, float]:
        """Messages per second by broker; absent while unknown."""
        now_s = self._clock()
        rates = {
            b: counter.rate_per_s(now_s) for b, (counter, _) in self._counters.items()
        }
        return {broker: rate for broker, rate in rates.items() if rate is not None}

    def unreachable(self) -> frozenset[BrokerInfo]:
        """Brokers without a connection."""
        return frozenset(b for b, (each, _) in self._counters.items() if not each.is_up)

    def set_brokers(self, brokers: Iterable[BrokerInfo]) -> None:
        """Connect to these brokers and to no others."""
        wanted = set(brokers)
        for broker in wanted - self._counters.keys():
            counter = ReceivedCounter(self._clock)
            connection = self._connect(broker, self._session, counter)
            self._counters[broker] = counter, connection
            connection.start()
        for broker in self._counters.keys() - wanted:
            # `stop` may block in an attempt to connect; the Manager must not wait.
            _, gone = self._counters.pop(broker)
            threading.Thread(target=gone.stop, daemon=True).start()

    def stop(self) -> None:
        """Disconnect from all brokers."""
        self.set_brokers(())


class ReceivedCounter(BaseConnectionHandler):
    """Connection handler for the counter of one broker.

    Args:
        clock: Monotonic seconds.

    Attributes:
        is_up: Whether the broker is connected.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_up = False
        self._clock = clock
        self._last: tuple[float, int] | None = None
        self._per_s: float | None = None
        self._is_retained = True

    def rate_per_s(self, now_s: float) -> float | None:
        """Messages per second between its last two counts; None while unknown."""
        last = self._last
        if last is not None and now_s - last[0] >= COUNT_STALE_S:
            return 0.0
        return self._per_s

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._is_retained = True
        self.is_up = True

    def on_down(self, reason: str) -> None:
        self.is_up = False
        # A restarted broker counts from zero.
        self._last, self._per_s = None, None

    def on_message(self, message: IncomingMessage) -> None:
        if not message.payload.isdigit():
            return
        if self._is_retained:  # of unknown age
            self._is_retained = False
            return
        now_s, count = self._clock(), int(message.payload)
        if self._last is not None and count >= self._last[1]:
            over_s = max(now_s - self._last[0], 1e-3)
            self._per_s = (count - self._last[1]) / over_s
        self._last = now_s, count


PROBE_INTERVAL_S = 10.0
MAX_MISSED_PROBES = 3
"""Failed probes in a row before a server counts as down: one may be a lost packet."""


@dataclass(frozen=True)
class ProbeResult:
    """A server stopped answering, or answers again."""

    server: BrokerInfo
    is_reachable: bool


class HealthProbes:
    """Probes the servers of a registry periodically, in a thread of its own.

    Args:
        is_reachable: Whether an address accepts connections; may take seconds.
        watchdog: Supervises the loop.
    """

    def __init__(
        self, is_reachable: Callable[[BrokerInfo], bool], watchdog: LoopWatchdog
    ) -> None:
        self._watchdog = watchdog
        self._answers = is_reachable
        self._stop = threading.Event()
        self._targets: frozenset[BrokerInfo] = frozenset()
        self._silent: dict[BrokerInfo, int] = {}

    def set_targets(self, registry: Registry) -> None:
        """Probe from now on the brokers, and the gateways that leave no last will.

        Gateways with a last will may be reachable only for their clients. A gateway
        that reports to another Manager only is probed by that Manager while it is
        reachable.
        """
        brokers = {entry.broker_info for entry in registry.brokers}
        others = registry.seen_by_others - registry.seen
        unannounced = registry.areas.keys() - registry.heartbeating - others
        self._targets = frozenset(brokers | unannounced)

    def start(self, on_result: Callable[[ProbeResult], object]) -> None:
        """Start the thread.

        Args:
            on_result: Receives changes; called in the thread of the probes.
        """
        start_watched_loop(
            self._watchdog,
            "probes",
            MAX_SILENCE_S,
            lambda beat: self._run(on_result, beat),
        )

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def probe_all(self, heartbeat: Heartbeat = no_heartbeat) -> list[ProbeResult]:
        """Probe all targets once and return what has changed."""
        changes = []
        for server in sorted(self._targets):
            heartbeat()
            silent = self._silent.get(server, 0)
            if self._answers(server):
                self._silent[server] = 0
                if silent >= MAX_MISSED_PROBES:
                    changes.append(ProbeResult(server, is_reachable=True))
            else:
                self._silent[server] = silent + 1
                if silent + 1 == MAX_MISSED_PROBES:
                    changes.append(ProbeResult(server, is_reachable=False))
        return changes

    def _run(self, report: Callable[[ProbeResult], object], beat: Heartbeat) -> None:
        while not self._stop.wait(PROBE_INTERVAL_S):
            beat()
            for change in self.probe_all(beat):
                report(change)
