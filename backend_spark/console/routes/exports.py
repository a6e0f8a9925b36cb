"""Routes of exports: CAP messages with their feed, levels and table rows as files."""

import io
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import APIRouter, Depends, HTTPException, Query, Response
from pydantic import BaseModel, Field

from backend_spark.console.cap_messages import (
    ATOM_TYPE,
    CAP_TYPE,
    atom_feed,
    page_view,
)
from backend_spark.console.dependencies import (
    Analyst,
    ConsoleServices,
    Services,
    Viewer,
    client,
    viewer,
)
from backend_spark.console.http import json_body, json_response, service_root
from backend_spark.console.level_grid import utc_time
from backend_spark.console.routes.time_travel import LAST_S, UnixTime
from backend_spark.errors import ExportError
from backend_spark.exports import cap, cell_states, formats
from backend_spark.exports.cell_states import CellState, read_cell_states
from backend_spark.tables.reader import DeltaTables, sql_literal
from backend_spark.tables.schemas import TABLES
from service_runtime.errors import shortened

ROOT: Final = "/cap"
_HEADERS: Final = {"Cache-Control": "no-store"}
MAX_ROWS: Final = 100_000
"""Rows of one file: a node with ten readings a minute fills it in a week."""

OF_LEVELS: Final = {"levels", "--at"}
"""Fields of errors that the levels cause; the page has a text of its own for them."""

Name = Annotated[str | None, Field(max_length=100)]
Nodes = Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=6)]
RowTime = Annotated[int, Field(ge=0, le=LAST_S)]

router = APIRouter()
api = APIRouter(prefix="/api")

Root = Annotated[str, Depends(service_root(ROOT))]


