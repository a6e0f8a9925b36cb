"""Each family of rules: what fires it, what does not, and what confirms it."""

import random
from collections.abc import Sequence

import pytest
from slope_words import (
    CRACK,
    HOUR_S,
    PORE,
    RAIN,
    SHOCKS,
    SOIL,
    START_S,
    STREAM,
    TILT,
    WIRE,
    Measured,
    flagged,
    rain,
    run,
    tilt,
    wire,
)

from edge_agent.triage import Triage
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from slope_science.criteria import Criteria
from spatial_mqtt.senml import Reading

LOW = Criteria(60.0, 45.0, 110.0, assumed=False)


def section(**rules: object) -> TriageSection:
    """Rules of a place: some keys, and the defaults for the rest."""
    return build_settings(TriageSection, {"rules": rules})


def levels(
    triage: Triage, told: Sequence[Sequence[Reading]], every_s: float = 600.0
) -> list[int]:
    """The levels of readings at equal intervals."""
    return [said.level for said in run(triage, told, every_s)]


def test_cloudburst_beyond_the_record_stops_at_three_until_confirmed() -> None:
    """It may be a released clog, or the storm: with and without it is judged."""
    second = Measured("rain2", "rain", "mm")
    alone, beside = Triage([RAIN], criteria=LOW), Triage([RAIN, second], criteria=LOW)
    burst = [[rain(0.0, 0.0)], [rain(120.0, 120.0)]]
    said = run(alone, burst)[-1]
    assert said.level == 3
    assert "with doubtful rain, unconfirmed" in (said.why or "")
    seen = [
        [*burst[0], Reading("rain2", "mm", 0.0, 0.0)],
        [*burst[1], Reading("rain2", "mm", 25.0, 25.0)],
    ]
    said = run(beside, seen)[-1]
    assert said.level == 5
    assert "with doubtful rain, confirmed by rain2" in (said.why or "")


def test_doubtful_rain_survives_a_restart_and_is_forgotten_in_time() -> None:
    """Both pasts are in the snapshot, until they agree."""
    triage, after = Triage([RAIN], criteria=LOW), Triage([RAIN], criteria=LOW)
    run(triage, [[rain(0.0, 0.0)], [rain(120.0, 120.0)]])
    after.restore(triage.snapshot())
    assert after.snapshot() == triage.snapshot()
    assert after.assess([rain(0.0, 120.0)], START_S + 1200).level == 3
    for hour in range(1, 1500):
        said = after.assess([rain(0.0, 120.0)], START_S + hour * HOUR_S)
    assert said.level == 1
    assert '"high":null' in after.snapshot()


def test_failed_rain_is_said_and_never_made_up_by_the_sum() -> None:
    """300 mm in one reading are no rain; the next reading does not bring them back."""
    triage = Triage([RAIN], criteria=LOW)
    triage.assess([rain(0.0, 0.0)], START_S)
    triage.assess([flagged(rain(300.0, 300.0), 4)], START_S + 600)
    assert triage.diagnostics() == {
        "rain": "rule rain 300 mm failed its range and are not counted"
    }
    said = triage.assess([rain(0.5, 300.5)], START_S + 1200)
    assert (said.level, triage.diagnostics()) == (1, {})
    assert triage.soil_water_mm()["rain"] == pytest.approx(0.5, abs=0.01)


def test_rate_counts_after_two_windows_in_a_row() -> None:
    """Uchimura's warning, ten minutes after it is first reached."""
    told = [tilt(1 + 0.2 * minute / 60) for minute in range(40)]
    at = levels(Triage([TILT]), told, every_s=60)
    assert at.index(4) == pytest.approx(15 + 10, abs=1)
    hasty = section(tilt={"persist_s": 0})
    assert levels(Triage([TILT], hasty), told, every_s=60).index(4) == 15


def test_confirmed_rate_need_not_last() -> None:
    """Two piles that lean at once are no accident."""
    other = Measured("pile", "tilt", "deg")
    told = [
        [
            *tilt(1 + 0.2 * minute / 60),
            Reading("pile/x", "deg", 2 + 0.3 * minute / 60),
            Reading("pile/y", "deg", 0.0),
        ]
        for minute in range(40)
    ]
    said = run(Triage([TILT, other]), told, every_s=60)
    at = [each.level for each in said].index(4)
    assert at == 15
    assert "confirmed by" in (said[at].why or "")


