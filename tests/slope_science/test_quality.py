"""QARTOD tests, one by one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science import quality
from slope_science.quality import (
    GOOD,
    NOT_EVALUATED,
    RAIN_LIMITS,
    Flag,
    ValueRange,
    Verdict,
    check_clock,
    check_flat_line,
    check_node_flag,
    check_range,
    check_rate_of_change,
    check_spike,
    check_step,
    worst_verdict,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason


@pytest.mark.parametrize(
    ("value", "flag"),
    [(-90, 1), (80, 1), (81, 3), (90, 3), (90.1, 4), (math.nan, 4), (math.inf, 4)],
)
def test_gross_range_fails_impossible_values_and_suspects_rare_ones(
    value: float, flag: int
) -> None:
    """Both limits are inclusive; NaN and infinity fail."""
    assert check_range(value, ValueRange(-90, 90), ValueRange(-90, 80)).flag == flag


@pytest.mark.parametrize(
    ("before", "value", "after", "flag"),
    [
        (1.0, 3.0, 1.2, 3),
        (1.0, 3.0, 3.1, 1),
        (1.0, 3.0, 5.0, 1),
        (1.0, -1.0, 1.0, 3),
        (1.0, 1.4, 1.0, 1),
        (None, 3.0, 1.0, 2),
        (1.0, 3.0, None, 2),
    ],
)
def test_spike_rises_and_returns(
    before: float | None, value: float, after: float | None, flag: int
) -> None:
    """Differential method: both changes large and opposite; ends are not evaluated."""
    assert check_spike(before, value, after, 0.5).flag == flag


def test_step_and_rate_give_their_numbers_as_reason() -> None:
    """An analyst can check the reason by hand."""
    assert check_step(1.0, 2.0, 1.0) == GOOD
    assert check_step(None, 2.0, 1.0) == NOT_EVALUATED
    found = check_step(1.0, 2.5, 1.0)
    assert (found.flag, found.why) == (Flag.SUSPECT, "step: 1.5 > 1")
    assert check_rate_of_change(3.0, 1800, 6.0) == GOOD
    assert check_rate_of_change(-4.0, 1800, 6.0).why == "rate: 8 an hour > 6"
    assert check_rate_of_change(4.0, 0, 6.0) == NOT_EVALUATED


def test_flat_line_needs_a_whole_window() -> None:
    """Equal readings for a day mean a dead sensor; half a day is not evaluated."""
    times = [600.0 * n for n in range(145)]

    assert check_flat_line(times, [0.5] * 145, 86_400, 1e-9).why == "flat: 0.5 for 24 h"
    assert check_flat_line(times[:100], [0.5] * 100, 86_400, 1e-9) == NOT_EVALUATED
    assert check_flat_line(times, [*[0.5] * 144, 0.6], 86_400, 1e-9) == GOOD


@pytest.mark.parametrize(
    ("flags", "worst_flag"),
    [((), 2), ((2, 1), 1), ((1, 3, 2), 3), ((3, 4), 4), ((4, 9), 9), ((2, 2), 2)],
)
def test_aggregate_is_the_worst_flag(flags: tuple[int, ...], worst_flag: int) -> None:
    """A test that was not evaluated does not change one that passed."""
    reasons = {flag: Reason(ReasonCode.TEXT, text=f"why {flag}") for flag in flags}
    worst = worst_verdict(Verdict(Flag(flag), (reasons[flag],)) for flag in flags)

    assert worst.flag == worst_flag
    is_good = worst_flag == Flag.GOOD
    why = f"why {worst_flag}" if flags and not is_good else ""
    assert set(worst.why.split("; ")) == {why}


def test_node_flag_and_clock_are_evaluated_only_when_in_doubt() -> None:
    """An absent flag is not a passed test."""
    assert check_node_flag(None) == NOT_EVALUATED
    assert [int(check_node_flag(f).flag) for f in (1, 3, 4, 9, 7)] == [1, 3, 4, 9, 3]
    assert check_clock(synchronised=True) == NOT_EVALUATED
    assert check_clock(synchronised=False).flag is Flag.SUSPECT


def test_record_rain_of_ten_minutes_is_suspect_and_not_failed() -> None:
    """55.0 mm fell in ten minutes at Kikonai; a limit must not discard such a storm."""
    verdict = quality.check_rain_depth(55.0, 600)

    assert (verdict.flag, verdict.why) == (
        Flag.SUSPECT,
        "range: 55 mm within 10 min > 50 mm",
    )


@given(st.sampled_from(RAIN_LIMITS), st.floats(0.001, 100))
def test_rain_just_above_each_limit_is_suspect(
    row: tuple[float, float], above_mm: float
) -> None:
    """At the telemetry limit rain is good, above it suspect or failed."""
    seconds, limit_mm = row

    assert quality.check_rain_depth(min(limit_mm, 990.0), seconds) == GOOD
    assert quality.check_rain_depth(limit_mm + above_mm, seconds).flag >= Flag.SUSPECT


@pytest.mark.parametrize("depth_mm", [-0.5, 991.0, math.nan])
def test_impossible_rain_depth_fails(depth_mm: float) -> None:
    """Negative, infinite, or more in a report than the record of a day."""
    assert quality.check_rain_depth(depth_mm, 600).flag is Flag.FAIL


def test_counter_that_decreases_is_suspect() -> None:
    """It was replaced or misread; then the report's own value is used."""
    assert quality.check_counter(412.5, 0.5).flag is Flag.SUSPECT
    assert quality.check_counter(412.5, 412.5) == GOOD
    assert quality.check_counter(None, 3.0) == NOT_EVALUATED


def test_counter_that_rises_by_more_than_rain_is_suspect() -> None:
    """990 mm; after hours without a report as much of each."""
    verdict = quality.check_rise(10.0, 1001.0, 600.0)

    assert verdict.why == "range: 991 mm within 10 min > 990 mm"
    assert quality.check_rise(10.0, 1000.0, 600.0) == GOOD
    assert quality.check_rise(10.0, 1001.0, 5 * 3600.0) == GOOD
    assert quality.check_rise(-1.7e308, 1.7e308, 600.0).flag is Flag.SUSPECT
    assert quality.check_rise(None, 1001.0, 600.0) == NOT_EVALUATED


def test_gauge_below_freezing_is_suspect() -> None:
    """Snow is under-measured, and melts later."""
    assert quality.check_frost(-0.1).flag is Flag.SUSPECT
    assert quality.check_frost(0.0) == GOOD
    assert quality.check_frost(None) == NOT_EVALUATED
