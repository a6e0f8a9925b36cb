"""Tests of rain gauges over several reports, and beside other gauges."""

from itertools import pairwise
from random import Random

import pytest

from slope_science import rain_neighbours
from slope_science.quality import GOOD, NOT_EVALUATED, Flag, rain_limit_mm
from slope_science.rain_neighbours import check_beside, check_each_beside
from slope_science.rain_quality import (
    NeighbourGauge,
    RainRecord,
    check_bursts,
    check_release,
    check_rolling_limits,
    find_bursts,
    find_extreme_sums,
)
from slope_science.reason_codes import ReasonCode

HOUR_S = 3600.0
T0 = 1_700_000_400.0


def record(depths_mm: list[float], every_s: float = 600.0) -> RainRecord:
    """A gauge that reports at equal intervals from `T0` on."""
    made = RainRecord()
    for n, depth_mm in enumerate(depths_mm):
        made.add(T0 + n * every_s, depth_mm)
    return made


def steady(total_mm: float, hours: float = 4.0, every_s: float = 600.0) -> RainRecord:
    """A gauge in steady rain."""
    count = round(hours * HOUR_S / every_s)
    return record([0.0] + [total_mm / count] * count, every_s)


def suspects(
    depths_mm: list[float], every_s: float, *others: NeighbourGauge
) -> list[tuple[int, str]]:
    """Index and code of the reports above a rolling limit."""
    rain = record(depths_mm, every_s)
    sums = find_extreme_sums(rain, others, T0 - 1)
    checked = [
        check_rolling_limits(sums, T0 + (n - 1) * every_s, T0 + n * every_s)
        for n in range(len(depths_mm))
    ]
    return [
        (n, str(verdict.reasons[0].code))
        for n, (depth_mm, verdict) in enumerate(zip(depths_mm, checked, strict=True))
        if depth_mm and verdict.reasons
    ]


@pytest.mark.parametrize(("every_s", "false_mm"), [(600, 400), (600, 25), (3600, 400)])
def test_rain_in_one_report_is_no_witness(every_s: float, false_mm: float) -> None:
    """A wrong number or a released clog does not make the gauge beside it clogged."""
    count = round(4 * HOUR_S / every_s)
    false = record([0.0] * count + [false_mm, 0.0, 0.0], every_s)
    dry = record([0.0] * (count + 3), every_s)
    at_s = dry.times_s[-1]

    assert check_beside(dry, [NeighbourGauge(0.4, false)], at_s) == GOOD


def test_rain_in_two_reports_is_a_witness() -> None:
    wet, dry = record([0.0] * 24 + [11.0, 11.0]), record([0.0] * 26)

    verdict = check_beside(dry, [NeighbourGauge(0.4, wet)], dry.times_s[-1])

    assert {each.code for each in verdict.reasons} == {ReasonCode.CLOGGED}


def test_limit_between_two_durations_lies_on_the_line() -> None:
    """At 40 minutes a third of the way from 150 to 200 mm."""
    limits = [rain_limit_mm(s) for s in (10, 60, 600, 2400, 3600, 172_800)]

    assert limits == pytest.approx([10, 10, 50, 150 + 50 / 3, 200, 2000])
    assert rain_limit_mm(172_801) is None


def test_rain_is_known_only_between_reports_of_an_hour_at_most() -> None:
    """A sum over a longer gap has a total, and no known course."""
    rain = record([0, 1, 1])
    rain.add(T0 + 2 * HOUR_S, 12.0)

    assert rain.known_spans(T0, T0 + 1200) == [(T0, T0 + 1200)]
    assert rain.rain_mm(T0, T0 + 1200) == 2
    assert rain.known_spans(T0, T0 + 2 * HOUR_S) == [(T0, T0 + 1200)]
    assert rain.rain_mm(T0 + 1200, T0 + 1200 + 3000) == 6
    first = rain.known_spans(T0 - 1, T0 + 600)
    assert first == [(T0, T0 + 600)], "begin of the first is assumed"
    assert rain.known_spans(T0 + 2 * HOUR_S, T0 + 3 * HOUR_S + 1) == []


