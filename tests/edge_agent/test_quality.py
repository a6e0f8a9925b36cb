"""QARTOD flags set by the node."""

import random
from collections.abc import Mapping, Sequence

import pytest
from triage_readings import START_S

from edge_agent.cli.triage import ReplayedMessage, replay_messages
from edge_agent.sensor_reader import (
    FLAT_LINE_COUNT,
    FLAT_LINE_S,
    PlausibleRange,
    QualityFlagger,
)
from edge_agent.sensors.registry import parse_sensors
from edge_agent.triage.engine import Triage
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from slope_science.quality import FLAG_LABEL, Flag
from spatial_mqtt.reading_table import TableMessage, TableReading
from spatial_mqtt.senml import Reading

TILT = PlausibleRange("deg", -90, 90, 1.0, is_noisy=True)
RAIN = PlausibleRange("mm", 0, 50, None)


def flags(
    plausible: PlausibleRange,
    values: list[object],
    unit: str = "deg",
    every_s: float = 60.0,
) -> list[object]:
    quality = QualityFlagger(plausible)
    flagged = [
        quality.flag([Reading("t", unit, v)], at * every_s)[0]  # type: ignore[arg-type]
        for at, v in enumerate(values)
    ]
    return [reading.extra.get(FLAG_LABEL) for reading in flagged]


def test_gross_range_and_step_are_flagged() -> None:
    """4 outside the range, 3 for a jump; steps are measured from the value before."""
    assert flags(TILT, [0.0, 91.0, 0.5, 2.0, 2.1]) == [None, 4, None, 3, None]


def test_jump_in_the_direction_of_the_change_before_is_movement() -> None:
    """A slide of 9 deg/h moves by 1.5 deg between two readings; an echo comes back."""
    slide = [0.0, 1.5, 3.0, 3.7, 5.0, 6.2]
    assert flags(TILT, slide) == [None, 3, None, None, None, None]
    assert flags(TILT, [-each for each in slide])[1:] == [3, *[None] * 4]
    echoes = [0.0, 3.0, 0.0, -3.0, -3.0, -6.0]
    assert flags(TILT, echoes) == [None, 3, 3, None, None, 3]


def test_noise_of_a_burst_is_not_judged_as_tilt() -> None:
    """That of one sample, or of a chip coarser than its noise, is always 0."""
    quality = QualityFlagger(TILT)
    for at in range(2 * FLAT_LINE_COUNT):
        pack = [Reading("t/x", "deg", 0.001 * at), Reading("t/sigma", "deg", 0.0)]
        assert quality.flag(pack, at * 60.0) == pack


def test_values_of_another_unit_or_type_get_no_flag() -> None:
    """Health texts, booleans and a chip's temperature are not the quantity."""
    assert flags(TILT, ["broken", True, None]) == [None] * 3
    assert flags(TILT, [500.0], unit="Cel") == [None]


def test_values_that_are_not_finite_fail() -> None:
    """It would make every later mean infinite."""
    assert flags(TILT, [float("inf"), float("nan")]) == [4, 4]


@pytest.mark.parametrize(
    ("every_s", "good"), [(10.0, 360), (60.0, 60), (300.0, FLAT_LINE_COUNT - 1)]
)
def test_repeated_values_of_a_noisy_sensor_are_suspect(
    every_s: float, good: int
) -> None:
    """Equal to the last digit for an hour, in sixty readings: no measurement."""
    count = int(FLAT_LINE_S / every_s) + FLAT_LINE_COUNT
    flagged = flags(TILT, [0.12345] * count + [0.12346], every_s=every_s)

    assert flagged == [None] * good + [3] * (count - good) + [None]


def test_rain_gauge_may_repeat_zero() -> None:
    """A month without rain is possible."""
    assert set(flags(RAIN, [0.0] * 500, unit="mm")) == {None}


STAGE = {
    "kind": "ultrasonic", "name": "stage",
    "trigger_pin": 23, "echo_pin": 24, "mount_m": 4.0,
}  # fmt: skip
SOIL = {
    "kind": "soil-moisture", "name": "soil", "channel": 0, "dry_v": 2.2, "wet_v": 1.0
}  # fmt: skip


def judged(
    sensor: Mapping[str, object],
    limits: Sequence[Mapping[str, object]],
    values: Sequence[float],
    every_s: float,
) -> list[ReplayedMessage]:
    """Flags and levels by the node's code of a sensor's readings."""
    (settings,) = parse_sensors([sensor])
    triage = Triage([settings], build_settings(TriageSection, {"limit": limits}))
    messages = []
    for at, value in enumerate(values):
        reading = Reading(settings.name, settings.senml_unit, value)
        entry = TableReading(1, settings.name, settings.quantity, reading)
        at_s = START_S + at * every_s
        messages.append(TableMessage("n", 33.5, 133.5, at_s, at_s, readings=[entry]))
    return list(replay_messages(messages, [settings], triage))


PILE = {"kind": "scl3300", "name": "pile", "device": 0}


