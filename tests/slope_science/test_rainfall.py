"""Rain sums and effective rain."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science import ScienceError
from slope_science.rain_and_soil_water import (
    LONG_HALF_LIFE_H,
    SHORT_HALF_LIFE_H,
    antecedent_index,
    cumulative_rain,
    effective_rain,
    rain_60min,
)

STORM_MM = [0, 5, 10, 20, 30, 50, 60, 40, 20, 10, 5, 0, 0, 0, 0, 0, 0, 0]
# hour: (R1.5, R72) in mm
WORKED = {
    2: (5.000, 5.000),
    3: (13.150, 14.952),
    4: (28.284, 34.809),
    5: (47.818, 64.475),
    6: (80.123, 113.858),
    7: (110.474, 172.767),
    8: (109.595, 211.112),
    9: (89.040, 229.089),
    10: (66.092, 236.894),
    12: (29.378, 237.329),
    18: (1.836, 224.008),
}
RAIN = st.lists(st.floats(0, 200), max_size=40)
HALF_LIVES = st.floats(0.1, 200)


@pytest.mark.parametrize("hour", WORKED)
def test_effective_rain_gives_the_worked_values(hour: int) -> None:
    """The columns R1.5 and R72 of the worked example."""
    short = effective_rain(STORM_MM, 1.0, SHORT_HALF_LIFE_H)[hour - 1]
    long = effective_rain(STORM_MM, 1.0, LONG_HALF_LIFE_H)[hour - 1]

    assert (short, long) == pytest.approx(WORKED[hour], abs=1e-3)


@pytest.mark.parametrize(("half_life_h", "second"), [(1.5, 11.299605), (6, 13.908987)])
def test_effective_rain_of_two_hours_is_as_published(
    half_life_h: float, second: float
) -> None:
    """Reference values of an independent implementation: 10 mm, then 5 mm."""
    series = effective_rain([10, 5], 1.0, half_life_h)

    assert series == pytest.approx([10, second], abs=1e-6)


@given(rain_mm=RAIN, half_life_h=HALF_LIVES)
def test_effective_rain_is_the_sum_of_decayed_rain(
    rain_mm: list[float], half_life_h: float
) -> None:
    """The recursion equals the defining sum."""
    sums = [
        sum(0.5 ** (i / half_life_h) * rain_mm[now - i] for i in range(now + 1))
        for now in range(len(rain_mm))
    ]

    assert effective_rain(rain_mm, 1.0, half_life_h) == pytest.approx(sums)


@given(depth_mm=st.floats(0, 200), half_life_h=HALF_LIVES)
def test_half_remains_after_a_half_life(depth_mm: float, half_life_h: float) -> None:
    """For any step."""
    series = effective_rain([depth_mm] + [0.0] * 10, half_life_h / 10, half_life_h)

    assert series[-1] == pytest.approx(depth_mm / 2)


@given(rain_mm=RAIN, half_life_h=HALF_LIVES)
def test_effective_rain_is_between_the_latest_and_the_total_rain(
    rain_mm: list[float], half_life_h: float
) -> None:
    """It never exceeds the rain that fell, nor falls below the latest depth."""
    series = effective_rain(rain_mm, 1.0, half_life_h)

    assert len(series) == len(rain_mm)
    for now, effective_mm in enumerate(series):
        assert rain_mm[now] <= effective_mm <= sum(rain_mm[: now + 1]) + 1e-9


def test_rain_of_an_hour_is_the_sum_of_its_steps() -> None:
    """Six steps of ten minutes, fewer at the beginning."""
    rain_mm = [1, 2, 3, 4, 5, 6, 7, 8]

    assert rain_60min(rain_mm, 1 / 6) == [1, 3, 6, 10, 15, 21, 27, 33]
    assert rain_60min(rain_mm, 1.0) == rain_mm
    assert rain_60min([], 1.0) == []


@given(rain_mm=RAIN, steps=st.integers(1, 60))
def test_rain_of_an_hour_includes_the_last_steps_only(
    rain_mm: list[float], steps: int
) -> None:
    """Earlier rain does not count."""
    hour_mm = rain_60min(rain_mm, 1 / steps)

    assert len(hour_mm) == len(rain_mm)
    for now, depth_mm in enumerate(hour_mm):
        assert depth_mm == sum(rain_mm[max(0, now + 1 - steps) : now + 1])


@pytest.mark.parametrize("step_h", [0.0, -1.0, 0.4, 0.7, 2.0, math.nan, math.inf])
def test_step_that_does_not_divide_an_hour_is_refused(step_h: float) -> None:
    """An hour must be a whole number of steps."""
    with pytest.raises(
        ScienceError, match="step_h must be a whole fraction of an hour"
    ):
        rain_60min([1.0], step_h)


def test_cumulative_rain_starts_again_after_a_dry_day() -> None:
    """23 dry hours are within a series of rain, 24 end it."""
    assert cumulative_rain([5.0, *[0.0] * 23, 2.0], 1.0)[-1] == 7.0
    assert cumulative_rain([5.0, *[0.0] * 24, 2.0], 1.0)[-1] == 2.0


def test_unknown_rain_does_not_end_a_series() -> None:
    """Missing is never zero: the hours without data may have been wet."""
    assert cumulative_rain([5.0, *[None] * 24, 2.0], 1.0)[-1] == 7.0


def test_series_of_rain_ends_with_a_whole_dry_day_only() -> None:
    """A drop begins the day anew, and an unknown step is no part of it."""
    dry: list[float | None] = [0.0] * 20

    assert cumulative_rain([5, *dry, 1, *dry, 2], 1.0)[-1] == 8
    assert cumulative_rain([5, *dry, *[None] * 10, 0, 0, 0, 1], 1.0)[-1] == 6
    assert cumulative_rain([5, *dry, None, 0, 0, 0, 0, 1], 1.0)[-1] == 1


def test_antecedent_index_weights_days_by_the_square_of_their_age() -> None:
    """Equal days give their rain; the weights of seven days sum to 1.5118."""
    assert antecedent_index([4.0] * 7) == pytest.approx(4)
    assert antecedent_index([10.0] + [0.0] * 6) == pytest.approx(6.6147, abs=1e-3)
    assert antecedent_index([0.0] * 6 + [490.0]) == pytest.approx(6.6147, abs=1e-3)
    with pytest.raises(ScienceError, match="7 days"):
        antecedent_index([1.0] * 6)
