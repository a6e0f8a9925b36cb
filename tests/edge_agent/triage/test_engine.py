import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from triage_readings import (
    CRACK,
    HOUR_S,
    RAIN,
    START_S,
    TILT,
    WIRE,
    Measured,
    flagged,
    rain,
    run,
    tilt,
    wire,
)

from edge_agent.triage.engine import SnapshotError, Triage, TriageResult
from slope_science.levels import DEFAULT_CRITERIA, Criteria
from slope_science.quality import FLAG_LABEL
from slope_science.rain_and_soil_water import SoilWater, soil_water_series
from slope_science.reason_compat import parse_why
from spatial_mqtt.senml import Reading

WET = SoilWater(60.0, 40.0, 60.0)
GULLIES = [Measured(f"gully-{n}", "wire is cut", None) for n in range(5)]


def node(
    criteria: Criteria = DEFAULT_CRITERIA, soil: SoilWater | None = None
) -> Triage:
    """Triage of a node with a gauge, a tilt sensor and wires."""
    return Triage([RAIN, TILT, WIRE, *GULLIES], criteria=criteria, soil=soil)


def apply_rain(triage: Triage, mm: list[float], every_s: float) -> TriageResult:
    """Read the gauge at equal intervals, with this rain before each reading."""
    triage.assess([rain(0.0, 0.0)], START_S)
    total_mm = 0.0
    result = TriageResult(1, None, 1)
    for at, depth_mm in enumerate(mm, 1):
        total_mm += depth_mm
        result = triage.assess([rain(depth_mm, total_mm)], START_S + at * every_s)
    return result


def test_normal_readings_are_level_one_without_a_reason() -> None:
    """Also for a reading of a sensor without a rule."""
    triage = node()
    readings = [rain(0.0, 5.0), *tilt(1.0), wire(is_cut=False)]
    assert triage.assess(readings, START_S) == TriageResult(1, None, 1)
    assert triage.assess([Reading("x", "Cel", 3.0)], START_S) == TriageResult(
        1, None, 1
    )


def test_index_equals_that_of_ten_minute_steps() -> None:
    """Read every 10 minutes, it is that of `soil_water_series`."""
    triage = node(soil=WET)
    mm = [0.0, 3.0, 10.0, 0.5, 0.0, 7.0] * 8
    apply_rain(triage, mm, 600)
    expected = list(soil_water_series(mm, start=WET))[-1]
    index_mm = triage.soil_water_mm()["rain"]
    assert index_mm == pytest.approx(expected.index_mm, abs=1e-6)


@pytest.mark.parametrize("every_s", [1, 60, 600, 1800, 3600])
def test_index_hardly_depends_on_the_reading_interval(every_s: int) -> None:
    """Even rain gives the same index, whether it is read often or seldom."""
    triage, hours = node(), 3
    count = int(hours * HOUR_S / every_s)
    apply_rain(triage, [60.0 / count] * count, every_s)
    fine = list(soil_water_series([60.0 / 18] * 18))[-1].index_mm
    assert triage.soil_water_mm()["rain"] == pytest.approx(fine, abs=0.01)


@pytest.mark.parametrize(
    ("mm", "more_mm", "level"),
    [(0.0, 0, 1), (25.0, 0, 2), (60.0, 0, 3), (90.0, 0, 4), (119.0, 40, 5)],
)
def test_more_rain_gives_higher_levels(mm: float, more_mm: float, level: int) -> None:
    """Advisory, warning, critical line, special criterion."""
    criteria = Criteria(150.0, 112.5, 210.0)
    soil = SoilWater(30, 30, 40 + more_mm)
    result = apply_rain(node(criteria, soil=soil), [mm], HOUR_S)
    assert (result.level, result.priority) == (level, level)
    assert (result.why is None) == (level == 1)


@pytest.mark.parametrize("mm", [121.0, 140.0, 199.0])
def test_extreme_rain_of_one_gauge_is_level_3(mm: float) -> None:
    """From 120 mm/h on a second gauge is needed (decision 45)."""
    criteria = Criteria(150.0, 112.5, 210.0)
    result = apply_rain(node(criteria, soil=SoilWater(30, 30, 40)), [mm], HOUR_S)
    assert (result.level, result.priority) == (3, 3)


