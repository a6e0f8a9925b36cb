"""The official forecast that a judgement may use, and why not another."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.rain_forecast import (
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


def run(
    *hours_mm: float | None, issued_s: float = T0, known_s: float = T0
) -> ForecastIssue:
    """A forecast of whole hours from its issue on."""
    pieces = [
        ForecastInterval(issued_s + n * HOUR, issued_s + (n + 1) * HOUR, mm)
        for n, mm in enumerate(hours_mm)
    ]
    return ForecastIssue("JMA", issued_s, known_s, pieces)


def test_hours_are_cut_into_steps_by_time() -> None:
    """Six steps share an hour; a judgement between the hours takes its part of both."""
    at_the_issue = select_forecast([run(6.0, 12.0, 0.0)], T0)
    half_later = select_forecast([run(6.0, 12.0, 0.0)], T0 + HOUR / 2)

    assert at_the_issue == ForecastRain("JMA", T0, (1.0,) * 6 + (2.0,) * 6)
    assert half_later.depths_mm == pytest.approx((1.0,) * 3 + (2.0,) * 6 + (0.0,) * 3)


def test_forecast_counts_from_when_it_was_known() -> None:
    """A moment before that is judged without it, also when it is judged again."""
    late = run(6.0, 6.0, 6.0, known_s=T0 + 900)

    assert select_forecast([late], T0 + 600) == NO_FORECAST
    assert select_forecast([late], T0 + 1200).depths_mm is not None


def test_newest_of_those_known_is_used() -> None:
    """Whatever the order in which they came."""
    old, new = run(1, 1, 1), run(5, 5, 5, issued_s=T0 + 600, known_s=T0 + 600)

    for runs in ([old, new], [new, old]):
        told = select_forecast(runs, T0 + 600)
        assert (told.issued_s, told.depths_mm) == (
            T0 + 600,
            pytest.approx((5 / 6,) * 12),
        )
        assert select_forecast(runs, T0).depths_mm == pytest.approx((1 / 6,) * 12)


def test_stale_forecast_is_not_used_and_says_so() -> None:
    """A feed that died is seen, and its last word is not taken for today's."""
    told = select_forecast([run(*[9.0] * 6)], T0 + 3.5 * HOUR)

    assert told.depths_mm is None
    assert told.why == "stale: issued 3.5 h before, 2 h at most"
    assert select_forecast([run(*[9.0] * 6)], T0 + 2 * HOUR).depths_mm is not None
    assert select_forecast([run(*[9.0] * 6)], T0 + 2 * HOUR, HOUR).depths_mm is None


def test_forecast_that_ends_too_early_is_not_used() -> None:
    """What nobody forecast is unknown, and not dry."""
    told = select_forecast([run(5.0)], T0)

    assert (told.depths_mm, told.why) == (None, "short: it tells 60 of the 120 minutes")


def test_failed_piece_makes_way_for_the_forecast_before() -> None:
    """Missing is never zero; an older one that is whole and fresh says more."""
    broken = run(5.0, None, issued_s=T0 + 600, known_s=T0 + 600)
    pieces = [
        replace(p, reasons=FLAG_9 if p.depth_mm is None else ())
        for p in broken.intervals
    ]
    broken = replace(broken, intervals=pieces)

    assert select_forecast([broken], T0 + 600) == ForecastRain(
        "JMA", T0 + 600, None, FLAG_9
    )
    assert select_forecast([broken, run(2.0, 2.0, 2.0)], T0 + 600).issued_s == T0


def test_doubtful_rain_counts_and_is_told() -> None:
    """A high value that is not plausible may be the storm."""
    pieces = [ForecastInterval(T0, T0 + 2 * HOUR, 480.0, parse_why("range: 480 mm"))]
    told = select_forecast([ForecastIssue("JMA", T0, T0, pieces)], T0)

    assert told.depths_mm == pytest.approx((40.0,) * 12)
    assert told.why == "range: 480 mm"


def test_of_two_issued_together_the_first_counts() -> None:
    """The finer place is given first."""
    assert select_forecast([run(6, 6), run(60, 60)], T0).depths_mm == pytest.approx(
        (1.0,) * 12
    )


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 100)), min_size=1, max_size=6),
    st.floats(-HOUR, 6 * HOUR),
)
def test_rain_is_whole_or_not_there_and_never_negative(
    hours_mm: list[float | None], later_s: float
) -> None:
    """Twelve steps that hold what the hours hold, or none and a reason."""
    told = select_forecast([run(*hours_mm)], T0 + later_s)

    if told.depths_mm is None:
        assert told.why or told == NO_FORECAST
        return
    assert len(told.depths_mm) == 12
    assert all(mm >= 0 for mm in told.depths_mm)
    from_h, to_h = later_s / HOUR, later_s / HOUR + 2
    expected = sum(
        (mm or 0.0) * max(0.0, min(n + 1, to_h) - max(n, from_h))
        for n, mm in enumerate(hours_mm)
    )
    assert sum(told.depths_mm) == pytest.approx(expected, abs=1e-6)
