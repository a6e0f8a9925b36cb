"""Levels of a cell by the official criteria: now and two hours ahead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science import ScienceError
from slope_science.levels import Criteria
from slope_science.rain_and_soil_water import (
    SnakePoint,
    SoilWater,
    critical_line_margin_mm,
    judge_look_ahead,
    look_ahead,
    project_snake_line,
    soil_water_series,
)
from slope_science.reasons import render_english

LINE = ((0.0, 220.0), (50.0, 180.0), (100.0, 150.0))
TABLE = Criteria(150.0, 110.0, 275.0, assumed=False, line=LINE)
CALM = SnakePoint(0.0, 20.0)

# (now, last forecast step, level): one row of the official judgement each
ROWS = {
    "5: the actual value reaches the special criterion": (SnakePoint(0, 275), CALM, 5),
    "not 5: only the forecast reaches it": (CALM, SnakePoint(0, 400), 4),
    "4: the actual value reaches the critical line": (SnakePoint(50, 180), CALM, 4),
    "4: the forecast reaches the critical line": (CALM, SnakePoint(50, 180), 4),
    "not 4: just below the line": (SnakePoint(50, 179.9), SnakePoint(0, 219.9), 3),
    "3: the actual value reaches the warning criterion": (SnakePoint(0, 150), CALM, 3),
    "3: the forecast reaches the warning criterion": (CALM, SnakePoint(0, 150), 3),
    "2: the actual value reaches the advisory criterion": (SnakePoint(0, 110), CALM, 2),
    "2: the forecast reaches the advisory criterion": (CALM, SnakePoint(0, 110), 2),
    "1: none of these": (SnakePoint(0, 109.9), SnakePoint(30, 109.9), 1),
}


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_judgement(row: str) -> None:
    """Level 5 by the actual value only, levels 4 to 2 also by the next two hours."""
    now, then, level = ROWS[row]

    assert look_ahead(now, [CALM] * 11 + [then], TABLE).level == level


def test_forecast_beyond_two_hours_is_refused() -> None:
    """The rule covers twelve steps of ten minutes."""
    with pytest.raises(ScienceError, match="coming must be at most 12 steps"):
        look_ahead(CALM, [CALM] * 13, TABLE)


def test_hard_rain_on_dry_soil_reaches_the_line_at_its_flat_end() -> None:
    """Beyond the table's last point the line is constant."""
    assert look_ahead(SnakePoint(150, 149.9), [], TABLE).level == 2
    assert look_ahead(SnakePoint(150, 150.0), [], TABLE).level == 4


def test_look_ahead_gives_time_and_margin() -> None:
    """The first step of the highest level, and the margin at the end."""
    coming = [SnakePoint(0, 100), SnakePoint(0, 160), SnakePoint(0, 170)]
    future = look_ahead(CALM, coming, TABLE)
    finding = judge_look_ahead(future, TABLE)

    assert (future.level, future.after_steps, future.point) == (
        3,
        2,
        SnakePoint(0, 160),
    )
    assert future.margin_mm == pytest.approx(50.0)
    assert finding is not None
    assert finding.level == 3
    assert render_english(finding.reason) == (
        "in 20 min, if the rain of the last hour goes on: soil water index 160.0 mm "
        ">= warning criterion 150.0 mm"
    )


def test_level_already_reached_is_no_look_ahead_finding() -> None:
    """It is reported by the actual value."""
    assert (
        judge_look_ahead(look_ahead(SnakePoint(0, 160), [CALM], TABLE), TABLE) is None
    )


def test_projected_snake_line_is_that_of_the_tank_model() -> None:
    """Future rain enters the same tanks, and the hour of r60 moves with it."""
    tanks, coming = SoilWater(40.0, 20.0, 5.0), [3.0] * 12
    line = project_snake_line(tanks, [1.0] * 6, coming)
    expected = [s.index_mm for s in soil_water_series(coming, start=tanks)]

    assert [moment.swi_mm for moment in line] == pytest.approx(expected)
    assert [moment.r60_mm for moment in line][:7] == [8, 10, 12, 14, 16, 18, 18]


DEPTHS = st.lists(st.floats(0, 30), min_size=12, max_size=12)


@given(DEPTHS, DEPTHS, st.floats(0, 250))
def test_more_rain_to_come_never_lowers_the_level(
    rain_mm: list[float], more_mm: list[float], water_mm: float
) -> None:
    """The level rises and the margin falls with the assumed rain."""
    tanks = SoilWater(water_mm)
    now = SnakePoint(0.0, tanks.index_mm)
    less = look_ahead(now, project_snake_line(tanks, [], rain_mm), TABLE)
    both = [a + b for a, b in zip(rain_mm, more_mm, strict=True)]
    more = look_ahead(now, project_snake_line(tanks, [], both), TABLE)

    assert less.level <= more.level
    assert more.margin_mm <= less.margin_mm + 1e-9


@given(st.floats(0, 300), st.floats(0, 150))
def test_margin_is_negative_from_level_4_on(swi_mm: float, r60_mm: float) -> None:
    """Margin and level agree."""
    moment = SnakePoint(r60_mm, swi_mm)

    assert (critical_line_margin_mm(moment, TABLE) <= 0) == (
        swi_mm >= TABLE.critical_line_mm(r60_mm)
    )


def test_default_special_criterion_is_marked_as_assumed() -> None:
    """1.25 times the critical line without rain, where there is no table."""
    default = Criteria.assumed_from(150.0)

    assert default.assumed
    assert default.special_mm == pytest.approx(1.25 * 1.478 * 150)
    assert default.advisory_mm == pytest.approx(0.75 * 150)
