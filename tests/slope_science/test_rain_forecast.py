"""Selection of the official rain forecast for a judgement."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.official_rain import (
    NO_FORECAST,
    ForecastInterval,
    ForecastIssue,
    ForecastRain,
    select_forecast,
)
from slope_science.reason_compat import parse_why

T0 = 1_780_000_200.0  # a full ten minutes
HOUR = 3600.0
FLAG_9 = parse_why("source: flag 9")


def issue(
    *hours_mm: float | None, issued_s: float = T0, known_s: float = T0
) -> ForecastIssue:
    """A forecast of whole hours from its time of issue."""
    intervals = [
        ForecastInterval(issued_s + n * HOUR, issued_s + (n + 1) * HOUR, mm)
        for n, mm in enumerate(hours_mm)
    ]
    return ForecastIssue("JMA", issued_s, known_s, intervals)


def test_hours_are_divided_into_steps() -> None:
    """Six steps share an hour; between full hours both neighbours contribute."""
    at_the_issue = select_forecast([issue(6.0, 12.0, 0.0)], T0)
    half_hour_later = select_forecast([issue(6.0, 12.0, 0.0)], T0 + HOUR / 2)

    assert at_the_issue == ForecastRain("JMA", T0, (1.0,) * 6 + (2.0,) * 6)
    assert half_hour_later.depths_mm == pytest.approx(
        (1.0,) * 3 + (2.0,) * 6 + (0.0,) * 3
    )


def test_forecast_is_used_from_the_time_it_was_known() -> None:
    """Earlier times are judged without it, also when they are judged again."""
    late = issue(6.0, 6.0, 6.0, known_s=T0 + 900)

    assert select_forecast([late], T0 + 600) == NO_FORECAST
    assert select_forecast([late], T0 + 1200).depths_mm is not None


def test_newest_known_forecast_is_used() -> None:
    """In any order of arrival."""
    old, new = issue(1, 1, 1), issue(5, 5, 5, issued_s=T0 + 600, known_s=T0 + 600)

    for issues in ([old, new], [new, old]):
        rain = select_forecast(issues, T0 + 600)
        assert (rain.issued_s, rain.depths_mm) == (
            T0 + 600,
            pytest.approx((5 / 6,) * 12),
        )
        assert select_forecast(issues, T0).depths_mm == pytest.approx((1 / 6,) * 12)


def test_stale_forecast_is_not_used_and_the_reason_is_given() -> None:
    """A dead feed is reported, and its last forecast is not used."""
    rain = select_forecast([issue(*[9.0] * 6)], T0 + 3.5 * HOUR)

    assert rain.depths_mm is None
    assert rain.why == "stale: issued 3.5 h before, 2 h at most"
    assert select_forecast([issue(*[9.0] * 6)], T0 + 2 * HOUR).depths_mm is not None
    assert select_forecast([issue(*[9.0] * 6)], T0 + 2 * HOUR, HOUR).depths_mm is None


def test_forecast_that_ends_too_early_is_not_used() -> None:
    """Minutes without a forecast are unknown, not dry."""
    rain = select_forecast([issue(5.0)], T0)

    assert (rain.depths_mm, rain.why) == (None, "short: it tells 60 of the 120 minutes")


def test_failed_interval_falls_back_to_the_previous_forecast() -> None:
    """A missing value is never zero; a complete older forecast is better."""
    broken = issue(5.0, None, issued_s=T0 + 600, known_s=T0 + 600)
    intervals = [
        replace(p, reasons=FLAG_9 if p.depth_mm is None else ())
        for p in broken.intervals
    ]
    broken = replace(broken, intervals=intervals)

    assert select_forecast([broken], T0 + 600) == ForecastRain(
        "JMA", T0 + 600, None, FLAG_9
    )
    assert select_forecast([broken, issue(2.0, 2.0, 2.0)], T0 + 600).issued_s == T0


def test_suspect_rain_is_used_with_its_reason() -> None:
    """An implausibly high value may be the storm."""
    intervals = [ForecastInterval(T0, T0 + 2 * HOUR, 480.0, parse_why("range: 480 mm"))]
    rain = select_forecast([ForecastIssue("JMA", T0, T0, intervals)], T0)

    assert rain.depths_mm == pytest.approx((40.0,) * 12)
    assert rain.why == "range: 480 mm"


def test_first_of_two_forecasts_issued_together_is_used() -> None:
    """The one with the finer location is listed first."""
    assert select_forecast([issue(6, 6), issue(60, 60)], T0).depths_mm == pytest.approx(
        (1.0,) * 12
    )


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=1, max_size=6),
    st.floats(-HOUR, 6 * HOUR),
)
def test_rain_is_complete_or_absent_and_never_negative(
    hours_mm: list[float | None], later_s: float
) -> None:
    """Twelve steps with the rain of the hours, or none and a reason."""
    rain = select_forecast([issue(*hours_mm)], T0 + later_s)

    if rain.depths_mm is None:
        assert rain.why or rain == NO_FORECAST
        return
    assert len(rain.depths_mm) == 12
    assert all(mm >= 0 for mm in rain.depths_mm)
    from_h, to_h = later_s / HOUR, later_s / HOUR + 2
    expected = sum(
        (mm or 0.0) * max(0.0, min(n + 1, to_h) - max(n, from_h))
        for n, mm in enumerate(hours_mm)
    )
    assert sum(rain.depths_mm) == pytest.approx(expected, abs=1e-6)
