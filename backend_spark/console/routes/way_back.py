"""Routes of the way back: notice, receipt and alarms of a cell, and drills."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Response

from backend_spark.console.dependencies import (
    Chief,
    ConsoleServices,
    Services,
    viewer,
)
from backend_spark.console.http import json_body, json_response
from service_runtime.errors import FieldError, shortened

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


class DrillOrder(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a drill; one with `end` ends that of the cell."""

    cell: str
    level: int = 4
    minutes: float = 1.0
    end: bool = False


DrillBody = Annotated[DrillOrder, Depends(json_body(DrillOrder))]


@router.get("/cell/{token}/way-back")
def way_back(token: str, services: Services) -> Response:
    """Notice and drill of a cell, and what its nodes report."""
    return json_response(_view(services, token))


@router.post("/drills")
def drill(visitor: Chief, order: DrillBody, services: Services) -> Response:
    """Request a drill, or its end; ``backend-spark notify`` publishes it."""
    _check_cell(services, order.cell)
    drills, now_s = services.way_back.drills, services.clock()
    try:
        made = (
            drills.end(order.cell, now_s)
            if order.end
            else drills.start(order.cell, order.level, 60.0 * order.minutes, now_s)
        )
    except FieldError as error:
        raise HTTPException(422, str(error)) from error
    body = {"level": made.level, "until_s": made.until_s, "end": order.end}
    services.journal.write(now_s, "drill", order.cell, visitor.account.name, body)
    return json_response(_view(services, order.cell))


def _view(services: ConsoleServices, token: str) -> dict[str, Any]:
    _check_cell(services, token)
    live_state = services.live_state
    with live_state.lock:
        nodes = [n for n in live_state.nodes.by_id.values() if n.cell == token]
        found = services.way_back.of_cell(token, nodes, services.clock())
    entries = services.journal.read("drill", limit=200)
    last = next((e for e in entries if e.subject == token), None)
    return found | {"drill_by": last and last.who}


def _check_cell(services: ConsoleServices, token: str) -> None:
    with services.live_state.lock:
        is_known = token in services.live_state.grid.row_of
    if not is_known:
        rule = f"cell must be one of the map's, got {shortened(token)}"
        raise HTTPException(404, rule)
