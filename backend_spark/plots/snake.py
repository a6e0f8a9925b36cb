"""The snake line of a cell: soil water index against the rain of the last hour."""

from typing import Any, Final

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from backend_spark.console.snake import Future, of_gold
from backend_spark.errors import PlotError
from backend_spark.plots.style import (
    ADVISORY,
    CRITICAL,
    JST,
    PAST,
    SPECIAL,
    WARNING,
    note_of,
)
from slope_science.criteria import Criteria
from slope_science.soil_water import SoilWater

FUTURES: Final = {
    "none": ("no more rain", "#2f7d32"),
    "same": ("last hour's mean goes on", "#d2460c"),
    "given": ("official forecast", "#6a1b9a"),
}


def snake_line(levels: pa.Table, criteria: Criteria) -> Figure:
    """Draw the past, the present and the futures of one cell.

    Args:
        levels: Rows of schemas.LEVELS of one cell, in the order of time; the last one
            is the present.
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
    futures = _futures(last, criteria)
    for future in futures:
        _draw(axes, (swi[-1], r60[-1]), future)
    axes.plot(
        swi[-1:], r60[-1:], "o", color="#ffd000", markeredgecolor="#222222", label="now"
    )
    _criteria(axes, criteria, max([*r60, *(max(f.r60_mm) for f in futures), 52.0]))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("soil water index (mm)")
    axes.set_ylabel("rain of the last 60 minutes (mm)")
    when = f"{last['at'].astimezone(JST):%Y-%m-%d %H:%M} JST"
    level = "no judgement" if last["level"] is None else f"level {last['level']}"
    axes.set_title(f"{last['cell']}, {when}: {level}{note_of(criteria)}")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _futures(row: dict[str, Any], criteria: Criteria) -> list[Future]:
    tanks = SoilWater(row["s1_mm"], row["s2_mm"], row["s3_mm"])
    return of_gold(row, tanks, row["r60_mm"], criteria)


def _draw(axes: Axes, now: tuple[float, float], future: Future) -> None:
    words, colour = FUTURES[future.name]
    swi, r60 = [now[0], *future.swi_mm], [now[1], *future.r60_mm]
    label = f"2 h, {words}: level {future.level}"
    axes.plot(swi, r60, "--", color=colour, label=label)
    axes.plot(swi[-1:], r60[-1:], "s", color=colour)


def _criteria(axes: Axes, criteria: Criteria, most_mm: float) -> None:
    r60s = [float(mm) for mm in range(round(most_mm * 1.15) + 1)]
    line = [criteria.critical_line_mm(mm) for mm in r60s]
    axes.plot(line, r60s, color=CRITICAL, linewidth=2.5, label="critical line")
    limits = (
        (criteria.advisory_mm, ADVISORY, ":", "advisory"),
        (criteria.warning_mm, WARNING, "--", "warning"),
        (criteria.special_mm, SPECIAL, "-.", "special warning"),
    )
    for mm, colour, dashes, label in limits:
        axes.axvline(mm, color=colour, linestyle=dashes, linewidth=1.2, label=label)
