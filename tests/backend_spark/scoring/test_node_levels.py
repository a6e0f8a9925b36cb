"""Levels that nodes judged appear in their cell, or the reason states why not."""

import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from scored_levels import make_levels_table

from backend_spark.scoring.arrow import HISTORY_COLUMNS, read_observations
from backend_spark.scoring.decode import cut_silver, decode_messages
from backend_spark.scoring.node_levels import (
    NodeLevel,
    find_node_levels,
    make_node_findings,
)
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from backend_spark.tables.schemas import BRONZE, LOG
from edge_agent.triage.engine import Triage
from slope_science.evidence.settings import DEFAULT_EVIDENCE
from slope_science.levels import Criteria, Finding
from slope_science.quality import Flag
from slope_science.reason_codes import ReasonCode
from slope_science.reason_compat import parse_why
from slope_science.reasons import Reason, encode_reason, reason_to_json, render_english
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic
from tests.triage_readings import HOUR_S, START_S, TILT, WIRE, tilt

T0 = 1_700_006_400.0
RULES = CellRules(Criteria.assumed_from(150.0))
TABLE = CellRules(Criteria(110.0, 82.0, 165.0, assumed=False))
MESSAGE = ("node", "boot", "seq")
RAIN_WHY = "rain: rain soil water index 100.0 mm >= warning criterion 90.0 mm"
TILT_WHY = "tilt: pole tilts 0.200 deg/h >= 0.1"


def sent(
    minutes: float, priority: int, why: str | None, *values: tuple[str, str, float]
) -> list[Observation]:
    """Readings of one message of node n1."""
    seq = int(minutes * 60)
    at_s = T0 + minutes * 60
    return [
        Observation(
            *(at_s, "n1", name, unit, value), seq=seq, priority=priority, level_why=why
        )
        for name, unit, value in values
    ]


def pole(
    minutes: float, priority: int = 1, why: str | None = None
) -> list[Observation]:
    """A message about a pole that stands still."""
    axes = ("pole/x", "deg", 0.1), ("pole/y", "deg", 0.1)
    return sent(minutes, priority, why, *axes)


def rows(
    observations: Sequence[Observation], rules: CellRules = RULES
) -> list[dict[str, Any]]:
    """Rows of the table `levels`, by step."""
    scored = score_cell(observations, rules)
    return make_levels_table("c", scored.rows).to_pylist()


def levels(observations: Sequence[Observation], rules: CellRules = RULES) -> list[Any]:
    """Level of each step; None is 1 without rain data."""
    return [row["level"] for row in rows(observations, rules)]


def test_level_of_a_node_appears_in_its_step_and_ends_with_the_next_message() -> None:
    """The backend's own rules find nothing."""
    quiet = [o for m in range(0, 31, 10) for o in pole(m)]
    raised = pole(35, 4, TILT_WHY)
    found = rows([*quiet, *raised, *pole(45), *pole(55), *pole(65)])
    assert [row["level"] for row in found] == [None] * 4 + [4, 4, None, None]
    assert found[4]["reasons"][0] == f"n1 judged level 4: {TILT_WHY}"
    assert found[4]["notice_level"] == 3


def test_level_of_a_silent_node_ends_after_the_hold_of_its_rule() -> None:
    """One hour by default; another node keeps the cell's steps going."""
    other = [replace(o, node="n2") for m in range(0, 121, 10) for o in pole(m)]
    assert levels([*other, *pole(5, 4, TILT_WHY)])[1:] == [4] * 7 + [None] * 5


def test_message_without_the_sensor_does_not_end_its_level() -> None:
    """A report of the node's health says nothing about its slope."""
    other = [replace(o, node="n2") for m in range(0, 61, 10) for o in pole(m)]
    health = sent(15, 1, None, ("health/battery", "V", 3.9))
    assert levels([*other, *pole(5, 4, TILT_WHY), *health])[1:] == [4] * 6


def test_late_and_repeated_messages_give_the_same_rows() -> None:
    """In any order, with repeats, and in two batches."""
    sums = [*pole(0), *pole(12, 3, TILT_WHY), *pole(21), *pole(33), *pole(45)]
    expected = rows(sums)
    shuffled = list(sums)
    random.Random(1).shuffle(shuffled)
    assert rows(shuffled) == expected
    late = score_cell(sums, RULES, touched_s=T0 + 12 * 60).rows
    again = make_levels_table("c", late).to_pylist()
    assert again == expected[-len(again) :]
    assert [row["level"] for row in again].count(3) == 2


