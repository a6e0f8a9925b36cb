"""Criteria for the soil water index."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science import ScienceError
from slope_science.levels import DEFAULT_CRITERIA, NO_LINE, NOT_JUDGED_MM, Criteria

# 60-minute rain (mm): ratio of critical line to warning criterion, median of Kinki
MEDIAN = {
    0: 1.484,
    20: 1.474,
    30: 1.443,
    40: 1.374,
    50: 1.266,
    60: 1.102,
    70: 0.984,
    80: 0.968,
    100: 0.960,
}
WARNINGS = st.floats(50, 500)


@pytest.mark.parametrize(("r60_mm", "ratio"), MEDIAN.items())
@pytest.mark.parametrize("warning_mm", [108.0, 150.0, 369.0])
def test_critical_line_follows_the_median_of_real_cells(
    warning_mm: float, r60_mm: float, ratio: float
) -> None:
    """Within 0.02 of the warning criterion over the whole table."""
    line_mm = Criteria.assumed_from(warning_mm).critical_line_mm(r60_mm)

    assert line_mm / warning_mm == pytest.approx(ratio, abs=0.02)


@given(warning_mm=WARNINGS, r60_mm=st.floats(0, 300), more_mm=st.floats(0, 100))
def test_harder_rain_never_raises_the_critical_line(
    warning_mm: float, r60_mm: float, more_mm: float
) -> None:
    """The harder the rain, the lower the critical line."""
    criteria = Criteria.assumed_from(warning_mm)
    line_mm = criteria.critical_line_mm(r60_mm)

    assert criteria.critical_line_mm(r60_mm + more_mm) <= line_mm
    assert 0.955 * warning_mm <= line_mm <= 1.478 * warning_mm


@given(warning_mm=WARNINGS)
def test_assumed_criteria_are_ordered_and_marked_as_assumed(warning_mm: float) -> None:
    """Ratios of the planning defaults; the critical line lies below the special one."""
    criteria = Criteria.assumed_from(warning_mm)

    assert criteria.assumed
    assert criteria.warning_mm == warning_mm
    assert criteria.advisory_mm == pytest.approx(0.75 * warning_mm)
    assert criteria.special_mm == pytest.approx(1.25 * 1.478 * warning_mm)
    assert criteria.critical_line_mm(0.0) < criteria.special_mm


def test_default_criteria_are_the_planning_defaults() -> None:
    """Without data a warning criterion of 150 mm is assumed."""
    assert Criteria() == DEFAULT_CRITERIA
    assert Criteria() == Criteria(150.0, 112.5, 277.125, assumed=True)


@pytest.mark.parametrize(
    ("warning_mm", "advisory_mm", "special_mm"),
    [
        (150, 151, 300),
        (150, 100, 149),
        (150, 0, 300),
        (150, -1, 300),
        (-3, -4, -2),
        (math.nan, 100, 300),
        (150, math.nan, 300),
        (150, 100, math.nan),
    ],
)
def test_criteria_out_of_order_are_refused(
    warning_mm: float, advisory_mm: float, special_mm: float
) -> None:
    """A table row with exchanged columns is rejected."""
    with pytest.raises(
        ScienceError, match="criteria must be 0 < advisory <= warning <= special, got"
    ):
        Criteria(warning_mm, advisory_mm, special_mm)


def test_equal_criteria_are_accepted() -> None:
    """Two levels may share a criterion."""
    assert Criteria(150, 150, 150, assumed=False).warning_mm == 150


@pytest.mark.parametrize("r60_mm", [-0.1, math.nan, math.inf])
def test_critical_line_at_invalid_rain_is_refused(r60_mm: float) -> None:
    """The line is defined for zero or more."""
    with pytest.raises(ScienceError, match="r60_mm must be zero or more, got"):
        Criteria().critical_line_mm(r60_mm)


def test_critical_line_at_extreme_rain_is_its_minimum() -> None:
    """A defective gauge that reports metres must not stop the scoring."""
    assert Criteria().critical_line_mm(6000.0) == pytest.approx(0.955 * 150)


LINE = ((0.0, 200.0), (20.0, 180.0), (60.0, 100.0))


@pytest.mark.parametrize(
    ("r60_mm", "index_mm"),
    [
        (0.0, 200.0),
        (10.0, 190.0),
        (20.0, 180.0),
        (40.0, 140.0),
        (60.0, 100.0),
        (99.0, 100.0),
    ],
)
def test_line_of_a_table_is_interpolated(r60_mm: float, index_mm: float) -> None:
    """Straight between its points, constant beyond the last."""
    criteria = Criteria(150.0, 112.5, 277.0, line=LINE)
    assert criteria.critical_line_mm(r60_mm) == pytest.approx(index_mm)


@pytest.mark.parametrize(
    "line",
    [
        ((0.0, 200.0),),
        ((0.0, 200.0), (10.0,)),
        ((0.0, 200.0), (0.0, 100.0)),
        ((0.0, 200.0), (10.0, 201.0)),
        ((0.0, 200.0), (10.0, 0.0)),
        ((0.0, math.nan), (10.0, 100.0)),
        tuple((float(r60), 100.0) for r60 in range(152)),
    ],
)
def test_invalid_critical_line_is_refused(
    line: tuple[tuple[float, ...], ...],
) -> None:
    """A line has at least two points, and harder rain never raises it."""
    with pytest.raises(ScienceError, match="line must be"):
        Criteria(150.0, 112.5, 277.0, line=line)


ADVISORY_ONLY = Criteria(
    NOT_JUDGED_MM, 100.0, NOT_JUDGED_MM, assumed=False, line=NO_LINE
)


@given(st.floats(0, 300), st.floats(0, 5000))
def test_level_that_is_not_judged_is_never_reached(
    r60_mm: float, swi_mm: float
) -> None:
    """Whatever the rain; the level below keeps its criterion."""
    assert ADVISORY_ONLY.not_judged == (3, 4, 5)
    assert ADVISORY_ONLY.critical_line_mm(r60_mm) == NOT_JUDGED_MM
    assert ADVISORY_ONLY.limit_mm(2, r60_mm) == 100.0


def test_line_may_begin_to_be_judged_at_some_rain() -> None:
    """Below it no index reaches level 4; the points next to it are not mixed."""
    line = ((0.0, NOT_JUDGED_MM), (10.0, NOT_JUDGED_MM), (11.0, 200.0), (20.0, 150.0))
    criteria = Criteria(150, 110, 300, assumed=False, line=line)

    assert [criteria.critical_line_mm(r) for r in (0, 10, 10.9)] == [NOT_JUDGED_MM] * 3
    assert [criteria.critical_line_mm(r) for r in (11, 20, 90)] == [200, 150, 150]
    assert criteria.not_judged == ()


@pytest.mark.parametrize(
    "missing", [(100, None, 300), (None, 150, 300), (100, 150, None)]
)
def test_order_is_checked_among_the_judged_criteria(
    missing: tuple[float | None, float | None, float | None],
) -> None:
    """One that is not judged does not hide that others are out of order."""
    advisory, warning, special = (NOT_JUDGED_MM if mm is None else mm for mm in missing)
    assert Criteria(warning, advisory, special).not_judged
    with pytest.raises(ScienceError, match="0 < advisory <= warning <= special"):
        Criteria(warning, special, advisory)


def test_look_ahead_is_two_or_three_hours() -> None:
    """Other prefectures have none."""
    assert [Criteria(look_ahead_h=h).look_ahead_steps for h in (2, 3)] == [12, 18]
    with pytest.raises(ScienceError, match="look_ahead_h must be 2 or 3, got 6"):
        Criteria(look_ahead_h=6)
