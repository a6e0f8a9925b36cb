"""Judging of a table of readings by the code of the pipeline, without Spark.

The results as JSON and as lines are documented in docs/reference/readings.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np

from backend_spark.config import BackendSettings
from backend_spark.criteria.cell_rules import make_cell_rules
from backend_spark.memory_pipeline import (
    NORMAL_EFFORT,
    Effort,
    MemoryPipeline,
    ReceiptClock,
    SentNotice,
    SentRecord,
    decode_table,
    iso_time,
    row_state,
)
from backend_spark.notice_state import NoticePolicy
from backend_spark.scoring.holds import HoldLimits
from backend_spark.scoring.observation import flag_reasons
from slope_science.quality import Flag
from slope_science.reasons import describe_reason, reason_from_json
from spatial_mqtt.cells import Cell
from spatial_mqtt.reading_table import (
    ReadingTable,
    rename_rain,
)

STEP_COLUMNS: Final = (
    "r60_mm", "swi_mm", "lower_bound", "rain_known", "tilt_rate_deg_per_h",
    "notice_level", "level_same", "level_forecast", "n_nodes", "version",
)  # fmt: skip
_READING_COLUMNS: Final = ("node", "name", "value", "value_text", "sum", "unit")
_FLAG_NAMES: Final = {int(flag): flag.name.casefold() for flag in Flag}
_MICRO: Final = 1_000_000

Json = dict[str, Any]


@dataclass(frozen=True)
class TableJudgement:
    """Results for a table.

    Attributes:
        table: The table.
        pipeline: The pipeline after its last pass.
        timeline: Passes, notices and shown levels.
        until_s: Unix time at which the clock stopped.
    """

    table: ReadingTable
    pipeline: MemoryPipeline
    timeline: SentRecord
    until_s: float


def judge_table(
    source: str,
    table: ReadingTable,
    settings: BackendSettings,
    *,
    until_s: float | None = None,
    effort: Effort = NORMAL_EFFORT,
    down_s: tuple[float, float] = (0.0, 0.0),
) -> TableJudgement:
    """Judge a table of readings as the pipeline does.

    Args:
        source: Name of the table, for errors.
        table: The table; its rain is named for the backend.
        settings: Settings of the backend.
        until_s: Unix time until which the clock runs on; None: to the last receipt.
        effort: How closely passes follow the receipts.
        down_s: Unix times between which the publisher of notices does not run.

    Raises:
        ReadingTableError: A sensor cannot be named.
        CriteriaTableError: The file of criteria is invalid.
    """
    rename_rain(source, table.messages)
    score, notify = settings.score, settings.notify
    horizon_s = score.horizon_days * 86_400
    silver, gold = decode_table(table.messages, score.max_ahead_s, horizon_s)
    pipeline = MemoryPipeline(
        silver, gold, make_cell_rules(settings), horizon_s, score.nearby_km
    )
    clock = ReceiptClock(
        pipeline,
        NoticePolicy(notify.from_level, notify.hold_s, notify.calm_s),
        notify.max_age_s,
        limits=HoldLimits(score.hold_s),
        effort=effort,
        down_s=down_s,
    )
    last_s = float(silver.received_us[-1]) / _MICRO
    end_s = last_s if until_s is None else max(until_s, last_s)
    return TableJudgement(table, pipeline, clock.run(end_s), end_s)


def to_json(judged: TableJudgement, *, with_revisions: bool = False) -> Json:
    """All results as JSON values."""
    gold = judged.pipeline.gold
    result: Json = {
        "until": iso_time(judged.until_s),
        "notes": list(_notes(judged)),
        "refused": list(judged.table.refused),
        "cells": [
            _cell_json(cell, rows, judged.timeline)
            for cell, rows in sorted(gold.levels.items())
        ],
        "notices": [_notice_json(each) for each in judged.timeline.notices],
        "readings": list(readings_json(judged.pipeline)),
    }
    if with_revisions:
        result["revisions"] = [
            {"cell": row["cell"], **_step_json(row)}
            | {
                "superseded_at": _time(row["superseded_at"]),
                "superseded_because": row["superseded_because"],
            }
            for row in gold.revisions
        ]
    return result


def _notes(judged: TableJudgement) -> Iterator[str]:
    yield from judged.table.notes
    coarse_s = judged.timeline.coarse_from_s
    if coarse_s is not None:
        yield (
            f"from {iso_time(coarse_s)} on, one pass covers up to six hours of "
            "readings; raise --passes for one at each receipt"
        )


def _cell_json(
    cell: str, rows: Mapping[int, Mapping[str, Any]], timeline: SentRecord
) -> Json:
    latitude, longitude = Cell.from_token(cell).center()
    return {
        "cell": cell,
        "latitude": round(latitude, 5),
        "longitude": round(longitude, 5),
        "steps": [_step_json(row) for _, row in sorted(rows.items())],
        "shown": [
            {"at": iso_time(s.at_s), "level": s.level, "state": s.state}
            for s in timeline.shown
            if s.cell == cell
        ],
    }


def _step_json(row: Mapping[str, Any]) -> Json:
    codes = row["reason_codes"] or ()
    known_until = row.get("known_until")
    return {
        "at": _time(row["at"]),
        "level": row["level"],
        "state": row_state(row),
        "known_until": None if known_until is None else _time(known_until),
        "reasons": [describe_reason(reason_from_json(code)) for code in codes],
        **{name: row[name] for name in STEP_COLUMNS},
    }


def _time(at: datetime) -> str:
    return iso_time(at.timestamp())


def _notice_json(sent: SentNotice) -> Json:
    notice = sent.notice
    return {
        "at": iso_time(sent.at_s),
        "cell": sent.cell,
        "level": None if notice.withdrawn else notice.level,
        "withdrawn": notice.withdrawn,
        "until": None if notice.withdrawn else iso_time(notice.until_s),
        "state": notice.state,
        "known_until": iso_time(notice.known_until_s) if notice.known_until_s else None,
        "doubts": list(notice.doubts),
    }


def readings_json(pipeline: MemoryPipeline) -> Iterator[Json]:
    """Each reading with its flag, in the order of receipt."""
    silver, gold = pipeline.silver, pipeline.gold
    times = np.datetime_as_string(silver.at_us.astype("datetime64[us]"), unit="ms")
    columns = [silver.parsed[name].to_pylist() for name in _READING_COLUMNS]
    rows = zip(*columns, strict=True)
    for place, (reading, row) in enumerate(zip(silver.readings, rows, strict=True)):
        found = dict(zip(_READING_COLUMNS, row, strict=True))
        text, flag = found.pop("value_text"), int(gold.flags[place])
        why = gold.whys[place]
        if text is not None:
            found["value"] = text
        yield {
            "line": reading.line,
            "time": f"{times[place]}Z",
            **found,
            "flag": flag,
            "flag_name": _FLAG_NAMES[flag],
            "counts": bool(silver.counts[place]) and flag < Flag.FAIL,
            "reasons": list(map(describe_reason, flag_reasons(why))),
        }


def format_lines(
    judged: TableJudgement, *, with_revisions: bool = False
) -> Iterator[str]:
    """Results for people: changes of levels, notices, and flagged readings."""
    yield from (f"note: {note}" for note in _notes(judged))
    yield from (f"refused: {problem}" for problem in judged.table.refused)
    for cell, rows in sorted(judged.pipeline.gold.levels.items()):
        yield f"cell {cell}: {len(rows)} steps"
        yield from _step_lines([row for _, row in sorted(rows.items())])
    if with_revisions:
        for row in judged.pipeline.gold.revisions:
            level = _level(row["level"], row_state(row))
            yield (
                f"revised {row['cell']} {_time(row['at'])}: was {level}, version "
                f"{row['version']}: {row['superseded_because']}"
            )
    for sent in judged.timeline.notices:
        notice = sent.notice
        level = _level(notice.level, notice.state)
        what = (
            "withdrawn"
            if notice.withdrawn
            else f"{level} until {iso_time(notice.until_s)}"
        )
        yield f"notice {sent.cell} {iso_time(sent.at_s)}: {what}"
    yield from _flag_lines(readings_json(judged.pipeline))


def _level(level: int | None, state: str) -> str:
    return state if level is None else f"level {level} ({state})"


def _step_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Steps at which level, state or codes change."""
    before: object = None
    for row in rows:
        codes = [reason_from_json(code).code for code in row["reason_codes"] or ()]
        now = row["level"], row_state(row), codes
        if now != before:
            why = "; ".join(row["reasons"] or ()) or "-"
            yield f"  {_time(row['at'])} {_level(row['level'], row_state(row))}: {why}"
        before = now


def _flag_lines(readings: Iterable[Json]) -> Iterator[str]:
    """Runs of flagged readings of one kind."""
    runs: dict[tuple[object, ...], tuple[int, str, str, str]] = {}
    for each in readings:
        if each["flag"] < Flag.SUSPECT:
            continue
        codes = " ".join(reason["code"] for reason in each["reasons"])
        key = each["node"], each["name"], each["flag_name"], codes
        text = each["reasons"][0]["text"] if each["reasons"] else ""
        count, first, _, text = runs.get(key, (0, each["time"], "", text))
        runs[key] = count + 1, first, each["time"], text
    for (node, name, flag, _), (count, first, last, text) in runs.items():
        yield f"flag {node} {name}: {count} {flag} from {first} to {last}: {text}"