def test_confirmed_level_is_not_capped() -> None:
    """The node has compared two sensors."""
    confirmed = f"{TILT_WHY}, confirmed by w"
    row = rows([*pole(0), *pole(5, 5, confirmed)])[-1]
    assert (row["level"], row["notice_level"]) == (5, None)


def flagged(flag: Flag, why: str) -> Callable[[Observation], Observation]:
    """Change of a reading's flag."""
    return lambda o: replace(o, node_flag=int(flag), flag=int(flag), why=why)


@pytest.mark.parametrize(
    ("flag", "level", "text"),
    [
        (Flag.SUSPECT, 3, "n1 judged level 5, here 3 (node: suspect): tilt: pole"),
        (Flag.FAIL, None, "n1 judged level 5, here 1 (node: failed): tilt: pole"),
    ],
)
def test_level_from_doubtful_readings_is_lowered_with_the_reason(
    flag: Flag, level: int | None, text: str
) -> None:
    """Suspect readings give 3 at most, failed ones 1."""
    name = "suspect" if flag is Flag.SUSPECT else "failed"
    change = flagged(flag, f"node: {name}")
    row = rows([*pole(0), *map(change, pole(5, 5, TILT_WHY))])[-1]
    assert row["level"] == level
    assert any(reason.startswith(text) for reason in row["reasons"])


def test_assumed_criteria_of_a_node_do_not_outvote_the_table() -> None:
    """Level 3 by a criterion of 90 mm, where the prefecture's is 110 mm."""
    assumed = f"{RAIN_WHY} (assumed criteria)"
    wet = sent(5, 3, assumed, ("rain", "mm", 0.0))
    raised = find_node_levels(wet)[0]
    basis = raised.reason.params["because"].params.get("basis")
    assert basis is not None, raised.reason
    known, unknown = rows(wet, TABLE)[-1], rows(wet, RULES)[-1]
    assert known["level"] == 1
    assert any("judged level 3, here 1" in reason for reason in known["reasons"])
    assert unknown["level"] == 3


STREAM_WHY = "limit 1: stream 2.475 >= 2 for 600 s"
SURE = CellRules(Criteria(250.0, 240.0, 300.0, assumed=False))


@pytest.mark.parametrize(
    ("limit", "level"),
    [
        (f"; {STREAM_WHY}", 3),  # of an earlier version, which states no level
        (f"; {STREAM_WHY.replace('limit 1', 'limit 1 (level 4)')}", 4),
        (f"; {STREAM_WHY.replace('limit 1', 'limit 1 (level 2)')}", 1),
        ("; rain: g2 soil water index 80.0 mm >= advisory criterion 75.0 mm", 1),
        ("", 1),
    ],
)
@pytest.mark.parametrize("change", ["assumed", "failed"])
def test_other_reasons_of_a_message_keep_their_level(
    limit: str, level: int, change: str
) -> None:
    """Only rain is lowered; the stream is above the limit of the settings."""
    assumed = " (assumed criteria)" if change == "assumed" else ""
    index = "rain: rain soil water index 300.0 mm >= special-warning criterion 200.0 mm"
    values = ("rain", "mm", 0.0), ("stream", "m", 2.475)
    wet = sent(5, 5, f"{index}{assumed}{limit}", *values)
    if change == "failed":
        fail = flagged(Flag.FAIL, "node: failed")
        wet = [fail(o) if o.name == "rain" else o for o in wet]
    assert (rows(wet, SURE)[-1]["level"] or 1) == level


def test_doubt_about_one_sensor_leaves_the_level_of_another_of_the_same_rule() -> None:
    """Two tilt meters of a node; the one with the higher level has failed."""
    other = TILT_WHY.replace("pole", "post").replace("tilt:", "tilt (level 4):")
    axes = ("pole/x", "deg", 0.1), ("post/x", "deg", 0.1)
    fail = flagged(Flag.FAIL, "node: failed")
    raised = sent(5, 5, f"{TILT_WHY}; {other}", *axes)
    raised = [fail(o) if o.name == "pole/x" else o for o in raised]
    assert rows([*pole(0), *raised])[-1]["level"] == 4


