"""Server-sent events: what changed, each second, to every page that is open.

What an analyst takes along: levels as GeoJSON, and a CAP draft.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request, Response

from backend_spark.config import ConsoleSettings
from backend_spark.console.auth import Gate
from backend_spark.console.http import refuse
from backend_spark.errors import ExportError
from backend_spark.exports import cap, formats
from backend_spark.exports.cell_states import CellState, cell_states
from backend_spark.tables.reader import Tables

EVERY_S: Final = 1.0

Sleep = Callable[[float], Any]
State = Callable[[], dict[str, Any]]


def changes(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """What a page must take over; everything when cells are new to it."""
    same = before is not None and before["geometry"] == now["geometry"]
    if before is None or not same or before["begin_s"] != now["begin_s"]:
        return {"kind": "all", **now}
    pairs = zip(before["levels"], now["levels"], strict=True)
    moved = [[at, new] for at, (old, new) in enumerate(pairs) if old != new]
    lists = {"levels", "flags", "seen_s"}
    rest = {name: value for name, value in now.items() if name not in lists}
    return {"kind": "some", "moved": moved, **rest}


async def events(state: State, sleep: Sleep = asyncio.sleep) -> AsyncIterator[bytes]:
    """The stream of one page; it ends when the page goes."""
    before: dict[str, Any] | None = None
    while True:
        now = await asyncio.to_thread(state)
        told = changes(before, now)
        before = now
        yield b"event: now\ndata: " + msgspec.json.encode(told) + b"\n\n"
        await sleep(EVERY_S)


def download_routes(
    settings: ConsoleSettings, tables: Path, gate: Gate, clock: Callable[[], float]
) -> APIRouter:
    """Routes of files; ``at`` is a Unix time, the newest one by default."""
    routes = APIRouter(prefix="/api")

    @routes.get("/download/levels.geojson")
    def levels(request: Request, at: int | None = None) -> Response:
        gate.look(request)
        moment, states = _states(tables, at)
        made = formats.feature_collection(states, moment, _moment(clock()))
        text = json.dumps(made, ensure_ascii=False, allow_nan=False)
        name = f"levels-{moment:%Y%m%dT%H%MZ}.geojson"
        return _file(text.encode(), "application/geo+json", name)

    @routes.get("/download/draft.xml")
    def draft(request: Request, at: int | None = None) -> Response:
        gate.look(request)
        moment, states = _states(tables, at)
        status = cap.Status.EXERCISE if settings.exercise else cap.Status.DRAFT
        name = settings.place or settings.sender
        try:
            header = cap.Header(settings.sender, name, _moment(clock()), status)
            made = cap.alert(states, header)
        except ExportError as error:
            raise refuse(409, str(error)) from error
        return _file(made, "application/cap+xml", f"cap-{moment:%Y%m%dT%H%MZ}.xml")

    return routes


def _states(tables: Path, at: int | None) -> tuple[datetime, list[CellState]]:
    try:
        return cell_states(Tables(tables), None if at is None else _moment(at))
    except (ExportError, OverflowError, ValueError) as error:
        raise refuse(404, str(error)) from error


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def _file(content: bytes, kind: str, name: str) -> Response:
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
    }
    return Response(content, media_type=kind, headers=headers)
