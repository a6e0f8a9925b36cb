"""Delta commits that are made once and survive a loss of power.

delta-rs writes the same transaction twice when asked twice, and never calls fsync:
both are done here.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction

from backend_spark.durability import fsync_file, fsync_folder, make_folder
from backend_spark.schemas import TABLES
from backend_spark.sinks.mending import (
    LOG,
    MOST_UNSYNCED,
    actions,
    mend,
    newest_commits,
)
from backend_spark.sinks.parts import Part, write_part

CONFIGURATION = {
    "delta.checkpointInterval": "50",
    # delta-rs removes commits before the checkpoint that stands for them is on disk;
    # `upkeep.shorten` does it afterwards.
    "delta.enableExpiredLogCleanup": "false",
    # A checkpoint names all files that are out of use for less than this.
    "delta.deletedFileRetentionDuration": "interval 1 days",
}


_ONE_AT_A_TIME: defaultdict[Path, Lock] = defaultdict(Lock)


def one_at_a_time(path: Path) -> Lock:
    """Held while a thread commits to a table, until its newest version is synced.

    Of two commits made together only the later would be synced, and the other lost
    with the power.
    """
    return _ONE_AT_A_TIME[path]


@dataclass(frozen=True)
class Once:
    """Names one batch of one life of the job.

    Attributes:
        app_id: Lives and dies with the checkpoint: a fresh checkpoint counts its
            batches from 0 again, and an old id would make them look done.
        batch_id: Number of the batch.
    """

    app_id: str
    batch_id: int

    def is_done(self, table: DeltaTable) -> bool:
        """Whether the table has this batch."""
        version = table.transaction_version(self.app_id)
        return version is not None and version >= self.batch_id

    def properties(self) -> CommitProperties:
        """For the commit that makes it done."""
        done = Transaction(self.app_id, self.batch_id)
        return CommitProperties(app_transactions=[done])


def make_tables(folder: Path, names: Iterable[str]) -> None:
    """Make tables that are not there, and columns that came later.

    What a loss of power tore is put aside, what a kill left unsynced is synced.
    Each table has one process that makes it: two that meet would make it twice.
    """
    for name in names:
        path, schema = folder / name, TABLES[name]
        make_folder(path)
        mend(path)
        if not DeltaTable.is_deltatable(str(path)):
            DeltaTable.create(
                str(path), schema, mode="ignore", configuration=CONFIGURATION
            )
        for commit in newest_commits(path, MOST_UNSYNCED):
            sync_version(path, int(commit.stem))
        _configure(path)
        _add_columns(path, schema)


def _configure(path: Path) -> None:
    table = DeltaTable(str(path))
    before, there = table.version(), table.metadata().configuration
    if any(there.get(name) != value for name, value in CONFIGURATION.items()):
        table.alter.set_table_properties(CONFIGURATION)
        sync_since(path, before)


def _add_columns(path: Path, schema: pa.Schema) -> None:
    table = DeltaTable(str(path))
    there = {field.name for field in table.schema().fields}
    wanted = DeltaSchema.from_arrow(schema).fields
    missing = [field for field in wanted if field.name not in there]
    if missing:
        table.alter.add_columns(missing)
        sync_version(path, DeltaTable(str(path)).version())


def append_files(path: Path, parts: Sequence[Part], once: Once) -> None:
    """Make Parquet files part of a table, if the batch has not done so already."""
    table = DeltaTable(str(path))
    if parts and not once.is_done(table):
        commit_files(table, path, parts, once.properties())


def commit_files(
    table: DeltaTable,
    path: Path,
    parts: Sequence[Part],
    properties: CommitProperties | None = None,
    gone: Iterable[str] = (),
) -> None:
    """Append files in one commit; without files it only tells its transactions.

    Files that are gone are taken out in the same commit.
    A second writer that commits the same transaction in between makes the commit
    fail in delta-rs, because this handle is stale then.
    """
    changes: list[AddAction | RemoveAction] = [part.action() for part in parts]
    now_ms = max((part.modified_ms for part in parts), default=0)
    changes += [RemoveAction(file, True, now_ms) for file in gone]
    commit_actions(table, path, changes, properties)


def commit_actions(
    table: DeltaTable,
    path: Path,
    actions: Sequence[AddAction | RemoveAction],
    properties: CommitProperties | None = None,
) -> None:
    """Add and remove files in one commit."""
    with one_at_a_time(path):
        table.create_write_transaction(
            list(actions), "append", table.schema(), commit_properties=properties
        )
        sync_version(path, DeltaTable(str(path)).version())


def append_rows(path: Path, rows: pa.Table) -> None:
    """Append rows that the table does not have."""
    if rows.num_rows:
        part = write_part(path, rows, TABLES[path.name])
        commit_files(DeltaTable(str(path)), path, [part])


def merge_rows(path: Path, rows: pa.Table, keys: Iterable[str]) -> None:
    """Insert rows, replacing those with the same key: the same again changes none."""
    if not rows.num_rows:
        return
    with one_at_a_time(path):
        DeltaTable(str(path)).merge(
            rows,
            predicate=" AND ".join(f"target.{key} = source.{key}" for key in keys),
            source_alias="source",
            target_alias="target",
            # Statistics of the source then tell which files need not be opened.
            streamed_exec=False,
        ).when_matched_update_all().when_not_matched_insert_all().execute()
        sync_version(path, DeltaTable(str(path)).version())


def delete_rows(path: Path, predicate: str | None) -> int:
    """Delete rows of a table, all without a predicate; gives how many."""
    with one_at_a_time(path):
        table = DeltaTable(str(path))
        before = table.version()
        told = table.delete(predicate)
        after = DeltaTable(str(path)).version()
        if after != before:
            sync_version(path, after)
    return int(told["num_deleted_rows"])


def time_literal(unix_us: int) -> str:
    """A time in a predicate; delta-rs compares only equal types."""
    return f"arrow_cast({unix_us}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


def sync_since(path: Path, before: int) -> None:
    """Make the versions after one survive a loss of power."""
    for version in range(before + 1, DeltaTable(str(path)).version() + 1):
        sync_version(path, version)


def sync_version(path: Path, version: int) -> None:
    """Make a committed version survive a loss of power."""
    log = path / LOG
    for added in actions(log / f"{version:020d}.json", "add"):
        # A later commit may have removed the file, and `vacuum` taken it away.
        with suppress(FileNotFoundError):
            fsync_file(path / added["path"])
    for file in log.glob(f"{version:020d}.*"):
        fsync_file(file)
    last_checkpoint = log / "_last_checkpoint"
    if last_checkpoint.exists():
        fsync_file(last_checkpoint)
    fsync_folder(log)
    fsync_folder(path)
