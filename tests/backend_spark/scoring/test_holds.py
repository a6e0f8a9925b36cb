"""Levels while evidence is missing: held, never lowered, never called judged."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from msgspec import structs

from backend_spark.scoring.holds import (
    GRACE_S,
    LOW_HOLD_S,
    NO_HOLD,
    HeldLevel,
    HoldLimits,
    PresentLevel,
    SensorHold,
    StepHolds,
)
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rain import SubstituteRain
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.saved_states import (
    STATE_INTERVAL_S,
    decode_state,
    encode_state,
)
from backend_spark.scoring.score import LevelRow, score_cell
from backend_spark.scoring.surrounding_rain import GaugeReports, NearbyGauge, NearbyRain
from slope_science.levels import Criteria, Finding
from slope_science.official_rain import ForecastRain
from slope_science.quality import Flag
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

STEP = 600
HOUR = 6  # steps
T0 = STATE_INTERVAL_S * 19_700
RULES = CellRules(Criteria.assumed_from(150.0), look_ahead=False)
STORM = [5.0] * 120  # 30 mm/h for 20 h


def gauge(depths_mm: Sequence[float], first: int = 0) -> list[Observation]:
    """A gauge that reports each step, without a counter."""
    return [
        Observation(T0 + (first + n) * STEP, "n1", "rain", "mm", depth)
        for n, depth in enumerate(depths_mm)
    ]


def alive(first: int, last: int) -> list[Observation]:
    """Another sensor that goes on reporting, so that steps have rows."""
    return [
        Observation(T0 + n * STEP, "n1", "air", "Cel", 15.0 + n % 2 / 2)
        for n in range(first, last + 1)
    ]


def tilt(first: int, degrees: Sequence[float]) -> list[Observation]:
    return [
        Observation(T0 + (first + n) * STEP, "n2", f"tilt/{axis}", "deg", value)
        for n, x in enumerate(degrees)
        for axis, value in (("x", x), ("y", 0.0))
    ]


def rows_of(
    readings: Sequence[Observation], rules: CellRules = RULES
) -> dict[int, LevelRow]:
    ordered = sorted(readings, key=lambda o: o.at_s)
    return {(r.end_s - T0) // STEP: r for r in score_cell(ordered, rules).rows}


def codes(row: LevelRow) -> set[str]:
    return {str(reason.code) for reason in row.reasons}


@pytest.mark.parametrize("dies_at", [20, 50, 77, 90, 119])
@pytest.mark.parametrize("rate_mm", [3.0, 5.0, 15.0])
def test_level_never_falls_below_that_at_the_death_of_the_gauge(
    dies_at: int, rate_mm: float
) -> None:
    """At any time of the storm, in any rain, for as long as a hold lasts."""
    rows = rows_of([*gauge([rate_mm] * dies_at), *alive(0, dies_at + 150)])
    at_death = rows[dies_at - 1].level
    assert at_death is not None
    until = dies_at + 150 if at_death >= 3 else dies_at - 1 + LOW_HOLD_S // STEP

    for n in range(dies_at, until + 1):
        assert (rows[n].level or 0) >= at_death, n
    late = rows[dies_at + 3]
    assert (late.state, late.known_until_s) == ("held", T0 + (dies_at - 1) * STEP)
    assert ReasonCode.LEVEL_HELD in codes(late)
    assert rows[until].state == "held"


def test_hold_of_a_low_level_ends_in_unknown_not_in_calm() -> None:
    """After a day; a level of 3 or more after the time in the settings."""
    rows = rows_of([*gauge([0.0] * 12), *alive(0, 200)])
    assert (rows[11 + 144].level, rows[11 + 144].state) == (1, "held")
    assert (rows[11 + 145].level, rows[11 + 145].state) == (None, "unknown")
    assert rows[200].known_until_s == T0 + 11 * STEP

    short = replace(RULES, limits=HoldLimits(hold_s=10 * 3600))
    rows = rows_of([*gauge(STORM), *alive(0, 300)], short)
    assert {rows[n].level for n in range(119, 179)} == {5}
    row = rows[119 + 145]
    assert (row.level, row.state) == (None, "unknown")
    assert ReasonCode.HOLD_ENDED in codes(row)


def test_hold_ends_when_an_hour_of_rain_is_known() -> None:
    """Not with the first reading: 50 minutes are not enough, 60 are."""
    back = 200
    rows = rows_of([*gauge(STORM), *gauge([0.0] * 30, back), *alive(0, back + 30)])

    held = [n for n in range(120, back + 30) if rows[n].state == "held"]
    judged = next(n for n in range(back, back + 30) if rows[n].state == "judged")
    assert held == list(range(123, judged))
    assert judged == back + HOUR - 1 + (rows[back].rain.is_known is False)
    assert {rows[n].level for n in held} == {5}
    assert (rows[judged].level or 0) < 5
    assert rows[judged].known_until_s is None
    assert rows[judged].rain.is_lower_bound


@pytest.mark.parametrize("phase_s", [60, 290, 310, 590])
def test_level_never_falls_when_a_gauge_dies_within_a_step(phase_s: float) -> None:
    """In the newest row, for an hour, beside a sensor that goes on reporting."""
    rain = [structs.replace(o, at_s=o.at_s + phase_s) for o in gauge([10.0] * 21)]
    known = sorted([*rain, *alive(0, 27)], key=lambda o: o.at_s)
    passes = [n for n, o in enumerate(known) if o.at_s > T0 + 18 * STEP]
    newest = [score_cell(known[: n + 1], RULES).rows[-1] for n in passes]

    levels = [row.level or 0 for row in newest]
    assert levels == sorted(levels)
    assert levels[-1] >= 3
    assert newest[-1].state == "held"


def test_step_that_is_not_over_ends_no_hold() -> None:
    """The sixth step is a part of it until the report after its end."""
    back = [structs.replace(o, at_s=o.at_s + 60) for o in gauge([0.0] * 9, 150)]
    known = [*gauge(STORM), *alive(120, 149), *back]
    passes = [n for n, o in enumerate(known) if o.at_s > T0 + 150 * STEP]
    newest = [score_cell(known[: n + 1], RULES).rows[-1] for n in passes]
    judged = [row.end_s for row in rows_of(known).values() if row.state == "judged"]
    first_s = min(end_s for end_s in judged if end_s > T0 + 150 * STEP)

    assert [row.state for row in newest] == [
        "judged" if row.end_s > first_s else "held" for row in newest
    ]
    assert {row.state for row in newest} == {"held", "judged"}


def test_short_return_neither_ends_a_hold_nor_lowers_it() -> None:
    """A gauge that reports for half an hour now and then."""
    readings = [*gauge(STORM), *alive(0, 320)]
    for first in (150, 180, 210, 240, 270):
        readings += gauge([0.0, 0.0, 0.0, 0.0], first)
    rows = rows_of(readings)

    assert {rows[n].level for n in range(120, 321)} == {5}
    assert {rows[n].state for n in range(123, 321)} == {"held"}


@pytest.mark.parametrize("every", [3, 6])
def test_refused_readings_now_and_then_do_not_hold_a_level_for_days(every: int) -> None:
    """One reading an hour fails its tests: the level falls as it does without it."""
    dry = 300
    whole = rows_of([*gauge(STORM[:60]), *gauge([0.0] * dry, 60)])
    rain = gauge([0.0] * dry, 60)
    rain[::every] = [
        structs.replace(o, node_flag=int(Flag.FAIL)) for o in rain[::every]
    ]
    rows = rows_of([*gauge(STORM[:60]), *rain])
    late = 9 if every == 6 else 18  # an hour of known rain, less what was refused

    for n in range(60, 60 + dry):
        before = [whole[k].level or 0 for k in range(n - late, n + 1)]
        assert before[-1] <= (rows[n].level or 0) <= max(before), n
    assert {rows[n].state for n in rows} == {"judged"}
    assert rows[60 + dry - 1].level == 1


def test_readings_of_which_half_are_refused_hold_the_level() -> None:
    rain = gauge([0.0] * 100, 60)
    rain[::2] = [structs.replace(o, node_flag=int(Flag.FAIL)) for o in rain[::2]]
    rows = rows_of([*gauge(STORM[:60]), *rain])

    assert {rows[n].level for n in range(60, 160)} == {rows[59].level}


def test_gauge_whose_readings_are_all_refused_holds_the_level() -> None:
    """It goes on reporting, but each reading failed its tests."""
    refused = [
        structs.replace(o, node_flag=int(Flag.FAIL)) for o in gauge([0.0] * 60, 90)
    ]
    rows = rows_of([*gauge(STORM[:90]), *refused])

    assert {rows[n].level for n in range(90, 150)} == {rows[89].level}
    assert {rows[n].state for n in range(94, 150)} == {"held"}


@pytest.mark.parametrize("is_stuck", [True, False])
@pytest.mark.parametrize("steps", [5, 24])
def test_gauge_that_was_stuck_holds_the_level_of_its_gap(
    steps: int, is_stuck: bool
) -> None:
    """Its missing reports and the first one after them say that tips were missed.

    Without them, as after an outage of the link, the total is that of all rain.
    """
    total_mm, rain = 0.0, []
    for n in range(140):
        is_missing = 60 <= n < 60 + steps
        total_mm += 0.0 if is_stuck and is_missing else 6.0
        o = Observation(T0 + n * STEP, "n1", "rain", "mm", 6.0, sum=total_mm, boot="b")
        if is_stuck and is_missing | (n == 60 + steps):
            rain.append(structs.replace(o, value=None, node_flag=int(Flag.MISSING)))
        elif not is_missing:
            rain.append(o)
    rows = rows_of([*rain, *alive(0, 139)])
    gap = [rows[n] for n in range(60, 60 + steps)]

    assert {row.rain.is_known for row in gap} == {not is_stuck}
    if is_stuck:
        assert {row.level for row in gap} == {rows[59].level}
        assert {row.state for row in gap[4:]} == {"held"}
        assert rows[60 + steps].rain.is_known is False
    else:
        assert (rows[60 + steps].level or 0) == 4


def test_rise_during_the_hold_is_held_too() -> None:
    """Other evidence that is live is judged; what is missing stays held below it."""
    creep = tilt(150, [0.3 * n / 6 for n in range(20)])
    rows = rows_of([*gauge(STORM[:70]), *alive(0, 200), *creep])
    rain_level = rows[69].level

    assert rain_level == 3
    assert (rows[165].level, rows[165].state) == (4, "judged")
    assert ReasonCode.LEVEL_HELD in codes(rows[165])


def test_dead_tilt_meter_holds_its_level() -> None:
    """It dies while it moves; steady rain data go on."""
    creep = tilt(0, [0.3 * n / 6 for n in range(30)])
    rows = rows_of([*gauge([0.0] * 200), *creep])

    assert rows[29].level == 4
    assert {rows[n].level for n in range(29, 200)} == {4}
    assert rows[31].state == "judged"
    assert {rows[n].state for n in range(34, 200)} == {"held"}
    assert rows[150].known_until_s == T0 + 29 * STEP
    assert "n2 tilt" in rows[150].sentences[0]


@pytest.mark.parametrize("flag", [Flag.SUSPECT, Flag.FAIL])
def test_sensor_whose_readings_became_doubtful_holds_its_level(flag: Flag) -> None:
    """Its temperature, which goes on, is no evidence of movement either."""
    moving = tilt(0, [0.3 * n / 6 for n in range(30)])
    still = tilt(30, [1.5] * 60)
    doubtful = [structs.replace(o, node_flag=int(flag), flag=flag) for o in still]
    warm = [
        Observation(T0 + n * STEP, "n2", "tilt/temp", "Cel", 15.0) for n in range(90)
    ]
    rows = rows_of([*gauge([0.0] * 90), *moving, *doubtful, *warm])

    assert {rows[n].level for n in range(29, 90)} == {4}
    assert {rows[n].state for n in range(34, 90)} == {"held"}


def test_tilt_meter_that_returns_ends_its_hold_after_an_hour() -> None:
    """A steady meter is evidence; a single reading is not."""
    creep = tilt(0, [0.3 * n / 6 for n in range(30)])
    steady = tilt(100, [1.5] * 30)
    rows = rows_of([*gauge([0.0] * 130), *creep, *steady])

    assert {rows[n].level for n in range(29, 106)} == {4}
    assert rows[107].level == 1
    assert rows[107].state == "judged"


def test_one_refused_reading_is_no_state_of_its_own() -> None:
    """A gap of a step keeps the level for an hour and is not called held."""
    readings = gauge([0.0] * 60)
    readings[30] = structs.replace(readings[30], node_flag=int(Flag.FAIL))
    rows = rows_of(readings)

    assert {(rows[n].level, rows[n].state) for n in range(60)} == {(1, "judged")}


def with_forecast(mm: float) -> CellRules:
    # Without look-ahead: only the rain in place of the missing one is of interest here.
    coming = partial(forecast_of, mm)
    return replace(RULES, look_ahead=False, forecast=coming)


def forecast_of(mm: float, at_s: float) -> ForecastRain:
    return ForecastRain("JMA", at_s, (mm,) * 12)


def with_grid(mm: float) -> CellRules:
    reason = Reason(ReasonCode.RAIN_FROM_GRID, source="JMA")
    return replace(RULES, substitutes=(lambda _: SubstituteRain(mm, reason),))


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (with_forecast, ReasonCode.RAIN_FROM_FORECAST),
        (with_grid, ReasonCode.RAIN_FROM_GRID),
    ],
)
def test_substitute_may_raise_the_level_and_is_named(
    make: Callable[[float], CellRules], code: ReasonCode
) -> None:
    """It never lowers the level, and the level is never called judged."""
    readings = [*gauge(STORM[:70]), *alive(0, 300)]
    wet, dry = rows_of(readings, make(5.0)), rows_of(readings, make(0.0))

    assert wet[69].level == 3
    assert wet[130].level == 5
    assert {wet[n].state for n in range(74, 131)} == {"held"}
    assert code in codes(wet[100])
    assert not wet[100].rain.is_known
    assert {dry[n].level for n in range(70, 301)} == {3}


def test_rain_of_the_nearest_gauge_takes_the_place_of_missing_rain() -> None:
    """Its node and distance are in the reasons; the level stays held."""
    reports = GaugeReports(
        structs.replace(o, node="n7", flag=int(Flag.GOOD)) for o in gauge([5.0] * 200)
    )
    nearby = NearbyRain((NearbyGauge("n7", 2.1, reports),))
    readings = sorted([*gauge(STORM[:70]), *alive(0, 199)], key=lambda o: o.at_s)
    rows = {
        (r.end_s - T0) // STEP: r
        for r in score_cell(readings, RULES, nearby=nearby).rows
    }

    assert rows[69].level == 3
    assert (rows[130].level, rows[130].state) == (5, "held")
    assert "own rain is missing: rain of n7, 2.1 km away" in rows[130].sentences
    assert rows[130].known_until_s == T0 + 69 * STEP


@pytest.mark.parametrize("row", [{}, {"state": None, "known_until": None}])
def test_level_of_a_silent_cell_is_held_and_then_unknown(
    row: dict[str, object],
) -> None:
    """Also that of a row of an earlier program, which has no state."""
    limits, seen = HoldLimits(2 * LOW_HOLD_S), []
    for level, silent_s in (
        (3, GRACE_S),
        (3, GRACE_S + 1),
        (3, 2 * LOW_HOLD_S),
        (3, 2 * LOW_HOLD_S + 1),
        (2, LOW_HOLD_S),
        (2, LOW_HOLD_S + 1),
        (None, 0),
    ):
        found = PresentLevel.of_row(
            {"at": float(T0), "level": level, **row}, T0 + silent_s, limits
        )
        seen.append((found.level, found.state, found.known_until_s))

    assert seen == [
        (3, "judged", None),
        (3, "held", T0),
        (3, "held", T0),
        (None, "unknown", T0),
        (2, "held", T0),
        (None, "unknown", T0),
        (None, "unknown", None),
    ]


def test_held_level_goes_on_from_the_last_judgement() -> None:
    """Not from the row, which was held already."""
    row = {"at": T0 + 9000.0, "level": 4, "state": "held", "known_until": float(T0)}
    limits = HoldLimits(LOW_HOLD_S)

    now = PresentLevel.of_row(row, T0 + LOW_HOLD_S, limits)
    assert (now.level, now.state, now.known_until_s) == (4, "held", T0)
    now = PresentLevel.of_row(row, T0 + LOW_HOLD_S + 1, limits)
    assert (now.level, now.state, now.known_until_s) == (None, "unknown", T0)


def test_rule_that_still_finds_what_is_held_notifies_alone() -> None:
    """Its own level of notices counts; a hold of a higher level counts besides."""
    wire = Reason(ReasonCode.WIRE_CUT, sensor="n1 wire")
    hold = SensorHold(HeldLevel.of(4, T0, [wire]))
    holds = StepHolds(NO_HOLD, {"n1 wire": (hold, True)}, HoldLimits(), T0 + STEP)
    other = Reason(ReasonCode.WIRE_CUT, sensor="n2 wire")

    assert holds.noticed(1, [Finding(4, wire, 2)]) == []
    for live in (Finding(3, wire), Finding(4, other), None):
        assert [f.level for f in holds.noticed(1, [live])] == [4]


@pytest.mark.parametrize("dies_at", [100, 140, 141, 143, 144, 145, 150, 280, 290])
def test_saved_states_carry_holds_over_days(dies_at: int) -> None:
    """Scoring from a saved state gives the same level, state and reasons."""
    creep = tilt(dies_at - 20, [0.3 * n / 6 for n in range(20)])
    storm = gauge([0.0] * (dies_at - 60) + STORM[:60])
    ordered = sorted([*storm, *creep, *alive(0, 620)], key=lambda o: o.at_s)
    whole = score_cell(ordered, RULES)
    for memory in whole.memories:
        past = decode_state(encode_state(memory))
        again = score_cell(
            [o for o in ordered if o.at_s > past.at_s - 26 * 3600],
            RULES,
            past.at_s + 4 * 3600,
            past,
        ).rows
        rows = {row.end_s: row for row in whole.rows}
        for row in again:
            one = rows[row.end_s]
            found = (row.level, row.state, row.known_until_s, row.sentences)
            expected = (one.level, one.state, one.known_until_s, one.sentences)
            assert found == expected, (row.end_s - T0) // STEP
