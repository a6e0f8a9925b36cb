"""Prometheus metrics of a Manager."""

from collections.abc import Iterator

from gateway_daemon.manager.autoscaler import AutoscaleReport
from gateway_daemon.manager.manager import Manager
from gateway_daemon.manager.registry import Registry
from service_runtime.metrics import Metric, MetricSample, collect_loop_silence, gauge
from service_runtime.watchdog import LoopWatchdog


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
            _of_records(registry),
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
            *_of_loads(manager.load_report),
            *collect_loop_silence(self._watchdog),
        ]


def _of_records(registry: Registry) -> Metric:
    gone = sum(record.value is None for record in registry.records.values())
    facts = {"live": len(registry.records) - gone, "taken back": gone}
    return Metric(
        "yamamori_manager_records",
        "gauge",
        "Records that are stored; taken back: tombstones.",
        tuple(MetricSample(n, {"state": state}) for state, n in facts.items()),
    )


def _of_loads(report: AutoscaleReport | None) -> Iterator[Metric]:
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
        "Age of the oldest message that waits for an area's broker.",
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
