"""The snake line: rain of the last hour against the soil water index.

With its criteria, and where the next two hours lead.

Source: judgement of JMA and the prefectures by the critical line (連携案方式); without
an official forecast the future is assumed, and says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from slope_science.criteria import Criteria
from slope_science.levels import LOWEST, rain_finding
from slope_science.soil_water import SoilWater

AHEAD_STEPS: Final = 12
HOUR_STEPS: Final = 6
WIDEST_MM: Final = 150


@dataclass(frozen=True)
class Future:
    """Two hours of assumed rain.

    Attributes:
        name: ``none`` (no more rain), ``same`` (the mean of the last hour goes on)
            or ``given``.
        r60_mm: Rain of the last hour at the end of each step.
        swi_mm: Soil water index then.
        level: Highest level on the way.
    """

    name: str
    r60_mm: tuple[float, ...]
    swi_mm: tuple[float, ...]
    level: int


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
    return Future(name, tuple(r60s), tuple(indices), level)


def futures(tanks: SoilWater, r60_mm: float, criteria: Criteria) -> list[Future]:
    """No more rain, and the mean of the last hour going on."""
    now = (tanks, r60_mm)
    return [
        future("none", now, [0.0] * AHEAD_STEPS, criteria),
        future("same", now, [r60_mm / HOUR_STEPS] * AHEAD_STEPS, criteria),
    ]


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