class CapOrder(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request to make a message.

    Attributes:
        type: What the message does.
        replaces: Identifier of the message that is shown as in force; None for any.
    """

    type: cap.CapMessageType
    replaces: str | None = None


@router.get(f"{ROOT}/feed.atom", dependencies=[Depends(client)])
def feed(root: Root, services: Services) -> Response:
    """The newest messages as an Atom feed."""
    title = f"Yamamori {services.settings.console.place} CAP".replace("  ", " ")
    now = utc_time(services.clock())
    content = atom_feed(services.standards.cap_messages.newest(), root, title, now)
    return Response(content, headers=_HEADERS, media_type=ATOM_TYPE)


# A path, because the sender in an identifier may be a URL.
@router.get(f"{ROOT}/{{identifier:path}}.xml", dependencies=[Depends(client)])
def message(identifier: str, services: Services) -> Response:
    """One message."""
    content = services.standards.cap_messages.read(identifier)
    if content is None:
        raise HTTPException(404, f"there is no message {shortened(identifier)}")
    return Response(content, headers=_HEADERS, media_type=CAP_TYPE)


@api.get("/cap")
def messages(visitor: Viewer, services: Services) -> Response:
    """The newest messages, for the page."""
    may_edit = visitor.account.has_role("analyst")
    kept = services.standards.cap_messages
    return json_response(page_view(kept, _status(services), may_edit))


@api.post("/cap")
def make(
    visitor: Analyst,
    order: Annotated[CapOrder, Depends(json_body(CapOrder))],
    services: Services,
) -> Response:
    """Make a draft, or update or cancel the one in force."""
    states: list[CellState] = []
    try:
        header = _header(services)
        if order.type is not cap.CapMessageType.CANCEL:
            _, states = _states(services)
        name = visitor.account.name
        services.standards.cap_messages.make(
            order.type, states, header, name, order.replaces
        )
    except ExportError as error:
        if error.field in OF_LEVELS:
            return refusal(error, states, 409)
        status_code = 412 if error.field == "replaces" else 409
        raise HTTPException(status_code, str(error)) from error
    kept = services.standards.cap_messages
    return json_response(page_view(kept, _status(services), may_edit=True))


def refusal(
    error: ExportError, states: Sequence[CellState], status_code: int
) -> Response:
    """Answer that the present levels make no message, with a word for the page.

    Args:
        error: Its field is one of `OF_LEVELS`.
        states: The levels; none if they could not be read.
        status_code: HTTP status.
    """
    needs = "level" if any(s.is_judged for s in states) else "judgement"
    return json_response({"detail": error.problem, "needs": needs}, status_code)


def _status(services: ConsoleServices) -> cap.CapStatus:
    """Status of the messages that the console makes."""
    is_exercise = services.settings.console.exercise
    return cap.CapStatus.EXERCISE if is_exercise else cap.CapStatus.DRAFT


def _header(services: ConsoleServices, at: datetime | None = None) -> cap.CapHeader:
    """Header of a message about a past moment, or else about the present."""
    console = services.settings.console
    name, now = console.place or console.sender, utc_time(services.clock())
    return cap.CapHeader(console.sender, name, now, _status(services), at=at)


def _states(
    services: ConsoleServices, at: int | None = None, *, may_be_old: bool = False
) -> tuple[datetime, list[CellState]]:
    live_state = services.live_state
    try:
        return read_cell_states(
            DeltaTables(services.tables),
            utc_time(live_state.now_s()),
            None if at is None else utc_time(at),
            live_state.limits,
            services.places.now,
            may_be_old=may_be_old,
        )
    except pa.ArrowInvalid as error:  # a damaged file
        raise HTTPException(404, str(error)) from error


@api.get("/download/levels.geojson", dependencies=[Depends(viewer)])
def levels_geojson(services: Services, at: UnixTime = None) -> Response:
    """Levels at a Unix time, the present by default, as GeoJSON."""
    try:
        with services.turn():
            moment, states = _states(services, at, may_be_old=at is None)
    except ExportError as error:
        raise HTTPException(404, str(error)) from error
    collection = cell_states.feature_collection(
        states,
        moment,
        utc_time(services.clock()),
        is_exercise=services.settings.console.exercise,
    )
    text = json.dumps(collection, ensure_ascii=False, allow_nan=False)
    name = f"levels-{moment:%Y%m%dT%H%MZ}.geojson"
    return _file(text.encode(), cell_states.GEOJSON, name)


@api.get("/download/draft.xml", dependencies=[Depends(viewer)])
def cap_draft(services: Services, at: UnixTime = None) -> Response:
    """Levels at a Unix time, the present by default, as a CAP draft."""
    states: list[CellState] = []
    try:
        with services.turn():
            moment, states = _states(services, at)
        past = None if at is None else moment
        message = cap.alert_xml(states, _header(services, past))
    except ExportError as error:
        status_code = 409 if states else 404
        if at is None and error.field in OF_LEVELS:
            return refusal(error, states, status_code)
        raise HTTPException(status_code, str(error)) from error
    return _file(message, CAP_TYPE, f"cap-{moment:%Y%m%dT%H%MZ}.xml")


class RowOrder(BaseModel, extra="forbid"):
    """Query of a download: a cell or nodes between two times, with the second one."""

    from_s: RowTime
    to_s: RowTime
    table: Literal["levels", "silver", "sensors"] = "levels"
    zone: Literal["UTC", "JST"] = "UTC"
    cell: Name = None
    node: Nodes = []

    def conditions(self) -> list[str]:
        """Conditions in SQL that the rows meet.

        Raises:
            ExportError: Neither a cell nor a node is given, or the table has none.
        """
        if self.cell is None and not self.node:
            rule, remedy = "given, or node", "use backend-spark export for all"
            raise ExportError("cell", rule, "neither", remedy)
        first = self.node[0] if self.node else None
        formats.RowSelection(self.table, cell=self.cell, node=first)  # checks columns
        times = [sql_literal(utc_time(at_s)) for at_s in (self.from_s, self.to_s)]
        nodes = ", ".join(map(sql_literal, self.node))
        return [
            *([f"cell = {sql_literal(self.cell)}"] if self.cell is not None else []),
            *([f"node IN ({nodes})"] if nodes else []),
            f"at BETWEEN {times[0]} AND {times[1]}",
        ]


@api.get("/download/rows.{form}", dependencies=[Depends(client)])
def rows(
    form: Literal["csv", "parquet"],
    order: Annotated[RowOrder, Query()],
    services: Services,
) -> Response:
    """Rows of a cell or a node."""
    try:
        found = _read_rows(services, order)
    except ExportError as error:
        raise HTTPException(422, str(error)) from error
    begin, end = utc_time(order.from_s), utc_time(order.to_s)
    name = f"{order.table}-{begin:%Y%m%dT%H%MZ}-{end:%Y%m%dT%H%MZ}.{form}"
    return _packed(found, order.table, order.zone, name)


def _read_rows(services: ConsoleServices, order: RowOrder) -> pa.Table:
    names, conditions = TABLES[order.table].names, order.conditions()
    tables = DeltaTables(services.tables)
    with services.turn():
        found = tables.select(order.table, names, conditions, "at", (MAX_ROWS + 1, 0))
    if found.num_rows > MAX_ROWS:
        rule, remedy = f"times with at most {MAX_ROWS} rows", "ask for fewer days"
        raise ExportError("to_s", rule, "more", remedy)
    return found


def _packed(found: pa.Table, table: str, zone: str, name: str) -> Response:
    if name.endswith(".parquet"):
        buffer = io.BytesIO()
        pq.write_table(found.cast(formats.zoned_schema(table, zone)), buffer)
        return _file(buffer.getvalue(), "application/vnd.apache.parquet", name)
    content = b"".join(formats.csv_parts(table, found.to_batches(), zone))
    return _file(content, "text/csv; charset=utf-8", name)


def _file(content: bytes, kind: str, name: str) -> Response:
    headers = _HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)


router.include_router(api)
