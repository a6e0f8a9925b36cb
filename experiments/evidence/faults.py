"""Faults as functions from one series to another."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from experiments.evidence.series import SLOPE, Sample, Series

Change = Callable[[Sample], Sample | None]
"""Of one reading; None drops it."""


def change(  # noqa: PLR0913 - where and when
    series: Series,
    by: Change,
    *,
    sensor: str | None = None,
    quantity: str | None = None,
    node: str = SLOPE,
    begin_h: float = 0.0,
    end_h: float = float("inf"),
) -> Series:
    """Change the readings of a sensor within a time."""

    def new(s: Sample) -> Sample | None:
        is_ours = (
            s.node == node
            and sensor in {None, s.sensor}
            and quantity in {None, s.quantity}
            and begin_h < s.at_h <= end_h
        )
        return by(s) if is_ours else s

    changed = (new(s) for s in series.samples)
    return replace(series, samples=tuple(s for s in changed if s is not None))


def die(
    series: Series, sensor: str, at_h: float, end_h: float = float("inf")
) -> Series:
    """A sensor sends nothing any more."""
    return change(series, lambda _: None, sensor=sensor, begin_h=at_h, end_h=end_h)


def fall_silent(
    series: Series, at_h: float, end_h: float = float("inf"), node: str = SLOPE
) -> Series:
    """A node sends nothing any more."""
    return change(series, lambda _: None, node=node, begin_h=at_h, end_h=end_h)


def add(
    series: Series, sensor: str, course: Callable[[float], float], **where: object
) -> Series:
    """Add an error to the values of a sensor."""

    def by(s: Sample) -> Sample:
        value = None if s.value is None else s.value + course(s.at_h)
        return replace(s, value=value)

    return change(series, by, sensor=sensor, **where)  # type: ignore[arg-type]


def scale(series: Series, sensor: str, factor: float, **where: object) -> Series:
    """Multiply the values of a sensor."""

    def by(s: Sample) -> Sample:
        return replace(s, value=None if s.value is None else s.value * factor)

    return change(series, by, sensor=sensor, **where)  # type: ignore[arg-type]


def stick(series: Series, sensor: str, value: float, **where: object) -> Series:
    """A sensor gives one value."""
    return change(series, lambda s: replace(s, value=value), sensor=sensor, **where)  # type: ignore[arg-type]


def add_rain(
    series: Series, falls_mm: Callable[[float], float], node: str = SLOPE
) -> Series:
    """False tips of a gauge: in the depth of each report and in the counter.

    Args:
        series: The series.
        falls_mm: False rain of the report at a time, in mm.
        node: Node of the gauge.
    """
    total, totals = 0.0, {}
    times = sorted({s.at_h for s in series.samples if s.node == node})
    for at_h in times:
        total += falls_mm(at_h)
        totals[at_h] = total

    def by(s: Sample) -> Sample:
        more = falls_mm(s.at_h) if s.quantity == "rain" else totals[s.at_h]
        return replace(s, value=(s.value or 0.0) + more)

    return change(series, by, sensor="rain", node=node, begin_h=-1.0)


def add_counter_error(series: Series, at_mm: float, error_mm: float) -> Series:
    """A counter that every other report gives too low: two nodes with one id."""

    def by(s: Sample) -> Sample:
        number = round(s.at_h * 3600 / series.every_s)
        return replace(s, value=(s.value or 0.0) + at_mm - error_mm * (number % 2))

    return change(series, by, quantity="rain_total", begin_h=-1.0)


def delay_network(
    series: Series, begin_h: float, end_h: float, node: str = SLOPE
) -> Series:
    """An outage of the link: its readings are received after it, oldest first."""

    def by(s: Sample) -> Sample:
        return replace(s, received_h=end_h + (s.at_h - begin_h) / 100)

    return change(series, by, node=node, begin_h=begin_h, end_h=end_h)


def report_once(series: Series, begin_h: float, end_h: float) -> Series:
    """A node sleeps; its next report has the rain since then."""
    missed = sum(
        s.value or 0.0
        for s in series.samples
        if s.quantity == "rain" and begin_h < s.at_h <= end_h and s.node == SLOPE
    )
    silent = fall_silent(series, begin_h, end_h)
    after_h = end_h + series.every_s / 3600

    def by(s: Sample) -> Sample:
        return replace(s, value=(s.value or 0.0) + missed)

    return change(silent, by, quantity="rain", begin_h=end_h, end_h=after_h + 1e-6)


def shift_clock(
    series: Series, by_h: float, begin_h: float = -1.0, flags: str = ""
) -> Series:
    """A wrong clock: readings are dated wrongly, and received at the true time."""

    def by(s: Sample) -> Sample:
        return replace(s, at_h=s.at_h + by_h, received_h=s.receipt_h, flags=flags)

    return change(series, by, begin_h=begin_h)


def lose(series: Series, share: float, **where: object) -> Series:
    """Lose a share of all messages of the slope."""
    rng = series.rng("loss")
    lost = {at_h for at_h in series.times_h if rng.random() < share}
    return change(series, lambda s: None if s.at_h in lost else s, **where)  # type: ignore[arg-type]


def only(series: Series, quantities: Iterable[str]) -> Series:
    """Keep some quantities of the slope only."""
    kept = set(quantities)
    return change(series, lambda s: s if s.quantity in kept else None, begin_h=-1.0)
