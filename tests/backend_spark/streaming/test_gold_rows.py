"""New rows of gold are compared with the stored ones, together or in parts."""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backend_spark.scoring.revisions import NewReadings
from backend_spark.streaming.scoring_tasks import GoldRows
from backend_spark.tables.delta_log import DELTA_LOG
from backend_spark.tables.delta_writer import append_rows, create_tables
from backend_spark.tables.reader import list_ranges
from backend_spark.tables.schemas import TABLES
from backend_spark.tables.store import open_table

HOUR_US = 3600 * 1_000_000
NEWS = {cell: [NewReadings(f"n-{cell}", 99 * HOUR_US)] for cell in "abc"}


def levels(cell: str, hours: range, level: int = 1) -> pa.Table:
    """Rows of a cell, one in an hour."""
    rows = [
        {"cell": cell, "at": hour * HOUR_US, "level": level, "reasons": []}
        for hour in hours
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["levels"])


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Tables with six rows of each of three cells."""
    create_tables(tmp_path, ("levels", "sensors"))
    for cell in "abc":
        append_rows(tmp_path / "levels", levels(cell, range(6)))
    return tmp_path


def compared(tables: Path, parts: list[pa.Table]) -> tuple[Counter[str], list[str]]:
    """Rows by kind of result, and the kinds in the order of the comparisons."""
    files = {"levels": list_ranges(open_table(tables / "levels"))}
    # A worker that opened a table would keep memory for all of its files.
    (tables / "levels" / DELTA_LOG).rename(tables / "log")
    gold, empty = GoldRows(tables, files, NEWS), TABLES["sensors"]
    rows, kinds = Counter[str](), []
    results = [
        *(
            each
            for part in parts
            for each in gold.compare({"levels": part, "sensors": empty.empty_table()})
        ),
        *gold.write(),
    ]
    for result in results:
        kind, data = str(result["kind"]), result["data"]
        assert isinstance(data, bytes)
        found = (
            pq.read_table(tables / "levels" / json.loads(data)["file"])
            if kind.startswith("file")
            else pa.ipc.open_stream(data).read_all()
        )
        columns = (found["cell"].to_pylist(), found["at"].cast(pa.int64()).to_pylist())
        for cell, at_us in zip(*columns, strict=True):
            rows[f"{kind} {cell} {at_us // HOUR_US}"] += 1
        kinds.append(kind)
    (tables / "log").rename(tables / "levels" / DELTA_LOG)
    return rows, kinds


def test_comparing_in_parts_equals_comparing_at_once(tables: Path) -> None:
    """Also where a part is of an earlier time, or has no rows."""
    parts = [
        levels("a", range(5, 8), level=3),
        levels("b", range(4, 7)),
        levels("b", range(0)),
        levels("c", range(2), level=2),
    ]
    at_once, _ = compared(tables, [pa.concat_tables(parts)])

    assert compared(tables, parts)[0] == at_once
    assert at_once["changed levels a 5"] == at_once["superseded levels c 1"] == 1
    assert at_once["file levels b 6"] == 1


@pytest.mark.parametrize(("since_h", "comparisons"), [(0, 1), (-20, 2)])
def test_rows_of_another_time_are_compared_by_themselves(
    tables: Path, since_h: int, comparisons: int
) -> None:
    """A late reading does not bring days of its neighbours' rows into memory."""
    append_rows(tables / "levels", levels("c", range(since_h, 0)))
    parts = [levels("a", range(5, 6), 3), levels("c", range(since_h, 6), 3)]

    kinds = compared(tables, parts)[1]
    assert kinds.count("changed levels") == comparisons
