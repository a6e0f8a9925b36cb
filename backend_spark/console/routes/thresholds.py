"""Routes of the thresholds with their versions, and of the what-if."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Response

from backend_spark.console.dependencies import Chief, ConsoleServices, Services, viewer
from backend_spark.console.http import check_why, json_body, json_response
from backend_spark.console.level_grid import json_numbers
from backend_spark.console.live_state import LiveState
from backend_spark.console.previews import PreviewBusyError
from backend_spark.console.snake_line import criteria_lines
from backend_spark.console.thresholds import (
    ALL_CELLS,
    MAX_HOURS,
    MAX_MM_PER_H,
    Thresholds,
    ThresholdStates,
    ThresholdVersion,
    count_highest_levels,
    what_if_levels,
)
from backend_spark.criteria.cell_rules import read_applied
from backend_spark.criteria.tables import (
    MAX_LINE_PERCENT,
    MAX_TILT_DEG_PER_H,
    MIN_LINE_PERCENT,
    MIN_TILT_DEG_PER_H,
    CriteriaTable,
)
from backend_spark.scoring.rules import CellRules
from service_runtime.errors import shortened
from slope_science import ScienceError

MIN_MM, MAX_MM = 10.0, 998.0
"""The job's table takes 999 for "not judged"; no index in Japan reaches 998 mm."""

MAX_VERSIONS_SHOWN: Final = 200

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


class ThresholdDraft(msgspec.Struct, forbid_unknown_fields=True):
    """Body of new thresholds, for one cell or for all.

    Attributes:
        cell: Token of the cell; empty with `all_cells`.
        all_cells: Whether they are for all cells, which an empty `cell` alone is not.
        version: The thresholds and the reason.
        confirmed_cells: Number of cells that the user has agreed to change, with
            `all_cells`.
    """

    version: ThresholdVersion
    cell: str = ""
    all_cells: bool = False
    confirmed_cells: int = 0


