"""Snake line of a cell: rain of the last hour against the soil water index.

Also its criteria, and the look-ahead under the official forecast or assumed rain.

Source: judgement of JMA and the prefectures by the critical line (連携案方式).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slope_science.levels import (
    ADVISORY,
    DANGER,
    EMERGENCY,
    LOOK_AHEAD_H,
    NOT_JUDGED_MM,
    Criteria,
)
from slope_science.rain_and_soil_water import (
    STEPS_PER_HOUR,
    SnakePoint,
    SoilWater,
    look_ahead,
    project_snake_line,
)

WIDEST_MM: Final = 150


@dataclass(frozen=True)
class FutureLine:
    """Assumed or forecast rain of the look-ahead, two or three hours.

    Attributes:
        name: ``none`` (no more rain), ``same`` (the mean of the last hour goes on)
            or ``given`` (an official forecast).
        r60_mm: Rain of the last hour at the end of each step.
        swi_mm: Soil water index at the end of each step.
        level: Highest level of now and of those hours.
        margin_mm: Distance of the soil water index below the critical line at the
            end; negative beyond the line.
    """

    name: str
    r60_mm: tuple[float, ...]
    swi_mm: tuple[float, ...]
    level: int
    margin_mm: float | None = None


def moments_ahead(
    tanks: SoilWater, r60_mm: float, rain_mm: Sequence[float]
) -> list[SnakePoint]:
    """Run assumed rain through the soil.

    The rain of the last hour leaves the window evenly: its steps are not in gold.

    Args:
        tanks: Water in the soil now.
        r60_mm: Rain of the last hour, now.
        rain_mm: Depth in each 10-minute step to come.
    """
    return project_snake_line(
        tanks, [r60_mm / STEPS_PER_HOUR] * STEPS_PER_HOUR, rain_mm
    )


def computed_futures(
    tanks: SoilWater, r60_mm: float, criteria: Criteria
) -> list[FutureLine]:
    """No more rain, and the mean of the last hour going on.

    The levels follow the rule that gold follows: assumed rain gives level 4 at most.
    """
    found = []
    for name, step_mm in (("none", 0.0), ("same", r60_mm / STEPS_PER_HOUR)):
        steps = criteria.look_ahead_steps
        moments = moments_ahead(tanks, r60_mm, [step_mm] * steps)
        outlook = look_ahead(SnakePoint(r60_mm, tanks.index_mm), moments, criteria)
        found.append(_line(name, moments, outlook.level, outlook.margin_mm))
    return found


def gold_futures(
    row: Mapping[str, Any], tanks: SoilWater, r60_mm: float
) -> list[FutureLine]:
    """The futures of a row of gold, with gold's levels and margins.

    Only the points of the lines are computed here, since gold does not store them.

    Args:
        row: Of schemas.LEVELS.
        tanks: Of the row.
        r60_mm: Of the row.
    """
    hours = row.get("look_ahead_h") or LOOK_AHEAD_H[0]  # older rows have none
    steps = hours * STEPS_PER_HOUR
    depths = {
        ("none", "dry"): [0.0] * steps,
        ("same", "same"): [r60_mm / STEPS_PER_HOUR] * steps,
        ("given", "forecast"): row.get("forecast_mm"),
    }
    found = []
    for (name, column), rain_mm in depths.items():
        level, margin_mm = row.get(f"level_{column}"), row.get(f"margin_{column}_mm")
        if rain_mm is not None and level is not None:
            moments = moments_ahead(tanks, r60_mm, rain_mm)
            found.append(_line(name, moments, level, margin_mm))
    return found


def criteria_lines(criteria: Criteria) -> dict[str, Any]:
    """Advisory, warning, critical and special line for a chart.

    A criterion that the prefecture does not judge is None. A special or advisory
    criterion that depends on the rain is given for every ``r60_mm``, too.
    """
    r60s = list(range(0, WIDEST_MM + 1, 2))

    def over_rain(level: int) -> list[float | None]:
        return [judged_or_none(criteria.limit_mm(level, float(r))) for r in r60s]

    return {
        "r60_mm": r60s,
        "critical_mm": over_rain(DANGER),
        "warning_mm": judged_or_none(criteria.warning_mm),
        "advisory_mm": judged_or_none(criteria.advisory_mm),
        "special_mm": judged_or_none(criteria.special_mm),
        "advisory_line_mm": over_rain(ADVISORY) if criteria.advisory_line else None,
        "special_line_mm": over_rain(EMERGENCY) if criteria.special_line else None,
        "not_judged": list(criteria.not_judged),
        "assumed": criteria.assumed,
        "assumed_line": criteria.assumed or not criteria.line,
    }


def judged_or_none(limit_mm: float) -> float | None:
    """A criterion, rounded; None where the prefecture does not judge the level."""
    return None if limit_mm == NOT_JUDGED_MM else round(limit_mm, 1)


def _line(
    name: str, moments: Sequence[SnakePoint], level: int, margin_mm: float | None
) -> FutureLine:
    r60_mm = tuple(moment.r60_mm for moment in moments)
    swi_mm = tuple(moment.swi_mm for moment in moments)
    return FutureLine(name, r60_mm, swi_mm, level, margin_mm)
