"""Reading histories of cells from silver after merges and compactions."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import WriterProperties, write_deltalake

from backend_spark.tables.delta_writer import create_tables, update_flags
from backend_spark.tables.maintenance import compact
from backend_spark.tables.reader import HISTORY_SCHEMA, CellRowReader
from backend_spark.tables.schemas import FLAGS, SILVER, SPARK_TABLES

T0_US = 1_700_000_000_000_000
STEP_US = 600_000_000
COUNTED = pa.proxy_memory_pool(pa.system_memory_pool())
"""Counts the memory of one test; it must live as long as the tables in it."""


def readings(first: int) -> pa.Table:
    """Three readings of each of three cells."""
    made = [
        {"cell": cell, "at": T0_US + n * STEP_US, "received_at": T0_US, "node": cell}
        | {"boot": "b", "seq": n, "name": "tilt/x", "value": 1.0, "flag": 1}
        for cell in ("a", "b", "c")
        for n in range(first, first + 3)
    ]
    return pa.Table.from_pylist(made, schema=SILVER)


def history(silver: Path, cells: set[str], since_us: int) -> pa.Table:
    """Rows of some cells, by cell and time."""
    reader = CellRowReader(silver, HISTORY_SCHEMA, sorted(cells), since_us)
    return reader.read(reader.list_files()).sort_by([
        ("cell", "ascending"),
        ("at", "ascending"),
    ])


def flag(silver: Path, seqs: set[int], flag: int) -> None:
    """Give readings of cell b another flag."""
    known = history(silver, {"b"}, 0)
    ours = known.filter(pc.is_in(known["seq"], pa.array(sorted(seqs))))
    flags = [
        {"file": row["file"], "row": row["row"], "flag": flag, "flag_why": "spike"}
        for row in ours.to_pylist()
    ]
    update_flags(silver, pa.Table.from_pylist(flags, schema=FLAGS))


@pytest.mark.parametrize("is_compact", [False, True])
def test_cells_are_found_after_flags_were_changed(
    tmp_path: Path, is_compact: bool
) -> None:
    """A compaction writes other Arrow types and many cells per file."""
    create_tables(tmp_path, SPARK_TABLES)
    silver = tmp_path / "silver"
    for first in (0, 3):
        write_deltalake(str(silver), readings(first), mode="append")
    flag(silver, {1, 4}, 3)
    flag(silver, {1}, 3)
    if is_compact:
        compact(silver)
    rows = history(silver, {"a", "b"}, T0_US + STEP_US).to_pylist()

    assert [(row["cell"], row["seq"]) for row in rows] == [
        (cell, seq) for cell in ("a", "b") for seq in range(1, 6)
    ]
    flagged = [(row["seq"], row["flag_why"]) for row in rows if row["flag"] == 3]
    assert flagged == [(1, "spike"), (4, "spike")]


def test_of_cells_around_only_the_rain_is_read(tmp_path: Path) -> None:
    """Their tilt meters are five times as many rows, and no rule reads them."""
    create_tables(tmp_path, SPARK_TABLES)
    silver = tmp_path / "silver"
    rain = readings(0).set_column(
        SILVER.get_field_index("name"), SILVER.field("name"), pa.array(["rain"] * 9)
    )
    write_deltalake(str(silver), pa.concat_tables([readings(0), rain]), mode="append")
    reader = CellRowReader(
        silver, HISTORY_SCHEMA, ["a", "b"], T0_US + STEP_US, rain_only={"b"}
    )
    rows = reader.read(reader.list_files())

    found = sorted((row["cell"], row["name"], row["row"]) for row in rows.to_pylist())
    # A row's number is that in its file, whatever is left out before it. The order of
    # the rows in the file is that in which delta-rs took the two parts of the table.
    (file,) = silver.rglob("*.parquet")
    names = pq.ParquetFile(file).read(["name"])["name"].to_pylist()
    assert [(name, names[number]) for _, name, number in found] == [
        (name, name) for _, name, _ in found
    ]
    assert [(cell, name) for cell, name, _ in found] == [
        ("a", "rain"),
        ("a", "rain"),
        ("a", "tilt/x"),
        ("a", "tilt/x"),
        ("b", "rain"),
        ("b", "rain"),
    ]


def test_a_large_row_group_is_not_in_memory_as_a_whole(tmp_path: Path) -> None:
    """As from a merge by delta-rs, of which a reader of one cell needs few rows."""
    create_tables(tmp_path, SPARK_TABLES)
    silver, count = tmp_path / "silver", 200_000
    cells = pa.array([f"{n // 10:06d}" for n in range(count)])
    texts = pa.array([f"{n:0100d}" for n in range(count)])
    empty = {field.name: pa.nulls(count, field.type) for field in SILVER}
    times = pa.repeat(pa.scalar(T0_US, pa.int64()), count).cast(SILVER.field("at").type)
    known = empty | {"cell": cells, "at": times, "flag_why": texts}
    rows = pa.table(known, schema=SILVER)
    properties = WriterProperties(max_row_group_size=count)
    write_deltalake(str(silver), rows, mode="append", writer_properties=properties)
    whole_bytes = rows.nbytes
    del cells, texts, empty, times, known, rows
    before = pa.default_memory_pool()
    pa.set_memory_pool(COUNTED)
    try:
        found = history(silver, {"000500"}, 0)
    finally:
        pa.set_memory_pool(before)

    assert found.num_rows == 10
    assert (COUNTED.max_memory() or 0) < whole_bytes / 3
