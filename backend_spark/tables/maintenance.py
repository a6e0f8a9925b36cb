"""Keeping tables quick to read: few files, sorted, a short log, old files away.

A batch a second makes 86,400 files a day in each table, and as many commits; reading
a cell's history opens every file that may hold it, and opening a table looks at every
commit.

Retention by age: rows older than the settings allow go out of their tables.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from backend_spark.config import KeepSettings
from backend_spark.tables.delta_writer import (
    commit_actions,
    delete_rows,
    one_at_a_time,
    sync_since,
    sync_version,
    time_literal,
    write_part,
)
from backend_spark.tables.recovery import LOG, newest_commits
from backend_spark.tables.schemas import TABLES, conform
from service_runtime.files import fsync_folder

log = logging.getLogger(__name__)

COMPACT_EVERY: Final = 200
"""Batches between two compactions."""

VACUUM_EVERY: Final = 5000
KEEP_H: Final = 24
"""Files out of use stay so long, for who reads an older version."""

KEEP_COMMITS: Final = 2000
"""So many versions can be read; with 50,000 commits a table opens in 50 ms of CPU, with
2,000 in 5."""

WHOLE_BYTES: Final = 32_000_000
"""A file of this size is put together with no other; it is 600 MB in memory."""


@dataclass(frozen=True)
class _File:
    name: str
    size_bytes: int


def keep_up(
    paths: Iterable[Path],
    batch_id: int,
    whole_bytes: int = WHOLE_BYTES,
    every: int | None = None,
) -> None:
    """Do what is due after a batch; most batches have nothing due.

    Args:
        paths: Folders of tables that the caller alone writes.
        batch_id: Number of the batch.
        whole_bytes: See `WHOLE_BYTES`.
        every: Batches between two compactions; None for `COMPACT_EVERY`.
    """
    every = COMPACT_EVERY if every is None else every
    for path in paths:
        if batch_id % every == every - 1:
            compact(path, whole_bytes)
            with one_at_a_time(path):
                shorten(path)
        if batch_id % VACUUM_EVERY == VACUUM_EVERY - 1:
            log.info("%s: removed %d old files", path.name, _vacuum(path))


def _vacuum(path: Path) -> int:
    with one_at_a_time(path):
        table = DeltaTable(str(path))
        before = table.version()
        # Also what a try that failed left, which no log names.
        gone = table.vacuum(KEEP_H, dry_run=False, full=True)
        sync_since(path, before)
    return len(gone)


def compact(path: Path, whole_bytes: int = WHOLE_BYTES) -> None:
    """Put the small files of a table together, in the order of cell and time.

    Readers notice nothing. delta-rs would keep the order of the files, and every
    group of rows would then hold every cell.
    """
    table, schema = DeltaTable(str(path)), TABLES[path.name]
    if not {field.name for field in table.schema().fields} <= {*schema.names}:
        return  # a newer program's columns are not ours to drop
    for files in _bins(_small(table, whole_bytes), whole_bytes):
        # One by one: a file that delta-rs merged has types of its own.
        rows = (
            conform(pq.ParquetFile(path / file.name).read(), schema) for file in files
        )
        part = write_part(path, pa.concat_tables(rows), schema)
        gone = [
            RemoveAction(file.name, False, part.modified_ms, file.size_bytes, {})
            for file in files
        ]
        changes: list[AddAction | RemoveAction] = [
            part.action(changes_data=False),
            *gone,
        ]
        commit_actions(DeltaTable(str(path)), path, changes)


def shorten(path: Path) -> None:
    """Remove commits that only older versions need.

    Always behind a checkpoint that is on disk: a loss of power that took a checkpoint
    after its commits were removed would take the table.
    """
    table = DeltaTable(str(path))
    table.create_checkpoint()
    sync_version(path, table.version())
    folder = path / LOG
    last = newest_commits(path, KEEP_COMMITS)[-1]
    numbers = {
        checkpoint: int(checkpoint.name.partition(".")[0])
        for checkpoint in folder.glob("*.checkpoint*.parquet")
    }
    floor = max((n for n in numbers.values() if n <= int(last.stem)), default=0)
    old = [p for p in folder.glob("*.json") if p.stem.isdigit() and int(p.stem) < floor]
    old += [checkpoint for checkpoint, number in numbers.items() if number < floor]
    for file in old:
        file.unlink()
    if old:
        fsync_folder(folder)


def _small(table: DeltaTable, whole_bytes: int) -> list[_File]:
    """Files that are not whole yet, the earliest rows first."""
    adds = pa.table(table.get_add_actions(flatten=True))
    names = ("path", "size_bytes", "modification_time")
    rows = zip(*(adds[name].to_pylist() for name in names), strict=True)
    small = [row for row in rows if row[1] < whole_bytes]
    return [_File(name, size) for name, size, _ in sorted(small, key=lambda r: r[2])]


def _bins(files: list[_File], whole_bytes: int) -> Iterator[list[_File]]:
    """Files that become one, each time a little more than a whole one at most."""
    some: list[_File] = []
    for file in files:
        some.append(file)
        if sum(each.size_bytes for each in some) >= whole_bytes:
            yield some
            some = []
    if len(some) > 1:
        yield some


EVERY_S: Final = 6 * 3600.0
"""Time between two trims of a running process."""

DAY_US: Final = 86_400 * 1_000_000

GOLD: Final = frozenset({"levels", "sensors", "revisions", "sensor_revisions"})
"""Tables by the time of a step; the others go by receipt."""


def trim(
    tables: Path, names: Iterable[str], keep: KeepSettings, now_s: float
) -> dict[str, int]:
    """Delete what is too old; the rows that went, by table.

    Files go with `vacuum`, a day later: until then an older version can be read.

    Args:
        tables: Folder of the tables.
        names: Those that the caller alone writes.
        keep: For how long.
        now_s: Unix time.
    """
    gone = {}
    for name in names:
        days = keep.days(name)
        if days:
            column = "at" if name in GOLD else "received_at"
            before_us = round(now_s * 1_000_000) - days * DAY_US
            predicate = f"{column} < {time_literal(before_us)}"
            gone[name] = delete_rows(tables / name, predicate)
            log.info("%s: %d rows older than %d days", name, gone[name], days)
    return gone