@pytest.mark.parametrize(("minutes", "level"), [(5, 1), (70, 3)])
def test_message_without_its_sensor_is_judged_by_the_last_reading_of_it(
    minutes: float, level: int
) -> None:
    """Sensors with other intervals have messages of their own; an hour is too long."""
    fail = flagged(Flag.FAIL, "node: failed")
    rain = [fail(o) for o in sent(4.5, 3, RAIN_WHY, ("rain", "mm", 2.5))]
    raised = sent(minutes, 3, RAIN_WHY, ("soil", "Cel", 12.0))
    assert (rows([*pole(0), *rain, *raised])[-1]["level"] or 1) == level


@pytest.mark.parametrize("notes", [("stream/health",), ("stream/rule", "soil")])
def test_text_about_a_sensor_does_not_hide_its_failed_reading(
    notes: Sequence[str],
) -> None:
    """A sensor that fails gives a bad value, and then none."""
    fail = flagged(Flag.FAIL, "node: failed")
    bad = [fail(o) for o in sent(3, 4, STREAM_WHY, ("stream", "m", 2.475))]
    later = [
        replace(o, unit=None, value=None, text="silent: no answer")
        if "/" in o.name
        else o
        for at, name in enumerate(notes)
        for o in sent(4 + at, 4, STREAM_WHY, (name, "Cel", 12.0))
    ]
    assert (rows([*pole(0), *bad, *later])[-1]["level"] or 1) == 1


def test_level_beside_the_health_of_its_failed_sensor_counts() -> None:
    """Creep lasts long enough only when there are no readings of it any more."""
    text = "silent: no answer"
    health = [
        replace(o, unit=None, value=None, text=text)
        for o in sent(8, 4, TILT_WHY, ("pole/health", "Cel", 12.0))
    ]
    assert rows([*pole(0), *pole(5), *health])[-1]["level"] == 4


def test_level_of_an_unknown_sensor_ends_with_the_next_message() -> None:
    """Earlier versions named a part of a renamed gauge as in the settings."""
    why = "limit 1: gauge/refused 9 >= 5 for 600 s"
    values = ("rain", "mm", 0.0), ("rain/refused", "count", 9.0)
    raised = [*sent(5, 4, why, *values), *sent(25, 1, None, *values)]
    other = [replace(o, node="n2") for m in range(0, 61, 10) for o in pole(m)]
    assert [level or 1 for level in levels([*other, *raised])] == [1, 4, 4, 4, 1, 1, 1]


@pytest.mark.parametrize(("bad", "level"), [("stage/temp", 1), ("stage", 4)])
def test_limit_of_a_secondary_value_depends_on_that_value(bad: str, level: int) -> None:
    """The water level failed; its temperature has the limit."""
    why = "limit 1: stage/temp 30 >= 25 for 600 s"
    values = ("stage", "m", 1.0), ("stage/temp", "Cel", 30.0)
    fail = flagged(Flag.FAIL, "node: failed")
    raised = [fail(o) if o.name == bad else o for o in sent(5, 4, why, *values)]
    assert (rows([*pole(0), *raised])[-1]["level"] or 1) == level


@pytest.mark.parametrize(
    "why", [None, "safe mode: 2 settings are wrong", "help", "", "tilt: …"]
)
def test_urgent_message_without_a_rule_is_no_level(why: str | None) -> None:
    """Safe mode and free texts have priority 3, too."""
    assert find_node_levels(pole(0, 3, why)) == []
    assert levels([*pole(0, 3, why)]) == [None]


@pytest.mark.parametrize("why", [None, "tilt: …", "tilt: 柱が傾いています"])
def test_level_is_read_from_codes_whatever_the_sentence(why: str | None) -> None:
    """A sentence may be cut, or be one of a later version."""
    codes = tuple(map(reason_to_json, parse_why(TILT_WHY)))
    assert "tilt" in codes[0]
    coded = [replace(o, level_codes=codes) for o in pole(5, 4, why)]
    assert (
        find_node_levels(coded)[0].reason
        == find_node_levels(pole(5, 4, TILT_WHY))[0].reason
    )
    assert rows([*pole(0), *coded])[-1]["level"] == 4


