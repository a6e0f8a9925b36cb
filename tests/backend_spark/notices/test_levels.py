"""The newest judgement of each cell, from a real table."""

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
    told = [
        {**empty, "cell": cell, "at": datetime.fromtimestamp(NOW_S + at_s, UTC),
         "level": level}
        for cell, at_s, level in rows
    ]  # fmt: skip
    table = pa.Table.from_pylist(told, LEVELS)
    write_deltalake(str(folder / "levels"), table, mode="append")


def test_newest_step_counts_unless_it_is_old_or_says_nothing(tmp_path: Path) -> None:
    """No judgement is no level 1; yesterday's is none either."""
    write(
        tmp_path,
        ("a", -1200, 5), ("a", -600, 3),
        ("b", -1200, 4), ("b", -600, None),
        ("c", -7200, 4),
        ("d", 300, 2), ("d", 7200, 5),
    )  # fmt: skip

    assert read_current_levels(DeltaTables(tmp_path), NOW_S, 3600.0) == {"a": 3, "d": 2}


def test_table_that_is_not_there_yet_says_nothing(tmp_path: Path) -> None:
    """The job has not run."""
    assert read_current_levels(DeltaTables(tmp_path), NOW_S, 3600.0) == {}
