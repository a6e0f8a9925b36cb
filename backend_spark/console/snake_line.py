"""The snake line: rain of the last hour against the soil water index.

With its criteria, and where the next two hours lead.

Source: judgement of JMA and the prefectures by the critical line (連携案方式); without
an official forecast the future is assumed, and says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from slope_science.criteria import Criteria
from slope_science.findings import LOWEST, rain_finding
from slope_science.rain import SoilWater

AHEAD_STEPS: Final = 12
HOUR_STEPS: Final = 6
WIDEST_MM: Final = 150


@dataclass(frozen=True)
class Future:
    """Two hours of assumed rain.

    Attributes:
        name: ``none`` (no more rain), ``same`` (the mean of the last hour goes on)
            or ``given`` (an official forecast).
        r60_mm: Rain of the last hour at the end of each step.
        swi_mm: Soil water index then.
        level: Highest level on the way.
        margin_mm: Of the soil water index below the critical line at its end.
    """

    name: str
    r60_mm: tuple[float, ...]
    swi_mm: tuple[float, ...]
    level: int
    margin_mm: float | None = None


def future(
    name: str,
    start: tuple[SoilWater, float],
    rain_mm: Sequence[float],
    criteria: Criteria,
) -> Future:
    """Run assumed rain through the soil.

    The rain of the last hour leaves the window evenly: its steps are not in gold.

    Args:
        name: Of the future.
        start: Tanks and the rain of the last hour, now.
        rain_mm: Depth in each 10-minute step to come.
        criteria: Of the cell.
    """
    tanks, r60_mm = start
    r60s, indices, level = [], [], LOWEST
    window = [r60_mm / HOUR_STEPS] * HOUR_STEPS
    for depth_mm in rain_mm:
        window = [*window[1:], depth_mm]
        tanks = tanks.after(depth_mm)
        r60s.append(sum(window))
        indices.append(tanks.index_mm)
        finding = rain_finding(max(r60s[-1], 0.0), indices[-1], criteria)
        level = max(level, finding.level if finding else LOWEST)
    margin_mm = criteria.critical_line_mm(max(r60s[-1], 0.0)) - indices[-1]
    return Future(name, tuple(r60s), tuple(indices), level, margin_mm)


def futures(tanks: SoilWater, r60_mm: float, criteria: Criteria) -> list[Future]:
    """No more rain, and the mean of the last hour going on."""
    now = (tanks, r60_mm)
    return [
        future("none", now, [0.0] * AHEAD_STEPS, criteria),
        future("same", now, [r60_mm / HOUR_STEPS] * AHEAD_STEPS, criteria),
    ]


def of_gold(
    row: Mapping[str, Any], tanks: SoilWater, r60_mm: float, criteria: Criteria
) -> list[Future]:
    """The futures of a row of levels: its levels and margins, on lines drawn here.

    Args:
        row: Of schemas.LEVELS.
        tanks: Of the row.
        r60_mm: Likewise.
        criteria: That it was judged by.
    """
    depths = {
        ("none", "dry"): [0.0] * AHEAD_STEPS,
        ("same", "same"): [r60_mm / HOUR_STEPS] * AHEAD_STEPS,
        ("given", "forecast"): row.get("forecast_mm"),
    }
    found = []
    for (name, column), rain_mm in depths.items():
        level, margin_mm = row.get(f"level_{column}"), row.get(f"margin_{column}_mm")
        if rain_mm is not None and level is not None:
            drawn = future(name, (tanks, r60_mm), rain_mm, criteria)
            found.append(replace(drawn, level=level, margin_mm=margin_mm))
    return found


def lines(criteria: Criteria) -> dict[str, Any]:
    """Advisory, warning, critical and special line for a chart."""
    r60s = list(range(0, WIDEST_MM + 1, 2))
    return {
        "r60_mm": r60s,
        "critical_mm": [round(criteria.critical_line_mm(r), 1) for r in r60s],
        "warning_mm": criteria.warning_mm,
        "advisory_mm": criteria.advisory_mm,
        "special_mm": criteria.special_mm,
        "assumed": criteria.assumed,
        "assumed_line": criteria.assumed or not criteria.line,
    }
