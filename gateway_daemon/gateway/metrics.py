"""What a gateway tells Prometheus."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from gateway_daemon.gateway.downstream import Deliveries
from gateway_daemon.gateway.egress import Fill, Lanes
from gateway_daemon.gateway.ingress import Front
from gateway_daemon.gateway.manager_link import Presence
from service_runtime.metrics import Kind, Metric, Sample, gauge, loops
from service_runtime.watchdog import Pulse

OWN = "own"
"""The lane of what goes to our own broker, for our clients."""

Values = Callable[[Fill], Mapping[int, float]]


class Measures:
    """Collects from the parts of a gateway."""

    def __init__(
        self,
        lanes: Lanes,
        front: Front,
        deliveries: Deliveries,
        presences: Sequence[Presence],
        pulse: Pulse,
        *,
        more: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self._lanes = lanes
        self._front = front
        self._deliveries = deliveries
        self._presences = tuple(presences)
        self._pulse = pulse
        self._more = more

    def collect(self) -> list[Metric]:
        """Everything, as it is now."""
        fills = {
            str(broker or "nowhere"): fill
            for broker, fill in self._lanes.fills().items()
        }
        links = {name: fill for name, fill in fills.items() if name != "nowhere"}
        return [
            *_of_queues({**fills, OWN: self._deliveries.fill()}),
            Metric(
                "yamamori_uplink_up",
                "gauge",
                "Whether a distributed broker is reached.",
                tuple(Sample(f.is_up, {"lane": name}) for name, f in links.items()),
            ),
            *_of_front(self._front),
            Metric(
                "yamamori_manager_up",
                "gauge",
                "Whether a Manager's broker is reached.",
                tuple(Sample(p.is_up, {"manager": str(p)}) for p in self._presences),
            ),
            gauge(
                "yamamori_table_version",
                "Version of the broker table in use.",
                self._lanes.table.version,
            ),
            *self._more(),
            loops(self._pulse),
        ]


BY_PRIORITY: Final[tuple[tuple[str, Kind, str, Values], ...]] = (
    (
        "yamamori_queue_messages",
        "gauge",
        "Messages that wait.",
        lambda fill: {p: depth.rows for p, depth in fill.stats.depth.items()},
    ),
    (
        "yamamori_queue_bytes",
        "gauge",
        "Bytes of the payloads that wait.",
        lambda fill: {p: depth.bytes for p, depth in fill.stats.depth.items()},
    ),
    (
        "yamamori_queue_oldest_seconds",
        "gauge",
        "Age of the oldest message that waits; absent when none does.",
        lambda fill: fill.ages_s,
    ),
    (
        "yamamori_queue_put_total",
        "counter",
        "Messages that were taken, over the life of the file.",
        lambda fill: fill.stats.put,
    ),
    (
        "yamamori_queue_delivered_total",
        "counter",
        "Messages whose custody ended elsewhere, over the life of the file.",
        lambda fill: fill.stats.acked,
    ),
)


def _of_front(front: Front) -> Iterator[Metric]:
    yield Metric(
        "yamamori_receipted_messages_total",
        "counter",
        "Messages whose receipt went back to their sender.",
        (Sample(front.receipted),),
    )
    yield Metric(
        "yamamori_put_aside_total",
        "counter",
        "Publications above their cell's allowance, without a receipt.",
        (Sample(front.put_aside),),
    )
    yield Metric(
        "yamamori_impostors_total",
        "counter",
        "Messages under another's name than their publisher's certificate has.",
        (Sample(front.impostors),),
    )
    yield gauge(
        "yamamori_front_up",
        "Whether our own broker is reached.",
        front.is_up,
    )


def _of_queues(fills: Mapping[str, Fill]) -> Iterator[Metric]:
    for name, kind, doc, values in BY_PRIORITY:
        samples = tuple(
            Sample(value, {"lane": lane, "priority": str(priority)})
            for lane, fill in fills.items()
            for priority, value in sorted(values(fill).items())
        )
        yield Metric(name, kind, doc, samples)
    yield Metric(
        "yamamori_queue_dropped_total",
        "counter",
        "Messages that were given up, by reason, over the life of the file.",
        tuple(
            Sample(count, {"lane": lane, "priority": str(priority), "reason": reason})
            for lane, fill in fills.items()
            for priority, reasons in sorted(fill.stats.reasons.items())
            for reason, count in reasons.items()
        ),
    )
    yield Metric(
        "yamamori_queue_duplicates_total",
        "counter",
        "Messages that came again and were refused, over the life of the file.",
        tuple(Sample(f.stats.duplicates, {"lane": lane}) for lane, f in fills.items()),
    )
