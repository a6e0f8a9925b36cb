"""Routes of the present: cells, nodes, gateways, live events, panels, downloads."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse

from backend_spark.console.dependencies import ConsoleServices, Services, viewer
from backend_spark.console.http import (
    encoded_response,
    json_response,
    packed_stream,
)
from backend_spark.console.panels import utc_time
from backend_spark.console.routes.time_travel import UnixTime, check_moment
from backend_spark.console.series import ANGLES_DEG, SeriesSpan, node_series
from backend_spark.errors import ExportError, StandardsRequestError
from backend_spark.exports import cap, formats
from backend_spark.exports.cell_states import CellState, read_cell_states
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from service_runtime.errors import shortened

EVENT_INTERVAL_S: Final = 1.0

MOVED_LISTS: Final = ("levels", "known_s", "since_s", "causes", "margin_mm")
"""Values of cells that an event has where they changed."""

CELL_LISTS: Final = {*MOVED_LISTS, "flags", "seen_s"}
"""Values of cells; the others are sent with the whole state, every ten minutes."""

Sleep = Callable[[float], Any]
State = Callable[[], dict[str, Any]]

MAX_NODES: Final = 6
"""Nodes whose series one request may read."""

Node = Annotated[str, Query(max_length=100)]
Nodes = Annotated[list[Node], Query(min_length=1, max_length=MAX_NODES)]
Hours = Annotated[int, Query(ge=6, le=720)]

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


@router.get("/cells")
def cells(request: Request, services: Services) -> Response:
    """Tokens and corners of all cells."""
    return services.live_state.cells_json().response(request)


@router.get("/nodes")
def nodes(services: Services) -> Response:
    """Place and state of all nodes."""
    return encoded_response(services.live_state.nodes_json())


@router.get("/places")
def places(services: Services) -> Response:
    """Names of cells and nodes: districts, slopes, households, shelters, contacts."""
    gazetteer, live_state = services.places.now, services.live_state
    with live_state.lock:
        nodes = [
            (node.id, gazetteer.of_node(node.id, node.cell, node.place()))
            for node in live_state.nodes.by_id.values()
        ]
    return encoded_response(msgspec.json.encode(gazetteer.as_json(nodes)))


@router.get("/gateways")
def gateways(services: Services) -> Response:
    """Place and state of all gateways."""
    return json_response(services.live_state.gateway_rows())


@router.get("/health")
def health(
    services: Services, node: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """The table of nodes, of those whose id contains a text, and gateways."""
    return json_response(services.live_state.health_table(node))


@router.get("/history")
def history(services: Services) -> Response:
    """Levels of all cells over 72 hours, one byte per cell and step."""
    begin_s, levels = services.live_state.level_history()
    return Response(
        levels,
        media_type="application/octet-stream",
        headers={"X-Begin": str(begin_s), "Cache-Control": "no-store"},
    )


@router.get("/live")
async def live(request: Request, services: Services) -> StreamingResponse:
    """Server-sent events with the changes of each second."""
    stream = events(
        services.live_state.snapshot,
        lambda: services.auth.visitor(request) is not None,
    )
    headers = {
        "Cache-Control": "no-store",
        "Vary": "Accept-Encoding",
        "X-Accel-Buffering": "no",
    }
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        stream = packed_stream(stream)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def events(
    state: State, may_view: Callable[[], bool], sleep: Sleep = asyncio.sleep
) -> AsyncIterator[bytes]:
    """Event stream of one page; it ends when the page disconnects or may not view."""
    before: dict[str, Any] | None = None
    while await asyncio.to_thread(may_view):
        now = await asyncio.to_thread(state)
        event = changes(before, now)
        before = now
        yield b"event: now\ndata: " + msgspec.json.encode(event) + b"\n\n"
        await sleep(EVENT_INTERVAL_S)


def changes(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """Difference between two states; the whole state if the cells differ."""
    same = before is not None and before["geometry"] == now["geometry"]
    if before is None or not same or before["begin_s"] != now["begin_s"]:
        return {"kind": "all", **now}
    moved = []
    if any(before[name] != now[name] for name in MOVED_LISTS):
        pairs = zip(_lines(before), _lines(now), strict=True)
        moved = [[at, *new] for at, (old, new) in enumerate(pairs) if old != new]
    rest = {name: value for name, value in now.items() if name not in CELL_LISTS}
    return {"kind": "some", "moved": moved, **rest}


def _lines(state: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Values of each cell that a page shows at once when they change."""
    return zip(*(state[name] for name in MOVED_LISTS), strict=True)