@pytest.mark.parametrize("every_s", [900.0, 2400.0, 3600.0])
def test_missing_reports_do_not_hide_a_faulty_gauge(every_s: float) -> None:
    """Gauges that each lack other reports are compared by those that both have."""

    def lossy(mm_per_h: float, lost: int) -> RainRecord:
        """Depths since the last report, of which each fifth is missing."""
        made = RainRecord()
        for n in range(round(30 * HOUR_S / every_s)):
            if n % 5 != lost:
                made.add(T0 + n * every_s, mm_per_h * every_s / HOUR_S)
        return made

    others = [NeighbourGauge(0.4, lossy(8.0, lost)) for lost in range(1, 5)]
    false, low, true = lossy(80.0, 0), lossy(0.3, 0), lossy(7.0, 0)
    end_s = false.times_s[-1]

    assert check_beside(false, others, end_s).reasons[0].code is ReasonCode.ALONE
    assert check_beside(low, others, end_s).reasons[0].code is ReasonCode.UNDERCATCH
    assert check_beside(true, others, end_s) == GOOD


def test_hourly_reports_with_jitter_are_compared() -> None:
    """A report that is some minutes late lacks no report before it."""
    rng = Random(3)

    def irregular(mm_per_h: float) -> RainRecord:
        """Depths since the last report, of which a fifth is missing."""
        made, before_s = RainRecord(), 0.0
        for n in range(1, 30):
            at_s = (n + rng.uniform(-0.2, 0.2)) * HOUR_S
            if rng.random() >= 0.2:
                made.add(T0 + at_s, mm_per_h * (at_s - before_s) / HOUR_S)
            before_s = at_s
        return made

    others = [NeighbourGauge(0.4, irregular(8.0)) for _ in range(4)]
    end_s = T0 + 29 * HOUR_S

    codes = [
        check_beside(irregular(8.0 * factor), others, end_s).reasons[0].code
        for factor in (1 / 25.4, 10.0)
    ]
    assert codes == [ReasonCode.UNDERCATCH, ReasonCode.ALONE]
    assert check_beside(irregular(7.0), others, end_s) == GOOD


def test_gauge_that_lacks_the_reports_of_the_rain_is_not_dry() -> None:
    """Its rain of that time is unknown, and counts at no gauge."""
    wet = record([0.0] * 8 + [6.0] * 8 + [0.0] * 8)
    dry = RainRecord()
    for n in (*range(8), *range(16, 24)):
        dry.add(T0 + n * 600, 0.0)

    assert check_beside(dry, [NeighbourGauge(0.4, wet)], wet.times_s[-1]) == GOOD


@pytest.mark.parametrize("every_s", [10.0, 60.0, 120.0, 300.0, 600.0])
@pytest.mark.parametrize(
    ("mm_per_min", "minutes", "codes"),
    [
        (9.5, 60, {"rain_range"}),
        (4.9, 60, {"rain_range"}),
        (5.6, 10, {"rain_range"}),
        (5.0, 30, {"extreme"}),
        (2.55, 60, {"extreme"}),
        (2.6, 30, set()),
        (2.0, 60, set()),
    ],
)
def test_limits_hold_for_durations_and_not_for_reports(
    mm_per_min: float, minutes: int, codes: set[str], every_s: float
) -> None:
    """The same rain is doubtful however often the gauge reports.

    153 mm in an hour, 2.55 mm/min, is a record: plausible, and not proved by one gauge.
    """
    wet = round(minutes * 60 / every_s)
    found = suspects([0] + [mm_per_min * every_s / 60] * wet + [0] * 6, every_s)

    assert {code for _, code in found} == codes
    if found:  # all of the last hour, not just the end
        assert len(found) == wet


def test_no_sum_is_implausible_while_another_gauge_has_half_of_it() -> None:
    """A storm beyond all records counts when two gauges agree; a fault does not."""
    storm = [0.0, *[60.0] * 6]
    drizzle, half = NeighbourGauge(0.5, steady(4)), NeighbourGauge(4.0, steady(800))

    assert [n for n, _ in suspects(storm, 600, drizzle)] == [1, 2, 3, 4, 5, 6]
    assert suspects(storm, 600, drizzle, half) == []


