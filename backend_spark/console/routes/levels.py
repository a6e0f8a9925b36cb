"""Routes of the present: cells, nodes and their series, live events, panels.

Rain of a series, its totals and its doubts come from the functions that score the
levels, so that an analyst sees the rain that the level was judged by.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse

from backend_spark.console.dependencies import (
    Chief,
    ConsoleServices,
    Services,
    viewer,
)
from backend_spark.console.http import (
    encoded_response,
    json_body,
    json_response,
    packed_stream,
)
from backend_spark.console.level_grid import utc_time
from backend_spark.console.routes.time_travel import UnixTime
from backend_spark.i18n import render_both
from backend_spark.scoring.arrow import HISTORY_COLUMNS, read_observations
from backend_spark.scoring.observation import STEP_S, Observation, step_ends
from backend_spark.scoring.rain import (
    SPREAD_S,
    StepRain,
    cell_rain,
    rain_reading,
    read_gauge,
)
from backend_spark.tables.reader import DeltaTables
from service_runtime.errors import FieldError, shortened
from slope_science.evidence.settings import LevelThresholds
from slope_science.failure_time import MIN_SIGMAS
from slope_science.movement import (
    ALERT_ANGLE_DEG,
    EMERGENCY_ANGLE_DEG,
    tangent_angle_deg,
)
from slope_science.quality import Flag
from slope_science.rain_and_soil_water import (
    STEPS_PER_HOUR,
    TEN_MINUTES_H,
    cumulative_rain,
)

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

TOTAL_HOURS: Final = (1, 3, 24, 72)
PAST_S: Final = max(TOTAL_HOURS) * 3600
"""Time before the range whose rain the totals and the cumulative rain contain."""

STEADY_S: Final = 30 * 86_400
"""Time before the end of the range whose median speed counts as secondary creep."""

MAX_POINTS: Final = 1000
"""Points of a series above which its extremes stand for the others."""

MAX_RUNS: Final = 200
"""Newest runs of flagged readings in an answer."""

ANGLES_DEG: Final = (ALERT_ANGLE_DEG, EMERGENCY_ANGLE_DEG)
"""Tangent angles that a chart marks."""

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
    with services.turn():
        found = [node_series(tables, name, span, thresholds.tilt_of) for name in node]
    return json_response({
        "begin_s": span.begin_s,
        "end_s": span.end_s,
        "step_s": STEP_S,
        "velocity_limits": sorted(thresholds.speed),
        "angles_deg": ANGLES_DEG,
        "nodes": found,
    })


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
    return json_response(_way_back(services, token))


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
    return json_response(_way_back(services, order.cell))


def _way_back(services: ConsoleServices, token: str) -> dict[str, Any]:
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


def _panel_response(panel: dict[str, Any] | None, kind: str, name: str) -> Response:
    if panel is None:
        raise HTTPException(404, f"there is no {kind} {shortened(name)}")
    return json_response(panel)


@dataclass(frozen=True)
class SeriesSpan:
    """Steps from one moment to another.

    Attributes:
        begin_s: Unix time of the begin, a full ten minutes.
        end_s: Of the end, likewise.
    """

    begin_s: int
    end_s: int

    @classmethod
    def ending(cls, end_s: float, hours: int) -> "SeriesSpan":
        """The hours before the last full ten minutes."""
        last_s = int(end_s) // STEP_S * STEP_S
        return cls(last_s - hours * 3600, last_s)


def node_series(
    tables: DeltaTables,
    node: str,
    span: SeriesSpan,
    tilt_of: Callable[[str], LevelThresholds],
) -> dict[str, Any]:
    """Series of a node.

    Args:
        tables: The tables.
        node: Id of the node.
        span: Steps to show.
        tilt_of: Levels and rates of tilt of a cell.
    """
    since_s = span.begin_s - PAST_S - SPREAD_S
    since, until = utc_time(since_s), utc_time(span.end_s)
    rows = tables.of("silver", "node", node, since, until, columns=HISTORY_COLUMNS)
    known = read_observations(rows)
    shown = [o for o in known if o.at_s >= span.begin_s]
    steady_from = utc_time(min(span.begin_s, span.end_s - STEADY_S))
    found = tables.of("sensors", "node", node, steady_from, utc_time(span.end_s))
    cell = next((cell for cell in reversed(rows["cell"].to_pylist())), None)
    return {
        "node": node,
        "cell": cell,
        "tilt_limits": sorted(tilt_of(cell or "")),
        "rain": _rain([o for o in known if o.is_rain], span),
        "readings": _readings(o for o in shown if not o.is_rain),
        "movement": _movement(found, span),
        "flagged": flagged_runs(shown),
    }


def _rain(readings: Sequence[Observation], span: SeriesSpan) -> dict[str, Any] | None:
    """Rain of a gauge; None without a reading."""
    if not readings:
        return None
    first_s = span.begin_s - PAST_S + STEP_S
    ends_s = step_ends(first_s, span.end_s)
    steps = cell_rain([read_gauge(map(rain_reading, readings))], ends_s)
    depths = [_depth_mm(step) for step in steps]
    totals: list[float | None] = [*cumulative_rain(depths, TEN_MINUTES_H)]
    unknown = next((at for at, mm in enumerate(depths) if mm is not None), len(depths))
    totals[:unknown] = [None] * unknown
    before = PAST_S // STEP_S
    return {
        "begin_s": span.begin_s + STEP_S,
        "depth_mm": [_rounded(mm) for mm in depths[before:]],
        "cumulative_mm": [_rounded(mm) for mm in totals[before:]],
        "totals": [_total(steps, hours) for hours in TOTAL_HOURS],
    }


def _depth_mm(step: StepRain) -> float | None:
    """Depth of a step; None if nothing of it is known."""
    return step.depth_mm if step.is_known or step.depth_mm > 0 else None


def _total(steps: Sequence[StepRain], hours: int) -> dict[str, Any]:
    last = steps[-hours * STEPS_PER_HOUR :]
    return {
        "hours": hours,
        "mm": _rounded(sum(step.depth_mm for step in last)),
        "known": sum(step.is_known for step in last) / len(last),
        "doubted_mm": _rounded(sum(step.doubted_mm for step in last)),
    }


def _readings(observations: Iterable[Observation]) -> list[dict[str, Any]]:
    """Readings of each sensor, thinned out to about `MAX_POINTS`."""
    by_name: dict[str, list[Observation]] = {}
    for o in observations:
        if o.value is not None or o.sum is not None:
            by_name.setdefault(o.name, []).append(o)
    found = []
    for name, all_of_it in sorted(by_name.items()):
        kept = thin_out(all_of_it)
        found.append({
            "name": name,
            "unit": kept[-1].unit,
            "at_s": [round(o.at_s) for o in kept],
            "value": [_rounded(_value(o), 6) for o in kept],
            "flag": [o.flag for o in kept],
        })
    return found


def thin_out(series: Sequence[Observation]) -> list[Observation]:
    """Keep the extremes and the flagged readings of equal parts of a series."""
    if len(series) <= MAX_POINTS:
        return list(series)
    size = -(-len(series) * 2 // MAX_POINTS)
    kept = []
    for first in range(0, len(series), size):
        part = series[first : first + size]
        chosen = {id(min(part, key=_value)), id(max(part, key=_value))}
        flagged = max(part, key=lambda o: o.flag or 0)
        chosen |= {id(flagged)} if (flagged.flag or 0) >= Flag.SUSPECT else set()
        kept += [o for o in part if id(o) in chosen]
    return kept


def _value(o: Observation) -> float:
    return o.value if o.value is not None else o.sum or 0.0


def _movement(rows: pa.Table, span: SeriesSpan) -> list[dict[str, Any]]:
    """Rates of each moving sensor; of extensometers also angle and inverse speed."""
    by_sensor: dict[str, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        by_sensor.setdefault(row["sensor"], []).append(row)
    return [
        {"sensor": sensor, "steady_mm_per_h": _rounded(steady, 4)}
        | _rates([r for r in each if r["at"] >= utc_time(span.begin_s)], steady)
        for sensor, each in sorted(by_sensor.items())
        for steady in [steady_speed(each)]
    ]


def steady_speed(rows: Iterable[dict[str, Any]]) -> float | None:
    """Median of the speeds that exceed their noise, in mm/h; None without any."""
    speeds = [row["velocity_mm_per_h"] for row in rows if _is_moving(row)]
    return median(speeds) if speeds else None


def _is_moving(row: dict[str, Any]) -> bool:
    speed, sigma = row["velocity_mm_per_h"], row["velocity_sigma_mm_per_h"]
    return speed is not None and sigma is not None and speed > MIN_SIGMAS * sigma


def _rates(rows: Sequence[dict[str, Any]], steady: float | None) -> dict[str, Any]:
    def column(name: str) -> list[float | None]:
        return [_rounded(row[name], 6) for row in rows]

    speeds = [row["velocity_mm_per_h"] if _is_moving(row) else None for row in rows]
    angles = [
        tangent_angle_deg(speed, steady) if speed and steady else None
        for speed in speeds
    ]
    return {
        "at_s": [round(row["at"].timestamp()) for row in rows],
        "tilt_rate_deg_per_h": column("tilt_rate_deg_per_h"),
        "tilt_noise_deg_per_h": column("tilt_noise_deg_per_h"),
        "velocity_mm_per_h": column("velocity_mm_per_h"),
        "inverse_h_per_mm": [_rounded(1 / v, 6) if v else None for v in speeds],
        "angle_deg": [_rounded(angle) for angle in angles],
    }


def flagged_runs(observations: Iterable[Observation]) -> list[dict[str, Any]]:
    """Runs of readings of one sensor with the same doubt, the newest first."""
    by_name: dict[str, list[Observation]] = {}
    for o in observations:
        by_name.setdefault(o.name, []).append(o)
    runs: list[dict[str, Any]] = []
    for name, series in by_name.items():
        for (flag, why), group in groupby(series, key=_doubt):
            if flag < Flag.SUSPECT:
                continue
            each = list(group)
            runs.append({
                "name": name,
                "unit": each[0].unit,
                "flag": flag,
                "from_s": each[0].at_s,
                "to_s": each[-1].at_s,
                "count": len(each),
                "low": round(min(map(_value, each)), 4),
                "high": round(max(map(_value, each)), 4),
                "reasons": render_both(each[0].reasons) if why else [],
            })
    runs.sort(key=lambda run: -run["to_s"])
    return runs[:MAX_RUNS]


def _doubt(o: Observation) -> tuple[int, tuple[str, ...]]:
    """Flag of a reading and the codes of its reasons."""
    return o.flag or 0, tuple(str(reason.code) for reason in o.reasons)


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)