@pytest.mark.parametrize("codes", [[], ["no JSON"], ['["of_a_later_version"]']])
def test_sentence_stands_in_for_codes_that_cannot_be_read(codes: list[str]) -> None:
    """An unreadable code must not lower a level."""
    raised = [replace(o, level_codes=codes) for o in pole(5, 4, TILT_WHY)]
    assert rows([*pole(0), *raised])[-1]["level"] == 4


def message(
    triage: Triage, seq: int, at_s: float, *readings: Reading
) -> dict[str, Any]:
    """A row of the log with what a node sends, one second later."""
    result = triage.assess(readings, at_s)
    pack = Pack(
        MessageId("n1", "b", seq),
        result.priority,
        at_s,
        readings,
        why=f"{(result.why or '')[:9]}…",  # a sentence that was cut states no level
        reasons=[encode_reason(reason) for reason in result.reasons],
    )
    return dict.fromkeys(LOG.names) | {
        "received_at": datetime.fromtimestamp(at_s, UTC) + timedelta(seconds=1),
        "topic": cell_topic(Cell.at(33.56, 133.53)),
        "payload": encode_cbor(pack),
        "node": "n1",
        "boot": "b",
        "seq": seq,
        "pri": result.priority,
    }


def test_level_of_a_real_node_passes_through_its_message_and_silver() -> None:
    """Triage, envelope, decoding, the columns of silver, and the score."""
    triage = Triage([TILT, WIRE])
    log = [
        message(
            triage,
            minute,
            START_S + minute * 60,
            *tilt(1 + 0.5 * max(minute - 60, 0) / 60),
            Reading("w", None, False),
        )
        for minute in range(0, 181, 2)
    ]
    highest = max(row["pri"] for row in log)
    assert highest >= 3
    parsed = decode_messages(pa.Table.from_pylist(log, schema=BRONZE))
    counts = pa.chunked_array([[True] * parsed.num_rows])
    silver = cut_silver(parsed, counts).select(list(HISTORY_COLUMNS))
    scored = rows(read_observations(silver))
    for row in log:
        step = next(
            r
            for r in scored
            if r["at"].timestamp() >= row["received_at"].timestamp() - 1
        )
        if row["pri"] >= 3:
            assert (step["level"] or 1) >= row["pri"]
            assert any(text.startswith("n1 judged") for text in step["reasons"])
    last_s = START_S + 3 * HOUR_S
    assert scored[-1]["at"].timestamp() >= last_s


def test_silver_of_an_older_program_has_no_levels() -> None:
    """Rows without priority or reason count as before."""
    silver = pa.table({
        name: pa.nulls(1, BRONZE.field(name).type if name in BRONZE.names else None)
        if name not in {"at", "received_at"}
        else pa.array([datetime(2026, 7, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
        for name in HISTORY_COLUMNS
    })
    (observation,) = read_observations(silver)
    assert (observation.priority, observation.level_why) == (1, None)
    assert observation.level_reasons == ()


def test_node_that_was_alone_is_not_unconfirmed_beside_the_cells_evidence() -> None:
    """The node judged its wire alone; the cell has another node's tilt meter."""
    cut = Reason(ReasonCode.WIRE_CUT, sensor="wire")
    alone = Reason(ReasonCode.UNCONFIRMED, because=cut)
    level = NodeLevel("n1", T0, math.inf, 5, rule_of("wire", alone), [])
    own_cut = Reason(ReasonCode.WIRE_CUT, sensor="n1 wire")
    own = Reason(ReasonCode.CONFIRMED, because=own_cut, by="n2 tilt")
    rules = (DEFAULT_EVIDENCE, RULES.criteria)

    (beside,) = make_node_findings([level], int(T0) + 600, *rules, [Finding(5, own)])
    (without,) = make_node_findings([level], int(T0) + 600, *rules)

    assert render_english(beside.reason).endswith(", confirmed by n2 tilt")
    assert beside.notice_level is None
    assert render_english(without.reason).endswith(", unconfirmed")
    assert without.notice_level == 3


def rule_of(rule: str, because: Reason) -> Reason:
    return Reason(ReasonCode.RULE, rule=rule, because=because)
