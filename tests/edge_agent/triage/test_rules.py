"""Each family of rules: what triggers it, what does not, and what confirms it."""

import random
from collections.abc import Sequence

import pytest
from triage_readings import (
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

from edge_agent.triage.engine import Triage
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from slope_science.levels import Criteria
from spatial_mqtt.senml import Reading

LOW = Criteria(60.0, 45.0, 110.0, assumed=False)


def section(**rules: object) -> TriageSection:
    """Rule settings: the given keys, and defaults for the rest."""
    return build_settings(TriageSection, {"rules": rules})


def levels(
    triage: Triage, batches: Sequence[Sequence[Reading]], every_s: float = 600.0
) -> list[int]:
    """Levels of batches of readings taken at equal intervals."""
    return [result.level for result in run(triage, batches, every_s)]


def test_rain_beyond_the_record_stops_at_level_three_until_confirmed() -> None:
    """Such rain may be a released blockage or real: triage assesses both cases."""
    second = Measured("rain2", "rain", "mm")
    alone, with_second = (
        Triage([RAIN], criteria=LOW),
        Triage([RAIN, second], criteria=LOW),
    )
    burst = [[rain(0.0, 0.0)], [rain(120.0, 120.0)]]
    result = run(alone, burst)[-1]
    assert result.level == 3
    assert "with doubtful rain, unconfirmed" in (result.why or "")
    both_gauges = [
        [*burst[0], Reading("rain2", "mm", 0.0, 0.0)],
        [*burst[1], Reading("rain2", "mm", 25.0, 25.0)],
    ]
    result = run(with_second, both_gauges)[-1]
    assert result.level == 5
    assert "with doubtful rain, confirmed by rain2" in (result.why or "")


def test_doubtful_rain_survives_a_restart_and_expires() -> None:
    """The snapshot holds both assumptions until they agree."""
    triage, after = Triage([RAIN], criteria=LOW), Triage([RAIN], criteria=LOW)
    run(triage, [[rain(0.0, 0.0)], [rain(120.0, 120.0)]])
    after.restore(triage.snapshot())
    assert after.snapshot() == triage.snapshot()
    assert after.assess([rain(0.0, 120.0)], START_S + 1200).level == 3
    for hour in range(1, 1500):
        result = after.assess([rain(0.0, 120.0)], START_S + hour * HOUR_S)
    assert result.level == 1
    assert '"high":null' in after.snapshot()


def test_failed_rain_is_reported_and_not_recovered_from_the_sum() -> None:
    """A failed value of 300 mm is not counted; the next sum does not add it either."""
    triage = Triage([RAIN], criteria=LOW)
    triage.assess([rain(0.0, 0.0)], START_S)
    triage.assess([flagged(rain(300.0, 300.0), 4)], START_S + 600)
    assert triage.diagnostics() == {
        "rain": "rule rain 300 mm failed its range and are not counted"
    }
    result = triage.assess([rain(0.5, 300.5)], START_S + 1200)
    assert (result.level, triage.diagnostics()) == (1, {})
    assert triage.soil_water_mm()["rain"] == pytest.approx(0.5, abs=0.01)


def test_tilt_rate_counts_after_two_windows_in_a_row() -> None:
    """Uchimura's warning, ten minutes after the rate is first reached."""
    batches = [tilt(1 + 0.2 * minute / 60) for minute in range(40)]
    at = levels(Triage([TILT]), batches, every_s=60)
    assert at.index(4) == pytest.approx(15 + 10, abs=1)
    no_persistence = section(tilt={"persist_s": 0})
    assert levels(Triage([TILT], no_persistence), batches, every_s=60).index(4) == 15


def test_confirmed_tilt_rate_counts_at_once() -> None:
    """Two piles that tilt at once confirm each other."""
    other = Measured("pile", "tilt", "deg")
    batches = [
        [
            *tilt(1 + 0.2 * minute / 60),
            Reading("pile/x", "deg", 2 + 0.3 * minute / 60),
            Reading("pile/y", "deg", 0.0),
        ]
        for minute in range(40)
    ]
    results = run(Triage([TILT, other]), batches, every_s=60)
    at = [each.level for each in results].index(4)
    assert at == 15
    assert "confirmed by" in (results[at].why or "")


def test_knock_against_the_pile_stays_at_level_two() -> None:
    """One step of half a degree gives a slope in the fit, but is no creep."""
    rng = random.Random(1)
    batches = [
        tilt(1 + 0.5 * (minute > 60) + rng.gauss(0, 0.0005)) for minute in range(180)
    ]
    at = levels(Triage([TILT]), batches, every_s=60)
    assert max(at) == 2
    assert at[100] == 2
    assert at[:61] == [1] * 61


def test_rate_near_its_threshold_does_not_flicker() -> None:
    """Reached at 0.1 deg/h, cleared below 0.08 deg/h: the level stays between them."""
    angle, batches = 1.0, []
    for minute in range(600):
        angle += (0.12 if minute < 120 else 0.09) / 60
        batches.append(tilt(angle))
    no_hold = section(tilt={"hold_s": 0})
    at = levels(Triage([TILT], no_hold), batches, every_s=60)
    assert set(at[40:]) == {4}


def noisy_creep(
    deg_per_h: float, noise_deg: float, hours: float, seed: int = 3
) -> list[list[Reading]]:
    """Even creep, read every ten minutes by a chip with that noise."""
    rng = random.Random(seed)
    return [
        tilt(
            1 + deg_per_h * step / 6 + rng.gauss(0, noise_deg),
            rng.gauss(0, noise_deg),
            sigma_deg=noise_deg,
        )
        for step in range(int(hours * 6))
    ]


def test_coarse_chip_detects_only_rates_above_its_noise() -> None:
    """Noise of 0.05 deg hides 0.01 deg/h even over six hours, but not 0.5 deg/h."""
    slow, fast = Triage([TILT]), Triage([TILT])
    assert set(levels(slow, noisy_creep(0.02, 0.05, 8))) == {1}
    assert slow.diagnostics() == {
        "tilt": "rule tilt cannot be used for level 3: noise hides 0.01 deg/h"
    }
    assert levels(fast, noisy_creep(0.5, 0.01, 6))[-1] == 4


def test_six_hour_window_detects_creep_that_one_hour_does_not() -> None:
    """0.02 deg/h with a noise of 0.01 deg: level 3 after some hours, no diagnostic."""
    triage = Triage([TILT])
    day_and_half = 36 * 6
    quiet = noisy_creep(0.0, 0.01, 36, seed=4)  # the range of the sensor is known
    results = run(triage, [*quiet, *noisy_creep(0.02, 0.01, 8)])
    assert {each.level for each in results[: day_and_half + 2 * 6]} == {1}
    assert results[-1].level == 3
    assert "deg/h >= 0.01 (37 points, 6 h)" in (results[-1].why or "")
    assert triage.diagnostics() == {}


@pytest.mark.parametrize("seed", range(5))
def test_still_pile_with_a_coarse_chip_raises_nothing_in_a_week(seed: int) -> None:
    """Noise alone exceeds the threshold in neither window."""
    assert set(levels(Triage([TILT]), noisy_creep(0.0, 0.01, 7 * 24, seed))) == {1}


def test_knock_does_not_count_in_the_six_hour_window() -> None:
    """A step counts in the one-hour window; the six-hour window is for creep."""
    rng = random.Random(1)
    batches = [tilt(1 + 0.5 * (at > 30) + rng.gauss(0, 0.0005)) for at in range(80)]
    at = levels(Triage([TILT], section(tilt={"hold_s": 0})), batches)
    assert max(at) <= 2
    assert set(at[40:]) == {1}


def steady_movement(
    mm_per_h: float, hours: float, every_s: float = 600
) -> list[list[Reading]]:
    """An extensometer that moves at a constant speed."""
    count = int(hours * HOUR_S / every_s)
    return [
        [Reading("crack", "mm", 20 + mm_per_h * at * every_s / HOUR_S)]
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("mm_per_h", "hours", "level"),
    [(1.5, 3, 1), (2.5, 1.5, 2), (2.5, 3, 3), (5, 1.5, 4), (15, 1.5, 4), (-5, 1.5, 4)],
)
def test_speed_gives_the_levels_of_the_management_values(
    mm_per_h: float, hours: float, level: int
) -> None:
    """2 mm/h, 2 mm/h for two hours, 4 mm/h, in either direction along the wire."""
    assert levels(Triage([CRACK]), steady_movement(mm_per_h, hours))[-1] == level


def test_ten_millimetres_on_each_of_two_days_are_level_two() -> None:
    """Level 2 although the speed is never near 2 mm/h; the snapshot keeps yesterday."""
    triage, readings = Triage([CRACK]), steady_movement(0.5, 49)
    assert max(levels(triage, readings[:270])) == 1
    after = Triage([CRACK])
    after.restore(triage.snapshot())
    results = [
        after.assess(readings[at], START_S + at * 600.0)
        for at in range(270, len(readings))
    ]
    assert results[-1].level == 2
    assert "12.0, 11.9 mm in two days >= 10 each" in (results[-1].why or "")


def crack(*mm: float) -> list[list[Reading]]:
    """Readings of an extensometer."""
    return [[Reading("crack", "mm", each)] for each in mm]


def test_false_reading_of_an_extensometer_raises_nothing_a_day_later() -> None:
    """One reading is the end of one day and the start of another."""
    batches = crack(*[120.0 if at == 150 else 20.0 for at in range(400)])
    assert set(levels(Triage([CRACK]), batches)) == {1}
    daily = crack(*[35.0 if 100 < at < 250 else 20.0 for at in range(420)])
    assert levels(Triage([CRACK]), daily)[-1] == 1


def test_time_within_the_hysteresis_does_not_count_as_time_at_speed() -> None:
    """Hysteresis keeps level 2, but its time does not count towards level 3."""
    step_2_5, step_1_7 = 2.5 / 6, 1.7 / 6
    mm, moved = [20.0], [*[step_2_5] * 9, *[step_1_7] * 18]
    for step in moved:
        mm.append(mm[-1] + step)
    no_hold = section(displacement={"hold_s": 0})
    at = levels(Triage([CRACK], no_hold), crack(*mm))
    assert max(at) == 2
    assert at[-1] == 2


@pytest.mark.parametrize("every_s", [60.0, 600.0])
def test_crack_step_alone_is_level_three(every_s: float) -> None:
    """The cause may be a moved block or a boot; the fitted line has too much noise."""
    before, after = int(7200 / every_s), int(1800 / every_s)
    batches = crack(*[20.0] * before, *[40.0] * after)
    results = run(Triage([CRACK]), batches, every_s)
    assert results[before].level == 1
    assert results[before + 1].level == 3
    assert "crack step of +20.0 mm >= 10" in (results[before + 1].why or "")


def test_crack_step_confirmed_by_another_sensor_is_level_five() -> None:
    """Ten millimetres in less than an hour, confirmed: the time to evacuate is over."""
    triage = Triage([CRACK, WIRE], section(wire={"alone_level": 2}))
    run(triage, crack(20.0, 20.0, 20.0, 40.0))
    readings = [Reading("crack", "mm", 40.0), wire(is_cut=True)]
    result = triage.assess(readings, START_S + 4 * 600)
    assert result.level == 5
    assert "step of +20.0 mm >= 10, confirmed by w" in (result.why or "")


def kicked(tilted_at: int, moved_at: int, count: int) -> list[list[Reading]]:
    """A pile that is kicked at one reading, and an extensometer moved at another."""
    rng = random.Random(1)
    return [
        [
            *tilt(1 + 1.2 * (at >= tilted_at) + rng.gauss(0, 0.002)),
            Reading("crack", "mm", 20 + 14 * (at >= moved_at) + rng.gauss(0, 0.05)),
        ]
        for at in range(count)
    ]


@pytest.mark.parametrize("every_s", [60.0, 600.0, 1800.0])
def test_steps_in_one_reading_do_not_confirm_each_other(every_s: float) -> None:
    """Lightning, a weak supply or a kick moves all sensors of a node at once."""
    at = levels(Triage([CRACK, TILT]), kicked(90, 90, 150), every_s)
    assert max(at) == 3


@pytest.mark.parametrize("every_s", [300.0, 600.0, 1800.0])
def test_noise_of_all_sensors_of_a_node_confirms_nothing(every_s: float) -> None:
    """A weak supply makes all sensors of a node noisy for six readings or an hour."""
    worst = []
    for seed in range(6):
        rng, noisy = random.Random(seed), range(90, 90 + max(6, round(3600 / every_s)))
        batches = [
            [
                *tilt(1 + rng.gauss(0, 0.3 if at in noisy else 0.002)),
                Reading("crack", "mm", 20 + rng.gauss(0, 6 if at in noisy else 0.05)),
                *shocks([round(abs(rng.gauss(0, 18 if at in noisy else 1)))])[0],
            ]
            for at in range(120)
        ]
        triage = Triage([CRACK, TILT, SHOCKS])
        worst.append(max(each.alarm_level for each in run(triage, batches, every_s)))
    assert max(worst) <= 3, worst


def test_step_is_evidence_of_its_own_time() -> None:
    """A kick two hours ago is still in the six-hour window, but confirms nothing."""
    at = levels(Triage([CRACK, TILT]), kicked(60, 72, 90))
    assert max(at) == 3


def test_movement_that_goes_on_confirms_a_step() -> None:
    """A pile that tilts on and a crack that opens by 14 mm are one slide."""
    batches = [
        [*tilt(1 + 0.3 * max(at - 60, 0) / 6), crack_reading]
        for at, (crack_reading,) in enumerate(crack(*[20.0] * 66, *[34.0] * 4))
    ]
    result = run(Triage([CRACK, TILT]), batches)[-1]
    assert (result.level, result.alarm_level) == (5, 5)
    assert "crack step of +14.0 mm >= 10, confirmed by tilt" in (result.why or "")


def test_kick_with_its_own_shocks_is_one_event() -> None:
    """An animal that kicks the pile shakes it in the same reading."""
    rng, counts = random.Random(1), shocks([1, 0, 2] * 20 + [40, 1, 2, 0])
    batches = [
        [*tilt(1 + 0.8 * (at >= 60) + rng.gauss(0, 0.002)), *counted]
        for at, counted in enumerate(counts)
    ]
    assert max(levels(Triage([SHOCKS, TILT]), batches)) <= 3


@pytest.mark.parametrize("every_s", [600.0, 1800.0])
def test_several_kicks_in_six_hours_are_no_creep(every_s: float) -> None:
    """No hour of them has a rate that lasts, so that six hours have none, either."""
    rng, count = random.Random(2), int(16 * HOUR_S / every_s)
    kicks_h = (8.1, 9.3, 10.4, 11.6)
    batches = [
        tilt(
            1
            + 0.4 * sum(at * every_s / HOUR_S >= kick_h for kick_h in kicks_h)
            + rng.gauss(0, 0.002)
        )
        for at in range(count)
    ]
    assert max(levels(Triage([TILT]), batches, every_s)) <= 2


def test_stuck_axis_does_not_hide_creep_along_the_other() -> None:
    """The stuck one is suspect, but stands still."""
    rng = random.Random(3)
    batches = [
        [
            flagged(Reading("tilt/x", "deg", 0.25), 3),
            Reading("tilt/y", "deg", 0.3 * max(at - 60, 0) / 6 + rng.gauss(0, 0.002)),
        ]
        for at in range(70)
    ]
    at = levels(Triage([TILT]), batches)
    assert 60 < at.index(4) <= 64


def test_tilt_that_is_read_every_half_hour_has_a_rate_of_four_readings() -> None:
    """An hour holds three of them; the rate over six hours took three hours."""
    batches = [tilt(1 + 0.3 * max(at - 20, 0) / 2) for at in range(40)]
    at = levels(Triage([TILT]), batches, every_s=1800)
    assert at.index(4) <= 24


def test_second_cut_confirms_only_within_two_minutes() -> None:
    """A cut alone may be an animal; a second one after five minutes is unrelated."""
    quick = section(wire={"alone_level": 3})
    for gap_s, level in ((100, 5), (300, 3)):
        triage = Triage([WIRE, Measured("w2", "wire is cut", None)], quick)
        first = [wire(is_cut=True), wire(is_cut=False, name="w2")]
        assert triage.assess(first, START_S).level == 3
        second = [wire(is_cut=True), wire(is_cut=True, name="w2")]
        assert triage.assess(second, START_S + gap_s).level == level


def test_confirmed_cut_stays_confirmed() -> None:
    """Hours later, through a restart, and although the other wire was repaired."""
    quick = section(wire={"alone_level": 3, "hold_s": 0})
    sensors = [WIRE, Measured("w2", "wire is cut", None)]
    triage = Triage(sensors, quick)
    both = [wire(is_cut=True), wire(is_cut=True, name="w2")]
    assert triage.assess(both, START_S).level == 5
    repaired = [wire(is_cut=True), wire(is_cut=False, name="w2")]
    assert triage.assess(repaired, START_S + 7200).level == 5
    after = Triage(sensors, quick)
    after.restore(triage.snapshot())
    result = after.assess(repaired, START_S + 14_400)
    assert result.level == 5
    assert "confirmed by w2" in (result.why or "")


def shocks(counts: Sequence[int]) -> list[list[Reading]]:
    """Number of shocks in each 10 minutes."""
    return [[Reading("shocks", "count", count)] for count in counts]


def test_shocks_are_compared_with_their_own_background() -> None:
    """30 shocks are many on a quiet site and normal beside a busy road."""
    quiet, busy = Triage([SHOCKS]), Triage([SHOCKS])
    assert levels(quiet, shocks([1, 0, 2] * 10 + [30]))[-1] == 2
    assert levels(busy, shocks([20, 35, 28] * 10 + [40]))[-1] == 1
    new = Triage([SHOCKS])
    assert levels(new, shocks([1, 0, 2, 30]))[-1] == 1
    assert new.diagnostics()["shocks"].startswith("rule vibration cannot be used yet")


def test_shocks_and_a_cut_wire_confirm_each_other() -> None:
    """Vibration alone is level 2; with a cut wire it is 4, and the wire is level 5."""
    triage = Triage([SHOCKS, WIRE])
    run(triage, shocks([1, 0, 2] * 10))
    readings = [Reading("shocks", "count", 80), wire(is_cut=True)]
    result = triage.assess(readings, START_S + 30 * 600)
    assert result.level == 5
    assert "may have occurred, confirmed by shocks" in (result.why or "")
    assert "vibration (level 4): shocks 80 shocks in 10 min >= " in (result.why or "")


def test_outage_of_a_counter_is_not_a_burst() -> None:
    """A hundred shocks in a day without a reading are few per interval."""
    triage = Triage([SHOCKS])
    run(triage, shocks([1, 0, 2] * 10))
    readings = [Reading("shocks", "count", 100)]
    assert triage.assess(readings, START_S + 86400.0).level == 1


def test_background_of_shocks_survives_a_restart() -> None:
    """The three hours of background are in the snapshot."""
    triage, after = Triage([SHOCKS]), Triage([SHOCKS])
    run(triage, shocks([1, 0, 2] * 10))
    after.restore(triage.snapshot())
    readings = [Reading("shocks", "count", 30)]
    assert after.assess(readings, START_S + 30 * 600).level == 2


def wetting_soil(vwc: float, step: float, count: int) -> list[list[Reading]]:
    """Soil that gets wetter in steady rain of 12 mm/h."""
    return [
        [Reading("soil", "/", vwc + step * at), rain(2.0, 2.0 * at)]
        for at in range(count)
    ]


def test_wet_soil_that_gets_wetter_in_the_rain_is_level_two() -> None:
    """Wet, rising and raining: no single condition is enough."""
    high = section(saturation={"high_vwc": 0.35})
    assert levels(Triage([SOIL, RAIN], high), wetting_soil(0.34, 0.004, 7))[-1] == 2
    assert levels(Triage([SOIL, RAIN], high), wetting_soil(0.36, 0.0, 7))[-1] == 1
    assert levels(Triage([SOIL, RAIN], high), wetting_soil(0.20, 0.004, 7))[-1] == 1
    dry = [[soil] for soil, _ in wetting_soil(0.34, 0.004, 7)]
    assert levels(Triage([SOIL, RAIN], high), dry)[-1] == 1


@pytest.mark.parametrize(
    ("every_s", "level"), [(3600.0, 2), (3600.01, 2), (3900.0, 2), (3901.0, 1)]
)
def test_soil_that_is_read_every_hour_gets_wetter(every_s: float, level: int) -> None:
    """Also with jitter; readings more than 65 minutes apart show no rise."""
    high = section(saturation={"high_vwc": 0.35})
    wetter = wetting_soil(0.34, 0.01, 3)
    assert levels(Triage([SOIL, RAIN], high), wetter, every_s) == [1, level, level]
    turns = [[Reading("pore", "hPa", each)] for each in (-15.0, -5.0, 5.0)]
    assert levels(Triage([PORE]), turns, every_s) == [1, 1, level]


def test_soil_limit_is_learnt_in_two_weeks() -> None:
    """The limit is the 95th percentile of its own record, kept through a restart."""
    triage, after = Triage([SOIL, RAIN]), Triage([SOIL, RAIN])
    rng = random.Random(4)
    for hour in range(15 * 24):
        readings = [Reading("soil", "/", 0.25 + 0.02 * rng.random())]
        triage.assess(readings, START_S + hour * HOUR_S)
        if hour == 24:
            assert "needs 14 days of its own past" in triage.diagnostics()["soil"]
    after.restore(triage.snapshot())
    assert after.diagnostics() == {}
    start_s = START_S + 15 * 24 * HOUR_S
    for at, readings in enumerate(wetting_soil(0.26, 0.003, 7)):
        result = after.assess(readings, start_s + at * 600)
    assert result.level == 2
    assert "saturation: soil 0.278 >= 0.2" in (result.why or "")


def test_pressure_that_turns_positive_and_rises_is_level_two() -> None:
    """Suction is lost within the month; a permanent water table raises nothing."""
    rising = [[Reading("pore", "hPa", -30 + 10.0 * at)] for at in range(8)]
    result = run(Triage([PORE]), rising)[-1]
    assert result.level == 2
    assert (result.why or "").startswith("pore: pore 4.00 kPa >= 0, +6.00 in 1 h")
    high = [[Reading("pore", "hPa", 200 + 10.0 * at)] for at in range(8)]
    assert levels(Triage([PORE]), high)[-1] == 1


def stream(*metres: float) -> list[list[Reading]]:
    """A level every ten minutes."""
    return [[Reading("stream", "m", each)] for each in metres]


def test_stream_step_is_level_two_and_a_drop_in_rain_level_three() -> None:
    """A stream that falls in the rain has been dammed upstream."""
    assert levels(Triage([STREAM]), stream(0.5, 0.5, 0.9, 0.9))[-1] == 2
    assert levels(Triage([STREAM]), stream(0.9, 0.9, 0.5, 0.5))[-1] == 1
    rains = [
        [*readings, rain(2.0, 2.0 * at)]
        for at, readings in enumerate(stream(0.9, 0.9, 0.9, 0.5, 0.5))
    ]
    assert levels(Triage([STREAM, RAIN]), rains)[-1] == 3
    slow = stream(*[0.5 + 0.1 * at for at in range(8)])
    assert set(levels(Triage([STREAM]), slow)) == {1}


@pytest.mark.parametrize("every_s", [660.0, 1500.0, 3600.0])
def test_step_between_readings_more_than_ten_minutes_apart_is_level_two(
    every_s: float,
) -> None:
    """It may be a flood as well as a surge, so it is no sign of movement."""
    batches = [
        [*each, wire(is_cut=at == 4)]
        for at, each in enumerate(stream(0.5, 0.5, 0.5, 0.9, 0.9))
    ]
    quick = section(wire={"alone_level": 2})
    results = run(Triage([STREAM, WIRE], quick), batches, every_s)

    minutes = round(every_s / 60)
    step = f"water_level: stream +0.40 m in {minutes} min >= 0.3"
    assert [each.level for each in results] == [1, 1, 1, 1, 2]
    assert step in (results[-1].why or "")
    assert "confirmed by" not in (results[-1].why or "")
    later = [*stream(0.5, 0.5, 0.5, 3.0, 0.5, 0.5), *stream(0.6, 0.7, 0.8)]
    assert set(levels(Triage([STREAM]), later, every_s)) == {1}


@pytest.mark.parametrize("echo_m", [3.0, -0.2])
@pytest.mark.parametrize("every_s", [60.0, 600.0])
def test_one_false_echo_is_not_a_step(echo_m: float, every_s: float) -> None:
    """A branch in the beam, also in rain; two readings must agree on both sides."""
    heights = stream(0.5, 0.5, 0.5, echo_m, 0.5, 0.5, 0.5, 0.5)
    batches = [[*each, rain(0.5, 0.5 * at)] for at, each in enumerate(heights)]
    assert set(levels(Triage([STREAM, RAIN]), batches, every_s)) == {1}


def test_step_that_a_wire_confirms_needs_no_second_reading() -> None:
    """The surge that cuts the wire is over before the next reading."""
    quick = section(wire={"alone_level": 2})
    triage = Triage([STREAM, WIRE], quick)
    run(triage, stream(0.5, 0.5))
    readings = [Reading("stream", "m", 0.9), wire(is_cut=True)]
    result = triage.assess(readings, START_S + 1200)
    assert "water_level: stream +0.40 m in 10 min >= 0.3, confirmed by w" in (
        result.why or ""
    )


def test_units_of_a_probe_are_converted_for_the_rules() -> None:
    """The same step in centimetres; a unit that is no length is not evaluated."""
    cm, odd = (Measured("stream", "Water  Level", unit) for unit in ("cm", "V"))
    batches = [[Reading("stream", "cm", each)] for each in (50.0, 50.0, 90.0, 90.0)]
    assert levels(Triage([cm]), batches)[-1] == 2
    volts = [[Reading("stream", "V", each)] for each in (50.0, 50.0, 90.0)]
    assert levels(Triage([odd]), volts)[-1] == 1


def test_limit_counts_after_for_s_and_clears_at_clear_at() -> None:
    """A stage of the stream that is known to be dangerous at this site."""
    limit = {
        "sensor": "stream", "above": 1.2, "clear_at": 1.0, "for_s": 1200,
        "hold_s": 600, "level": 3,
    }  # fmt: skip
    rules = build_settings(TriageSection, {"limit": [limit]})
    heights = stream(1.1, 1.3, 1.3, 1.3, 1.1, 1.1, 0.9, 0.9, 0.9)
    results = run(Triage([STREAM], rules), heights)
    assert [each.level for each in results] == [1, 1, 1, 3, 3, 3, 3, 1, 1]
    assert results[3].why == "limit 1: stream 1.3 >= 1.2 for 1200 s"


def test_doubtful_value_that_was_good_before_stays_beyond_a_limit() -> None:
    """One that stands still is flagged, but says nothing new; another is doubtful."""
    limit = {"sensor": "stream", "above": 1.2, "hold_s": 0, "level": 3}
    rules = build_settings(TriageSection, {"limit": [limit]})
    good, other = (Reading("stream", "m", height) for height in (1.3, 1.4))
    batches = [[good], [flagged(good, 3)], [flagged(other, 3)], [other]]
    assert levels(Triage([STREAM], rules), batches) == [3, 3, 1, 3]


def test_silence_neither_counts_for_a_limit_nor_keeps_it() -> None:
    """One spurious reading of a probe that then died is no alarm after `for_s`."""
    limit = {"sensor": "stream", "above": 1.2, "for_s": 1200, "level": 3}
    rules = build_settings(TriageSection, {"limit": [limit]})
    silence: list[list[Reading]] = [[]] * 60
    triage = Triage([STREAM], rules)
    assert set(levels(triage, [*stream(1.1, 1.3), *silence])) == {1}

    results = run(Triage([STREAM], rules), [*stream(1.3, 1.3, 1.3), *silence])
    # Six hours without a reading, and `hold_s`.
    assert [each.level for each in results] == [1, 1, *[3] * 38, *[1] * 23]
    assert results[14].why == "limit 1: stream 1.3 >= 1.2 for 1200 s"


def test_limit_below_a_value_of_a_secondary_reading() -> None:
    """For example a battery voltage or a temperature in the housing."""
    lean = Measured("lean", "temperature", "Cel")
    limit = {"sensor": "lean/temp", "below": -15.0, "level": 2, "hold_s": 0}
    triage = Triage([lean], build_settings(TriageSection, {"limit": [limit]}))
    batches = [[Reading("lean/temp", "Cel", each)] for each in (-14.0, -15.0, -14.0)]
    assert levels(triage, batches) == [1, 2, 1]


@pytest.mark.parametrize("rule", ["rain", "tilt", "wire", "displacement"])
def test_disabled_rule_raises_nothing(rule: str) -> None:
    """The sensor is still read and its readings are sent."""
    triage = Triage([RAIN, TILT, WIRE, CRACK], section(**{rule: {"used": False}}), LOW)
    readings = {
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
            for r in readings
        ]
        assert triage.assess(later, START_S + at * 600).level == 1
