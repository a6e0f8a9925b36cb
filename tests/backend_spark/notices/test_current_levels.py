"""The newest level of each cell, read from a real table."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from backend_spark.notices.notice_state import read_current_levels
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS

NOW_S = 1_800_000_000.0


def write(folder: Path, *rows: tuple[str, float, int | None]) -> None:
    empty = dict.fromkeys(LEVELS.names)
    records = [
        {**empty, "cell": cell, "at": datetime.fromtimestamp(NOW_S + at_s, UTC),
         "level": level}
        for cell, at_s, level in rows
    ]  # fmt: skip
    table = pa.Table.from_pylist(records, LEVELS)
    write_deltalake(str(folder / "levels"), table, mode="append")


def test_newest_step_counts_unless_old_or_without_level(tmp_path: Path) -> None:
    """A cell whose newest step has no level, or is too old, is left out."""
    write(
        tmp_path,
        ("a", -1200, 5), ("a", -600, 3),
        ("b", -1200, 4), ("b", -600, None),
        ("c", -7200, 4),
        ("d", 300, 2), ("d", 7200, 5),
    )  # fmt: skip

    assert read_current_levels(DeltaTables(tmp_path), NOW_S, 3600.0) == {"a": 3, "d": 2}


def test_missing_table_gives_no_levels(tmp_path: Path) -> None:
    """The job has not run."""
    assert read_current_levels(DeltaTables(tmp_path), NOW_S, 3600.0) == {}
