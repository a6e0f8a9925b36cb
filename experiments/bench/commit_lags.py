"""Commit lags: age of rows when they became visible in a Delta table."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MICRO = 1_000_000


def commit_lags_s(table: Path, column: str, from_s: float) -> list[float]:
    """Return the seconds from each row's time to the commit that contains it.

    Args:
        table: Folder of the table.
        column: Column with the row's time.
        from_s: Unix time; earlier rows are ignored.
    """
    lags: list[float] = []
    for commit_s, parts in _commits(table):
        for path in parts:
            if not path.exists():
                continue  # removed by compaction
            at_us = pq.read_table(path, columns=[column])[column].cast(pa.int64())
            at_us = at_us.filter(pc.greater_equal(at_us, round(from_s * MICRO)))
            times_us = [us for us in at_us.to_pylist() if us is not None]
            lags += [commit_s - us / MICRO for us in times_us]
    return lags


def _commits(table: Path) -> Iterator[tuple[float, list[Path]]]:
    """Yield the time of each commit and the files with new rows that it names."""
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = map(json.loads, commit.read_text().splitlines())
        adds = [a["add"] for a in actions if "add" in a and a["add"]["dataChange"]]
        yield commit.stat().st_mtime, [table / add["path"] for add in adds]
