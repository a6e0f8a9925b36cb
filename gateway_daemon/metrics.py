"""Prometheus metrics of a gateway and of a Manager."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from edge_agent.queue.store import DROP_REASONS
from gateway_daemon.gateway.downstream import Downstream
from gateway_daemon.gateway.egress import Egress, LaneStatus
from gateway_daemon.gateway.ingress import Ingress
from gateway_daemon.gateway.manager_link import ManagerLink
from gateway_daemon.manager.autoscaler import AutoscaleReport
from gateway_daemon.manager.manager import Manager
from gateway_daemon.manager.registry import Registry
from service_runtime.metrics import (
    Metric,
    MetricKind,
    MetricSample,
    collect_loop_silence,
    gauge,
)
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.priority import LADDER

OWN_LANE = "own"
"""Label of the lane to the own broker."""

UNROUTED_LANE = "nowhere"
"""Label of the lane without a broker."""

ValuesByPriority = Callable[[LaneStatus], Mapping[int, float]]

BY_PRIORITY: Final[tuple[tuple[str, MetricKind, str, ValuesByPriority], ...]] = (
    (
        "yamamori_queue_messages",
        "gauge",
        "Messages in the queue.",
        lambda lane: {p: depth.rows for p, depth in lane.stats.depth.items()},
    ),
    (
        "yamamori_queue_bytes",
        "gauge",
        "Payload bytes in the queue.",
        lambda lane: {p: depth.bytes for p, depth in lane.stats.depth.items()},
    ),
    (
        "yamamori_queue_oldest_seconds",
        "gauge",
        "Age of the oldest message in the queue; absent when it is empty.",
        lambda lane: lane.ages_s,
    ),
    (
        "yamamori_queue_put_total",
        "counter",
        "Messages stored over the life of the queue file.",
        lambda lane: lane.stats.put,
    ),
    (
        "yamamori_queue_delivered_total",
        "counter",
        "Messages delivered over the life of the queue file.",
        lambda lane: lane.stats.acked,
    ),
)


class GatewayMetrics:
    """Collects the metrics from the components of a gateway.

    Args:
        egress: Egress to the brokers.
        ingress: Ingress.
        downstream: Downstream.
        manager_links: Links to the Managers.
        watchdog: Watchdog of the loops.
        extra: Further metrics.
    """

    def __init__(
        self,
        egress: Egress,
        ingress: Ingress,
        downstream: Downstream,
        manager_links: Sequence[ManagerLink],
        watchdog: LoopWatchdog,
        *,
        extra: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self._egress = egress
        self._ingress = ingress
        self._downstream = downstream
        self._links = tuple(manager_links)
        self._watchdog = watchdog
        self._extra = extra

    def collect(self) -> list[Metric]:
        """All metrics with their current values."""
        lanes = {
            str(broker or UNROUTED_LANE): lane
            for broker, lane in self._egress.lane_status().items()
        }
        guards = self._ingress.checks.crash_guard, self._downstream.parser.crash_guard
        routed = {name: lane for name, lane in lanes.items() if name != UNROUTED_LANE}
        return [
            *_queue_metrics({**lanes, OWN_LANE: self._downstream.lane_status()}),
            Metric(
                "yamamori_uplink_up",
                "gauge",
                "Whether a distributed broker is connected.",
                tuple(
                    MetricSample(s.is_up, {"lane": name}) for name, s in routed.items()
                ),
            ),
            *_ingress_metrics(self._ingress),
            Metric(
                "yamamori_dead_letters_total",
                "counter",
                "Messages put aside because decoding them ended the program twice.",
                (MetricSample(sum(guard.put_aside for guard in guards)),),
            ),
            Metric(
                "yamamori_manager_up",
                "gauge",
                "Whether a Manager's broker is connected.",
                tuple(MetricSample(m.is_up, {"manager": str(m)}) for m in self._links),
            ),
            gauge(
                "yamamori_table_version",
                "Version of the broker table in use.",
                self._egress.table.version,
            ),
            *self._extra(),
            *collect_loop_silence(self._watchdog),
        ]


def _ingress_metrics(ingress: Ingress) -> Iterator[Metric]:
    yield Metric(
        "yamamori_receipted_messages_total",
        "counter",
        "Messages receipted to their senders.",
        (MetricSample(ingress.receipts.sent_count),),
    )
    yield Metric(
        "yamamori_put_aside_total",
        "counter",
        "Publications rejected above their sender's rate limit, without a receipt.",
        (MetricSample(ingress.checks.rate_limit.rejected),),
    )
    yield Metric(
        "yamamori_impostors_total",
        "counter",
        "Messages whose node id differs from their publisher's certificate.",
        (MetricSample(ingress.checks.identity_check.quarantined),),
    )
    yield gauge(
        "yamamori_front_up", "Whether the own broker is connected.", ingress.is_up
    )


def _drops(lane: LaneStatus, priority: int) -> dict[str, int]:
    """Drops by reason, from 0 on: `increase()` does not see a first drop without it."""
    found = lane.stats.drop_reasons.get(priority, {})
    return dict.fromkeys(DROP_REASONS, 0) | dict(found)


def _queue_metrics(lanes: Mapping[str, LaneStatus]) -> Iterator[Metric]:
    for name, kind, doc, values in BY_PRIORITY:
        samples = tuple(
            MetricSample(value, {"lane": label, "priority": str(priority)})
            for label, lane in lanes.items()
            for priority, value in sorted(values(lane).items())
        )
        yield Metric(name, kind, doc, samples)
    yield Metric(
        "yamamori_queue_dropped_total",
        "counter",
        "Messages dropped, by reason, over the life of the queue file.",
        tuple(
            MetricSample(
                count, {"lane": label, "priority": str(priority), "reason": reason}
            )
            for label, lane in lanes.items()
            for priority in LADDER.descending
            for reason, count in _drops(lane, priority).items()
        ),
    )
    yield Metric(
        "yamamori_queue_duplicates_total",
        "counter",
        "Duplicates refused over the life of the queue file.",
        tuple(
            MetricSample(s.stats.duplicates, {"lane": la}) for la, s in lanes.items()
        ),
    )


class ManagerMetrics:
    """Prometheus collector of a Manager."""

    def __init__(self, manager: Manager, watchdog: LoopWatchdog) -> None:
        self._manager = manager
        self._watchdog = watchdog

    def collect(self) -> list[Metric]:
        """Return all metrics with their current values."""
        manager, registry = self._manager, self._manager.registry
        here = {entry.broker_info for entry in registry.gateways}
        states = {"here": len(here), "away": len(registry.areas) - len(here)}
        return [
            Metric(
                "yamamori_gateways",
                "gauge",
                "Known gateways, present or away.",
                tuple(MetricSample(n, {"state": state}) for state, n in states.items()),
            ),
            _record_metrics(registry),
            gauge("yamamori_brokers", "Areas with a broker.", len(registry.brokers)),
            gauge(
                "yamamori_table_version",
                "Version of the broker table.",
                registry.table.version,
            ),
            gauge(
                "yamamori_table_laggards",
                "Gateways that have not applied the table.",
                len(registry.laggards),
            ),
            Metric(
                "yamamori_manager_up",
                "gauge",
                "Whether a Manager's broker is connected; ours is labelled own.",
                tuple(
                    MetricSample(post.is_up, {"manager": name})
                    for name, post in manager.sessions.items()
                ),
            ),
            Metric(
                "yamamori_errors_total",
                "counter",
                "Errors published on /api/errors.",
                (MetricSample(manager.error_count),),
            ),
            *_load_metrics(manager.load_report),
            *collect_loop_silence(self._watchdog),
        ]


def _record_metrics(registry: Registry) -> Metric:
    gone = sum(record.value is None for record in registry.records.values())
    facts = {"live": len(registry.records) - gone, "taken back": gone}
    return Metric(
        "yamamori_manager_records",
        "gauge",
        "Records that are stored; taken back: tombstones.",
        tuple(MetricSample(n, {"state": state}) for state, n in facts.items()),
    )


def _load_metrics(report: AutoscaleReport | None) -> Iterator[Metric]:
    areas = report.areas if report else ()
    named = [(a, {"part": a.part, "area": a.area, "server": str(a.who)}) for a in areas]
    yield Metric(
        "yamamori_area_messages_per_second",
        "gauge",
        "Load of an area.",
        tuple(MetricSample(area.per_s, labels) for area, labels in named),
    )
    yield Metric(
        "yamamori_area_oldest_seconds",
        "gauge",
        "How long the oldest message for an area's broker has waited at a gateway.",
        tuple(
            MetricSample(a.age_s, labels) for a, labels in named if a.part == "broker"
        ),
    )
    yield Metric(
        "yamamori_area_heat",
        "gauge",
        "Load as a fraction of the nearest limit; above 1 is hot.",
        tuple(MetricSample(area.heat, labels) for area, labels in named),
    )
