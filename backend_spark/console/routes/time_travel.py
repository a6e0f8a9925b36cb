"""Routes of the replay: levels of all cells, or of one, over any span of the past.

``from_s`` and ``to_s`` are Unix times. ``known`` is ``now`` for levels as late data
revised them, or ``then`` for levels as they were first published.
"""

from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query, Response

from backend_spark.console.dependencies import Services, viewer
from backend_spark.console.http import json_response
from backend_spark.console.time_travel import (
    MAX_ROWS,
    CellHistory,
    ReplaySpan,
    levels_extent,
    read_replay,
)
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from service_runtime.errors import shortened

MAX_DAYS: Final = 400
DAY_S: Final = 86_400
LAST_S: Final = 4_102_444_800
"""2100-01-01; a later time is a typing error."""

UnixTime = Annotated[int | None, Query(ge=0, le=LAST_S)]
Known = Literal["now", "then"]

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


def check_moment(at: UnixTime = None) -> None:
    """Dependency: a Unix time in the query is up to the year 2100."""


def requested_span(from_s: int, to_s: int, known: Known = "now") -> ReplaySpan:
    """Steps between two moments, from the query of a request.

    Raises:
        HTTPException: 422 if the span is invalid or too long.
    """
    first, last = from_s // STEP_S * STEP_S, to_s // STEP_S * STEP_S
    if not 0 <= first <= last <= LAST_S:
        raise HTTPException(
            422,
            "from_s and to_s must be Unix times up to the year 2100, from_s not after "
            f"to_s, got {shortened(from_s)} and {shortened(to_s)}",
        )
    if last - first > MAX_DAYS * DAY_S:
        days = (last - first) / DAY_S
        raise HTTPException(
            422, f"to_s must be at most {MAX_DAYS} days after from_s, got {days:.1f}"
        )
    return ReplaySpan(first, last, is_then=known == "then")


RequestedSpan = Annotated[ReplaySpan, Depends(requested_span)]


@router.get("/replay/bounds")
def bounds(services: Services) -> Response:
    """First and last moment of the tables."""
    return json_response(levels_extent(DeltaTables(services.tables)).bounds)


@router.get("/replay/levels")
def levels(span: RequestedSpan, services: Services) -> Response:
    """A header in JSON, of ``X-Head-Bytes`` bytes, then one byte per cell and frame."""
    tables = DeltaTables(services.tables)
    rows = levels_extent(tables).rows(span)
    if rows > MAX_ROWS:
        share = MAX_ROWS / rows
        raise HTTPException(
            422,
            f"from_s to to_s holds {rows:,} levels, at most {MAX_ROWS:,} are shown: "
            f"choose about {share:.0%} of that time",
        )
    played = read_replay(tables, span)
    head = msgspec.json.encode({
        "tokens": played.tokens,
        "corners": services.live_state.corners.of(played.tokens),
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


@router.get("/replay/cell/{token}")
def cell(token: str, span: RequestedSpan, services: Services) -> Response:
    """Numbers of a cell over the span."""
    thresholds = services.thresholds
    lines = (thresholds.for_cell(token), thresholds.tilt_of(token))
    return json_response(CellHistory(services.tables).numbers(token, span, *lines))


@router.get("/replay/cell/{token}/frame")
def frame(token: str, span: RequestedSpan, services: Services) -> Response:
    """A cell as the map shows it in one frame."""
    criteria = services.thresholds.for_cell(token)
    return json_response(CellHistory(services.tables).frame(token, span, criteria))
