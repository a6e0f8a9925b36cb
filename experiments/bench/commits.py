"""How old rows were when they became visible in a Delta table."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MICRO = 1_000_000


def lags_s(table: Path, column: str, from_s: float) -> list[float]:
    """Seconds from a row's time to the commit that holds it.

    Args:
        table: Folder of the table.
        column: Holds the row's time.
        from_s: Unix time; rows of an earlier time do not count.
    """
    lags: list[float] = []
    for there_s, parts in _commits(table):
        for path in parts:
            if not path.exists():
                continue  # merged into another since
            at_us = pq.read_table(path, columns=[column])[column].cast(pa.int64())
            at_us = at_us.filter(pc.greater_equal(at_us, round(from_s * MICRO)))
            lags += [there_s - us / MICRO for us in at_us.to_pylist() if us is not None]
    return lags


def _commits(table: Path) -> Iterator[tuple[float, list[Path]]]:
    """When each commit was there, and the files of new rows that it named."""
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = map(json.loads, commit.read_text().splitlines())
        adds = [a["add"] for a in actions if "add" in a and a["add"]["dataChange"]]
        yield commit.stat().st_mtime, [table / add["path"] for add in adds]
