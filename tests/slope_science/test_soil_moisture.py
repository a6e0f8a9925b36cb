"""Evidence of wet soil: every condition of the rules."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.evidence.soil_and_water_level import (
    SoilWetness,
    judge_moisture,
    judge_pore_pressure,
    summarize_wetness,
)
from slope_science.reasons import render_english

WET = SoilWetness("n1 soil", 0.38, 0.012, 97.0, 0.30)
HIGH = SoilWetness("n1 pore", 41.0, 3.0, 97.0, 30.0)
PASSED = SoilWetness("n1 pore", 0.0, 2.0, None, -5.0)


def test_wet_soil_that_gets_wetter_in_rain_is_level_2() -> None:
    """The reason holds every number of the rule."""
    finding = judge_moisture(WET, 5.0)

    assert finding is not None
    assert finding.level == 2
    assert render_english(finding.reason) == (
        "n1 soil 0.380 m3/m3 is at percentile 97 of its past, +0.012 within 1 h, in "
        "rain of 5.0 mm"
    )


@pytest.mark.parametrize(
    ("now", "rain_mm", "fires"),
    [
        (WET, 1.0, True),
        (replace(WET, percentile=95.0), 1.0, True),
        (replace(WET, percentile=94.9), 1.0, False),
        (replace(WET, percentile=None), 1.0, False),
        (replace(WET, rise=0.005), 1.0, True),
        (replace(WET, rise=0.0049), 1.0, False),
        (WET, 0.9, False),
    ],
)
def test_each_condition_of_moisture(
    now: SoilWetness, rain_mm: float, fires: bool
) -> None:
    """At least the 95th percentile, rising, during rain: all three are needed."""
    assert (judge_moisture(now, rain_mm) is not None) == fires


@pytest.mark.parametrize(
    ("now", "rain_mm", "text"),
    [
        (HIGH, 1.0, "41.0 hPa is at percentile 97 of its past, +3.0 within 1 h, in"),
        (replace(HIGH, percentile=94.0), 1.0, None),
        (replace(HIGH, percentile=None), 1.0, None),
        (replace(HIGH, rise=1.9), 1.0, None),
        (HIGH, 0.0, None),
        (PASSED, 0.0, "passed from suction to 0.0 hPa, +2.0 within 1 h"),
        (replace(PASSED, value=-0.1), 0.0, None),
        (replace(PASSED, lowest=0.0), 0.0, None),
        (replace(PASSED, rise=1.9), 0.0, None),
    ],
)
def test_each_condition_of_pore_pressure(
    now: SoilWetness, rain_mm: float, text: str | None
) -> None:
    """At a high percentile in rain, or from suction to positive in any weather."""
    finding = judge_pore_pressure(now, rain_mm)

    assert (finding is not None) == (text is not None)
    assert finding is None or (
        finding.level == 2 and text in render_english(finding.reason)
    )


def test_rise_is_the_maximum_within_an_hour() -> None:
    """A rise an hour ago counts; an earlier one does not."""
    values = [0.20, 0.23, 0.30, 0.30, 0.30, 0.30]
    times_h = [-2.5, -2.0, -1.5, -1.0, -0.5, 0.0]
    now = summarize_wetness("s", times_h, values, 99.0)
    later = summarize_wetness("s", [t - 0.7 for t in times_h], values, 99.0)

    assert now is not None
    assert later is not None
    assert now.rise == pytest.approx(0.07)
    assert later.rise == pytest.approx(0.0)
    assert (now.value, now.lowest, now.percentile) == (0.30, 0.20, 99.0)


@pytest.mark.parametrize(
    ("every_s", "rise"),
    [(1800.0, 0.02), (3600.0, 0.01), (3600.01, 0.01), (3900.0, 0.01), (3901.0, 0.0)],
)
def test_readings_of_every_hour_show_a_rise_whatever_their_jitter(
    every_s: float, rise: float
) -> None:
    """Readings more than 65 minutes apart give none."""
    times_h = [-every_s * at / 3600 for at in (3, 2, 1, 0)]
    values = [0.30, 0.31, 0.32, 0.33]
    now = summarize_wetness("s", times_h, values, 99.0)

    assert now is not None
    assert now.rise == pytest.approx(rise)


def test_suction_of_the_day_before_is_ignored() -> None:
    """A pressure that was positive for a day has not just passed zero."""
    now = summarize_wetness("s", [-25.0, -10.0, 0.0], [-9.0, 1.0, 5.0], None)

    assert now is not None
    assert now.lowest == 1.0


@pytest.mark.parametrize("times_h", [[], [-1.1]])
def test_sensor_without_recent_readings_is_no_evidence(times_h: list[float]) -> None:
    """Missing values mean neither wet nor dry."""
    assert summarize_wetness("s", times_h, [0.4] * len(times_h), 99.0) is None


@given(
    st.floats(0, 0.7),
    st.floats(-0.1, 0.3),
    st.floats(0, 100),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_evidence_is_monotone(
    value: float, rise: float, share: float, rain_mm: float, more: float
) -> None:
    """More rain, a higher percentile or a faster rise never removes it."""
    less = SoilWetness("s", value, rise, share, value)
    wetter = replace(less, rise=rise + more, percentile=min(100.0, share + more))

    for judge in (judge_moisture, judge_pore_pressure):
        if judge(less, rain_mm):
            assert judge(wetter, rain_mm + more)
