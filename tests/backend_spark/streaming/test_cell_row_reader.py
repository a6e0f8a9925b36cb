"""Reading histories of cells from silver after merges and compactions."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from backend_spark.tables.delta_writer import create_tables, update_flags
from backend_spark.tables.maintenance import compact
from backend_spark.tables.reader import HISTORY_SCHEMA, CellRowReader
from backend_spark.tables.schemas import FLAGS, SILVER, SPARK_TABLES

T0_US = 1_700_000_000_000_000
STEP_US = 600_000_000


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