@pytest.mark.parametrize(
    ("deg_per_h", "every_s"), [(90.0, 60.0), (8.0, 600.0), (60.0, 600.0), (1.5, 3600.0)]
)
def test_slide_of_more_than_a_degree_between_readings_is_level_four(
    deg_per_h: float, every_s: float
) -> None:
    """The faster it is, the more of its readings are jumps."""
    (settings,) = parse_sensors([PILE])
    triage, rng = Triage([settings]), random.Random(2)
    rest = 40
    messages = []
    for at in range(rest + 8 + int(1200 / every_s)):
        x = -60 + deg_per_h * every_s / 3600 * max(0, at - rest)
        readings = [
            TableReading(1, "pile", "tilt", Reading(f"pile/{axis}", "deg", value))
            for axis, value in (("x", x), ("y", 2.0))
            for value in [value + rng.gauss(0, 0.002)]
        ]
        at_s = START_S + at * every_s
        messages.append(TableMessage("n", 33.5, 133.5, at_s, at_s, readings=readings))
    results = list(replay_messages(messages, [settings], triage))

    assert {each.result.level for each in results[:rest]} == {1}
    assert results[-1].result.level == 4


def test_steady_water_keeps_the_level_of_its_limit() -> None:
    """A level of 4 makes the node read every 10 s; the river stands there for 3 h."""
    limit = {"sensor": "stage", "above": 3.0, "level": 4}
    results = judged(STAGE, [limit], [2.9] + [3.12] * 1080 + [3.13] * 60, 10.0)[1:]

    assert results[1079].flags  # a ranger that repeats a value may be stuck
    assert {(each.result.level, each.result.alarm_level) for each in results} == {
        (4, 4)
    }
    assert {"while ago" in (each.result.why or "") for each in results} == {False}


def test_soil_that_changes_less_than_hourly_reaches_its_limit() -> None:
    """The example of how-to/triage.md; the probe changes a digit every 65 min."""
    limit = {"sensor": "soil", "above": 0.42, "for_s": 3600, "level": 2}
    wet = [0.43 + 0.0003 * (at // 65 % 2) for at in range(780)]
    results = judged(SOIL, [limit], wet, 60.0)

    assert sum(bool(each.flags) for each in results) > 12
    assert [each.result.level for each in results] == [1] * 60 + [2] * 720


def test_jump_beyond_a_limit_counts_from_its_second_reading() -> None:
    """One doubtful value starts no `for_s`; one within an excess does not end it."""
    limit = {"sensor": "soil", "above": 0.42, "for_s": 600, "level": 2}
    jumps = judged(SOIL, [limit], [0.2] + [0.5] * 12, 60.0)
    assert [each.result.level for each in jumps] == [1] * 12 + [2]

    higher = judged(SOIL, [limit], [0.43] * 5 + [0.60] * 7, 60.0)
    assert higher[5].flags
    assert [each.result.level for each in higher] == [1] * 10 + [2] * 2


GAUGE = {"kind": "rain-gauge", "name": "rain", "pin": 17}


def test_rain_of_a_stop_in_a_typhoon_counts_whole() -> None:
    """The kernel counts the tips of six hours, 34 mm/h, into the first report."""
    (_, before), (_, after) = (
        judged(GAUGE, [], [0.0, mm], 6 * 3600) for mm in (195.0, 205.0)
    )
    assert (before.result.level, after.result.level) == (2, 3)
    assert after.flags == {}

    (_, impossible) = judged(GAUGE, [], [0.0, 1000.0], 6 * 3600)
    assert impossible.flags == {"rain": Flag.FAIL}


def test_rain_beyond_the_record_in_one_report_is_doubtful() -> None:
    """A released blockage, or the storm: level 3 by one gauge."""
    (_, ten_minutes) = judged(GAUGE, [], [0.0, 300.0], 600.0)
    assert ten_minutes.result.level == 3
    assert "with doubtful rain" in (ten_minutes.result.why or "")


CRACK = {
    "kind": "modbus", "name": "crack", "port": "/dev/ttyUSB0", "address": 1,
    "register": 0, "unit": "mm", "measures": "displacement", "low": 0, "high": 1000,
    "step": 100.0,
}  # fmt: skip


def test_probe_may_repeat_a_value() -> None:
    """A gauge that resolves 0.1 mm stands still for weeks; its `step` is no noise."""
    results = judged(CRACK, [], [100.0] * 300, 60.0)
    assert [each.flags for each in results] == [{}] * 300


@pytest.mark.parametrize(
    ("sensor", "before", "after", "level"),
    [(CRACK, 100.0, 150.0, 3), (STAGE, 0.5, 1.3, 2)],
)
def test_jump_after_hours_of_rest_counts_at_its_second_reading(
    sensor: Mapping[str, object], before: float, after: float, level: int
) -> None:
    """Equal readings are those before the jump, also where they are suspect."""
    results = judged(sensor, [], [before] * 180 + [after] * 30, 60.0)
    assert [each.result.level for each in results] == [1] * 181 + [level] * 29