def test_reason_contains_rule_numbers_and_assumption() -> None:
    """So that an analyst can verify it."""
    result = apply_rain(node(DEFAULT_CRITERIA, soil=WET), [20.0], HOUR_S)
    assert result.why is not None
    assert result.why.startswith("rain: rain soil water index 17")
    assert ">= warning criterion 150.0 mm (assumed criteria)" in result.why


@pytest.mark.parametrize(("deg_per_h", "level"), [(0.005, 1), (0.02, 3), (0.2, 4)])
@pytest.mark.parametrize("every_s", [10, 60, 600])
def test_faster_tilt_gives_higher_levels(
    deg_per_h: float, level: int, every_s: int
) -> None:
    """0.01 deg/h is level 3 and 0.1 deg/h level 4, at any interval.

    After a day and a half, when the sensor's daily range is known.
    """
    triage = node()
    rng = random.Random(5)
    result = TriageResult(1, None, 1)
    for at in range(-36 * 6, 0):
        x_deg = 1.0 + rng.gauss(0, 0.0005)
        triage.assess(tilt(x_deg, -2.0), START_S + at * 600)
    for at in range(int(2 * HOUR_S / every_s)):
        t_s = at * every_s
        x_deg = 1.0 + deg_per_h * t_s / HOUR_S + rng.gauss(0, 0.0005)
        result = triage.assess(tilt(x_deg, -2.0), START_S + t_s)
    assert result.level == level


def test_slow_tilt_of_a_new_sensor_is_level_two_until_it_exceeds_a_days_warmth() -> (
    None
):
    """Without a temperature a morning looks like creep; the reason says so."""
    triage, first = node(), {}
    for at in range(20 * 6):
        result = triage.assess(tilt(1 + 0.02 * at / 6, -2.0), START_S + at * 600)
        first.setdefault(result.level, (at / 6, result.why or ""))
    assert first[2][0] < 1
    assert "may be the warmth of the day until it exceeds 0.35 deg" in first[2][1]
    assert first[3][0] == pytest.approx(0.35 / 0.02, abs=0.7)


def test_noise_at_the_start_raises_no_level() -> None:
    """A rate needs a quarter of an hour of readings."""
    rng = random.Random(6)
    for _ in range(50):
        triage = node()
        for at in range(30):
            x_deg, y_deg = rng.gauss(0, 0.0007), rng.gauss(0, 0.0007)
            assert triage.assess(tilt(x_deg, y_deg), START_S + at * 60).level == 1


def test_crack_that_stood_still_is_compared_with_its_jump() -> None:
    """Equal readings, suspect by an older node, are those before the jump."""
    still = [[Reading("crack", "mm", 20.0)]]
    still += [[flagged(Reading("crack", "mm", 20.0), 3)]] * 12
    results = run(Triage([CRACK]), still + [[Reading("crack", "mm", 35.0)]] * 2)
    assert [each.level for each in results] == [1] * 14 + [3]

    jumps = [[flagged(Reading("crack", "mm", 35.0), 3)]] * 2
    assert {each.level for each in run(Triage([CRACK]), still + jumps)} == {1}


@pytest.mark.parametrize("flag", [5, -1, 1.0, "good", None])
def test_value_with_a_flag_that_is_not_known_is_doubtful(flag: object) -> None:
    """A later version of a probe's program may have more of them."""
    is_cut = replace(wire(is_cut=True), extra={FLAG_LABEL: flag})
    assert node().assess([is_cut], START_S).level == 1


def test_cut_wire_is_level_five_and_named_in_the_reason() -> None:
    """Unconfirmed, with the reason parsed into codes."""
    result = node().assess([wire(is_cut=True, name="gully-0")], START_S)
    why = "wire: gully-0 is cut: a flow may have occurred, unconfirmed"
    assert result == TriageResult(5, why, 5, parse_why(why), 5, 5)


def test_repaired_wire_holds_its_level_for_half_an_hour() -> None:
    """The level falls only after the wire has been whole for 1800 s."""
    triage = node()
    for minute in (0, 60):
        result = triage.assess([wire(is_cut=True)], START_S + minute * 60)
    levels = [
        triage.assess([wire(is_cut=False)], START_S + 3700 + t).level
        for t in (0, 1799, 1800)
    ]
    assert (result.level, levels) == (5, [5, 5, 1])


