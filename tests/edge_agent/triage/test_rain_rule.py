"""The node's rule of rain: faults of a lone gauge, gaps, and storms."""

from collections.abc import Callable, Sequence

import pytest
from triage_readings import RAIN, START_S, TILT, Measured, rain, tilt

from edge_agent.clock import Instant
from edge_agent.triage.engine import Triage, TriageResult
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from slope_science.levels import Criteria
from slope_science.quality import FLAG_LABEL, Flag
from spatial_mqtt.senml import Reading

STEP_S = 600


def levels(
    depths_mm: list[float], every_s: int = STEP_S, *, restarts: bool = False
) -> list[int]:
    """Level after each report of a lone gauge."""
    triage, total_mm, found = Triage([RAIN], criteria=Criteria(150, 112, 277)), 0.0, []
    for n, depth_mm in enumerate([0.0, *depths_mm]):
        total_mm += depth_mm
        if restarts:
            before, triage = triage, Triage([RAIN], criteria=Criteria(150, 112, 277))
            triage.restore(before.snapshot())
        batch = [rain(depth_mm, total_mm)]
        found.append(triage.assess(batch, START_S + n * every_s).level)
    return found


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("depths_mm", "every_s"),
    [
        ([200.0], STEP_S),
        ([49.0] * 6, STEP_S),
        ([50.0] * 24, STEP_S),
        ([25.0] * 24, 300),
        ([9.5] * 60, 60),
        ([10.0, 0.0] * 60, 60),
    ],
)
def test_fault_of_a_lone_gauge_is_at_most_level_three(
    depths_mm: list[float], every_s: int, restarts: bool
) -> None:
    """After every report and an hour later, also when the node restarts each time."""
    calm = [0.0] * (3600 // every_s)

    assert max(levels([*depths_mm, *calm], every_s, restarts=restarts)) == 3


@pytest.mark.parametrize(
    ("depths_mm", "more_mm", "sure_mm"),
    [([], 10.0, 10.0), ([], 10.5, 0.0), ([9.0] * 5, 5.0, 50.0), ([9.0] * 5, 5.5, 0.0)],
)
def test_more_rain_than_a_limit_of_the_settings_is_doubtful(
    depths_mm: list[float], more_mm: float, sure_mm: float
) -> None:
    """10 mm in 10 minutes and 50 mm in an hour; as much is not more."""
    rules = {"rain": {"most_mm_10min": 10.0, "most_mm_60min": 50.0}}
    triage = Triage([RAIN], build_settings(TriageSection, {"rules": rules}))
    for n, depth_mm in enumerate([0.0, *depths_mm, more_mm]):
        triage.assess([Reading("rain", "mm", depth_mm)], START_S + n * STEP_S)
    assert triage.soil_water_mm()["rain"] == pytest.approx(sure_mm, rel=0.05)


def test_heavy_rain_of_a_lone_gauge_reaches_the_highest_level() -> None:
    """12 h of 12 mm/h, then 6 h of 60, are no fault, at any cadence."""
    assert max(levels([2.0] * 72 + [10.0] * 36)) == 5
    assert max(levels([1.0] * 144 + [5.0] * 72, 300)) == 5


def test_rain_of_a_gap_is_spread_over_it() -> None:
    """80 mm after five hours is 16 mm/h, not 80 in the last hour."""
    whole = levels([1.0] * 36 + [16.0 / 6] * 30 + [0.0] * 6)
    triage = Triage([RAIN], criteria=Criteria(150, 112, 277))
    for n in range(37):
        triage.assess([rain(1.0 if n else 0.0, 1.0 * n)], START_S + n * STEP_S)
    late = triage.assess([rain(80.0, 116.0)], START_S + 66 * STEP_S)

    assert late.level == whole[66]
    assert triage.soil_water_mm()["rain"] == pytest.approx(94, abs=6)


@pytest.mark.parametrize("away_s", [-120.0, 60.0])
def test_rain_of_an_outage_of_unknown_length_is_doubtful(away_s: float) -> None:
    """A probe counted 180 mm while the node was off for hours; the clock is not set."""
    before = Triage([RAIN], criteria=Criteria(150, 112, 277))
    for n in range(12):
        before.assess([Reading("rain", "mm", None, 200.0)], START_S + n * STEP_S)
    found = []
    for more_mm in (180.0, 7.0):
        after = Triage([RAIN], criteria=Criteria(150, 112, 277))
        after.restore(before.snapshot())
        moment = Instant(START_S + 11 * STEP_S + away_s, 50.0, is_synchronised=False)
        found.append(
            after.assess([Reading("rain", "mm", None, 200.0 + more_mm)], moment)
        )
    storm, shower = found

    assert (storm.level, storm.alarm_level, storm.isolated_alarm_level) == (3, 3, 3)
    assert "with doubtful rain" in (storm.why or "")
    assert (shower.level, after.soil_water_mm()["rain"]) == (1, pytest.approx(7.0))


DEAD = Reading("rain", "mm", extra={FLAG_LABEL: int(Flag.FAIL)})


def restarted(triage: Triage) -> Triage:
    """Triage of the same sensors from a snapshot."""
    after = Triage([RAIN, TILT], criteria=Criteria(150, 112, 277))
    after.restore(triage.snapshot())
    return after


def after_outage(
    *first: tuple[float, Sequence[Reading]], more_mm: float
) -> list[TriageResult]:
    """Results of readings after a power cut, with a clock that is not set.

    The gauge was read hourly in rain, and 50 minutes before the cut; the tilt meter at
    the cut.

    Args:
        first: Seconds after the start, and readings before that of the gauge.
        more_mm: What the gauge has counted meanwhile; ten minutes later, 9 mm more.
    """
    before = Triage([RAIN, TILT], criteria=Criteria(150, 112, 277))
    for n in range(24):
        sum_mm = 200.0 - 4 * (23 - n)
        before.assess([Reading("rain", "mm", None, sum_mm)], START_S + n * 3600)
    before.assess(tilt(0.0), START_S + 23 * 3600 + 3000)
    after = restarted(before)
    at_s = max([0.0, *(at_s for at_s, _ in first)])
    counted = [
        (at_s + n * STEP_S, [Reading("rain", "mm", None, 200.0 + mm)])
        for n, mm in enumerate((more_mm, more_mm + 9))
    ]
    return [
        after.assess(readings, Instant(at_s, 50.0 + at_s, is_synchronised=False))
        for at_s, readings in (*first, *counted)
    ]


@pytest.mark.parametrize(
    "first",
    [[], [(0.0, tilt(0.0))], [(0.0, tilt(0.0)), (1800.0, tilt(0.0))], [(0.0, [DEAD])]],
)
def test_rain_of_an_outage_is_doubtful_whichever_sensor_was_read_last(
    first: list[tuple[float, Sequence[Reading]]],
) -> None:
    """Else the rain of days were that of the minutes since the gauge's last reading."""
    *_, storm, later = after_outage(*first, more_mm=100.0)
    assert (storm.level, storm.alarm_level) == (3, 3)
    assert "with doubtful rain" in (storm.why or "")
    assert "with doubtful rain" in (later.why or "")
    assert [each.level for each in after_outage(*first, more_mm=7.0)][-1] == 1


def test_only_the_first_rain_after_an_outage_of_unknown_length_is_doubtful() -> None:
    before = Triage([RAIN, TILT])
    before.assess([Reading("rain", "mm", None, 200.0)], START_S)
    before.assess(tilt(0.0), START_S + 300)
    after = restarted(before)
    for mono_s, sum_mm, sure_mm in ((50.0, 220.0, 0.0), (650.0, 229.0, 9.0)):
        moment = Instant(mono_s, mono_s, is_synchronised=False)
        after.assess([Reading("rain", "mm", None, sum_mm)], moment)
        assert after.soil_water_mm()["rain"] == pytest.approx(sure_mm, abs=0.5)


def test_rain_of_an_outage_is_spread_over_it_once_its_length_is_known() -> None:
    """The clock was set between the first readings and that of the gauge."""
    before = Triage([RAIN, TILT])
    before.assess([Reading("rain", "mm", None, 200.0)], START_S)
    before.assess(tilt(0.0), START_S + 300)
    after = restarted(before)
    after.assess(tilt(0.0), Instant(50.0, 50.0, is_synchronised=False))
    reading = Reading("rain", "mm", None, 260.0)
    result = after.assess([reading], Instant(START_S + 10 * 3600, 110.0))
    assert result.level == 1
    assert after.soil_water_mm()["rain"] == pytest.approx(55, abs=5)


@pytest.mark.parametrize(("flag", "sum_mm"), [(Flag.MISSING, 5.0), (Flag.FAIL, 0.0)])
def test_total_counts_with_a_missing_value_and_not_with_a_failed_one(
    flag: Flag, sum_mm: float
) -> None:
    triage = Triage([RAIN])
    triage.assess([rain(0.0, 100.0)], START_S)
    reading = Reading("rain", "mm", None, 105.0, extra={FLAG_LABEL: int(flag)})
    triage.assess([reading], START_S + STEP_S)
    assert triage.soil_water_mm()["rain"] == pytest.approx(sum_mm, rel=0.05)


OTHER = Measured("other", "rain", "mm")


def storm(
    others: Sequence[Measured], beside: Callable[[int], list[Reading]]
) -> TriageResult:
    """Result after 18 h of heavy rain at one gauge, and readings beside it."""
    triage, total_mm = Triage([RAIN, *others], criteria=Criteria(150, 112, 277)), 0.0
    for n in range(108):
        depth_mm = 2.0 if n < 72 else 10.0
        total_mm += depth_mm
        readings = [rain(depth_mm, total_mm), *beside(n)]
        result = triage.assess(readings, START_S + n * STEP_S)
    return result


def test_lone_gauge_does_not_switch_the_siren_by_itself() -> None:
    """A gauge that counts ten times too much reads like a storm."""
    result = storm([], lambda _: [])

    assert (result.level, result.alarm_level) == (5, 3)
    assert "unconfirmed" in (result.why or "")
    assert result.isolated_alarm_level == 5
    assert [result.own_alarm_level(is_judged=each) for each in (True, False)] == [3, 5]


def test_movement_of_one_sensor_is_limited_without_a_backend_too() -> None:
    triage = Triage([TILT])
    for n in range(24):
        result = triage.assess(tilt(0.2 / 6 * n), START_S + n * STEP_S)

    assert (result.level, result.alarm_level, result.isolated_alarm_level) == (4, 3, 3)


def test_dry_second_gauge_does_not_confirm_the_first() -> None:
    result = storm([OTHER], lambda _: [Reading("other", "mm", 0.0, 0.0)])

    assert (result.level, result.alarm_level) == (5, 3)


def test_rain_at_a_second_gauge_confirms_the_first() -> None:
    result = storm([OTHER], lambda n: [Reading("other", "mm", 4.0, 4.0 * n)])

    assert (result.level, result.alarm_level) == (5, 5)


def test_moving_slope_confirms_the_rain() -> None:
    """0.2 deg/h, which alone is capped at 3 too."""
    result = storm([TILT], lambda n: tilt(0.2 / 6 * n))

    assert (result.level, result.alarm_level) == (5, 5)
