"""What the console tells Prometheus: how the nodes are, and how old the levels."""

from dataclasses import dataclass

from backend_spark.console.live_state import Board
from backend_spark.console.node_table import ORDER
from service_runtime.metrics import Metric, Sample, gauge, loops
from service_runtime.watchdog import Pulse


@dataclass(frozen=True)
class Measures:
    """Collects from the board.

    Attributes:
        board: What the pages show.
        pulse: Listens to the loop that renews it.
    """

    board: Board
    pulse: Pulse

    def collect(self) -> list[Metric]:
        """Everything, as it is now."""
        with self.board.lock:
            now_s = self.board.now_s()
            nodes = list(self.board.nodes.by_id.values())
            states = [node.state(now_s) for node in nodes]
            unset = sum(not node.synchronised for node in nodes)
            newest_s = max((row.at_s for row in self.board.grid.latest), default=None)
        age = () if newest_s is None else (Sample(max(0.0, now_s - newest_s)),)
        return [
            Metric(
                "yamamori_nodes",
                "gauge",
                "Nodes that the tables know, by the state on the board.",
                tuple(Sample(states.count(each), {"state": each}) for each in ORDER),
            ),
            gauge(
                "yamamori_nodes_unsynchronised",
                "Nodes whose clock was not set when they last spoke.",
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
                "Alerts that nobody has acknowledged.",
                self.board.alerts or 0,
            ),
            loops(self.pulse),
        ]
