"""Complete scenarios, from the first reading to the last."""

import math
import random
from collections.abc import Iterator

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
    flagged,
    rain,
    run,
    tilt,
    wire,
)

from edge_agent.triage.engine import Triage
from slope_science.levels import Criteria
from slope_science.movement import fukuzono_displacement_mm
from spatial_mqtt.senml import Reading

ALL = [RAIN, TILT, WIRE, CRACK, SHOCKS, SOIL, PORE, STREAM]
STORM_MM = [0, 5, 10, 20, 30, 50, 60, 40, 20, 10, 5]
FAILURE_H, A_PER_MM = 48.0, 0.05
"""Voight's law with alpha 2, as in the tests of `slope_science.movement`."""


def storm(dry_h: int) -> Iterator[list[Reading]]:
    """The worked storm of the index in steps of 10 minutes, then no rain."""
    total_mm = 0.0
    for hourly_mm in (*STORM_MM, *[0.0] * dry_h):
        for _ in range(6):
            total_mm += hourly_mm / 6
            yield [rain(hourly_mm / 6, total_mm)]


def test_levels_of_a_storm_rise_in_turn_and_fall_slowly() -> None:
    """Each level in turn, with its numbers; it falls no faster than it rose."""
    triage = Triage([RAIN], criteria=Criteria(110.0, 82.0, 165.0, assumed=False))
    results = run(triage, storm(dry_h=30))
    levels = [each.level for each in results]
    peak = levels.index(5)
    assert levels[: peak + 1] == sorted(levels[: peak + 1])
    assert set(levels) == {1, 2, 3, 4, 5}
    assert levels[-1] == 1
    falls = [at for at in range(1, len(levels)) if levels[at] < levels[at - 1]]
    down = [levels[at] for at in falls]
    assert down == sorted(down, reverse=True)
    assert (results[peak].why or "").startswith("rain: rain soil water index 16")
    assert ">= special-warning criterion 165.0 mm" in (results[peak].why or "")


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in (1, 2, 3, 11, 17))]
)
def test_failure_by_voights_law_is_detected_hours_ahead(seed: int) -> None:
    """Level 3 more than 10 hours ahead, level 4 between 5 and 8 hours ahead."""
    rng, triage = random.Random(seed), Triage([CRACK])
    first: dict[int, float] = {}
    for step in range(int(47.5 * 6)):
        t_h = step / 6
        mm = round(
            fukuzono_displacement_mm(t_h, FAILURE_H, A_PER_MM) + rng.gauss(0, 0.1), 3
        )
        result = triage.assess([Reading("crack", "mm", mm)], START_S + t_h * HOUR_S)
        first.setdefault(result.level, t_h)
        if result.level > 1:
            assert (result.why or "").startswith("displacement: crack ")
    assert 5 not in first
    assert 10 < FAILURE_H - first[3] < 40
    assert 5 < FAILURE_H - first[4] < 8


def test_second_sensor_raises_the_last_hours_to_level_five() -> None:
    """Ten millimetres an hour alone are level 4; with a tilting pile, level 5."""
    one, two = Triage([CRACK]), Triage([CRACK, TILT])
    levels = {1: 0, 2: 0}
    for step in range(36 * 6, int(47.8 * 6)):
        t_h = step / 6
        mm = fukuzono_displacement_mm(t_h, FAILURE_H, A_PER_MM)
        crack, lean = Reading("crack", "mm", mm), tilt(1 + 0.02 * mm)
        now_s = START_S + t_h * HOUR_S
        levels[1] = max(levels[1], one.assess([crack], now_s).level)
        result = two.assess([crack, *lean], now_s)
        levels[2] = max(levels[2], result.level)
    assert levels == {1: 4, 2: 5}
    assert "confirmed by tilt" in (result.why or "")