class AssumedRain(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a what-if."""

    mm_per_h: float
    hours: int


DraftBody = Annotated[ThresholdDraft, Depends(json_body(ThresholdDraft))]
RainBody = Annotated[AssumedRain, Depends(json_body(AssumedRain))]


@router.get("/thresholds")
def versions(services: Services, cell: str = "") -> Response:
    """Thresholds in force, of a cell or in general, and the newest versions."""
    return json_response(_view(services, cell))


@router.post("/thresholds/preview")
def preview(draft: DraftBody, services: Services) -> Response:
    """What a change does: levels of 72 hours, lines, and the last storms of a cell."""
    _check(services.thresholds, draft)
    live_state, thresholds = services.live_state, services.thresholds
    rows = _rows(live_state, draft)
    changes = thresholds.changes_with(draft.cell, draft.version)
    with live_state.lock:
        shown = _example(live_state, rows)
        token = live_state.grid.tokens[shown]
        found = {
            "cells": len(rows),
            "example": token,
            "before": _count(live_state, rows, thresholds.rules.current_table()),
            "after": _count(
                live_state, rows, thresholds.rules.table.with_changes(changes)
            ),
            **_series(live_state, shown),
        }
    rules = services.preview.draft_rules(token, changes)
    found["past"] = _past(services, token, rules)
    found["lines"] = criteria_lines(thresholds.for_cell(token))
    found["changed"] = criteria_lines(rules.criteria)
    return json_response(found)


def _past(services: ConsoleServices, token: str, rules: CellRules) -> dict[str, Any]:
    now_s, cells = (
        services.live_state.now_s(),
        services.live_state.cells_with_nodes(token),
    )
    try:
        return services.preview.compare(token, rules, now_s, cells)
    except PreviewBusyError as error:
        raise HTTPException(503, str(error)) from error


@router.post("/thresholds")
def change(visitor: Chief, draft: DraftBody, services: Services) -> Response:
    """Write a new version."""
    rows = _rows(services.live_state, draft)
    check_why(draft.version.why)
    _check(services.thresholds, draft)
    if draft.all_cells and draft.confirmed_cells != len(rows):
        rule = f"confirmed_cells must be the number of all cells, {len(rows)}"
        raise HTTPException(409, f"{rule}, got {draft.confirmed_cells}")
    services.thresholds.add_version(
        services.clock(), visitor.account.name, draft.cell, draft.version
    )
    return json_response(_view(services, draft.cell) | {"changed": len(rows)})


@router.post("/what-if")
def what_if(rain: RainBody, services: Services) -> Response:
    """Level of each cell under assumed rain."""
    if not 0 <= rain.mm_per_h <= MAX_MM_PER_H:
        raise HTTPException(422, f"mm_per_h must be between 0 and {MAX_MM_PER_H:g}")
    if not 1 <= rain.hours <= MAX_HOURS:
        raise HTTPException(422, f"hours must be between 1 and {MAX_HOURS}")
    return json_response(
        what_if_levels(
            services.live_state, services.thresholds, rain.mm_per_h, rain.hours
        )
    )


def _view(services: Services, cell: str) -> dict[str, Any]:
    thresholds = services.thresholds
    with services.live_state.lock:
        tokens = list(services.live_state.grid.tokens)
    entries = thresholds.versions()[:MAX_VERSIONS_SHOWN]
    report = read_applied(Path(services.settings.backend.data))
    states = ThresholdStates(thresholds, entries, report, tokens)
    found = thresholds.for_cell(cell or "none of them")
    current = asdict(found)
    wanted = ("advisory_mm", "warning_mm", "special_mm", "assumed")
    change = thresholds.rules.change_of(cell or "none of them")
    tilt = dict(thresholds.tilt_of(cell))
    return {
        "cells": tokens,
        "cell": cell,
        "default": {name: asdict(thresholds.default)[name] for name in wanted},
        "current": {
            **{name: _finite(current[name]) for name in wanted},
            "line_percent": (change and change.line_percent) or 100.0,
            "tilt_3_deg_per_h": tilt.get(3),
            "tilt_4_deg_per_h": tilt.get(4),
            "has_own_tilt": bool(change and change.tilt_deg_per_h),
        },
        "job": states.job(),
        "versions": [
            {
                "id": e.id,
                "at_s": e.at_s,
                "who": e.who,
                "cell": e.subject,
                **e.body,
                **states.of(e),
            }
            for e in entries
        ],
    }


def _finite(value: float | bool) -> float | bool | None:
    """A criterion for JSON; None where the level is not judged."""
    return None if value == float("inf") else value


def _rows(live_state: LiveState, draft: ThresholdDraft) -> list[int]:
    with live_state.lock:
        if draft.all_cells and draft.cell == ALL_CELLS:
            return list(range(len(live_state.grid.tokens)))
        row = None if draft.all_cells else live_state.grid.row_of.get(draft.cell)
    if row is None:
        remedy = "or empty with all_cells for all of them"
        rule = f"cell must be one of the map's, {remedy}, got {shortened(draft.cell)}"
        raise HTTPException(422, rule)
    return [row]


def _example(live_state: LiveState, rows: Sequence[int]) -> int:
    """The row whose past is shown: the only one, or the wettest now."""
    if not rows:
        raise HTTPException(409, "there are no cells yet: wait for data")
    swi = live_state.grid.numbers["swi_mm"][rows]
    highest = np.nan_to_num(swi).max(axis=1)
    return int(rows[int(highest.argmax())])


def _series(live_state: LiveState, row: int) -> dict[str, Any]:
    numbers = live_state.grid.numbers
    return {n: json_numbers(numbers[n][row]) for n in ("swi_mm", "r60_mm")}


def _count(
    live_state: LiveState, rows: Sequence[int], table: CriteriaTable
) -> list[int]:
    """Number of cells by their highest level of 72 hours, each by its own criteria."""
    tokens = live_state.grid.tokens
    found = [(row, table.criteria_of(tokens[row])) for row in rows]
    totals = np.zeros(5, int)
    # Cells with equal criteria are counted at once.
    found.sort(key=lambda each: hash(each[1]))
    for criteria, group in groupby(found, key=lambda each: each[1]):
        some = [row for row, _ in group]
        totals += count_highest_levels(live_state.grid, some, criteria)
    return [int(total) for total in totals]


def _check(thresholds: Thresholds, draft: ThresholdDraft) -> None:
    version = draft.version
    if version.withdrawn:
        return
    bounds = {
        "advisory_mm": (MIN_MM, MAX_MM, "mm"),
        "warning_mm": (MIN_MM, MAX_MM, "mm"),
        "special_mm": (MIN_MM, MAX_MM, "mm"),
        "line_percent": (MIN_LINE_PERCENT, MAX_LINE_PERCENT, "%"),
        "tilt_3_deg_per_h": (MIN_TILT_DEG_PER_H, MAX_TILT_DEG_PER_H, "deg/h"),
        "tilt_4_deg_per_h": (MIN_TILT_DEG_PER_H, MAX_TILT_DEG_PER_H, "deg/h"),
    }
    tilts = (version.tilt_3_deg_per_h, version.tilt_4_deg_per_h)
    if (tilts[0] is None) != (tilts[1] is None):
        raise HTTPException(422, "the rates of tilt must be given both, or neither")
    for name, (low, high, unit) in bounds.items():
        value = getattr(version, name)
        if value is not None and not low <= value <= high:
            rule = f"{name} must be between {low:g} and {high:g} {unit}"
            raise HTTPException(422, f"{rule}, got {value:g}")
    try:
        thresholds.check(version)
    except ScienceError as error:
        raise HTTPException(422, str(error)) from error
