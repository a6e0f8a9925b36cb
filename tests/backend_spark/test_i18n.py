"""Translation of reasons to Japanese."""

import re
from dataclasses import replace

import pytest
from msgspec import structs

from backend_spark.i18n import message_reasons, reasons_of, render_both, render_japanese
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rain import RainState
from backend_spark.scoring.rules import CellRules, judge_step
from backend_spark.scoring.score import score_cell
from slope_science.evidence.soil_and_water_level import (
    SoilWetness,
    judge_moisture,
    judge_pore_pressure,
)
from slope_science.levels import Criteria, judge_rain
from slope_science.rain_and_soil_water import SoilWater
from slope_science.reason_codes import ReasonCode
from slope_science.reason_compat import parse_or_text
from slope_science.reasons import Reason, reason_to_json, render_english

SET = "set by 鈴木 on 2026-11-21"
CRITERIA = (Criteria.assumed_from(150.0), Criteria(assumed=False))
T0 = 1_700_000_400
ENGLISH_WORDS = re.compile(r"[a-z]{4,}")
CUT = Reason(ReasonCode.WIRE_CUT, sensor="n1 W")
OF_SENSORS = (
    Reason(ReasonCode.TILT, sensor="n1 T", deg_per_h=0.2, limit_deg_per_h=0.1),
    Reason(ReasonCode.SHOCKS, sensor="n1 V", count=40, limit=12),
    Reason(ReasonCode.UNCONFIRMED, because=CUT),
    Reason(ReasonCode.CONFIRMED, because=CUT, by="n2 V"),
    Reason(ReasonCode.UNCONFIRMED_LONG, because=CUT, hours=4, level=3),
    Reason(ReasonCode.LONG_AGO, because=CUT),  # of stored rows
    Reason(ReasonCode.SPEED, sensor="n1 E", mm_per_h=5.0, limit_mm_per_h=4.0),
    Reason(
        ReasonCode.SPEED, sensor="n1 E", mm_per_h=2.5, limit_mm_per_h=2.0, lasted_h=2.0
    ),
    Reason(
        ReasonCode.FAILURE_TIME, sensor="n1 E", left_h=3.0, half_width_h=1.0, r2=0.95
    ),
    Reason(
        ReasonCode.FAILURE_TIME,
        sensor="n1 E",
        left_h=1.6,
        half_width_h=31.3,
        earliest_h=0.4,
        latest_h=32.9,
        r2=0.95,
        mm_per_h=8.0,
    ),
)


def reasons() -> list[str]:
    """Every English sentence that scoring can produce."""
    sentences = [
        render_english(finding.reason)
        for criteria in CRITERIA
        for swi_mm in (120.0, 160.0, 230.0, 300.0)
        if (finding := judge_rain(40.0, swi_mm, criteria))
    ]
    near = judge_rain(0.0, 149.0, CRITERIA[0], was_level=3, clear_share=0.9)
    rain = (
        near,
        judge_rain(0.0, 300.0, Criteria(assumed=False, special_assumed=True)),
        judge_rain(0.0, 300.0, Criteria(assumed=False, basis=parse_or_text(SET))),
    )
    sentences += [render_english(f.reason) for f in rain if f]
    sentences += map(render_english, OF_SENSORS)
    wet = SoilWetness("n1 S", 12.0, 3.0, 97.0, -1.0)
    soil = (
        judge_moisture(wet, 2.0),
        judge_pore_pressure(wet, 2.0),
        judge_pore_pressure(replace(wet, lowest=1.0), 2.0),
    )
    sentences += [render_english(f.reason) for f in soil if f]
    sentences.append(f"in 50 min, if the rain of the last hour goes on: {sentences[0]}")
    sentences.append(
        f"in 50 min, by JMA's forecast of 2026-07-01 00:00 UTC: {sentences[0]}"
    )
    sentences.append(
        "high, unconfirmed: level 2 without suspect rain (soil water index 120.0 mm)"
    )
    bounded = RainState(1.0, SoilWater(20, 1, 1), is_lower_bound=True)
    for state in (RainState(), RainState(0.0, SoilWater(), gap_s=90_000), bounded):
        sentences += map(render_english, judge_step(state, [], CRITERIA[0])[1])
    return sentences


@pytest.mark.parametrize("reason", reasons())
def test_every_reason_has_a_japanese_translation(reason: str) -> None:
    """A new sentence in slope_science needs a translation."""
    assert not ENGLISH_WORDS.search(render_japanese(reason))


def test_translation_keeps_numbers() -> None:
    """Both languages have the numbers that an analyst checks."""
    reason = "soil water index 210.3 mm >= critical line at 43.0 mm/h 190.0 mm"

    assert re.findall(r"\d+\.\d", render_japanese(reason)) == ["210.3", "43.0", "190.0"]


def test_unknown_reason_is_shown_unchanged() -> None:
    """It must not be hidden."""
    assert render_japanese("the moon is full") == "the moon is full"


@pytest.mark.parametrize(
    ("codes", "sentence", "shown"),
    [
        (['["frost",-2]'], "frost: air at -2 Cel", "凍結：気温 -2 °C"),
        (None, "frost: air at -2 Cel", "凍結：気温 -2 °C"),
        ([], "frost: air at -2 Cel", "凍結：気温 -2 °C"),
        (["damaged"], "frost: air at -2 Cel", "凍結：気温 -2 °C"),
        (['["of_a_newer_version",1]'], "the moon is full", "the moon is full"),
        (['["held",["of_a_newer_version",1]]'], "full moon", "full moon"),
    ],
)
def test_sentence_is_used_if_the_reason_code_is_missing(
    codes: list[str] | None, sentence: str, shown: str
) -> None:
    """Rows of an earlier program version, and codes of a later one."""
    assert render_both(reasons_of(codes, [sentence])) == [{"en": sentence, "ja": shown}]
    assert [render_japanese(r) for r in message_reasons(codes, sentence)] == [shown]


def test_all_reasons_of_a_storm_with_suspect_rain_are_translated() -> None:
    """With look-ahead, a cut wire, a flag of the node, and a gauge that stops."""
    rain = [Observation(T0 + n * 600, "n1", "rain", "mm", mm, seq=n) for n, mm in
            enumerate([0.0] * 4 + [9.0] * 12 + [240.0] + [2.0] * 6)]  # fmt: skip
    burst = [
        structs.replace(rain[n], value=mm) for n, mm in enumerate([0.0] * 8 + [240.0])
    ]
    rain[10] = structs.replace(rain[10], node_flag=3)
    dry = [structs.replace(o, node="n2", value=0.0) for o in rain]
    cut = [Observation(T0 + 7200, "n1", "wire", None, 1.0, "true")]
    later = [structs.replace(o, at_s=o.at_s + 200_000) for o in cut]
    found = score_cell(
        [*rain, *dry, *cut, *later], CellRules(CRITERIA[0], same_rain=True)
    )
    rows = [*found.rows, *score_cell(burst, CellRules(CRITERIA[0])).rows]
    reasons = {reason for row in rows for reason in row.reasons}
    codes = {reason.code for reason in reasons}

    assert {"soil_water", "ahead_same_rain", "suspect", "suspect_rain"} <= codes
    assert {"no_rain_data", "unconfirmed"} <= codes
    for reason in reasons:
        assert not ENGLISH_WORDS.search(
            re.sub("n[12] (rain|wire)", "", render_japanese(reason))
        )
    for row in rows:
        codes_of_row = list(map(reason_to_json, row.reasons))
        assert reasons_of(codes_of_row, row.sentences) == row.reasons
        assert reasons_of(None, row.sentences) == row.reasons