def test_knock_against_the_pile_stays_at_two() -> None:
    """One step of half a degree has a slope, and is no creep."""
    rng = random.Random(1)
    told = [
        tilt(1 + 0.5 * (minute > 60) + rng.gauss(0, 0.0005)) for minute in range(180)
    ]
    at = levels(Triage([TILT]), told, every_s=60)
    assert max(at) == 2
    assert at[100] == 2
    assert at[:61] == [1] * 61


def test_rate_near_its_threshold_does_not_flicker() -> None:
    """Reached at 0.1 deg/h, left below 0.08: between them the level stays."""
    angle, told = 1.0, []
    for minute in range(600):
        angle += (0.12 if minute < 120 else 0.09) / 60
        told.append(tilt(angle))
    no_hold = section(tilt={"hold_s": 0})
    at = levels(Triage([TILT], no_hold), told, every_s=60)
    assert set(at[40:]) == {4}


def noisy(
    deg_per_h: float, noise_deg: float, hours: float, seed: int = 3
) -> list[list[Reading]]:
    """Even creep, read every ten minutes by a chip of that noise."""
    rng = random.Random(seed)
    return [
        tilt(
            1 + deg_per_h * step / 6 + rng.gauss(0, noise_deg),
            rng.gauss(0, noise_deg),
            sigma_deg=noise_deg,
        )
        for step in range(int(hours * 6))
    ]


def test_coarse_chip_tells_only_the_rates_it_can() -> None:
    """0.01 deg/h drown in a noise of 0.05 deg, also in six hours; 0.5 do not."""
    slow, fast = Triage([TILT]), Triage([TILT])
    assert set(levels(slow, noisy(0.02, 0.05, 8))) == {1}
    assert slow.diagnostics() == {
        "tilt": "rule tilt cannot be used for level 3: noise hides 0.01 deg/h"
    }
    assert levels(fast, noisy(0.5, 0.01, 6))[-1] == 4


def test_six_hours_tell_a_creep_that_one_hour_cannot() -> None:
    """0.02 deg/h in a noise of 0.01 deg: level 3 after some hours, and no note."""
    triage = Triage([TILT])
    said = run(triage, noisy(0.02, 0.01, 8))
    assert {each.level for each in said[: 3 * 6]} == {1}
    assert said[-1].level == 3
    assert "deg/h >= 0.01 (37 points, 6 h)" in (said[-1].why or "")
    assert triage.diagnostics() == {}


@pytest.mark.parametrize("seed", range(5))
def test_still_pile_of_a_coarse_chip_is_quiet_for_a_week(seed: int) -> None:
    """Noise alone passes neither window."""
    assert set(levels(Triage([TILT]), noisy(0.0, 0.01, 7 * 24, seed))) == {1}


def test_knock_is_over_after_an_hour_though_six_hours_hold_it() -> None:
    """One step is told by the hour; the long window is for creep."""
    rng = random.Random(1)
    told = [tilt(1 + 0.5 * (at > 30) + rng.gauss(0, 0.0005)) for at in range(80)]
    at = levels(Triage([TILT], section(tilt={"hold_s": 0})), told)
    assert max(at) <= 2
    assert set(at[40:]) == {1}


def move(mm_per_h: float, hours: float, every_s: float = 600) -> list[list[Reading]]:
    """An extensometer that moves evenly."""
    count = int(hours * HOUR_S / every_s)
    return [
        [Reading("crack", "mm", 20 + mm_per_h * at * every_s / HOUR_S)]
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("mm_per_h", "hours", "level"),
    [(1.5, 3, 1), (2.5, 1.5, 2), (2.5, 3, 3), (5, 1.5, 4), (15, 1.5, 4), (-5, 1.5, 4)],
)
def test_speed_has_the_levels_of_the_management_values(
    mm_per_h: float, hours: float, level: int
) -> None:
    """2 mm/h, 2 mm/h for two hours, 4 mm/h; either way along the wire."""
    assert levels(Triage([CRACK]), move(mm_per_h, hours))[-1] == level


def test_ten_millimetres_on_each_of_two_days_are_level_two() -> None:
    """Quite active, though never near 2 mm/h; the restart knows yesterday."""
    triage, told = Triage([CRACK]), move(0.5, 49)
    assert max(levels(triage, told[:270])) == 1
    after = Triage([CRACK])
    after.restore(triage.snapshot())
    said = [
        after.assess(told[at], START_S + at * 600.0) for at in range(270, len(told))
    ]
    assert said[-1].level == 2
    assert "12.0, 11.9 mm in two days >= 10 each" in (said[-1].why or "")