@router.get("/cell/{token}")
def cell(token: str, services: Services) -> Response:
    """Panel of a cell."""
    thresholds = services.thresholds
    panel = services.panels.cell_panel(
        token,
        thresholds.for_cell(token),
        thresholds.tilt_of(token),
        use_gold=not thresholds.has_version(token),
    )
    return _panel_response(panel, "cell", token)


@router.get("/node/{node_id}")
def node(node_id: str, services: Services) -> Response:
    """Panel of a node."""
    return _panel_response(
        services.panels.node_panel(
            node_id, services.thresholds.tilt_of, services.thresholds.speed
        ),
        "node",
        node_id,
    )


@router.get("/series")
def series(
    services: Services,
    node: Nodes,
    hours: Hours = 24,
    end_s: UnixTime = None,
) -> Response:
    """Rain, readings and movement of nodes until a time, the present by default."""
    span = SeriesSpan.ending(end_s or services.live_state.now_s(), hours)
    tables, thresholds = DeltaTables(services.tables), services.thresholds
    try:
        with services.standards.limits.turn():
            found = [
                node_series(tables, name, span, thresholds.tilt_of) for name in node
            ]
    except StandardsRequestError as error:
        raise HTTPException(error.status, str(error)) from error
    return json_response({
        "begin_s": span.begin_s,
        "end_s": span.end_s,
        "step_s": STEP_S,
        "velocity_limits": sorted(thresholds.speed),
        "angles_deg": ANGLES_DEG,
        "nodes": found,
    })


def _panel_response(panel: dict[str, Any] | None, kind: str, name: str) -> Response:
    if panel is None:
        raise HTTPException(404, f"there is no {kind} {shortened(name)}")
    return json_response(panel)


@router.get("/download/levels.geojson", dependencies=[Depends(check_moment)])
def levels_geojson(services: Services, at: int | None = None) -> Response:
    """Levels at a Unix time, the present by default, as GeoJSON."""
    moment, states = _states(services, at, may_be_old=at is None)
    collection = formats.feature_collection(
        states,
        moment,
        utc_time(services.clock()),
        is_exercise=services.settings.console.exercise,
    )
    text = json.dumps(collection, ensure_ascii=False, allow_nan=False)
    name = f"levels-{moment:%Y%m%dT%H%MZ}.geojson"
    return _file(text.encode(), formats.GEOJSON, name)


@router.get("/download/draft.xml", dependencies=[Depends(check_moment)])
def cap_draft(services: Services, at: int | None = None) -> Response:
    """Levels at a Unix time, the present by default, as a CAP draft."""
    console = services.settings.console
    moment, states = _states(services, at)
    status = cap.CapStatus.EXERCISE if console.exercise else cap.CapStatus.DRAFT
    name = console.place or console.sender
    past = None if at is None else moment
    now = utc_time(services.clock())
    try:
        header = cap.CapHeader(console.sender, name, now, status, at=past)
        message = cap.alert_xml(states, header)
    except ExportError as error:
        raise HTTPException(409, str(error)) from error
    return _file(message, "application/cap+xml", f"cap-{moment:%Y%m%dT%H%MZ}.xml")


def _states(
    services: ConsoleServices, at: int | None, *, may_be_old: bool = False
) -> tuple[datetime, list[CellState]]:
    live_state = services.live_state
    try:
        with services.standards.limits.turn():
            return read_cell_states(
                DeltaTables(services.tables),
                utc_time(live_state.now_s()),
                None if at is None else utc_time(at),
                live_state.limits,
                services.places.now,
                may_be_old=may_be_old,
            )
    except StandardsRequestError as error:
        raise HTTPException(error.status, str(error)) from error
    except (ExportError, OverflowError, ValueError) as error:
        raise HTTPException(404, str(error)) from error


def _file(content: bytes, kind: str, name: str) -> Response:
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
    }
    return Response(content, media_type=kind, headers=headers)
