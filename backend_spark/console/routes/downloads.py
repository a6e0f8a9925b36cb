"""Routes to download rows of the tables: what a panel shows, as CSV or Parquet."""

import io
from typing import Annotated, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import APIRouter, Depends, HTTPException, Query, Response
from pydantic import BaseModel, Field

from backend_spark.console.dependencies import ConsoleServices, Services, client
from backend_spark.console.panels import utc_time
from backend_spark.console.routes.time_travel import LAST_S
from backend_spark.errors import ExportError
from backend_spark.exports import formats
from backend_spark.tables.reader import DeltaTables, sql_literal
from backend_spark.tables.schemas import TABLES

MAX_ROWS: Final = 100_000
"""Rows of one file: a node with ten readings a minute fills it in a week."""

Name = Annotated[str | None, Field(max_length=100)]
Nodes = Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=6)]
UnixTime = Annotated[int, Field(ge=0, le=LAST_S)]

router = APIRouter(prefix="/api", dependencies=[Depends(client)])


class RowOrder(BaseModel, extra="forbid"):
    """Query of a download: a cell or nodes between two times, with the second one."""

    from_s: UnixTime
    to_s: UnixTime
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


@router.get("/download/rows.{form}")
def rows(
    form: Literal["csv", "parquet"],
    order: Annotated[RowOrder, Query()],
    services: Services,
) -> Response:
    """Rows of a cell or a node."""
    try:
        found = _read(services, order)
    except ExportError as error:
        raise HTTPException(422, str(error)) from error
    begin, end = utc_time(order.from_s), utc_time(order.to_s)
    name = f"{order.table}-{begin:%Y%m%dT%H%MZ}-{end:%Y%m%dT%H%MZ}.{form}"
    return _file(found, order.table, order.zone, name)


def _read(services: ConsoleServices, order: RowOrder) -> pa.Table:
    names, conditions = TABLES[order.table].names, order.conditions()
    tables = DeltaTables(services.tables)
    with services.turn():
        found = tables.select(order.table, names, conditions, "at", (MAX_ROWS + 1, 0))
    if found.num_rows > MAX_ROWS:
        rule, remedy = f"times with at most {MAX_ROWS} rows", "ask for fewer days"
        raise ExportError("to_s", rule, "more", remedy)
    return found


def _file(found: pa.Table, table: str, zone: str, name: str) -> Response:
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
    }
    if name.endswith(".parquet"):
        buffer = io.BytesIO()
        pq.write_table(found.cast(formats.zoned_schema(table, zone)), buffer)
        kind = "application/vnd.apache.parquet"
        return Response(buffer.getvalue(), headers=headers, media_type=kind)
    content = b"".join(formats.csv_parts(table, found.to_batches(), zone))
    return Response(content, headers=headers, media_type="text/csv; charset=utf-8")