def crack(*mm: float) -> list[list[Reading]]:
    """An extensometer, reading by reading."""
    return [[Reading("crack", "mm", each)] for each in mm]


def test_false_echo_of_an_extensometer_says_nothing_a_day_later() -> None:
    """One reading is the end of one day and the start of another."""
    told = crack(*[120.0 if at == 150 else 20.0 for at in range(400)])
    assert set(levels(Triage([CRACK]), told)) == {1}
    daily = crack(*[35.0 if 100 < at < 250 else 20.0 for at in range(420)])
    assert levels(Triage([CRACK]), daily)[-1] == 1


def test_two_hours_at_the_speed_are_not_two_hours_near_it() -> None:
    """The hysteresis of level 2 keeps level 2, and adds no hour to the ban."""
    at_2_5, at_1_7 = 2.5 / 6, 1.7 / 6
    mm, moved = [20.0], [*[at_2_5] * 9, *[at_1_7] * 18]
    for step in moved:
        mm.append(mm[-1] + step)
    no_hold = section(displacement={"hold_s": 0})
    at = levels(Triage([CRACK], no_hold), crack(*mm))
    assert max(at) == 2
    assert at[-1] == 2


@pytest.mark.parametrize("every_s", [60.0, 600.0])
def test_step_of_the_crack_is_three_alone(every_s: float) -> None:
    """A block moved, or a boot: the line through it has too much noise to say so."""
    before, after = int(7200 / every_s), int(1800 / every_s)
    told = crack(*[20.0] * before, *[40.0] * after)
    said = run(Triage([CRACK]), told, every_s)
    assert said[before].level == 1
    assert said[before + 1].level == 3
    assert "crack step of +20.0 mm >= 10" in (said[before + 1].why or "")


def test_step_of_the_crack_that_another_sensor_felt_is_five() -> None:
    """Ten millimetres in less than an hour are the end of the time to flee."""
    triage = Triage([CRACK, WIRE], section(wire={"alone_level": 2}))
    run(triage, crack(20.0, 20.0, 20.0, 40.0))
    told = [Reading("crack", "mm", 40.0), wire(is_cut=True)]
    said = triage.assess(told, START_S + 4 * 600)
    assert said.level == 5
    assert "step of +20.0 mm >= 10, confirmed by w" in (said.why or "")


def test_cut_wire_is_confirmed_within_two_minutes_only() -> None:
    """Else a deer; five minutes later is another matter."""
    quick = section(wire={"alone_level": 3})
    for gap_s, level in ((100, 5), (300, 3)):
        triage = Triage([WIRE, Measured("w2", "wire is cut", None)], quick)
        first = [wire(is_cut=True), wire(is_cut=False, name="w2")]
        assert triage.assess(first, START_S).level == 3
        second = [wire(is_cut=True), wire(is_cut=True, name="w2")]
        assert triage.assess(second, START_S + gap_s).level == level


def test_confirmed_cut_stays_confirmed() -> None:
    """Hours later, through a restart, and though the other wire moves on."""
    quick = section(wire={"alone_level": 3, "hold_s": 0})
    sensors = [WIRE, Measured("w2", "wire is cut", None)]
    triage = Triage(sensors, quick)
    both = [wire(is_cut=True), wire(is_cut=True, name="w2")]
    assert triage.assess(both, START_S).level == 5
    mended = [wire(is_cut=True), wire(is_cut=False, name="w2")]
    assert triage.assess(mended, START_S + 7200).level == 5
    after = Triage(sensors, quick)
    after.restore(triage.snapshot())
    said = after.assess(mended, START_S + 14_400)
    assert said.level == 5
    assert "confirmed by w2" in (said.why or "")


def shocks(counts: Sequence[int]) -> list[list[Reading]]:
    """Shocks of each 10 minutes."""
    return [[Reading("shocks", "count", count)] for count in counts]


def test_shocks_stand_out_of_their_own_past() -> None:
    """A quiet place hears 30 shocks, a busy road does not notice them."""
    quiet, busy = Triage([SHOCKS]), Triage([SHOCKS])
    assert levels(quiet, shocks([1, 0, 2] * 10 + [30]))[-1] == 2
    assert levels(busy, shocks([20, 35, 28] * 10 + [40]))[-1] == 1
    new = Triage([SHOCKS])
    assert levels(new, shocks([1, 0, 2, 30]))[-1] == 1
    assert new.diagnostics()["shocks"].startswith("rule vibration cannot be used yet")


