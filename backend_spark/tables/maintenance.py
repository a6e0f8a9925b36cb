"""Maintenance of Delta tables: compaction, short log, vacuum, age, table ``current``.

One batch per second makes 86,400 files and commits a day in each table. Reading a
cell's history opens every file that may contain it, and opening a table reads every
commit.

The rows of ``current`` that `current.read_current` computes, and the version of gold
that they rest on, are one commit, which replaces the file before. After a crash between
a commit of gold and this one the table is older than gold, and the next call adds the
difference; so does every reader meanwhile.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from backend_spark.config import KeepSection
from backend_spark.tables.current import GOLD_COMMITTED, GOLD_VERSION, read_current
from backend_spark.tables.delta_log import DELTA_LOG
from backend_spark.tables.delta_writer import (
    REWRITE,
    commit_actions,
    commit_files,
    commit_lock,
    create_tables,
    delete_rows,
    sync_since,
    sync_version,
    time_literal,
    write_file,
)
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import CURRENT, TABLES, cast_to_schema
from backend_spark.tables.store import Folder, file_names, open_files, open_table
from service_runtime.files import fsync_folder

log = logging.getLogger(__name__)

COMPACT_EVERY: Final = 200
"""Batches between two compactions."""

VACUUM_EVERY: Final = 5000
"""Batches between two deletions of unused files."""

VACUUM_AFTER_H: Final = 24
"""Time that an unused file is kept for readers of an older version."""

KEEP_COMMITS: Final = 2000
"""Versions that can be read; a table with 50,000 commits opens in 50 ms of CPU time,
with 2,000 in 5 ms."""

MIN_WHOLE_BYTES: Final = 32_000_000
"""Size from which a file is not compacted; it takes 600 MB in memory."""

DELETE_EVERY_S: Final = 6 * 3600.0
"""Time between two deletions of old rows in a running process."""

_NUMBERED: Final = re.compile(r"\d{20}\.(json|checkpoint.*parquet)")

DAY_US: Final = 86_400 * 1_000_000

CLOCK_SLACK_S: Final = 86_400.0
"""Time for which no node needs to send anything before the clock is doubted."""

GOLD: Final = frozenset({"levels", "sensors", "revisions", "sensor_revisions"})
"""Tables whose age is by the time of a step; the others use the time of receipt."""

CURRENT_TABLE: Final = "current"
MAX_BEHIND: Final = 100
"""Versions of gold without new rows after which the version is stored anyway, so that
readers need not read their commits."""


@dataclass(frozen=True)
class _File:
    name: str
    size_bytes: int


def maintain_tables(
    paths: Iterable[Folder],
    batch_id: int,
    min_whole_bytes: int = MIN_WHOLE_BYTES,
    every: int | None = None,
) -> None:
    """Compact and vacuum tables if that is due after a batch.

    Args:
        paths: Folders of tables that only the caller writes.
        batch_id: Number of the batch.
        min_whole_bytes: Size from which a file is not compacted.
        every: Batches between two compactions; None for `COMPACT_EVERY`.
    """
    every = COMPACT_EVERY if every is None else every
    for path in paths:
        if batch_id % every == every - 1:
            compact(path, min_whole_bytes)
            with commit_lock(path):
                shorten_log(path)
        if batch_id % VACUUM_EVERY == VACUUM_EVERY - 1:
            log.info("%s: removed %d old files", path.name, _vacuum(path))


def compact(path: Folder, min_whole_bytes: int = MIN_WHOLE_BYTES) -> None:
    """Merge the small files of a table, sorted by cell and time.

    Readers see the same rows. delta-rs would keep the order of the files, so that every
    row group would contain every cell.

    Raises:
        SupersededError: Another job has rewritten one of the files since.
    """
    table, schema = open_table(path), TABLES[path.name]
    if not {field.name for field in table.schema().fields} <= {*schema.names}:
        return  # would drop columns of a newer version
    for files in _bins(_small_files(table, min_whole_bytes), min_whole_bytes):
        # One by one: a file that delta-rs merged has other column types.
        opened = open_files(path)
        rows = (
            cast_to_schema(pq.ParquetFile(file.name, filesystem=opened).read(), schema)
            for file in files
        )
        part = write_file(path, pa.concat_tables(rows), schema)
        changes: list[AddAction | RemoveAction] = [
            part.add_action(changes_data=False),
            *(
                RemoveAction(file.name, False, part.modified_ms, file.size_bytes, {})
                for file in files
            ),
        ]
        commit_actions(path, changes, REWRITE)


def shorten_log(path: Folder) -> None:
    """Delete commits that only older versions need.

    The checkpoint that replaces them is durable first: a power cut that lost it after
    its commits were deleted would lose the table.
    """
    table = open_table(path)
    table.create_checkpoint()
    if isinstance(path, Path):
        sync_version(path, table.version())
    last = max(0, table.version() - KEEP_COMMITS + 1)
    files = open_files(path / DELTA_LOG)
    names = [file.base_name for file in files.get_file_info(fs.FileSelector(""))]
    numbers = {name: int(name[:20]) for name in names if _NUMBERED.match(name)}
    checkpoints = [n for name, n in numbers.items() if ".checkpoint" in name]
    floor = max((n for n in checkpoints if n <= last), default=0)
    old = [name for name, number in numbers.items() if number < floor]
    for name in old:
        files.delete_file(name)
    if old and isinstance(path, Path):
        fsync_folder(path / DELTA_LOG)


def credible_now_s(tables: Folder, now_s: float) -> float:
    """The current time, but at most a day after the nodes' newest reading.

    A clock that jumped ahead must not make everything too old. Only nodes with a set
    clock count, and readings that are plausible beside the clock of their receipt.
    """
    nodes = DeltaTables(tables).nodes(["at", "synchronised"])
    newest = pc.max(nodes.filter(nodes["synchronised"])["at"]).as_py()
    if newest is None or now_s <= newest.timestamp() + CLOCK_SLACK_S:
        return now_s
    log.error(
        "the clock is %.1f days after the newest reading of all nodes: rows are "
        "deleted by their age on the day after that reading",
        (now_s - newest.timestamp()) / CLOCK_SLACK_S,
    )
    return float(newest.timestamp() + CLOCK_SLACK_S)


def delete_old_rows(
    tables: Folder, names: Iterable[str], keep: KeepSection, now_s: float
) -> dict[str, int]:
    """Delete rows that are older than the settings allow.

    A vacuum deletes their files when they are a day old; older versions can be read
    until then.

    Args:
        tables: Folder of the tables.
        names: Tables that only the caller writes.
        keep: Ages.
        now_s: Unix time; see `credible_now_s`.

    Returns:
        Number of deleted rows by table.
    """
    deleted = {}
    limited = [(name, keep.days_of(name)) for name in names]
    if any(days for _, days in limited):
        now_s = credible_now_s(tables, now_s)
    for name, days in limited:
        if days:
            column = "at" if name in GOLD else "received_at"
            before_us = round(now_s * 1_000_000) - days * DAY_US
            predicate = f"{column} < {time_literal(before_us)}"
            deleted[name] = delete_rows(tables / name, predicate)
            log.info(
                "%s: deleted %d rows older than %d days", name, deleted[name], days
            )
    return deleted


def trim_tables(
    tables: Folder, names: Iterable[str], keep: KeepSection, now_s: float
) -> dict[str, int]:
    """Delete rows as `delete_old_rows` does, and the files of earlier deletions.

    For the arguments and the result see there.
    """
    deleted = delete_old_rows(tables, names, keep, now_s)
    for name in deleted:
        _vacuum(tables / name)
    return deleted


def _vacuum(path: Folder) -> int:
    with commit_lock(path):
        table = open_table(path)
        before = table.version()
        # full: also files of failed attempts, which no log names.
        deleted = table.vacuum(VACUUM_AFTER_H, dry_run=False, full=True)
        sync_since(path, before)
    return len(deleted)


def _small_files(table: DeltaTable, whole_bytes: int) -> list[_File]:
    """Files smaller than `whole_bytes`, in the order of their writing."""
    adds = pa.table(table.get_add_actions(flatten=True))
    names = ("path", "size_bytes", "modification_time")
    rows = zip(*(adds[name].to_pylist() for name in names), strict=True)
    small = [row for row in rows if row[1] < whole_bytes]
    return [_File(name, size) for name, size, _ in sorted(small, key=lambda r: r[2])]


def _bins(files: list[_File], whole_bytes: int) -> Iterator[list[_File]]:
    """Groups of files to merge, each just above `whole_bytes` in size."""
    group: list[_File] = []
    for file in files:
        group.append(file)
        if sum(each.size_bytes for each in group) >= whole_bytes:
            yield group
            group = []
    if len(group) > 1:
        yield group


def renew_current(tables: Folder) -> bool:
    """Bring the table up to the newest version of gold; idempotent.

    Only the writer of gold may call it.

    Args:
        tables: Folder of the tables.

    Returns:
        Whether the table was written.
    """
    table = _open_current(tables)
    found = read_current(tables)
    gold, stored = found.gold, found.stored
    if gold is None or stored == gold:
        return False
    is_near = stored is not None and gold.number - stored.number < MAX_BEHIND
    if found.is_stored and is_near:
        return False
    path = tables / CURRENT_TABLE
    versions = ((GOLD_VERSION, gold.number), (GOLD_COMMITTED, gold.committed_ms))
    properties = CommitProperties(
        app_transactions=[Transaction(app, number) for app, number in versions]
    )
    if found.is_stored:
        commit_files(path, [], properties, read=table)
        return True
    removed = file_names(table)
    files = [write_file(path, found.rows, CURRENT)] if found.rows.num_rows else []
    commit_files(path, files, properties, removed, table)
    return True


def _open_current(tables: Folder) -> DeltaTable:
    """Open the table; a new one if there is none, or its log is damaged."""
    path = tables / CURRENT_TABLE
    try:
        return open_table(path)
    except (DeltaError, OSError):
        create_tables(tables, [CURRENT_TABLE])
        return open_table(path)
