"""Rain of each step from a gauge's counter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_spark.scoring.observation import (
    Observation,
    split_by_step,
    step_end_s,
    step_ends,
)
from backend_spark.scoring.rain import (
    NO_DATA,
    PartRain,
    RainReading,
    StepRain,
    cell_rain,
    rain_reading,
    read_gauge,
)

HOUR = 3600


def steps(*readings: RainReading, last_s: int | None = None) -> dict[int, float | None]:
    """Rain by end of step in minutes; None where it is unknown."""
    last_s = last_s or step_end_s(readings[-1].at_s)
    ends = step_ends(600, last_s)
    rain = cell_rain([read_gauge(readings)], ends)
    return {
        end // 60: r.depth_mm if r.is_known else None
        for end, r in zip(ends, rain, strict=True)
    }


def test_step_includes_its_end_and_excludes_its_beginning() -> None:
    """Rain reported at a full ten minutes fell before it."""
    assert [step_end_s(at_s) for at_s in (599.0, 600, 600.5, 1200)] == [
        600,
        600,
        1200,
        1200,
    ]
    assert list(split_by_step(500, 1300)) == [(600, 100), (1200, 600), (1800, 100)]


def test_regular_sums_give_their_differences() -> None:
    """Each step gets the increase of the counter."""
    readings = [RainReading(600 * n, sum_mm=100 + n * n) for n in range(1, 5)]

    assert steps(*readings) == {10: None, 20: 3, 30: 5, 40: 7}


def test_missing_reading_is_filled_from_the_sum() -> None:
    """Rain between two readings within an hour is spread evenly."""
    rain = steps(RainReading(600, 10, 0), RainReading(2400, 16, 0.5))

    assert rain == {10: 0, 20: 2, 30: 2, 40: 2}


def test_rain_of_a_gap_is_spread_over_it_and_marked() -> None:
    """A sum after two hours is no cloudburst of its last ten minutes."""
    gauge = read_gauge([
        RainReading(600, 10, 0),
        RainReading(600 + 2 * HOUR, 40, 1),
        RainReading(1200 + 2 * HOUR, 41, 1),
    ])
    rain = cell_rain([gauge], step_ends(1200, 1200 + 2 * HOUR))

    assert [round(step.depth_mm, 6) for step in rain] == [2.5] * 12 + [1]
    assert all(step.is_known for step in rain)
    assert [step.catch_up_h for step in rain] == [2.0] * 12 + [0.0]
    assert not any(step.doubted_mm for step in rain)


@pytest.mark.parametrize(
    "after",
    [
        RainReading(600 + 14 * HOUR, 10, 0),
        RainReading(600 + 14 * HOUR, 40, 30, boot="other"),
        RainReading(600 + 14 * HOUR, 40, 30, failed=True),
    ],
)
def test_gap_without_rain_or_with_a_restart_stays_unknown(after: RainReading) -> None:
    """The gauge may have been off, or dead: missing rain is never zero."""
    rain = steps(RainReading(600, 10, 0), after)
    last = [] if after.failed else [10 + 14 * 60]

    assert [minute for minute, mm in rain.items() if mm is not None] == [10, *last]


@pytest.mark.parametrize("gap_s", [HOUR - 100, HOUR + 100])
@pytest.mark.parametrize("boot", ["", "other"])
def test_doubtful_rain_stays_so_after_a_gap_of_any_length(
    gap_s: int, boot: str
) -> None:
    """A counter that restarted, and the depth of a report that is suspect."""
    gauge = read_gauge([
        RainReading(600, 500, 0),
        RainReading(600 + gap_s, 250, 250, suspect=True, boot=boot),
    ])

    assert sum(gauge.doubted_mm.values()) == pytest.approx(250)
    assert gauge.doubted_mm == {s: mm for s, mm in gauge.depth_mm.items() if mm}


def test_counter_after_an_outage_with_a_restart_is_spread_over_it() -> None:
    """The depth of the report is in its step; the gap has a lower bound of its rain."""
    gauge = read_gauge([
        RainReading(600, 10, 0),
        RainReading(600 + 6 * HOUR, 160, 6, boot="other"),
    ])
    *gap, last = cell_rain([gauge], step_ends(1200, 600 + 6 * HOUR))

    assert [step.depth_mm for step in gap] == pytest.approx([4.0] * 35)
    assert last.depth_mm == pytest.approx(10.0)
    assert [step.is_known for step in (*gap, last)] == [False] * 35 + [True]
    assert {step.catch_up_h for step in gap} == {6.0}
    assert not gauge.doubted_mm


def test_counter_after_days_with_a_restart_is_doubtful() -> None:
    """It is spread over the last two days; the depth of the report is not."""
    gauge = read_gauge([
        RainReading(600, 10, 0),
        RainReading(600 + 96 * HOUR, 304, 6, boot="other"),
    ])

    assert sum(mm > 0 for mm in gauge.depth_mm.values()) == 6 * 48
    assert sum(gauge.doubted_mm.values()) == pytest.approx(288)
    assert sum(gauge.depth_mm.values()) == pytest.approx(294)


def test_rain_of_a_gap_over_two_days_is_doubtful() -> None:
    """It is spread over the last two days of the gap."""
    gauge = read_gauge([RainReading(600, 10, 0), RainReading(600 + 96 * HOUR, 298, 1)])
    wet = [end_s for end_s, mm in gauge.depth_mm.items() if mm]

    assert {round(gauge.depth_mm[end_s], 6) for end_s in wet} == {1.0}
    assert len(wet) == 6 * 48
    assert min(wet) == 600 + 48 * HOUR + 600
    assert sum(gauge.doubted_mm.values()) == pytest.approx(288)


def test_gauge_that_reads_too_low_leaves_its_steps_unknown() -> None:
    """Its rain is a lower bound; another gauge of the cell makes the step known."""
    clogged = read_gauge([RainReading(600, 0), RainReading(1200, 1, low=True)])
    good = read_gauge([RainReading(600, 0), RainReading(1200, 9)])

    assert [(r.depth_mm, r.is_known) for r in cell_rain([clogged], [1200, 1800])] == [
        (1, False),
        (0, False),
    ]
    assert cell_rain([clogged, good], [1200])[0].is_known


@pytest.mark.parametrize("boot", ["", "other"])
@pytest.mark.parametrize("gap_s", [1800, 6 * HOUR])
def test_total_of_a_missing_report_is_a_lower_bound(gap_s: int, boot: str) -> None:
    """Its rise is rain; the steps stay unknown, also that of the report."""
    missing = Observation(
        600 + gap_s, "n1", "rain", "mm", sum=109, boot=boot, node_flag=9, flag=9
    )
    gauge = read_gauge([RainReading(600, 100, 0), rain_reading(missing)])
    ends_s = range(1200, 601 + gap_s, 600)
    rain = cell_rain([gauge], list(ends_s))

    assert sum(step.depth_mm for step in rain) == pytest.approx(9)
    assert not any(step.is_known for step in rain)


def test_decreased_counter_counts_its_own_increment() -> None:
    """A replaced gauge starts from zero; the increment in its report is used."""
    rain = steps(RainReading(600, 500, 0), RainReading(1200, 1.5, 1.5))

    assert rain[20] == 1.5


def test_counter_that_rises_by_more_than_rain_counts_the_own_increment() -> None:
    """The report's depth contradicts it; without one its rain is unknown."""
    wrong = 0xFFFF_FFFF * 0.5
    rain = steps(
        RainReading(600, 500, 0),
        RainReading(1200, wrong, 0.5),
        RainReading(1800, 501, 0.5),
        RainReading(2400, wrong),
        RainReading(3000, -1.7e308, 1.0),
        RainReading(3600, 1.7e308, 2.0),
    )

    assert rain == {10: 0, 20: 0.5, 30: 0.5, 40: None, 50: 1.0, 60: 2.0}


