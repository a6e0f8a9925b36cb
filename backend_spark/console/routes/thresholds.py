"""Routes of the thresholds with their versions, and of the what-if."""

from dataclasses import asdict, replace
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Response

from backend_spark.console.dependencies import Chief, Services, viewer
from backend_spark.console.http import json_body, json_response
from backend_spark.console.live_state import LiveState
from backend_spark.console.thresholds import (
    ALL_CELLS,
    MAX_HOURS,
    MAX_MM_PER_H,
    Thresholds,
    count_highest_levels,
    criteria_from_body,
    what_if_levels,
)
from slope_science.errors import ScienceError

MAX_WHY_LENGTH: Final = 500
MIN_MM, MAX_MM = 10.0, 998.0
"""The job's table takes 999 for "not judged"; no index in Japan reaches 998 mm."""

MAX_VERSIONS_SHOWN: Final = 200

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


class ThresholdDraft(msgspec.Struct, forbid_unknown_fields=True):
    """Body of new thresholds; an empty `cell` means all cells."""

    cell: str
    advisory_mm: float
    warning_mm: float
    special_mm: float
    why: str = ""


class AssumedRain(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a what-if."""

    mm_per_h: float
    hours: int


DraftBody = Annotated[ThresholdDraft, Depends(json_body(ThresholdDraft))]
RainBody = Annotated[AssumedRain, Depends(json_body(AssumedRain))]


@router.get("/thresholds")
def versions(services: Services) -> Response:
    """Default thresholds and the newest versions."""
    return json_response(_view(services.thresholds))


@router.post("/thresholds/preview")
def preview(draft: DraftBody, services: Services) -> Response:
    """How many cells each level has before and after a change."""
    _check(draft)
    live_state, thresholds = services.live_state, services.thresholds
    rows = _rows(live_state, draft)
    before = thresholds.for_cell(draft.cell or "none of them")
    after = replace(criteria_from_body(_body(draft)), line=before.line)
    with live_state.lock:
        counts = {
            "cells": len(rows),
            "before": count_highest_levels(live_state.grid, rows, before),
            "after": count_highest_levels(live_state.grid, rows, after),
        }
    return json_response(counts)


@router.post("/thresholds")
def change(visitor: Chief, draft: DraftBody, services: Services) -> Response:
    """Write a new version."""
    rows = _rows(services.live_state, draft)
    if not 1 <= len(draft.why.strip()) <= MAX_WHY_LENGTH:
        rule = f"why must be 1 to {MAX_WHY_LENGTH} characters long"
        raise HTTPException(422, rule)
    _check(draft)
    name = visitor.account.name
    services.thresholds.add_version(services.clock(), name, draft.cell, _body(draft))
    return json_response(_view(services.thresholds) | {"cells": len(rows)})


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


def _view(thresholds: Thresholds) -> dict[str, Any]:
    default = {
        name: asdict(thresholds.default)[name]
        for name in ("advisory_mm", "warning_mm", "special_mm", "assumed")
    } | {"version": ""}
    return {
        "default": default,
        "versions": [
            {"at_s": e.at_s, "who": e.who, "cell": e.subject, **e.body}
            for e in thresholds.versions()[:MAX_VERSIONS_SHOWN]
        ],
    }


def _rows(live_state: LiveState, draft: ThresholdDraft) -> list[int]:
    with live_state.lock:
        if draft.cell == ALL_CELLS:
            return list(range(len(live_state.grid.tokens)))
        row = live_state.grid.row_of.get(draft.cell)
    if row is None:
        rule = f"cell must be one of the map's, got {draft.cell!r}"
        raise HTTPException(422, rule)
    return [row]


def _body(draft: ThresholdDraft) -> dict[str, Any]:
    return {
        "advisory_mm": draft.advisory_mm,
        "warning_mm": draft.warning_mm,
        "special_mm": draft.special_mm,
        "why": draft.why.strip(),
    }


def _check(draft: ThresholdDraft) -> None:
    for name in ("advisory_mm", "warning_mm", "special_mm"):
        value = getattr(draft, name)
        if not MIN_MM <= value <= MAX_MM:
            rule = f"{name} must be between {MIN_MM:g} and {MAX_MM:g} mm"
            raise HTTPException(422, f"{rule}, got {value:g}")
    try:
        criteria_from_body(_body(draft))
    except ScienceError as error:
        raise HTTPException(422, str(error)) from error
