"""`backend-spark judge`: rows, notices and revisions are those of the pipeline."""

import json
import random
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from reading_tables import (
    HEADER,
    PLACE,
    START_S,
    Row,
    rain_rows,
    table_text,
    time_text,
)

from backend_spark.cli import cli
from backend_spark.config import BackendSettings
from backend_spark.judging import judge_table, to_json
from backend_spark.memory_pipeline import (
    SHORTEST_S,
    Effort,
    decode_table,
    iso_time,
)
from backend_spark.scoring.arrow import read_observations
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from service_runtime.settings import build_settings
from slope_science.levels import Criteria
from spatial_mqtt.reading_table import read_table

SETTINGS = build_settings(BackendSettings, {"backend": {"data": "."}})
STORM_MM = [0.0] * 36 + [7.0] * 48 + [0.0] * 48
"""Six hours dry, eight hours of 42 mm/h, eight hours dry."""


def judged(text: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - of judge_table
    table = read_table("t.csv", text)
    effort = more.pop("effort", Effort(1800))
    found = judge_table("t.csv", table, SETTINGS, effort=effort, **more)
    return to_json(found, with_revisions=True)


@pytest.fixture(scope="module")
def storm() -> dict[str, Any]:
    """The storm, judged."""
    return judged(table_text(rain_rows(STORM_MM)))


def levels(result: dict[str, Any]) -> list[int | None]:
    return [step["level"] for step in result["cells"][0]["steps"]]


def test_levels_are_those_of_scoring_at_once(storm: dict[str, Any]) -> None:
    whole = _scored_at_once(STORM_MM)
    assert levels(storm) == whole
    assert 4 in whole


def _scored_at_once(depths_mm: Sequence[float]) -> list[int | None]:
    table = read_table("t.csv", table_text(rain_rows(depths_mm)))
    silver, _ = decode_table(table.messages, 600, 60 * 86_400)
    rules = CellRules(Criteria.assumed_from(150.0))
    known = read_observations(silver.parsed)
    return [row.level for row in score_cell(known, rules).rows]


@pytest.mark.long
def test_quiet_windows_give_the_rows_of_passes_at_each_receipt() -> None:
    rnd = random.Random(1)
    rows: list[Row] = []
    for at in range(2 * 144):
        rows += rain_rows([0.5 if rnd.random() < 0.05 else 0.0])
        rows[-1] = (at * 600.0, *rows[-1][1:])
        rows += [
            (
                at * 600.0,
                "n1",
                "tilt",
                f"tilt_{a}",
                round(rnd.gauss(0, 0.002), 4),
                "deg",
            )
            for a in "xy"
        ]
    text = table_text(rows)
    quick = judge_table("t.csv", read_table("t.csv", text), SETTINGS)
    slow = judge_table(
        "t.csv", read_table("t.csv", f"{text}\n{_flagged_rows()}"), SETTINGS
    )
    assert quick.timeline.passes == 1
    assert slow.timeline.passes > 30
    ours, others = (to_json(each)["cells"][0]["steps"] for each in (quick, slow))
    for one, other in zip(ours, others, strict=True):
        other["version"] = one["version"]
        other["n_nodes"] = one["n_nodes"]
    assert [each["level"] for each in ours] == [each["level"] for each in others]
    assert [each["swi_mm"] for each in ours] == pytest.approx([
        each["swi_mm"] for each in others
    ])


def _flagged_rows() -> str:
    """Flagged readings of another node in the same cell, so that no window is quiet."""
    return "\n".join(
        f"{time_text(at * 36 * 600.0)},n2,other,temperature,99,Cel,{PLACE}"
        for at in range(2 * 4)
    )


def test_notices_follow_the_clock_of_receipt(storm: dict[str, Any]) -> None:
    result = storm
    rise = next(n for n in result["notices"] if n["level"] == 4)
    shown = result["cells"][0]["shown"]
    assert rise["at"] == next(s["at"] for s in shown if s["level"] == 4)
    falls = [n for n in result["notices"] if n["at"] > rise["at"] and n["level"] != 4]
    lower = next(s["at"] for s in shown if s["at"] > rise["at"] and s["level"] != 4)
    assert falls
    assert falls[0]["at"] >= iso_time(_seconds(lower) + SETTINGS.notify.calm_s)


def test_json_says_on_what_a_notice_rests_and_which_readings_count() -> None:
    """A cut wire, then silence; a second cell, and a temperature that is none."""
    text = table_text([
        *rain_rows([0.0, 8.0]),
        (1200.0, "n1", "t", "temperature", 999, "Cel"),
        (1800.0, "n1", "w", "wire", 1, ""),
    ])
    text += f"{time_text(1800)},n2,gauge,rain,0,mm,33.7588,133.7312\n"
    assert judged(text, until_s=START_S)["until"] == iso_time(START_S + 1800)
    result = judged(text, until_s=START_S + 7200)
    notices = [
        (n["level"], n["state"], n["known_until"], n["doubts"])
        for n in result["notices"]
    ]
    highest = [max(s["level"] for s in c["shown"]) for c in result["cells"]]

    assert notices[0] == (5, "judged", None, ["unconfirmed"])
    assert notices[-1] == (5, "held", iso_time(START_S + 1800), ["unconfirmed"])
    assert sorted(highest) == [1, 5]
    assert [each["counts"] for each in result["readings"]] == [True] * 2 + [
        False,
        True,
        True,
    ]
    assert result["readings"][3]["value"] == "true"


def test_notices_do_not_depend_on_the_time_of_reports_in_a_step() -> None:
    """Rain of 60 mm/h that is level 4 for half an hour, reported each ten minutes."""
    found = [_noticed(phase_s) for phase_s in (0, 60, 300, 590)]
    assert set(found[0]) == {2, 3, 4}
    for first_s in found:
        assert first_s.keys() == found[0].keys()
        for level, at_s in first_s.items():
            assert abs(at_s - found[0][level]) <= 600


def _noticed(phase_s: float) -> dict[int, float]:
    """Time of the first notice of each level, or of a higher one."""
    sums = [min(max(0.0, n * 10 + phase_s / 60 - 60), 225) for n in range(31)]
    depths = [after - before for before, after in pairwise([0.0, *sums])]
    rows = [(at_s + phase_s, *rest) for at_s, *rest in rain_rows(depths)]
    result = judged(table_text(rows), effort=Effort(600))
    sent = [(n["level"], _seconds(n["at"])) for n in result["notices"]]
    highest = max(level for level, _ in sent)
    return {
        level: min(at_s for each, at_s in sent if each >= level)
        for level in range(2, highest + 1)
    }


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.long
def test_late_readings_revise_rows() -> None:
    early = rain_rows([0.0] * 36 + [10.0] * 36)
    kept = [row for row in early if not 36 * 600 <= row[0] < 54 * 600]
    late = [row for row in early if row not in kept]
    result = judged(table_text([*kept, *late]))
    assert levels(result) == levels(judged(table_text(early)))
    assert result["revisions"]
    assert "late" in result["revisions"][0]["superseded_because"]
    assert max(step["version"] for step in result["cells"][0]["steps"]) > 1


def test_clock_runs_on_until_the_notice_is_not_renewed() -> None:
    storm = table_text(rain_rows(STORM_MM[:84]))
    end_s = START_S + 83 * 600
    result = judged(storm, until_s=end_s + 86_400)
    assert result["until"] == iso_time(end_s + 86_400)
    assert result["cells"][0]["shown"][-1]["state"] in {"unknown", "held"}
    assert not result["notices"][-1]["withdrawn"]


@pytest.mark.long
def test_effort_is_bounded_and_says_so(storm: dict[str, Any]) -> None:
    text = table_text(rain_rows(STORM_MM))
    result = judged(text, effort=Effort(max_passes=10))
    assert "one pass covers up to six hours" in result["notes"][-1]
    assert levels(result) == levels(storm)
    assert SHORTEST_S == 6 * 3600


def test_command_prints_json_lines_and_refusals(tmp_path: Path) -> None:
    path = tmp_path / "storm.csv"
    path.write_text(table_text(rain_rows([0.0, 0.0, 8.0, 500.0])))
    done = CliRunner().invoke(cli, ["judge", str(path), "--json"])
    result = json.loads(done.output)
    step = result["cells"][0]["steps"][-1]
    assert {"at", "level", "state", "known_until", "reasons"} <= step.keys()
    assert [each["flag"] for each in result["readings"]][3] >= 3
    lines = CliRunner().invoke(cli, ["judge", str(path)]).output.splitlines()
    begins = ["level 1 (judged): -", "level 1 (judged): sus", "level 3 (judged): high"]
    assert len(lines) == 6  # the second step is as the first
    assert all(each in line for each, line in zip(begins, lines[1:4], strict=True))
    assert lines[4].endswith("level 3 (judged) until 2025-12-31T18:30:00Z")
    assert lines[5].startswith("flag n1 rain: 2 suspect from 2025-12-31T15:20:00")
    path.write_text(f"{HEADER}\n2026-01-01T00:00Z,n1,g,rain,x,mm,{PLACE}\n")
    refused = CliRunner().invoke(cli, ["judge", str(path)])
    assert "line 2: value must be a finite number" in str(refused.exception)