def test_rain_of_days_without_a_report_is_no_wrong_counter() -> None:
    """1,500 mm in three days: it is spread over the last two."""
    gauge = read_gauge([RainReading(0, 10, 0), RainReading(72 * HOUR, 1510, 0.5)])

    assert sum(gauge.depth_mm.values()) == pytest.approx(1500)


def test_gauge_without_sums_uses_its_increments() -> None:
    """Negative and missing increments leave the step unknown."""
    rain = steps(
        RainReading(600, None, 1.0),
        RainReading(1200, None, 2.0),
        RainReading(1800, None, -1.0),
        RainReading(2400, None, None),
    )

    assert rain == {10: 1, 20: 2, 30: None, 40: None}


def test_jitter_does_not_move_rain_between_steps() -> None:
    """A reading a few seconds late does not empty its step."""
    late = [600, 1204, 1803, 2401]
    rain = steps(*(RainReading(at, 6.0 * n, 0) for n, at in enumerate(late)))

    assert [round(rain[m] or 0, 1) for m in (20, 30, 40)] == [6.0, 6.0, 6.0]


def test_current_step_is_known_from_its_first_minute() -> None:
    """Until rain of the next one is due; an incomplete earlier step is unknown."""
    readings = [RainReading(60.0 * n, n, 1) for n in range(10, 13)]

    assert steps(*readings)[20] == 2
    assert steps(*readings, last_s=1800) == {10: 1, 20: 2, 30: None}
    assert steps(*readings, last_s=2400)[20] is None


