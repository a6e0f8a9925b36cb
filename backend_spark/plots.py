"""Charts for reports and notebooks: rain and levels, snake line, inverse velocity.

Each function takes rows of the tables and returns a matplotlib figure, without pyplot
and without a display. The reliability of a calibration has one, too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from backend_spark.config import BackendSettings
from backend_spark.console.snake_line import FutureLine, gold_futures
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.errors import PlotError
from backend_spark.evaluation.calibration_file import Calibration, ReliabilityBin
from backend_spark.scoring.cell_readings import ExtensometerSeries
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import open_tables
from slope_science import JST
from slope_science.failure_time import FIT_SPAN_H, FailureForecast
from slope_science.levels import JUDGED_LEVELS, Criteria
from slope_science.movement import MIN_READINGS, Velocity, fit_velocities, thin_out
from slope_science.quality import Flag
from slope_science.rain_and_soil_water import STEPS_PER_HOUR, SoilWater
from slope_science.reasons import render_english

LEVEL_COLOURS: Final = {
    1: "#ffffff",
    2: "#f2e700",
    3: "#ff2800",
    4: "#aa00aa",
    5: "#0c000c",
}
"""Colours that JMA uses for the levels."""

ADVISORY, WARNING, CRITICAL, SPECIAL = "#8f8700", "#e02400", "#aa00aa", "#0c000c"
CRITERIA_STYLES: Final = tuple(
    zip(
        JUDGED_LEVELS,
        (ADVISORY, WARNING, CRITICAL, SPECIAL),
        (":", "--", "-", "-."),
        ("advisory", "warning", "critical line", "special warning"),
        strict=True,
    )
)
WATER, PAST, MISSING = "#1565c0", "#1565c0", "#9e9e9e"


def new_figure(title: str, heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """An empty figure with stacked panels that share a time axis.

    Args:
        title: Title of the figure.
        heights: Relative heights of the panels.
    """
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(
        len(heights), 1, squeeze=False, sharex=True, height_ratios=list(heights)
    )
    figure.suptitle(title)
    return figure, list(panels[:, 0])


def format_time_axis(axes: Axes) -> None:
    """Show times of Japan on the x axis."""
    locator = AutoDateLocator(tz=JST, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(locator, tz=JST)  # type: ignore[no-untyped-call]
    )
    axes.set_xlabel("time (JST)")


def put_legend_beside(axes: Axes, *names: str) -> None:
    """Put a legend beside a panel, where it hides nothing.

    Args:
        axes: The panel.
        names: Names of what was drawn, in that order; by default its labels.
    """
    labels = {"labels": names} if names else {}
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", **labels)


def assumption_note(criteria: Criteria) -> str:
    """Note on assumed criteria, or on absent ones, for a title; empty without any."""
    if criteria.assumed:
        return " (criteria assumed)"
    if criteria.not_judged:
        levels = ", ".join(map(str, criteria.not_judged))
        return f" (level {levels} not judged by the prefecture)"
    return "" if criteria.line else " (critical line assumed)"


STEP = timedelta(seconds=STEP_S)
NAN = float("nan")


def rain_and_levels(levels: pa.Table, criteria: Criteria) -> Figure:
    """Draw rain above, the soil water index with its criteria, and the level below.

    Steps with unknown rain are grey, since they may not be dry.

    Args:
        levels: Rows of schemas.LEVELS of one cell, sorted by time.
        criteria: Of the cell.

    Raises:
        PlotError: There is no row.
    """
    rows = levels.to_pylist()
    if not rows:
        raise PlotError("levels", "rows of one cell", 0)
    title = f"{rows[0]['cell']}: rain, soil water and level{assumption_note(criteria)}"
    figure, (rain, water, level) = new_figure(title, (2, 3, 0.4))
    times = [row["at"] for row in rows]
    rain.fill_between(times, _numbers(rows, "r60_mm"), step="pre", color=WATER)
    rain.plot(times, _numbers(rows, "effective_1h5_mm"), color="#ef6c00", linewidth=1)
    rain.set_ylabel("mm")
    put_legend_beside(rain, "60-minute rain", "effective rain, 1.5 h")
    water.plot(times, _numbers(rows, "swi_mm"), color=WATER, label="soil water index")
    _rain_criteria(water, criteria, rows)
    for axes in (rain, water):
        _unknown(axes, rows)
        axes.set_ylim(bottom=0)
    _levels(level, rows)
    format_time_axis(level)
    return figure


def _numbers(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [NAN if row[name] is None else row[name] for row in rows]


def _rain_criteria(
    axes: Axes, criteria: Criteria, rows: Sequence[dict[str, Any]]
) -> None:
    times = [row["at"] for row in rows]
    for level, colour, dashes, label in CRITERIA_STYLES:
        limits = [criteria.limit_mm(level, row["r60_mm"] or 0.0) for row in rows]
        if any(map(math.isfinite, limits)):  # one that is not judged is not drawn
            axes.plot(times, limits, dashes, color=colour, linewidth=1, label=label)
    axes.set_ylabel("mm")
    put_legend_beside(axes)


def _unknown(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        if not row["rain_known"]:
            axes.axvspan(row["at"] - STEP, row["at"], color=MISSING, alpha=0.3, lw=0)


def _levels(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        colour = LEVEL_COLOURS.get(row["level"], MISSING)
        axes.axvspan(row["at"] - STEP, row["at"], color=colour, lw=0)
    axes.set_yticks([])
    axes.set_ylabel("level", rotation=0, ha="right", va="center")


FUTURES: Final = {
    "none": ("no more rain", "#2f7d32"),
    "same": ("last hour's mean goes on", "#d2460c"),
    "given": ("official forecast", "#6a1b9a"),
}


def snake_line(levels: pa.Table, criteria: Criteria) -> Figure:
    """Draw the past, the present and the futures of one cell.

    Args:
        levels: Rows of schemas.LEVELS of one cell, sorted by time; the last one is
            the present.
        criteria: Of the cell.

    Raises:
        PlotError: No row has a soil water index.

    Source:
        Judgement of JMA and the prefectures by the critical line (連携案方式).
    """
    rows = [
        row
        for row in levels.to_pylist()
        if row["swi_mm"] is not None and row["r60_mm"] is not None
    ]
    if not rows:
        raise PlotError("levels", "rows with a soil water index", levels.num_rows)
    last = rows[-1]
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    swi = [row["swi_mm"] for row in rows]
    r60 = [row["r60_mm"] for row in rows]
    axes.plot(swi, r60, color=PAST, label="past")
    tanks = SoilWater(last["s1_mm"], last["s2_mm"], last["s3_mm"])
    futures = gold_futures(last, tanks, last["r60_mm"])
    for future in futures:
        _draw_future(axes, (swi[-1], r60[-1]), future)
    axes.plot(
        swi[-1:], r60[-1:], "o", color="#ffd000", markeredgecolor="#222222", label="now"
    )
    _snake_criteria(
        axes, criteria, max([*r60, *(max(f.r60_mm) for f in futures), 52.0])
    )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("soil water index (mm)")
    axes.set_ylabel("rain of the last 60 minutes (mm)")
    when = f"{last['at'].astimezone(JST):%Y-%m-%d %H:%M} JST"
    level = "no judgement" if last["level"] is None else f"level {last['level']}"
    axes.set_title(f"{last['cell']}, {when}: {level}{assumption_note(criteria)}")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _draw_future(axes: Axes, now: tuple[float, float], future: FutureLine) -> None:
    title, colour = FUTURES[future.name]
    swi, r60 = [now[0], *future.swi_mm], [now[1], *future.r60_mm]
    hours = len(future.r60_mm) // STEPS_PER_HOUR
    label = f"{hours} h, {title}: level {future.level}"
    axes.plot(swi, r60, "--", color=colour, label=label)
    axes.plot(swi[-1:], r60[-1:], "s", color=colour)


def _snake_criteria(axes: Axes, criteria: Criteria, max_mm: float) -> None:
    r60s = [float(mm) for mm in range(round(max_mm * 1.15) + 1)]
    for level, colour, dashes, label in CRITERIA_STYLES:
        limits = [criteria.limit_mm(level, mm) for mm in r60s]
        if any(map(math.isfinite, limits)):  # one that is not judged is not drawn
            width = 2.5 if colour == CRITICAL else 1.2
            axes.plot(limits, r60s, dashes, color=colour, linewidth=width, label=label)


HOUR_S = 3600.0


def inverse_velocity(readings: pa.Table) -> Figure:
    """Draw displacement above and 1/v below, with the line to zero and its interval.

    Args:
        readings: Rows of schemas.SILVER of one extensometer, sorted by time.

    Raises:
        PlotError: There are too few valid readings.

    Source:
        Voight 1988 with alpha 1.5 to 2.2; see slope_science.failure_time. A time of
        failure must pass the same checks as in scoring.
    """
    sensor, times, moved_mm = _valid_readings(readings)
    end = times[-1]
    rod = ExtensometerSeries(sensor, [t.timestamp() for t in times], moved_mm)
    figure, (displacement, inverse) = new_figure("", (2, 3))
    days = [_days(at) for at in times]
    displacement.plot(days, moved_mm, ".-", color=WATER, markersize=3)
    displacement.set_ylabel("displacement (mm)")
    speeds = _speeds(times, moved_mm)
    at = [_days(end) + speed.at_h / 24 for speed in speeds]
    inverse.plot(at, [1 / abs(speed.mm_per_h) for speed in speeds], "o", color=WATER)
    names = ["speed of 3 h"]
    inverse.set_ylabel("1/v (h/mm)")
    ahead = rod.forecast_failure(end.timestamp())
    result = "no time of failure: it does not clearly speed up"
    if ahead is not None:
        result = _forecast_text(ahead, end)
        names += _draw_forecast(inverse, ahead, end)
    put_legend_beside(inverse, *names)
    inverse.set_ylim(bottom=0)
    figure.suptitle(f"{sensor}, {end.astimezone(JST):%Y-%m-%d %H:%M} JST\n{result}")
    format_time_axis(inverse)
    return figure


def _valid_readings(readings: pa.Table) -> tuple[str, list[datetime], list[float]]:
    """Name of the sensor, and times and displacements of its valid readings."""
    rows = [
        row
        for row in readings.to_pylist()
        if row["value"] is not None and row["flag"] not in {Flag.FAIL, Flag.MISSING}
    ]
    if len(rows) < MIN_READINGS:
        rule = f"{MIN_READINGS} displacements that count, or more"
        raise PlotError("readings", rule, len(rows))
    sensor = f"{rows[0]['node']} {rows[0]['name']}"
    return sensor, [row["at"] for row in rows], [row["value"] for row in rows]


def _speeds(times: Sequence[datetime], moved_mm: Sequence[float]) -> list[Velocity]:
    """Velocities of the last hours that exceed their noise."""
    hours = [(t - times[-1]).total_seconds() / HOUR_S for t in times]
    first = next(n for n, hour in enumerate(hours) if hour >= -FIT_SPAN_H)
    found = thin_out(fit_velocities(hours[first:], moved_mm[first:]))
    return [speed for speed in found if speed.exceeds(0.0) and speed.mm_per_h]


def _forecast_text(ahead: FailureForecast, end: datetime) -> str:
    gate = ahead.failed_gate(0.0)
    if gate is not None:
        return f"not usable: {render_english(gate)}"
    when = (end + timedelta(hours=ahead.failure_h)).astimezone(JST)
    return (
        f"failure {when:%Y-%m-%d %H:%M} JST ± {ahead.half_width_h:.1f} h (90 %), "
        f"R2 {ahead.r2:.2f}"
    )


def _draw_forecast(axes: Axes, ahead: FailureForecast, end: datetime) -> list[str]:
    """Draw the fit and its confidence interval, and return the names of the lines."""
    if not math.isfinite(ahead.failure_h) or ahead.failure_h > 3 * ahead.window_h:
        return []
    now, is_usable = _days(end), ahead.is_usable(0.0)
    failure, width = now + ahead.failure_h / 24, ahead.half_width_h / 24
    whole_h = ahead.failure_h + ahead.window_h
    lefts_h = [whole_h * n / 40 for n in range(40, 0, -1)]
    line = [1 / ahead.speed_mm_per_h(left_h) for left_h in lefts_h]
    dashes = "-" if is_usable else ":"
    at = [failure - left_h / 24 for left_h in lefts_h]
    axes.plot([*at, failure], [*line, 0.0], dashes, color=WARNING)
    names = [f"fit over {FIT_SPAN_H:g} h"]
    if is_usable:
        names.append("failure, 90 %")
        axes.axvspan(failure - width, failure + width, color=WARNING, alpha=0.2, lw=0)
    axes.axvline(now, color="#222222", linewidth=0.8)
    return [*names, "now"]


def _days(moment: datetime) -> float:
    """A time in matplotlib's unit, days."""
    return float(date2num(moment))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class ChartSubject:
    """Data and time range of a chart.

    Attributes:
        cell: Token of the cell, for ``snake`` and ``rain``.
        node: Node id, for ``velocity``.
        sensor: Name of the node's extensometer, for ``velocity``.
        until: Last moment; None means the newest.
        hours: Hours to draw before it.
    """

    cell: str
    node: str
    sensor: str
    until: datetime | None
    hours: float