def test_flapping_wire_keeps_its_level_and_is_reported_as_flapping() -> None:
    """A contact in moving debris looks like this, and so does a loose plug."""
    triage = Triage([WIRE])
    readings = ([wire(is_cut=minute % 2 == 1)] for minute in range(60))
    results = run(triage, readings, every_s=60)
    assert {each.level for each in results[1:]} == {5}
    assert "it flaps: 30 cuts in 1 h, unconfirmed" in (results[-1].why or "")


def test_flapping_rain_gauge_stops_at_level_three() -> None:
    """Impossible numbers of closures may come with false rain."""
    triage = Triage([RAIN], criteria=Criteria(110.0, 82.0, 165.0))
    total_mm, levels = 0.0, set()
    for minute in range(180):
        total_mm += 3.0
        readings = [rain(3.0, total_mm), Reading("rain/refused", "count", 400)]
        result = triage.assess(readings, START_S + minute * 60)
        levels.add(result.level)
    assert max(levels) == 3
    assert "with doubtful rain, unconfirmed" in (result.why or "")
    assert triage.soil_water_mm()["rain"] == 0.0


def test_missing_rain_is_no_dry_weather() -> None:
    """The index stays for an hour, as without readings, and no rain has failed."""
    triage, total_mm = Triage([RAIN]), 0.0
    for minute in range(0, 300, 10):
        total_mm += 6.0
        triage.assess([rain(6.0, total_mm)], START_S + minute * 60)
    wet_mm = triage.soil_water_mm()["rain"]
    missing = flagged(Reading("rain", "mm", None, total_mm), 9)
    for minute in range(300, 350, 10):
        triage.assess([missing], START_S + minute * 60)
    assert triage.soil_water_mm()["rain"] == wet_mm
    assert triage.diagnostics() == {}
    # The rise of its total is rain; more was missed.
    before = Triage([RAIN])
    before.restore(triage.snapshot())
    before.assess([rain(0.0, total_mm)], START_S + 350 * 60)
    missing = flagged(Reading("rain", "mm", None, total_mm + 6.0), 9)
    triage.assess([missing], START_S + 350 * 60)
    found, dry = (each.soil_water_mm()["rain"] for each in (triage, before))
    assert found > dry + 5.0
    assert triage.diagnostics() == {}


def test_stuck_values_raise_no_level() -> None:
    """A dead sensor repeats its value; the flat-line flag changes nothing."""
    triage = Triage(ALL)
    for minute in range(600):
        readings = [
            *tilt(3.0, -1.0),
            Reading("crack", "mm", 17.0),
            flagged(Reading("soil", "/", 0.44), 3),
            Reading("pore", "hPa", 12.0),
            Reading("stream", "m", 0.4),
        ]
        assert triage.assess(readings, START_S + minute * 60).level == 1


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_noise_alone_raises_no_level_in_two_days(seed: int) -> None:
    """Two days, one reading a minute, every sensor with the noise of its data sheet."""
    rng, triage = random.Random(seed), Triage(ALL)
    sum_mm = 0.0
    for minute in range(2 * 1440):
        day = math.sin(minute / 1440 * 2 * math.pi)
        readings = [
            *tilt(1 + rng.gauss(0, 0.0006), rng.gauss(0, 0.0006), sigma_deg=0.0006),
            Reading("crack", "mm", 40 + rng.gauss(0, 0.1)),
            Reading("shocks", "count", sum(rng.random() < 0.05 for _ in range(3))),
            Reading("soil", "/", 0.3 + 0.01 * day + rng.gauss(0, 0.001)),
            Reading("pore", "hPa", -20 + rng.gauss(0, 0.5)),
            Reading("stream", "m", 0.4 + rng.gauss(0, 0.01)),
            rain(0.0, sum_mm),
            wire(is_cut=False),
        ]
        result = triage.assess(readings, START_S + minute * 60)
        assert result.level == 1, result.why


