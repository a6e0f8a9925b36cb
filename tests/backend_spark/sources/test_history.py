"""Histories of cells out of silver, as merges and compactions leave it."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backend_spark.schemas import FLAGS, SCORED, SILVER
from backend_spark.sinks.commits import make_tables
from backend_spark.sinks.flags import reflag
from backend_spark.sinks.upkeep import compact
from backend_spark.sources.history import HISTORY, CellHistoryReader

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


def history(silver: Path, cells: set[str], since_us: int) -> list[dict[str, object]]:
    """Rows that the reader gives, whatever its tasks."""
    reader = CellHistoryReader(str(silver), frozenset(cells), since_us, tasks=2)
    batches = [b for part in reader.partitions() for b in reader.read(part)]
    rows = pa.Table.from_batches(batches, HISTORY).to_pylist()
    return sorted(rows, key=lambda row: (row["cell"], row["at"]))


@pytest.mark.parametrize("is_compact", [False, True])
def test_cells_are_found_after_flags_were_changed(
    tmp_path: Path, is_compact: bool
) -> None:
    """A merge writes types of its own, of many cells in a file."""
    make_tables(tmp_path, SCORED)
    silver = tmp_path / "silver"
    for first in (0, 3):
        write_deltalake(str(silver), readings(first), mode="append")
    new = [
        {"cell": "b", "at": T0_US + n * STEP_US, "node": "b", "boot": "b", "seq": n}
        | {"name": "tilt/x", "flag": 3, "flag_why": "spike"}
        for n in (1, 4)
    ]
    reflag(silver, pa.Table.from_pylist(new, schema=FLAGS))
    reflag(silver, pa.Table.from_pylist(new[:1], schema=FLAGS))
    if is_compact:
        compact(silver)
    told = history(silver, {"a", "b"}, T0_US + STEP_US)

    assert [(row["cell"], row["seq"]) for row in told] == [
        (cell, seq) for cell in ("a", "b") for seq in range(1, 6)
    ]
    flagged = [(row["seq"], row["flag_why"]) for row in told if row["flag"] == 3]
    assert flagged == [(1, "spike"), (4, "spike")]
