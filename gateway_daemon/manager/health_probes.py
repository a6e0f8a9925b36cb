"""Health probes: periodic checks whether gateways and brokers accept connections.

Gateways of this product leave a last will. Gamma's gateways and plain brokers do not,
so only a probe detects that they are down.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gateway_daemon.manager.registry import Registry
from service_runtime.lifecycle import start_watched_loop
from service_runtime.watchdog import (
    MAX_SILENCE_S,
    Heartbeat,
    LoopWatchdog,
    no_heartbeat,
)
from spatial_mqtt.directory import BrokerInfo

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
