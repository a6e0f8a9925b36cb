"""Route of the series of nodes over a range of time."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, HTTPException, Query, Response

from backend_spark.console.dependencies import Services, viewer
from backend_spark.console.http import json_response
from backend_spark.console.routes.time_travel import UnixTime
from backend_spark.console.series import LIMITS, SeriesSpan, node_series
from backend_spark.errors import StandardsRequestError
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables

MAX_NODES: Final = 6

Node = Annotated[str, Query(max_length=100)]
Hours = Annotated[int, Query(ge=6, le=720)]
Nodes = Annotated[list[Node], Query(min_length=1, max_length=MAX_NODES)]

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


@router.get("/series")
def series(
    services: Services,
    node: Nodes,
    hours: Hours = 24,
    end_s: UnixTime = None,
) -> Response:
    """Rain, readings and movement of nodes until a time, the present by default."""
    span = SeriesSpan.ending(end_s or services.live_state.now_s(), hours)
    tables = DeltaTables(services.tables)
    try:
        with services.standards.limits.turn():
            found = [node_series(tables, name, span) for name in node]
    except StandardsRequestError as error:
        raise HTTPException(error.status, str(error)) from error
    return json_response({
        "begin_s": span.begin_s,
        "end_s": span.end_s,
        "step_s": STEP_S,
        "limits": LIMITS,
        "nodes": found,
    })
