"""The past, from any moment to any other: all cells, or one."""

from pathlib import Path
from typing import Final, Literal

import msgspec
from fastapi import APIRouter, Request, Response

from backend_spark.console.auth import Gate
from backend_spark.console.http import json, refuse
from backend_spark.console.live_state import Corners
from backend_spark.console.thresholds import Thresholds
from backend_spark.console.time_travel import MOST_ROWS, Past, Span, extent, play
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import Tables

MOST_DAYS: Final = 400
DAY_S: Final = 86_400
LAST_S: Final = 4_102_444_800
"""2100-01-01: a later moment is a slip of the keys."""

Known = Literal["now", "then"]


def replay_routes(tables: Path, thresholds: Thresholds, gate: Gate) -> APIRouter:
    """Routes of the replay.

    ``from_s`` and ``to_s`` are Unix times; ``known`` is ``now``, as late data revised
    the levels, or ``then``, as they were first told.
    """
    routes = APIRouter(prefix="/api")
    corners, past = Corners(), Past(tables)

    @routes.get("/replay/bounds")
    def bounds(request: Request) -> Response:
        gate.look(request)
        return json(extent(Tables(tables)).bounds)

    @routes.get("/replay/levels")
    def levels(
        request: Request, from_s: int, to_s: int, known: Known = "now"
    ) -> Response:
        gate.look(request)
        return _levels(Tables(tables), _span(from_s, to_s, known), corners)

    @routes.get("/replay/cell/{token}")
    def cell(
        request: Request, token: str, from_s: int, to_s: int, known: Known = "now"
    ) -> Response:
        gate.look(request)
        span = _span(from_s, to_s, known)
        return json(past.course(token, span, thresholds.of(token)))

    @routes.get("/replay/cell/{token}/frame")
    def frame(
        request: Request, token: str, from_s: int, to_s: int, known: Known = "now"
    ) -> Response:
        gate.look(request)
        span = _span(from_s, to_s, known)
        return json(past.moment(token, span, thresholds.of(token)))

    return routes


def _levels(tables: Tables, span: Span, corners: Corners) -> Response:
    """A head in JSON, as long as its header says, and then a byte a cell and frame."""
    rows = extent(tables).rows(span)
    if rows > MOST_ROWS:
        share = MOST_ROWS / rows
        raise refuse(
            422,
            f"from_s to to_s holds {rows:,} levels, at most {MOST_ROWS:,} are shown: "
            f"choose about {share:.0%} of that time",
        )
    played = play(tables, span)
    head = msgspec.json.encode({
        "tokens": played.tokens,
        "corners": corners.of(played.tokens),
        "begin_s": span.begin_s,
        "from_s": span.from_s,
        "to_s": span.to_s,
        "frame_s": span.frame_s,
        "frames": span.frames,
        "known": "then" if span.is_then else "now",
        "revised": played.revised,
    })
    headers = {"X-Head-Bytes": str(len(head)), "Cache-Control": "no-store"}
    body = head + played.levels.tobytes()
    return Response(body, media_type="application/octet-stream", headers=headers)


def _span(from_s: int, to_s: int, known: Known) -> Span:
    """The steps between two moments.

    Raises:
        HTTPException: 422 it is none, or too long.
    """
    first, last = from_s // STEP_S * STEP_S, to_s // STEP_S * STEP_S
    if not 0 <= first <= last <= LAST_S:
        raise refuse(
            422,
            "from_s and to_s must be Unix times up to the year 2100, from_s not after "
            f"to_s, got {from_s} and {to_s}",
        )
    if last - first > MOST_DAYS * DAY_S:
        days = (last - first) / DAY_S
        raise refuse(
            422, f"to_s must be at most {MOST_DAYS} days after from_s, got {days:.1f}"
        )
    return Span(first, last, is_then=known == "then")