def draw_chart(settings: BackendSettings, kind: str, subject: ChartSubject) -> Figure:
    """Draw a chart.

    Args:
        settings: Settings, which name the tables and the criteria.
        kind: ``snake``, ``rain`` or ``velocity``.
        subject: Data and time range.

    Raises:
        PlotError: The tables have no such rows.
    """
    tables = open_tables(settings.backend)
    if kind == "velocity":
        rows = tables.sensor(subject.node, subject.sensor, None, subject.until)
    else:
        rows = tables.cell(subject.cell, None, subject.until)
    if not rows.num_rows:
        named = subject.cell or f"{subject.node} {subject.sensor}"
        raise PlotError(kind, "of something that the tables have", repr(named))
    since = rows["at"][-1].as_py() - timedelta(hours=subject.hours)
    rows = rows.filter(pc.greater_equal(rows["at"], since))
    if kind == "velocity":
        return inverse_velocity(rows)
    criteria = CellRuleProvider.from_settings(settings.criteria).table.criteria_of(
        subject.cell
    )
    return (snake_line if kind == "snake" else rain_and_levels)(rows, criteria)


POINT, DIAGONAL, MEAN = "#1565c0", "#9e9e9e", "#e02400"
MIN_AXIS_OF_100: Final = 10.0


def draw_reliability(calibration: Calibration) -> Figure:
    """Reliability diagram of a calibration: stated against observed landslide days.

    Points on the diagonal are reliable statements. Each day was stated by classes made
    without its year; the bars are exact 95 % intervals of independent days.

    Args:
        calibration: Its points, and the mean share of landslide days.

    Source: Wilks, Statistical Methods in the Atmospheric Sciences, ch. 9.
    """
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    points = calibration.each_year_left_out.reliability
    limit = max(MIN_AXIS_OF_100, *(point.high_of_100 for point in points))
    axes.plot([0, limit], [0, limit], color=DIAGONAL, label="reliable")
    mean = 100 * calibration.days_with_landslide / calibration.days
    axes.axhline(mean, color=MEAN, linestyle=":", label=f"mean {mean:.1f} of 100")
    for point in points:
        _draw_point(axes, point)
    axes.set_xlabel("stated landslide days, of 100 (without the day's year)")
    axes.set_ylabel("observed landslide days, of 100")
    axes.set_xlim(-limit / 40, limit)
    axes.set_ylim(-limit / 40, limit)
    axes.legend(loc="upper left")
    figure.suptitle(_reliability_title(calibration))
    return figure


def _draw_point(axes: Axes, point: ReliabilityBin) -> None:
    """A point with its interval, and the counts behind it."""
    share = 100 * point.days_with_landslide / point.days
    bars = [[share - point.low_of_100], [point.high_of_100 - share]]
    axes.errorbar([point.stated_of_100], [share], yerr=bars, fmt="o", color=POINT)
    text = f" {point.days_with_landslide}/{point.days}"
    axes.annotate(text, (point.stated_of_100, share))


def _reliability_title(calibration: Calibration) -> str:
    skill = calibration.each_year_left_out
    ends = "-" if skill.low is None else f"{skill.low:.2f} to {skill.high:.2f}"
    place = f"{calibration.place}, " if calibration.place else ""
    return (
        f"{place}{calibration.first_day} to {calibration.last_day}\n"
        f"Brier skill score {skill.skill_score:.2f} (95 %: {ends}), each year left out"
    )