def test_shocks_and_a_cut_wire_confirm_each_other() -> None:
    """The vibration alone is 2, with the wire 4, and the wire says so."""
    triage = Triage([SHOCKS, WIRE])
    run(triage, shocks([1, 0, 2] * 10))
    told = [Reading("shocks", "count", 80), wire(is_cut=True)]
    said = triage.assess(told, START_S + 30 * 600)
    assert said.level == 5
    assert "may have occurred, confirmed by shocks" in (said.why or "")
    assert "vibration: shocks 80 shocks in 10 min >= " in (said.why or "")


def test_outage_of_a_counter_is_no_burst() -> None:
    """A hundred shocks in a day without a reading are a quiet day."""
    triage = Triage([SHOCKS])
    run(triage, shocks([1, 0, 2] * 10))
    told = [Reading("shocks", "count", 100)]
    assert triage.assess(told, START_S + 86400.0).level == 1


def test_background_of_shocks_survives_a_restart() -> None:
    """Three hours need not be learnt again."""
    triage, after = Triage([SHOCKS]), Triage([SHOCKS])
    run(triage, shocks([1, 0, 2] * 10))
    after.restore(triage.snapshot())
    told = [Reading("shocks", "count", 30)]
    assert after.assess(told, START_S + 30 * 600).level == 2


def wetter(vwc: float, step: float, count: int) -> list[list[Reading]]:
    """Soil that gets wetter in steady rain of 12 mm/h."""
    return [
        [Reading("soil", "/", vwc + step * at), rain(2.0, 2.0 * at)]
        for at in range(count)
    ]


def test_wet_soil_that_gets_wetter_in_the_rain_is_level_two() -> None:
    """High, rising and raining: none of them is enough alone."""
    high = section(saturation={"high_vwc": 0.35})
    assert levels(Triage([SOIL, RAIN], high), wetter(0.34, 0.004, 7))[-1] == 2
    assert levels(Triage([SOIL, RAIN], high), wetter(0.36, 0.0, 7))[-1] == 1
    assert levels(Triage([SOIL, RAIN], high), wetter(0.20, 0.004, 7))[-1] == 1
    dry = [[soil] for soil, _ in wetter(0.34, 0.004, 7)]
    assert levels(Triage([SOIL, RAIN], high), dry)[-1] == 1


def test_soil_learns_in_two_weeks_what_is_wet_there() -> None:
    """The 95th percentile of its own past, kept through a restart."""
    triage, after = Triage([SOIL, RAIN]), Triage([SOIL, RAIN])
    rng = random.Random(4)
    for hour in range(15 * 24):
        told = [Reading("soil", "/", 0.25 + 0.02 * rng.random())]
        triage.assess(told, START_S + hour * HOUR_S)
        if hour == 24:
            assert "needs 14 days of its own past" in triage.diagnostics()["soil"]
    after.restore(triage.snapshot())
    assert after.diagnostics() == {}
    begin_s = START_S + 15 * 24 * HOUR_S
    for at, told in enumerate(wetter(0.26, 0.003, 7)):
        said = after.assess(told, begin_s + at * 600)
    assert said.level == 2
    assert "saturation: soil 0.278 >= 0.2" in (said.why or "")


def test_pressure_that_turns_positive_and_rises_is_level_two() -> None:
    """Suction gone within the month; a standing water table says nothing."""
    rising = [[Reading("pore", "hPa", -30 + 10.0 * at)] for at in range(8)]
    said = run(Triage([PORE]), rising)[-1]
    assert said.level == 2
    assert (said.why or "").startswith("pore: pore 4.00 kPa >= 0, +6.00 in 1 h")
    high = [[Reading("pore", "hPa", 200 + 10.0 * at)] for at in range(8)]
    assert levels(Triage([PORE]), high)[-1] == 1


def stream(*metres: float) -> list[list[Reading]]:
    """A level every ten minutes."""
    return [[Reading("stream", "m", each)] for each in metres]


