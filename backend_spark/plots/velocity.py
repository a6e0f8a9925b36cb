"""Displacement and inverse velocity of one extensometer, and when it may fail."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.dates import date2num
from matplotlib.figure import Figure

from backend_spark.errors import PlotError
from backend_spark.plots.style import JST, WARNING, WATER, beside, new_figure, time_axis
from backend_spark.transforms.motion import FORECAST_PAST_H, Extensometer
from slope_science.creep import (
    FEWEST_READINGS,
    Forecast,
    Velocity,
    spaced,
    velocities,
)
from slope_science.quality import Flag

HOUR_S = 3600.0


def inverse_velocity(readings: pa.Table) -> Figure:
    """Draw displacement above and 1/v below, with the line to zero and its interval.

    Args:
        readings: Rows of schemas.SILVER of one extensometer, in the order of time.

    Raises:
        PlotError: There are too few that count.

    Source:
        Fukuzono 1985, Voight 1988 with alpha = 2; see slope_science.creep. The gates
        that a time of failure must pass are those of the levels.
    """
    sensor, times, moved_mm = _counted(readings)
    end = times[-1]
    rod = Extensometer(sensor, [t.timestamp() for t in times], moved_mm)
    figure, (way, inverse) = new_figure("", (2, 3))
    way.plot([_days(at) for at in times], moved_mm, ".-", color=WATER, markersize=3)
    way.set_ylabel("displacement (mm)")
    speeds = _speeds(times, moved_mm)
    at = [_days(end) + speed.at_h / 24 for speed in speeds]
    inverse.plot(at, [1 / abs(speed.mm_per_h) for speed in speeds], "o", color=WATER)
    names = ["speed of 3 h"]
    inverse.set_ylabel("1/v (h/mm)")
    ahead = rod.failure(end.timestamp())
    told = "no time of failure: it does not clearly speed up"
    if ahead is not None:
        told = _told(ahead, end)
        names += _draw(inverse, ahead, end)
    beside(inverse, *names)
    inverse.set_ylim(bottom=0)
    figure.suptitle(f"{sensor}, {end.astimezone(JST):%Y-%m-%d %H:%M} JST\n{told}")
    time_axis(inverse)
    return figure


def _counted(readings: pa.Table) -> tuple[str, list[datetime], list[float]]:
    """The sensor's name, and times and displacements that count."""
    rows = [
        row
        for row in readings.to_pylist()
        if row["value"] is not None and row["flag"] not in {Flag.FAIL, Flag.MISSING}
    ]
    if len(rows) < FEWEST_READINGS:
        rule = f"{FEWEST_READINGS} displacements that count, or more"
        raise PlotError("readings", rule, len(rows))
    sensor = f"{rows[0]['node']} {rows[0]['name']}"
    return sensor, [row["at"] for row in rows], [row["value"] for row in rows]


def _speeds(times: Sequence[datetime], moved_mm: Sequence[float]) -> list[Velocity]:
    """Speeds of the last hours that stand clear of their noise."""
    hours = [(t - times[-1]).total_seconds() / HOUR_S for t in times]
    first = next(n for n, hour in enumerate(hours) if hour >= -FORECAST_PAST_H)
    found = spaced(velocities(hours[first:], moved_mm[first:]))
    return [speed for speed in found if speed.exceeds(0.0) and speed.mm_per_h]


def _told(ahead: Forecast, end: datetime) -> str:
    gate = ahead.closed_gate(0.0)
    if gate is not None:
        return f"not usable: {gate}"
    when = (end + timedelta(hours=ahead.failure_h)).astimezone(JST)
    return (
        f"failure {when:%Y-%m-%d %H:%M} JST ± {ahead.half_width_h:.1f} h (95 %), "
        f"R2 {ahead.r2:.2f}"
    )


def _draw(axes: Axes, ahead: Forecast, end: datetime) -> list[str]:
    """The line from the window's begin to zero, and its interval; what was drawn."""
    if not math.isfinite(ahead.failure_h) or ahead.failure_h > 3 * ahead.window_h:
        return []
    now, is_usable = _days(end), ahead.is_usable(0.0)
    failure, width = now + ahead.failure_h / 24, ahead.half_width_h / 24
    begin_h = -ahead.window_h
    line = [ahead.a_per_mm * (ahead.failure_h - begin_h), 0.0]
    dashes = "-" if is_usable else ":"
    axes.plot([now + begin_h / 24, failure], line, dashes, color=WARNING)
    names = [f"fit over {ahead.window_h:g} h"]
    if is_usable:
        names.append("failure, 95 %")
        axes.axvspan(failure - width, failure + width, color=WARNING, alpha=0.2, lw=0)
    axes.axvline(now, color="#222222", linewidth=0.8)
    return [*names, "now"]


def _days(moment: datetime) -> float:
    """A time as matplotlib counts it."""
    return float(date2num(moment))  # type: ignore[no-untyped-call]
