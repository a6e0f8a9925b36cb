"""Line fits, Student's t, background limits and steps against known values."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science import ScienceError
from slope_science.movement import tilt_resolution_deg_per_h, without_step
from slope_science.statistics import (
    background_limit,
    fit_line,
    median,
    student_t_quantile,
    two_sided_probability,
)


@pytest.mark.parametrize(
    ("share", "freedom", "t"),
    [
        (0.05, 1, 12.706), (0.05, 2, 4.303), (0.05, 5, 2.571), (0.05, 10, 2.228),
        (0.01, 6, 3.707), (0.001, 5, 6.869), (0.001, 30, 3.646),
    ],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(
    share: float, freedom: int, t: float
) -> None:
    """Two-sided values of textbook tables."""
    assert student_t_quantile(share, freedom) == pytest.approx(t, abs=6e-4)
    assert two_sided_probability(
        student_t_quantile(share, freedom), freedom
    ) == pytest.approx(share)


@pytest.mark.parametrize(("share", "freedom"), [(0.0, 5), (1.0, 5), (0.05, 0)])
def test_invalid_quantile_is_refused(share: float, freedom: int) -> None:
    """The share lies between 0 and 1; at least one degree of freedom is needed."""
    with pytest.raises(ScienceError, match="must be"):
        student_t_quantile(share, freedom)


def test_line_has_the_slope_and_errors_of_least_squares() -> None:
    """By hand: times 0..3, values 1, 3, 2, 5: slope 1.1, variance 1.35."""
    line = fit_line([0, 1, 2, 3], [1, 3, 2, 5])
    assert line is not None
    assert line.mean_time == 1.5
    assert line.slope == pytest.approx(1.1)
    assert line.variance == pytest.approx(1.35)
    assert line.sigma_slope == pytest.approx((1.35 / 5) ** 0.5)
    assert line.r2 == pytest.approx(1 - 2.7 / 8.75)


def test_line_needs_three_points_and_two_times() -> None:
    """Two points fit any line; a single time fits none."""
    assert fit_line([0, 1], [0, 1]) is None
    assert fit_line([1, 1, 1], [0, 1, 2]) is None
    with pytest.raises(ScienceError, match=r"values must be as many as times \(3\)"):
        fit_line([0, 1, 2], [0, 1])


def test_background_limit_is_the_median_plus_eight_mads() -> None:
    """Median 3, MAD 1: the limit is 11; a quiet site has the minimum limit."""
    assert background_limit([2, 3, 4, 2, 4, 3, 3], min_limit=5) == 3 + 8 * 1
    assert background_limit([0, 0, 0, 1], min_limit=10) == 10
    assert median([4, 1, 3, 2]) == 2.5


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(0, 1000))
def test_one_burst_hardly_changes_the_median(past: list[int], burst: int) -> None:
    """One more window of any value keeps the median within the range of the past."""
    low, high = min(past), max(past)
    assert low <= median([*past, *past, burst]) <= high


def test_step_is_removed_from_all_axes() -> None:
    """The jump at the third reading shifts both axes; the creep stays."""
    x, y = without_step([[0.0, 0.1, 5.2, 5.3], [0.0, 0.0, 3.0, 3.0]], (1, 2))
    assert x == pytest.approx([0.0, 0.1, 0.1, 0.2])
    assert y == pytest.approx([0.0, 0.0, 0.0, 0.0])


def test_tilt_resolution_of_seven_readings() -> None:
    """Sigma 0.0029 deg resolves 0.01 deg/h with seven readings in an hour."""
    times_h = [at / 6 for at in range(7)]
    assert tilt_resolution_deg_per_h(0.0029, times_h) == pytest.approx(0.01, rel=0.02)
    assert tilt_resolution_deg_per_h(0.0029, times_h[:3]) == float("inf")
    assert tilt_resolution_deg_per_h(0.0029, [1.0] * 7) == float("inf")


def test_resolution_is_three_sigma_of_a_slope() -> None:
    """Compared with the spread of slopes fitted to noise."""
    rng, times_h = random.Random(7), [at / 6 for at in range(7)]
    lines = [
        fit_line(times_h, [rng.gauss(0, 0.01) for _ in times_h]) for _ in range(4000)
    ]
    slopes = [line.slope for line in lines if line]
    sigma = (sum(s * s for s in slopes) / len(slopes)) ** 0.5
    assert 3 * sigma == pytest.approx(
        tilt_resolution_deg_per_h(0.01, times_h), rel=0.05
    )