def test_share_of_the_current_step_is_that_of_the_last_report() -> None:
    """Of the gauge that covers most of it; whole steps have no part."""
    often = read_gauge([RainReading(60.0 * n, n) for n in range(10, 23)])
    seldom = read_gauge([RainReading(600, 0, 0), RainReading(1230, 63)])
    whole, current = cell_rain([often, seldom], [1200, 1800])

    assert (whole.share, whole.parts) == (1, ())
    assert (current.share, current.depth_mm) == (pytest.approx(0.2), pytest.approx(3))
    assert [round(part.share, 3) for part in current.parts] == [0.2, 0.05]


def test_current_step_is_completed_by_the_rain_of_an_hour_before() -> None:
    """Each gauge by the share that it has not reported; doubtful rain stays so."""
    parts = PartRain(2, 0, 0.2), PartRain(3, 3, 0.9)
    step = StepRain(3, is_known=True, doubted_mm=1, share=0.9, parts=parts)
    done = step.completed(StepRain(10, is_known=True, doubted_mm=4))

    assert (done.depth_mm, done.doubted_mm) == (10, pytest.approx(3.2))
    assert step.completed(NO_DATA).depth_mm == 3


def test_current_step_with_a_report_that_is_too_low_is_unknown() -> None:
    """No rain of an hour before is added to that of the report."""
    reports = [RainReading(600.0 * n, 10.0 * n) for n in range(8)]
    low = RainReading(4740.0, 79.0, low=True)
    ends = step_ends(600, 4800)
    *_, step = cell_rain([read_gauge([*reports, low])], ends)

    assert not step.is_known
    assert not step.parts


def test_cell_uses_the_wettest_gauge() -> None:
    """A blocked gauge must not hide the rain of another."""
    wet = read_gauge([RainReading(600, 0, 0), RainReading(1200, 9, 9)])
    dry = read_gauge([RainReading(600, 0, 0), RainReading(1200, 0, 0)])
    (rain,) = cell_rain([dry, wet], [1200])

    assert (rain.depth_mm, rain.is_known) == (9, True)


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(0, 200)), min_size=2, max_size=30
    )
)
def test_total_rain_equals_the_increase_of_the_counter(
    steps_: list[tuple[int, int]],
) -> None:
    """At any intervals between readings."""
    at_s, total, readings = 600.0, 0, []
    for wait_s, tips in steps_:
        at_s, total = at_s + wait_s, total + tips
        readings.append(RainReading(at_s, total * 0.5, 0.0))
    gauge = read_gauge(readings)
    grown = (readings[-1].sum_mm or 0) - (readings[0].sum_mm or 0)

    assert sum(gauge.depth_mm.values()) == pytest.approx(grown)
    assert all(depth >= 0 for depth in gauge.depth_mm.values())
    assert all(seconds <= 600 + 1e-6 for seconds in gauge.covered_s.values())