@pytest.mark.parametrize("every_s", [5.0, 10.0, 20.0, 30.0, 60.0])
def test_switch_that_bounces_every_two_minutes_is_suspect(every_s: float) -> None:
    """5 mm in 5 s, then a dry pause; every such report of the hour is suspect."""
    count = round(HOUR_S / every_s)
    depths = [0.0] * count
    for n in range(0, 3600, 120):
        depths[int(n // every_s)] = 5.0
    rain = record(depths, every_s)
    bursts = find_bursts(rain, T0)
    flags = [
        check_bursts(bursts, T0 + (n - 1) * every_s, T0 + n * every_s).flag
        for n, depth_mm in enumerate(depths)
        if depth_mm
    ]

    assert flags[1:-1] == [Flag.SUSPECT] * (len(flags) - 2)


def test_heavy_rain_and_a_single_shower_are_no_bursts() -> None:
    """Rain of 120 mm/h at ten-second reports, and two showers of a minute."""
    heavy = record([0, *[0.5, 0, 0] * 120, 0, 0, 0, 0], 10)
    showers = record([0, 3, *[0] * 20, 4, *[0] * 20], 60)

    assert find_bursts(heavy, T0) == []
    assert find_bursts(showers, T0) == []


def test_isolated_large_depth_is_suspect() -> None:
    """A released clog or manual water; a storm has rain before or after."""

    def check(depths_mm: list[float], index: int) -> Flag:
        at_s = T0 + 600 * index
        return check_release(record(depths_mm), at_s - 600, at_s).flag

    alone = [0.0] * 6 + [12.0] + [0.0] * 6

    assert check(alone, 6) is Flag.SUSPECT
    assert check([0.0] * 5 + [2.0, 12.0] + [0.0] * 6, 6) is Flag.GOOD
    assert check(alone[:9], 6) is Flag.NOT_EVALUATED
    assert check(alone, 5) is Flag.GOOD


def beside(own_mm: float, *others: tuple[float, float]) -> str | Flag:
    """Code of a gauge with other gauges (distance in km, rain in mm in 3 h)."""
    around = [NeighbourGauge(km, steady(mm, 3)) for km, mm in others]
    verdict = check_beside(steady(own_mm, 3), around, T0 + 3 * HOUR_S)
    return verdict.reasons[0].code if verdict.reasons else verdict.flag


DRY_5 = [(0.5, 0.0)] * 5


@pytest.mark.parametrize(
    ("own_mm", "others", "expected"),
    [
        (120, DRY_5, ReasonCode.ALONE),
        (120, [(4.0, 0.0)] * 5, ReasonCode.ALONE),
        (120, [(5.0, 0.0)] * 5, Flag.GOOD),
        (19, DRY_5, Flag.GOOD),
        (120, [(0.5, 0.0)], Flag.GOOD),
        (120, [(0.5, 0.0)] * 2, ReasonCode.ALONE),
        (120, [(0.5, 0.0)] * 2 + [(1.0, 90.0)], Flag.GOOD),
        (120, [*DRY_5, (0.5, 90.0)], ReasonCode.ALONE),
        (120, [(1.0, 12.0)], ReasonCode.ALONE),
        (120, [(4.0, 12.0)], Flag.GOOD),
        (120, [(1.0, 30.0)] * 5, Flag.GOOD),
        (0, [(0.5, 12.0)], ReasonCode.CLOGGED),
        (0, [(4.0, 12.0)], Flag.GOOD),
        (0, [(0.5, 120.0), *[(0.5, 0.0)] * 4], Flag.GOOD),
        (0, [(1.0, 12.0)] * 3 + [(1.0, 0.0)], ReasonCode.CLOGGED),
        (3, [(1.0, 60.0)] * 3, ReasonCode.UNDERCATCH),
        (3, [(1.0, 60.0)], Flag.GOOD),
        (3, [(1.0, 12.0)] * 3, Flag.GOOD),
        (0, [(0.5, 9.0)] * 5, Flag.GOOD),
        (0, [(0.3, 12.0), (2.0, 0.0)], Flag.GOOD),
        (0, [(0.3, 12.0), (7.0, 0.0)], ReasonCode.CLOGGED),
        (0, [(0.3, 12.0)] * 2 + [(2.0, 0.0)], ReasonCode.CLOGGED),
    ],
)  # fmt: skip
def test_gauges_vote_by_distance(
    own_mm: float, others: list[tuple[float, float]], expected: ReasonCode | Flag
) -> None:
    """Exact zeros outvote and are outvoted; a gauge that reports rain has two votes."""
    assert beside(own_mm, *others) == expected


def test_day_tells_a_wrong_unit_in_weak_rain() -> None:
    """Inches taken for millimetres, and ten times too much, in 54 mm a day."""
    truth, end_s = steady(54, 24), T0 + 24 * HOUR_S
    others = [NeighbourGauge(1.0, truth)] * 3
    codes = [
        check_beside(steady(54 * factor, 24), others, end_s).reasons[0].code
        for factor in (1 / 25.4, 10.0)
    ]

    assert codes == [ReasonCode.UNDERCATCH, ReasonCode.ALONE]
    assert check_beside(steady(54 * 0.8, 24), others, end_s) == GOOD
    assert check_beside(truth, [], end_s) == NOT_EVALUATED


def showers(source: Random, every_s: float) -> RainRecord:
    """A gauge with spells of rain, lost and failed reports, over 30 hours."""
    made, rate = RainRecord(), 0.0
    factor = source.choice((0.0, 1.0, 1.0, 1.0, 1.0, 5.0, 25.0))
    for n in range(round(30 * HOUR_S / every_s)):
        if source.random() < every_s / 3 / HOUR_S:
            rate = source.choice((0.0, 0.0, 2.0, 10.0, 40.0)) * factor
        if source.random() < every_s / 30 / HOUR_S:
            continue  # at a report in ten minutes or less this hides nothing
        depth_mm = rate * source.uniform(0.5, 1.5) * every_s / HOUR_S
        is_outage = 12 * HOUR_S < n * every_s < 14 * HOUR_S and factor > 1
        if not is_outage:
            failed = source.random() < every_s / 20 / HOUR_S
            made.add(T0 + n * every_s + source.uniform(0, 30), depth_mm, failed=failed)
    return made


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("every_s", [60.0, 600.0, 3600.0])
def test_reports_judged_together_are_judged_as_each_is(
    seed: int, every_s: float
) -> None:
    source = Random(seed)
    own = showers(source, every_s)
    others = [
        NeighbourGauge(source.uniform(0.3, 6), showers(source, every_s))
        for _ in range(source.choice((0, 1, 2, 8)))
    ]
    times_s = own.times_s[1:]
    found = check_each_beside(own, others, times_s)
    assert found == [check_beside(own, others, at_s) for at_s in times_s]


@pytest.mark.parametrize("hours", [30, 9])
def test_a_storm_at_all_gauges_needs_no_comparison_of_each(
    hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report a minute: each of 60 would be compared with eight gauges."""
    storm = [steady(60.0 * hours + n, hours, every_s=60.0) for n in range(9)]
    for each in storm[1:]:  # begin later, and lack an hour and a half
        each.times_s = [at_s + 5 for at_s in each.times_s]
        for column in (each.times_s, each.totals_mm, each.blind_s):
            del column[100:190]
        each.blind_s[100:] = [blind_s + 5460 for blind_s in each.blind_s[100:]]
    others = [NeighbourGauge(2.0, each) for each in storm[1:]]
    monkeypatch.setattr(rain_neighbours, "_compare", None)  # a call fails
    last_s = storm[0].times_s[-60:]
    assert check_each_beside(storm[0], others, last_s) == [GOOD] * 60


@pytest.mark.parametrize("seed", range(20))
def test_known_spans_leave_out_each_blind_interval(seed: int) -> None:
    source = Random(seed)
    rain = showers(source, source.choice((60.0, 600.0, 3600.0)))
    last_s = rain.times_s[-1]
    from_s, to_s = sorted(source.uniform(T0 - HOUR_S, last_s + HOUR_S) for _ in "ab")
    spans = rain.known_spans(from_s, to_s)
    steps = zip(pairwise(rain.times_s), pairwise(rain.blind_s), strict=True)
    blind = [(begin_s, end_s) for (begin_s, end_s), sums in steps if len(set(sums)) > 1]
    begin_s = max(from_s, rain.times_s[0])
    blind_s = sum(
        max(0.0, min(to_s, blind[1]) - max(begin_s, blind[0])) for blind in blind
    )
    known_s = sum(end_s - begin_s for begin_s, end_s in spans)
    assert known_s == pytest.approx(max(0.0, to_s - begin_s) - blind_s)
    assert all(rain.known_spans(*span) == [span] for span in spans)