def test_rain_holds_its_level_for_an_hour_with_a_reason() -> None:
    """The condition must be false for 3600 s; until then the reason ends in "ago"."""
    triage = node(Criteria(150.0, 112.5, 277.0), soil=SoilWater(0, 0, 100.0))
    assert apply_rain(triage, [13.5], 600).level == 2
    quiet = [
        triage.assess([rain(0.0, 13.5)], START_S + 600 + minute * 60)
        for minute in range(1, 600)
    ]
    falls = next(at for at, result in enumerate(quiet) if result.level == 1)
    ends = next(at for at, result in enumerate(quiet) if "ago" in (result.why or ""))
    assert falls - ends == 60
    assert all(result.level == 1 for result in quiet[falls:])


def test_returning_condition_restarts_the_hold() -> None:
    """False, true, false: the hold counts from the last false."""
    triage = node()
    steps = [(0, True), (1000, False), (2000, True), (3000, False), (4700, False)]
    for t, is_cut in steps:
        level = triage.assess([wire(is_cut=is_cut)], START_S + t).level
        assert level == 5
    assert triage.assess([wire(is_cut=False)], START_S + 4800).level == 1


def test_reasons_are_joined_most_serious_first_and_bounded() -> None:
    """A reason that does not fit into 200 characters is left out."""
    triage = node(soil=SoilWater(100, 100, 100))
    wires = [wire(is_cut=True, name=gully.name) for gully in GULLIES]
    result = triage.assess([rain(0.0, 0.0), *wires], START_S)
    assert result.why is not None
    assert result.why.startswith("wire: gully-0 is cut")
    assert "; wire (level 5): gully-1 is cut" in result.why
    assert len(result.why) <= 200


def test_lost_reading_is_recovered_from_the_sum() -> None:
    """The cumulative sum includes rain whose reading was lost."""
    triage = node()
    triage.assess([rain(0.0, 100.0)], START_S)
    triage.assess([rain(1.0, 131.0)], START_S + 600)
    assert triage.soil_water_mm()["rain"] == pytest.approx(31.0, rel=0.03)


def test_reset_counter_adds_its_own_value() -> None:
    """A sum that falls belongs to a new counter; it is not negative rain."""
    triage = node()
    triage.assess([rain(0.0, 100.0)], START_S)
    triage.assess([rain(2.0, 2.0)], START_S + 600)
    assert triage.soil_water_mm()["rain"] == pytest.approx(2.0, rel=0.03)


def test_late_reading_is_added_without_stepping_back() -> None:
    """Rain that is read late is added; the tanks do not step backwards."""
    triage = node()
    triage.assess([rain(10.0, 10.0)], START_S)
    triage.assess([rain(0.0, 10.0)], START_S + 1200)
    before = triage.soil_water_mm()["rain"]
    triage.assess([rain(5.0, 15.0)], START_S + 300)
    assert triage.soil_water_mm()["rain"] == pytest.approx(before + 5.0)


def test_clock_that_was_years_ahead_does_not_stop_draining() -> None:
    """A Raspberry Pi has no clock battery and may start in the wrong year."""
    triage = node()
    triage.assess([rain(50.0, 50.0)], START_S + 3e8)
    for hour in range(48):
        triage.assess([rain(0.0, 50.0)], START_S + hour * HOUR_S)
    assert triage.soil_water_mm()["rain"] < 45


def test_tanks_drain_without_readings_of_the_gauge() -> None:
    """A broken gauge must not hold the level for ever."""
    triage = node(soil=SoilWater(80, 60, 60))
    assert triage.assess([rain(0.0, 0.0)], START_S).level > 1
    late = [
        triage.assess(tilt(0.0), START_S + hour * HOUR_S).level for hour in (200, 202)
    ]
    assert late[-1] == 1


def test_setting_the_clock_from_1970_loses_no_rain() -> None:
    """The 50 years until the clock was set are no dry time."""
    triage = node()
    triage.assess([rain(40.0, 40.0)], 100.0)
    triage.assess([rain(0.0, 40.0)], START_S)
    assert triage.soil_water_mm()["rain"] == pytest.approx(40.0)