def test_step_of_the_stream_is_two_and_a_drop_in_the_rain_three() -> None:
    """A stream that stops in the rain has been dammed upstream."""
    assert levels(Triage([STREAM]), stream(0.5, 0.5, 0.9, 0.9))[-1] == 2
    assert levels(Triage([STREAM]), stream(0.9, 0.9, 0.5, 0.5))[-1] == 1
    rains = [
        [*told, rain(2.0, 2.0 * at)]
        for at, told in enumerate(stream(0.9, 0.9, 0.9, 0.5, 0.5))
    ]
    assert levels(Triage([STREAM, RAIN]), rains)[-1] == 3
    slow = stream(*[0.5 + 0.1 * at for at in range(8)])
    assert set(levels(Triage([STREAM]), slow)) == {1}


@pytest.mark.parametrize("echo_m", [3.0, -0.2])
@pytest.mark.parametrize("every_s", [60.0, 600.0])
def test_one_false_echo_is_no_step(echo_m: float, every_s: float) -> None:
    """A branch in the beam, also in the rain; two readings must agree on both sides."""
    heights = stream(0.5, 0.5, 0.5, echo_m, 0.5, 0.5, 0.5, 0.5)
    told = [[*each, rain(0.5, 0.5 * at)] for at, each in enumerate(heights)]
    assert set(levels(Triage([STREAM, RAIN]), told, every_s)) == {1}


def test_step_that_a_wire_confirms_needs_no_second_reading() -> None:
    """The surge that cuts the wire is gone before the next reading."""
    quick = section(wire={"alone_level": 2})
    triage = Triage([STREAM, WIRE], quick)
    run(triage, stream(0.5, 0.5))
    told = [Reading("stream", "m", 0.9), wire(is_cut=True)]
    said = triage.assess(told, START_S + 1200)
    assert "water_level: stream +0.40 m in 10 min >= 0.3, confirmed by w" in (
        said.why or ""
    )


def test_units_of_a_probe_are_those_of_the_rules() -> None:
    """The same step in centimetres; a unit that is no level is not judged."""
    cm, odd = (Measured("stream", "Water  Level", unit) for unit in ("cm", "V"))
    told = [[Reading("stream", "cm", each)] for each in (50.0, 50.0, 90.0, 90.0)]
    assert levels(Triage([cm]), told)[-1] == 2
    volts = [[Reading("stream", "V", each)] for each in (50.0, 50.0, 90.0)]
    assert levels(Triage([odd]), volts)[-1] == 1


def test_limit_counts_after_its_time_and_clears_at_its_value() -> None:
    """A height of the stream that this place knows to be dangerous."""
    limit = {
        "sensor": "stream", "above": 1.2, "clear_at": 1.0, "for_s": 1200,
        "hold_s": 600, "level": 3,
    }  # fmt: skip
    rules = build_settings(TriageSection, {"limit": [limit]})
    heights = stream(1.1, 1.3, 1.3, 1.3, 1.1, 1.1, 0.9, 0.9, 0.9)
    said = run(Triage([STREAM], rules), heights)
    assert [each.level for each in said] == [1, 1, 1, 3, 3, 3, 3, 1, 1]
    assert said[3].why == "limit 1: stream 1.3 >= 1.2 for 1200 s"


def test_limit_on_a_part_and_below() -> None:
    """A battery or a temperature in the housing may be watched too."""
    lean = Measured("lean", "temperature", "Cel")
    limit = {"sensor": "lean/temp", "below": -15.0, "level": 2, "hold_s": 0}
    triage = Triage([lean], build_settings(TriageSection, {"limit": [limit]}))
    told = [[Reading("lean/temp", "Cel", each)] for each in (-14.0, -15.0, -14.0)]
    assert levels(triage, told) == [1, 2, 1]


@pytest.mark.parametrize("rule", ["rain", "tilt", "wire", "displacement"])
def test_rule_that_is_switched_off_says_nothing(rule: str) -> None:
    """Its sensor goes on being read and sent."""
    triage = Triage([RAIN, TILT, WIRE, CRACK], section(**{rule: {"used": False}}), LOW)
    told = {
        "rain": [rain(40.0, 40.0 * 1)],
        "tilt": tilt(1.0),
        "wire": [wire(is_cut=True)],
        "displacement": [Reading("crack", "mm", 5.0)],
    }[rule]
    for at in range(30):
        later = [
            Reading(r.name, r.unit, r.value + at, r.sum)
            if isinstance(r.value, float)
            else r
            for r in told
        ]
        assert triage.assess(later, START_S + at * 600).level == 1
