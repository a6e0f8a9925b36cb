"""Metrics of the console: nodes, cells by level, open events, notifications."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from backend_spark.console.events import EventFilter, EventState
from backend_spark.console.live_state import LiveState
from backend_spark.console.nodes import NODE_STATES
from backend_spark.console.notifications.sender import NotificationSender
from backend_spark.scoring.holds import HELD, JUDGED, UNKNOWN, PresentLevel
from service_runtime.metrics import Metric, MetricSample, collect_loop_silence, gauge
from service_runtime.watchdog import LoopWatchdog
from slope_science.levels import EMERGENCY, LOWEST, WARNING

CELL_LABELS: Final = (
    *(
        (str(n), state)
        for n in range(LOWEST, EMERGENCY + 1)
        for state in (JUDGED, HELD)
    ),
    ("none", UNKNOWN),
)
"""Level and state of cells."""

_EVENT_LEVELS: Final = tuple(map(str, range(WARNING, EMERGENCY + 1)))


@dataclass(frozen=True)
class ConsoleMetrics:
    """Collects the metrics.

    Attributes:
        live_state: Live state.
        pulse: Watchdog of the console's loops.
        sender: Sender of the notifications.
    """

    live_state: LiveState
    pulse: LoopWatchdog
    sender: NotificationSender

    def collect(self) -> list[Metric]:
        """Metrics of the present."""
        return [
            *self._node_metrics(),
            *self._level_metrics(),
            *self._notification_metrics(),
            *collect_loop_silence(self.pulse),
        ]

    def _node_metrics(self) -> Iterator[Metric]:
        with self.live_state.lock:
            now_s = self.live_state.now_s()
            nodes = list(self.live_state.nodes.by_id.values())
            states = Counter(node.state(now_s) for node in nodes)
            unset = sum(not node.synchronised for node in nodes)
        counts = {state: states[state] for state in NODE_STATES}
        yield _by("yamamori_nodes", "Nodes in the tables, by state.", "state", counts)
        yield gauge(
            "yamamori_nodes_unsynchronised",
            "Nodes whose clock was not set at their last message.",
            unset,
        )

    def _level_metrics(self) -> Iterator[Metric]:
        now = self.live_state.snapshot()
        cells = Counter(map(_cell_label, self.live_state.present_levels()))
        newest_s = now["newest_s"]
        age = () if newest_s is None else (max(0.0, now["now_s"] - newest_s),)
        yield Metric(
            "yamamori_levels_age_seconds",
            "gauge",
            "Age of the newest level of any cell; absent before the first.",
            tuple(map(MetricSample, age)),
        )
        yield Metric(
            "yamamori_cells",
            "gauge",
            "Cells by level and by whether it is judged, held or unknown.",
            tuple(
                MetricSample(
                    cells[label], dict(zip(("level", "state"), label, strict=True))
                )
                for label in CELL_LABELS
            ),
        )
        waiting = EventFilter(frozenset({EventState.OPEN}))
        peaks = Counter(str(event.peak) for event in self.sender.events.select(waiting))
        yield _by(
            "yamamori_events_open",
            "Events about which nobody has decided, by their highest level.",
            "level",
            {level: peaks[level] for level in _EVENT_LEVELS},
        )

    def _notification_metrics(self) -> Iterator[Metric]:
        now_s = self.sender.clock()
        late = self.sender.outbox.overdue(now_s)
        oldest_s = max((now_s - each.wanted_s for each in late), default=0.0)
        yield gauge(
            "yamamori_notifications_waiting",
            "Notifications that are due and not delivered.",
            len(late),
        )
        yield gauge(
            "yamamori_notifications_oldest_seconds",
            "How long the oldest of them has been due.",
            oldest_s,
        )
        is_set = self.sender.console.heartbeat is not None
        last = (MetricSample(self.sender.heartbeat_at_s),) if is_set else ()
        yield Metric(
            "yamamori_heartbeat_timestamp_seconds",
            "gauge",
            "Unix time at which the dead man's switch last accepted a request.",
            last,
        )


def _by(name: str, doc: str, label: str, counts: Mapping[str, int]) -> Metric:
    """A gauge with one label."""
    samples = (MetricSample(count, {label: value}) for value, count in counts.items())
    return Metric(name, "gauge", doc, tuple(samples))


def _cell_label(present: PresentLevel) -> tuple[str, str]:
    level = present.level
    return ("none", UNKNOWN) if level is None else (str(level), present.state)