@pytest.mark.parametrize("flag", [4, 9])
def test_failed_readings_never_raise_a_level(flag: int) -> None:
    """For any values, also on every sensor at once."""
    triage = Triage(ALL)
    for minute in range(240):
        wild = [
            *tilt(minute / 10),
            Reading("crack", "mm", 10.0 * minute),
            Reading("shocks", "count", 500),
            Reading("soil", "/", minute / 500),
            Reading("pore", "hPa", minute * 10.0 - 50),
            Reading("stream", "m", minute / 10),
            rain(30.0, 30.0 * minute),
            wire(is_cut=True),
        ]
        readings = [flagged(reading, flag) for reading in wild]
        assert triage.assess(readings, START_S + minute * 60).level == 1
    assert triage.soil_water_mm()["rain"] == 0.0


def test_suspect_readings_count_once_another_sensor_confirms_them() -> None:
    """A jump is suspect; when a wire is cut at the same time, it counts."""
    alone, with_wire = Triage([TILT]), Triage([TILT, WIRE])
    for minute in range(60):
        readings = [flagged(reading, 3) for reading in tilt(1 + minute / 20)]
        cut = wire(is_cut=minute == 59)
        now_s = START_S + minute * 60
        assert alone.assess(readings, now_s).level == 1
        result = with_wire.assess([*readings, cut], now_s)
    assert result.level == 5
    why = result.why or ""
    assert "tilt (level 4): tilt 3.000±0.000 deg/h >= 0.1 (60 points), confirmed" in why


@pytest.mark.parametrize("every_s", [120.0, 600.0])
def test_daily_thermal_movement_of_a_pile_raises_no_level(every_s: float) -> None:
    """The fastest daily movement is 0.8 of the precaution level.

    Single windows of noise exceed the threshold; hysteresis must not prolong them.
    """
    for seed in range(4):
        rng, triage = random.Random(seed), Triage([TILT])
        hours = (at * every_s / HOUR_S for at in range(int(48 * HOUR_S / every_s)))
        results = run(
            triage,
            (
                tilt(0.03 * math.sin(hour * math.pi / 12) + rng.gauss(0, 0.0007))
                for hour in hours
            ),
            every_s,
        )
        assert {each.level for each in results} == {1}


def sunny(
    minute: int, moved_deg: float = 0.0, deg_per_k: float = 0.0086
) -> list[Reading]:
    """A pile above the ground, 8 K warmer and colder each day, and its displacement."""
    warm_c = 15 + 8 * math.sin(minute / 1440 * 2 * math.pi)
    angle = 1 + deg_per_k * warm_c + moved_deg
    noise = 0.0006 * math.sin(minute * 12.9898)
    temp = Reading("tilt/temp", "Cel", warm_c)
    return [*tilt(angle + noise, 0.5, sigma_deg=0.0006), temp]


def test_thermal_drift_is_no_creep_after_a_week() -> None:
    """The zero point moves 0.018 deg/h at nine: level 2 while that is not yet known."""
    triage = Triage([TILT])
    readings = (sunny(minute) for minute in range(0, 12 * 1440, 5))
    levels = [result.level for result in run(triage, readings, every_s=300)]
    week = 7 * 288
    assert max(levels[:week]) == 2
    assert set(levels[week:]) == {1}
    after = Triage([TILT])
    after.restore(triage.snapshot())
    begin = 12 * 1440
    for minute in range(begin, begin + 300, 5):
        moved_deg = 0.03 * (minute - begin) / 60
        result = after.assess(sunny(minute, moved_deg), START_S + minute * 60)
    assert result.level == 3
    assert "tilt 0.03" in (result.why or "")


def test_tilt_that_follows_warmth_too_much_is_compared_with_its_range() -> None:
    """0.022 deg/K is no drift of a sensor and is left in; creep leaves the range."""
    triage = Triage([TILT])
    days = 6 * 1440
    still = (sunny(minute, deg_per_k=0.022) for minute in range(0, days, 10))
    levels = [result.level for result in run(triage, still, every_s=600)]
    assert set(levels[2 * 144 :]) == {1}
    creep = [
        triage.assess(
            sunny(minute, 0.04 * (minute - days) / 60, 0.022), START_S + minute * 60
        ).level
        for minute in range(days, days + 720, 10)
    ]
    assert max(creep) == 3