def test_nan_is_neither_rain_nor_tilt() -> None:
    """NaN must not reach the stored state."""
    triage = node()
    bad = [rain(math.nan, math.nan), *tilt(math.nan)]
    assert triage.assess(bad, START_S).level == 1
    json.loads(triage.snapshot(), parse_constant=pytest.fail)


@given(
    st.lists(
        st.tuples(st.integers(1, 120), st.floats(0, 0.5), st.booleans()), max_size=20
    ),
    st.integers(0, 20),
)
@example([(1, 0.0, False), (1, 0.0, False), (1, 0.5, False)], 2)
def test_restart_gives_the_same_results_as_no_restart(
    steps: list[tuple[int, float, bool]], at: int
) -> None:
    """A restored snapshot, by the minute, gives the same levels and soil water."""
    one, two = node(), node()
    now_s, total_mm = START_S, 0.0
    for each in (one, two):
        each.assess([rain(0.0, 0.0)], now_s)
    for number, (minutes, mm_per_min, is_cut) in enumerate(steps):
        mm = minutes * mm_per_min
        now_s, total_mm = now_s + minutes * 60, total_mm + mm
        readings = [rain(mm, total_mm), wire(is_cut=is_cut)]
        if number == at:
            again = node()
            again.restore(two.snapshot())
            two = again
        first, second = one.assess(readings, now_s), two.assess(readings, now_s)
        assert first.level == second.level
        assert two.soil_water_mm() == pytest.approx(one.soil_water_mm(), abs=0.01)


@pytest.mark.parametrize("dry_s", [60, 600])
def test_report_after_a_restart_is_of_the_time_since_the_last_one(dry_s: int) -> None:
    """9 mm in a second are doubtful, although the reports before were dry."""
    triage = node()
    triage.assess([rain(0.0, 0.0)], START_S)
    triage.assess([rain(0.0, 0.0)], START_S + dry_s)
    again = node()
    again.restore(triage.snapshot())
    for each in (triage, again):
        each.assess([rain(9.0, 9.0)], START_S + dry_s + 1)

    assert triage.soil_water_mm() == again.soil_water_mm() == {"rain": 0.0}


@given(st.lists(st.tuples(st.integers(-4000, 4000), st.floats(0, 50)), max_size=30))
def test_any_clock_steps_give_a_level(steps: list[tuple[int, float]]) -> None:
    """For any clock steps there is a level, a bounded reason and finite water."""
    triage, now_s, total_mm = node(), START_S, 0.0
    for dt_s, mm in steps:
        now_s, total_mm = now_s + dt_s, total_mm + mm
        result = triage.assess([rain(mm, total_mm), *tilt(mm)], now_s)
        assert 1 <= result.level <= 5
        assert (result.why is None) == (result.level == 1)
        assert 0 <= triage.soil_water_mm()["rain"] <= total_mm + 1e-6


@pytest.mark.parametrize(
    "snapshot",
    [
        "",
        "[]",
        "{}",
        '{"form":2}',
        '{"form":1,"rain":{"r":{"tanks":[1,2]}},"cut":{},"held":[]}',
        '{"form":1,"rain":{},"cut":{},"held":[["snow",5,"x",null]]}',
        '{"form":1,"rain":{"r":{"tanks":[-1,2,3]}},"cut":{},"held":[]}',
    ],
)
def test_damaged_snapshot_changes_nothing(snapshot: str) -> None:
    """The caller gets an error; the present state is kept."""
    triage = node()
    triage.assess([rain(9.0, 9.0)], START_S)
    before = triage.snapshot()
    with pytest.raises(SnapshotError, match="triage snapshot must be one of this"):
        triage.restore(snapshot)
    assert triage.snapshot() == before


def test_snapshot_stays_small() -> None:
    """It is stored with every message, also in a storm."""
    triage = node()
    apply_rain(triage, [1.0] * 240, 60)
    for at in range(600):
        triage.assess(tilt(at / 100), START_S + 14400 + at * 10)
    assert len(triage.snapshot()) < 2000
