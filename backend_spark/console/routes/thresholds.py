"""Thresholds with their versions, and what if it rains."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request, Response

from backend_spark.console.auth import Gate
from backend_spark.console.http import json, refuse
from backend_spark.console.live_state import Board
from backend_spark.console.routes.session import body_of
from backend_spark.console.thresholds import (
    ALL_CELLS,
    MOST_HOURS,
    MOST_MM_PER_H,
    Thresholds,
    criteria_of,
    highest_levels,
    levels_if,
)
from slope_science.errors import ScienceError

LONGEST_WHY: Final = 500
LEAST_MM, MOST_MM = 10.0, 1500.0


class Draft(msgspec.Struct, forbid_unknown_fields=True):
    """Thresholds that somebody thinks of."""

    cell: str
    advisory_mm: float
    warning_mm: float
    special_mm: float
    why: str = ""


class Rain(msgspec.Struct, forbid_unknown_fields=True):
    """Rain that somebody assumes."""

    mm_per_h: float
    hours: int


def judge_routes(
    board: Board, thresholds: Thresholds, gate: Gate, clock: Callable[[], float]
) -> APIRouter:
    """Routes of the judgement."""
    routes = APIRouter(prefix="/api")

    @routes.get("/thresholds")
    def versions(request: Request) -> Response:
        gate.look(request)
        return json(_told(thresholds))

    @routes.post("/thresholds/preview")
    async def preview(request: Request) -> Response:
        gate.look(request)
        draft = await body_of(request, Draft)
        return json(_preview(board, thresholds, draft))

    @routes.post("/thresholds")
    async def change(request: Request) -> Response:
        visitor = gate.change(request, "chief")
        draft = await body_of(request, Draft)
        rows = _rows(board, draft)
        _write(thresholds, draft, (clock(), visitor.account.name))
        return json(_told(thresholds) | {"cells": len(rows)})

    @routes.post("/what-if")
    async def what_if(request: Request) -> Response:
        gate.look(request)
        rain = await body_of(request, Rain)
        if not 0 <= rain.mm_per_h <= MOST_MM_PER_H:
            raise refuse(422, f"mm_per_h must be between 0 and {MOST_MM_PER_H:g}")
        if not 1 <= rain.hours <= MOST_HOURS:
            raise refuse(422, f"hours must be between 1 and {MOST_HOURS}")
        return json(levels_if(board, thresholds, rain.mm_per_h, rain.hours))

    return routes


def _told(thresholds: Thresholds) -> dict[str, Any]:
    default = asdict(thresholds.default)
    del default["line"], default["basis"]
    default["version"] = ""
    return {
        "default": default,
        "versions": [
            {"at_s": e.at_s, "who": e.who, "cell": e.subject, **e.body}
            for e in thresholds.versions()[:200]
        ],
    }


def _write(thresholds: Thresholds, draft: Draft, by: tuple[float, str]) -> None:
    if not 1 <= len(draft.why.strip()) <= LONGEST_WHY:
        raise refuse(422, f"why must be 1 to {LONGEST_WHY} characters long")
    _checked(draft)
    at_s, who = by
    thresholds.change(at_s, who, draft.cell, _body(draft))
    thresholds.export()


def _preview(board: Board, thresholds: Thresholds, draft: Draft) -> dict[str, Any]:
    _checked(draft)
    rows = _rows(board, draft)
    before = thresholds.of(draft.cell or "none of them")
    after = replace(criteria_of(_body(draft)), line=before.line)
    with board.lock:
        return {
            "cells": len(rows),
            "before": highest_levels(board.grid, rows, before),
            "after": highest_levels(board.grid, rows, after),
        }


def _rows(board: Board, draft: Draft) -> list[int]:
    with board.lock:
        if draft.cell == ALL_CELLS:
            return list(range(len(board.grid.tokens)))
        row = board.grid.row_of.get(draft.cell)
    if row is None:
        raise refuse(422, f"cell must be one of the map's, got {draft.cell!r}")
    return [row]


def _body(draft: Draft) -> dict[str, Any]:
    return {
        "advisory_mm": draft.advisory_mm,
        "warning_mm": draft.warning_mm,
        "special_mm": draft.special_mm,
        "why": draft.why.strip(),
    }


def _checked(draft: Draft) -> None:
    for name in ("advisory_mm", "warning_mm", "special_mm"):
        value = getattr(draft, name)
        if not LEAST_MM <= value <= MOST_MM:
            rule = f"{name} must be between {LEAST_MM:g} and {MOST_MM:g} mm"
            raise refuse(422, f"{rule}, got {value:g}")
    try:
        criteria_of(_body(draft))
    except ScienceError as error:
        raise refuse(422, str(error)) from error
