"""Prometheus metrics of the console: node states, age of the levels, open alerts."""

from dataclasses import dataclass

from backend_spark.console.live_state import LiveState
from backend_spark.console.node_table import NODE_STATES
from service_runtime.metrics import Metric, MetricSample, collect_loop_silence, gauge
from service_runtime.watchdog import LoopWatchdog


@dataclass(frozen=True)
class ConsoleMetrics:
    """Collects the metrics from the live state.

    Attributes:
        live_state: Live state.
        pulse: Watchdog of the console's loops.
    """

    live_state: LiveState
    pulse: LoopWatchdog

    def collect(self) -> list[Metric]:
        """Metrics of the present."""
        with self.live_state.lock:
            now_s = self.live_state.now_s()
            nodes = list(self.live_state.nodes.by_id.values())
            states = [node.state(now_s) for node in nodes]
            unset = sum(not node.synchronised for node in nodes)
            newest_s = max(
                (row.at_s for row in self.live_state.grid.latest), default=None
            )
        age = () if newest_s is None else (MetricSample(max(0.0, now_s - newest_s)),)
        return [
            Metric(
                "yamamori_nodes",
                "gauge",
                "Nodes in the tables, by state.",
                tuple(
                    MetricSample(states.count(each), {"state": each})
                    for each in NODE_STATES
                ),
            ),
            gauge(
                "yamamori_nodes_unsynchronised",
                "Nodes whose clock was not set at their last message.",
                unset,
            ),
            Metric(
                "yamamori_levels_age_seconds",
                "gauge",
                "Age of the newest level of any cell; absent before the first.",
                age,
            ),
            gauge(
                "yamamori_alerts_waiting",
                "Alerts that are not acknowledged.",
                self.live_state.alerts or 0,
            ),
            collect_loop_silence(self.pulse),
        ]
