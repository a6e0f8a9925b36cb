"""What a gateway's part of the overlay tells Prometheus."""

from collections.abc import Iterator, Mapping

from gateway_daemon.overlay.live import Facts
from spatial_mqtt.metrics import Metric, Sample, gauge


def measures_of(facts: Facts, waiting: Mapping[int, int]) -> Iterator[Metric]:
    """Everything, as it is now.

    Args:
        facts: How the overlay is.
        waiting: Messages that wait until all gateways that listen have them, by
            priority.
    """
    silent = len(facts.census.silent)
    others = {"answers": facts.census.known - silent, "silent": silent}
    yield gauge(
        "yamamori_overlay_up",
        "Whether another gateway is reached.",
        facts.is_in_company,
    )
    yield Metric(
        "yamamori_overlay_gateways",
        "gauge",
        "Other gateways that are known.",
        tuple(Sample(count, {"state": state}) for state, count in others.items()),
    )
    yield _counter(
        "yamamori_overlay_returns_total",
        "Gateways that had not answered and do again.",
        facts.census.returns,
    )
    yield Metric(
        "yamamori_overlay_waiting_messages",
        "gauge",
        "Messages that wait until all gateways that listen have them.",
        tuple(Sample(n, {"priority": str(p)}) for p, n in sorted(waiting.items())),
    )
    yield gauge(
        "yamamori_overlay_waiting_copies", "Copies that wait to be sent.", facts.waiting
    )
    yield from _of_copies(facts)


def _of_copies(facts: Facts) -> Iterator[Metric]:
    yield _counter(
        "yamamori_overlay_copies_total", "Copies that were sent.", facts.sent
    )
    yield _counter(
        "yamamori_overlay_heard_total",
        "Messages that came by the overlay for our clients.",
        facts.heard,
    )
    yield Metric(
        "yamamori_overlay_publications_total",
        "counter",
        "Publications that ended: whole, or with somebody given up.",
        (
            Sample(facts.whole, {"end": "whole"}),
            Sample(facts.broken, {"end": "broken"}),
        ),
    )
    yield _counter(
        "yamamori_overlay_silences_total",
        "Copies that nobody answered in time, and others took over.",
        facts.silences,
    )
    if facts.round_trip_s is not None:
        yield gauge(
            "yamamori_overlay_round_trip_seconds",
            "Mean time from a copy to its answer.",
            facts.round_trip_s,
        )


def _counter(name: str, doc: str, value: float) -> Metric:
    return Metric(name, "counter", doc, (Sample(value),))
