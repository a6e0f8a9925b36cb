"""Rain, soil water and level of a cell over time."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from backend_spark.errors import PlotError
from backend_spark.plots.style import (
    ADVISORY,
    CRITICAL,
    LEVEL_COLOURS,
    MISSING,
    SPECIAL,
    WARNING,
    WATER,
    beside,
    new_figure,
    note_of,
    time_axis,
)
from backend_spark.transforms.steps import STEP_S
from slope_science.criteria import Criteria

STEP = timedelta(seconds=STEP_S)
NAN = float("nan")


def rain_and_levels(levels: pa.Table, criteria: Criteria) -> Figure:
    """Draw rain above, the soil water index with its criteria, and the level below.

    Steps whose rain is unknown are grey: they are not dry.

    Args:
        levels: Rows of schemas.LEVELS of one cell, in the order of time.
        criteria: Of the cell.

    Raises:
        PlotError: There is no row.
    """
    rows = levels.to_pylist()
    if not rows:
        raise PlotError("levels", "rows of one cell", 0)
    title = f"{rows[0]['cell']}: rain, soil water and level{note_of(criteria)}"
    figure, (rain, water, level) = new_figure(title, (2, 3, 0.4))
    times = [row["at"] for row in rows]
    rain.fill_between(times, _numbers(rows, "r60_mm"), step="pre", color=WATER)
    rain.plot(times, _numbers(rows, "effective_1h5_mm"), color="#ef6c00", linewidth=1)
    rain.set_ylabel("mm")
    beside(rain, "60-minute rain", "effective rain, 1.5 h")
    water.plot(times, _numbers(rows, "swi_mm"), color=WATER, label="soil water index")
    _criteria(water, criteria, rows)
    for axes in (rain, water):
        _unknown(axes, rows)
        axes.set_ylim(bottom=0)
    _levels(level, rows)
    time_axis(level)
    return figure


def _numbers(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [NAN if row[name] is None else row[name] for row in rows]


def _criteria(axes: Axes, criteria: Criteria, rows: Sequence[dict[str, Any]]) -> None:
    limits = (
        (criteria.advisory_mm, ADVISORY, ":", "advisory"),
        (criteria.warning_mm, WARNING, "--", "warning"),
        (criteria.special_mm, SPECIAL, "-.", "special warning"),
    )
    for mm, colour, dashes, label in limits:
        axes.axhline(mm, color=colour, linestyle=dashes, linewidth=1, label=label)
    line = [criteria.critical_line_mm(row["r60_mm"] or 0.0) for row in rows]
    times = [row["at"] for row in rows]
    axes.plot(times, line, color=CRITICAL, linewidth=1.5, label="critical line")
    axes.set_ylabel("mm")
    beside(axes)


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
