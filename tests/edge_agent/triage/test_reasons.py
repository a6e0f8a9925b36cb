"""Reasons of every rule of a node: the sent sentence, its codes, and Japanese."""

import re

import pytest
from triage_readings import (
    CRACK,
    PORE,
    RAIN,
    SHOCKS,
    SOIL,
    STREAM,
    TILT,
    WIRE,
    Measured,
    rain,
    run,
    tilt,
    wire,
)

from edge_agent.triage.engine import Triage, TriageResult
from edge_agent.triage.settings import TriageSection
from service_runtime.settings import build_settings
from slope_science.levels import Criteria
from slope_science.reason_compat import parse_why
from slope_science.reasons import (
    Reason,
    decode_reason,
    encode_reason,
    render_english_list,
    render_japanese,
)
from spatial_mqtt.senml import Reading

LOW = Criteria(60.0, 45.0, 110.0, assumed=False)
SECTION = build_settings(
    TriageSection,
    {
        "rules": {"saturation": {"high_vwc": 0.35}},
        "limit": [{"sensor": "stream", "above": 1.2, "level": 3}],
    },
)


def readings_of(sensor: Measured, *values: float) -> list[list[Reading]]:
    """A reading every ten minutes."""
    return [[Reading(sensor.name, sensor.senml_unit, value)] for value in values]


def readings_in_rain(sensor: Measured, *values: float) -> list[list[Reading]]:
    """The same, with rain."""
    batches = readings_of(sensor, *values)
    return [[*each, rain(2.0, 2.0 * at)] for at, each in enumerate(batches)]


STORM = [[rain(6.0, 6.0 * at)] for at in range(25)]
CASES = {
    "rain": ([RAIN], [*STORM, *[[rain(0.0, 144.0)]] * 12]),
    "doubtful rain": ([RAIN], [[rain(0.0, 0.0)], [rain(120.0, 120.0)]]),
    "tilt": ([TILT], [tilt(0.2 * at) for at in range(10)] + [tilt(1.8)] * 12),
    "displacement": ([CRACK], readings_of(CRACK, *[0.9 * at for at in range(20)])),
    "step": ([CRACK], readings_of(CRACK, *[1.0] * 4, *[40.0] * 3)),
    "days": ([CRACK], readings_of(CRACK, *[0.5 * at / 6 for at in range(294)])),
    "failure": (
        [CRACK],
        readings_of(CRACK, *[100 / (17.0 - at / 6) for at in range(94)]),
    ),
    "wire": ([WIRE], [[wire(is_cut=at % 2 == 0)] for at in range(12)]),
    "vibration": ([SHOCKS], readings_of(SHOCKS, *[1, 0, 2] * 10, 30, 0)),
    "saturation": (
        [SOIL, RAIN],
        readings_in_rain(SOIL, *[0.34 + 0.004 * at for at in range(7)]),
    ),
    "pore": ([PORE], readings_of(PORE, *[-30.0 + 10.0 * at for at in range(8)])),
    "water_level": ([STREAM], readings_of(STREAM, 0.5, 0.5, 0.9, 0.9)),
    "limit": ([STREAM], readings_of(STREAM, 1.1, 1.3, 1.3)),
    "both": (
        [SHOCKS, WIRE],
        [
            *readings_of(SHOCKS, *[1, 0, 2] * 10),
            [Reading("shocks", "count", 30), wire(is_cut=True)],
        ],
    ),
}


def assessments(case: str) -> list[TriageResult]:
    """Results of a node with these sensors for these readings."""
    sensors, readings = CASES[case]
    return run(Triage(sensors, SECTION, LOW), readings)


@pytest.mark.parametrize("case", CASES)
def test_codes_agree_with_the_sentence_and_render_in_japanese(case: str) -> None:
    """Older nodes send only the sentence; parsing it gives the same codes."""
    results = [each for each in assessments(case) if each.why]
    names = {sensor.name for sensor in CASES[case][0]}

    assert results
    for each in results:
        assert render_english_list(each.reasons) == each.why
        assert parse_why(each.why or "") == each.reasons
        assert (
            tuple(decode_reason(encode_reason(reason)) for reason in each.reasons)
            == each.reasons
        )
        for reason in each.reasons:
            assert set(re.findall("[A-Za-z]{4,}", render_japanese(reason))) <= names


def test_cases_cover_every_rule_and_remark() -> None:
    """The test above covers all rules."""
    found = {
        (inner.code, inner.params.get("rule"))
        for case in CASES
        for each in assessments(case)
        for reason in each.reasons
        for inner in flatten(reason)
    }

    assert {rule for _, rule in found if rule} == {
        *("rain", "tilt", "displacement", "wire", "vibration"),
        *("saturation", "pore", "water_level", "limit"),
    }
    assert {
        *("soil_water", "doubtful_rain", "tilt", "speed", "displacement_step"),
        *("displacement_days", "failure_time", "wire_cut", "shocks", "soil_wet"),
        *("pore_positive", "water_level_step", "limit"),
        *("held", "confirmed", "unconfirmed"),
    } <= {code for code, _ in found}


def flatten(reason: Reason) -> list[Reason]:
    """A reason and the reasons nested in it."""
    deeper = [value for value in reason.values if isinstance(value, Reason)]
    return [reason, *(each for value in deeper for each in flatten(value))]


def test_held_reason_is_restored_from_both_snapshot_forms() -> None:
    """The sentence of this version, and the list of codes of the next version."""
    triage = Triage([WIRE])
    run(triage, [[wire(is_cut=True)], [wire(is_cut=False)]])
    snapshot = triage.snapshot()
    sentence = "wire: w is cut: a flow may have occurred, unconfirmed"
    listed = '["unconfirmed",["rule","wire",["wire_cut","w"]]]'
    assert f'"{sentence}"' in snapshot

    for stored in (snapshot, snapshot.replace(f'"{sentence}"', listed)):
        after = Triage([WIRE])
        after.restore(stored)
        result = run(after, [[wire(is_cut=False)]])[0]
        assert result.why == f"{sentence} (a while ago)"
        assert after.snapshot() != ""
        assert parse_why(result.why) == result.reasons
