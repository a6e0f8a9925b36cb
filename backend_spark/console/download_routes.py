"""What an analyst takes along: levels as GeoJSON, and a CAP draft."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from fastapi import APIRouter, Request, Response

from backend_spark.console.answers import refuse
from backend_spark.console.gate import Gate
from backend_spark.errors import ExportError
from backend_spark.exports import cap, geojson
from backend_spark.exports.states import CellState, cell_states
from backend_spark.sections import ConsoleSettings
from backend_spark.tables import Tables


def download_routes(
    settings: ConsoleSettings, tables: Path, gate: Gate, clock: Callable[[], float]
) -> APIRouter:
    """Routes of files; ``at`` is a Unix time, the newest one by default."""
    routes = APIRouter(prefix="/api")

    @routes.get("/download/levels.geojson")
    def levels(request: Request, at: int | None = None) -> Response:
        gate.look(request)
        moment, states = _states(tables, at)
        made = geojson.feature_collection(states, moment, _moment(clock()))
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
