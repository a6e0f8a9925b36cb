"""Writer of Delta tables: idempotent, fsynced commits of Parquet files.

delta-rs does not check whether a transaction was committed before, and never calls
fsync in a folder; both are done here.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction

from backend_spark.errors import SupersededError
from backend_spark.scoring.saved_states import (
    STATE_FORMAT,
    keeps_state,
    last_valid_state_s,
)
from backend_spark.tables.delta_log import (
    DELTA_LOG,
    discard_damaged,
    merge_statistics,
    newest_commits,
    read_actions,
    recover_table,
    statistics_of,
)
from backend_spark.tables.reader import CellRowReader, FileRange, read_transactions
from backend_spark.tables.schemas import (
    CELL_STATES,
    DERIVED_TABLES,
    SILVER,
    TABLES,
    cast_to_schema,
)
from backend_spark.tables.store import (
    Folder,
    file_names,
    is_table,
    open_files,
    open_table,
    table_url,
)
from service_runtime.files import fsync_file, fsync_folder, make_folder

CELL_AND_TIME: Final = ("cell", "at")
"""Sort order of rows in a file, so that a reader of some cells skips row groups; also
the key of a cell state."""

ROW_GROUP_ROWS = 16_384
"""Rows of a row group, the smallest unit that a reader of one cell reads."""

TABLE_PROPERTIES: Final = {
    "delta.checkpointInterval": "50",
    # delta-rs deletes commits before the checkpoint that replaces them is on disk;
    # `maintenance.shorten_log` does it afterwards.
    "delta.enableExpiredLogCleanup": "false",
    # A checkpoint names all files that were removed less than this ago.
    "delta.deletedFileRetentionDuration": "interval 1 days",
    # Statistics of all columns also from merges, see `statistics_of`.
    "delta.dataSkippingNumIndexedCols": "-1",
}
STORE_PROPERTIES: Final = {
    **TABLE_PROPERTIES,
    # Each commit since the checkpoint is a request of whoever opens the table.
    "delta.checkpointInterval": "10",
}
"""Properties of a table in an object store."""

_MICRO: Final = 1_000_000
_JOB: Final = "job"
"""App id of the transaction with the number of the job that writes a table."""

REWRITE: Final = CommitProperties(app_transactions=[Transaction("rewrite", 0)])
"""Properties of a commit that puts the rows of files into others. Of two at the same
moment delta-rs refuses one; it would let both remove the same file."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file on disk, in no table until it is committed.

    Attributes:
        file: Name within the table's folder.
        size_bytes: Size.
        modified_ms: Unix time of its writing, in milliseconds.
        statistics: Delta's JSON of row count and column ranges.
    """

    file: str
    size_bytes: int
    modified_ms: int
    statistics: str

    def add_action(self, *, changes_data: bool = True) -> AddAction:
        """Action that adds the file to the table."""
        return AddAction(
            self.file,
            self.size_bytes,
            {},
            self.modified_ms,
            changes_data,
            self.statistics,
        )


def write_file(folder: Folder, rows: pa.Table, schema: pa.Schema) -> DataFile:
    """Write rows, sorted by cell and time, to one fsynced file with a unique name."""
    rows = rows.select(schema.names).cast(schema)
    if {*CELL_AND_TIME} <= set(schema.names):
        rows = rows.sort_by([(name, "ascending") for name in CELL_AND_TIME])
    return write_row_groups(folder, [rows], schema)


def write_row_groups(
    folder: Folder, groups: Iterable[pa.Table], schema: pa.Schema
) -> DataFile:
    """Write row groups to one durable file, without holding all of them in memory."""
    files, name = open_files(folder), f"part-{uuid.uuid4()}.parquet"
    group_statistics = []
    with pq.ParquetWriter(name, schema, filesystem=files, compression="zstd") as writer:
        for rows in groups:
            writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
            group_statistics.append(statistics_of(rows))
    if isinstance(folder, Path):
        fsync_file(folder / name)
        fsync_folder(folder)
    status = files.get_file_info(name)
    modified_ms = status.mtime_ns // 1_000_000
    statistics_json = merge_statistics(group_statistics)
    return DataFile(name, status.size, modified_ms, statistics_json)


_COMMIT_LOCKS: defaultdict[Folder, Lock] = defaultdict(Lock)


def commit_lock(path: Folder) -> Lock:
    """Lock of a table, held during a commit until its version is synced.

    Of two commits made at the same time only the later would be synced, and a power
    cut would lose the other.
    """
    return _COMMIT_LOCKS[path]


@dataclass(frozen=True)
class BatchTransaction:
    """Transaction id of a batch, so that it is committed once to each table.

    Attributes:
        app_id: Id of the batches.
        batch_id: Number of the batch.
        offset: Last segment of each stream of the log up to the end of the batch.
    """

    app_id: str
    batch_id: int
    offset: Mapping[str, int] = field(default_factory=dict)

    def is_committed(self, table: DeltaTable) -> bool:
        """Whether the batch is committed to a table."""
        version = table.transaction_version(self.app_id)
        return version is not None and version >= self.batch_id

    def commit_properties(
        self, table: DeltaTable, claim: "JobClaim | None" = None
    ) -> CommitProperties:
        """Properties of its commit: number, claim, and what it read."""
        known = read_transactions(table, self.offset)
        read = [Transaction(s, n) for s, n in self.offset.items() if known.get(s) != n]
        number = Transaction(self.app_id, self.batch_id)
        claimed = [] if claim is None else [claim.transaction()]
        return CommitProperties(app_transactions=[number, *claimed, *read])


@dataclass
class JobClaim:
    """Claim on tables by the job that wrote last; an earlier job cannot append.

    The lock file excludes two jobs at a time. If it was deleted, both would append the
    same levels.

    Attributes:
        paths: Folders of the tables.
        number: Of this claim, higher than those before; 0 before the first `open`.
    """

    paths: Sequence[Folder]
    number: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def open(self, path: Folder) -> DeltaTable:
        """Open a table for `append_rows`.

        Raises:
            SupersededError: Another job has claimed it since.
        """
        self.take()
        table = open_table(path)
        if (table.transaction_version(_JOB) or 0) > self.number:
            raise SupersededError(path)
        return table

    def commit_properties(self) -> CommitProperties:
        """Properties of a commit that fails if another job has claimed the table."""
        return CommitProperties(app_transactions=[self.transaction()])

    def transaction(self) -> Transaction:
        """Transaction with the number of the claim."""
        return Transaction(_JOB, self.number)

    def take(self) -> None:
        """Claim the tables, unless this job has claimed them already."""
        with self._lock:
            if self.number:
                return
            tables = [open_table(path) for path in self.paths]
            numbers = [table.transaction_version(_JOB) or 0 for table in tables]
            self.number = 1 + max(numbers)
            for path, table in zip(self.paths, tables, strict=True):
                commit_files(path, [], self.commit_properties(), read=table)


def create_tables(folder: Folder, names: Iterable[str]) -> None:
    """Create missing tables and columns, and recover tables after a crash.

    In a folder torn commits are moved out of the log, commits that a killed process
    left unsynced are synced. Only one process may call this for a table.
    """
    if isinstance(folder, Path):
        make_folder(folder)
    for name in names:
        _create_table(folder / name, TABLES[name])
    if isinstance(folder, Path):
        fsync_folder(folder)


def _create_table(path: Folder, schema: pa.Schema) -> None:
    if isinstance(path, Path):
        recover_table(path)
        if path.name in DERIVED_TABLES:
            discard_damaged(path)
        path.mkdir(exist_ok=True)
    if not is_table(path):
        properties = _properties(path)
        DeltaTable.create(
            table_url(path), schema, mode="ignore", configuration=properties
        )
    if isinstance(path, Path):
        for commit in newest_commits(path):
            sync_version(path, int(commit.stem))
    _configure(path)
    _add_columns(path, schema)


def _properties(path: Folder) -> dict[str, str]:
    return TABLE_PROPERTIES if isinstance(path, Path) else STORE_PROPERTIES


def _configure(path: Folder) -> None:
    table = open_table(path)
    before, current = table.version(), table.metadata().configuration
    wanted = _properties(path)
    if any(current.get(name) != value for name, value in wanted.items()):
        table.alter.set_table_properties(wanted)
        sync_since(path, before)


def _add_columns(path: Folder, schema: pa.Schema) -> None:
    table = open_table(path)
    present = {field.name for field in table.schema().fields}
    fields = DeltaSchema.from_arrow(schema).fields
    missing = [field for field in fields if field.name not in present]
    if missing:
        table.alter.add_columns(missing)
        sync_newest(path)


def append_files(
    path: Folder,
    files: Sequence[DataFile],
    transaction: BatchTransaction,
    claim: JobClaim | None = None,
) -> None:
    """Commit the files of a batch to a table, unless it is committed already.

    Args:
        path: Folder of the table.
        files: Files to add.
        transaction: The batch.
        claim: Claim on the table; None if it has none.

    Raises:
        SupersededError: Another job has claimed the table since.
    """
    if claim is not None:
        claim.take()
    with commit_lock(path):
        # Opened under the lock: if a pass removed files in between, delta-rs would
        # refuse the commit.
        table = open_table(path) if claim is None else claim.open(path)
        if files and not transaction.is_committed(table):
            adds = [part.add_action() for part in files]
            _commit(table, path, adds, transaction.commit_properties(table, claim))


def commit_files(
    path: Folder,
    files: Sequence[DataFile],
    properties: CommitProperties | None = None,
    removed: Iterable[str] = (),
    read: DeltaTable | None = None,
) -> None:
    """Add files, and remove those in `removed`, in one commit.

    Without files, only the transactions of `properties` are committed.

    Args:
        path: Folder of the table.
        files: Files to add.
        properties: Properties of the commit.
        removed: Names of files to remove.
        read: The version that the files follow from: delta-rs raises if another process
            has committed one of the transactions since. By default the newest.

    Raises:
        SupersededError: Another job has removed one of the files since.
    """
    changes: list[AddAction | RemoveAction] = [part.add_action() for part in files]
    now_ms = max((part.modified_ms for part in files), default=0)
    changes += [RemoveAction(file, True, now_ms) for file in removed]
    commit_actions(path, changes, properties, read)


def commit_actions(
    path: Folder,
    actions: Sequence[AddAction | RemoveAction],
    properties: CommitProperties | None = None,
    read: DeltaTable | None = None,
) -> None:
    """Add and remove files in one commit; see `commit_files`.

    Raises:
        SupersededError: Another job has removed one of the files since.
    """
    removed = {each.path for each in actions if isinstance(each, RemoveAction)}
    with commit_lock(path):
        table = read or open_table(path)
        # delta-rs would remove it again, and add its rows a second time.
        if removed and not removed <= {*file_names(table)}:
            raise SupersededError(path)
        _commit(table, path, actions, properties)


def _commit(
    table: DeltaTable,
    path: Folder,
    actions: Sequence[AddAction | RemoveAction],
    properties: CommitProperties | None,
) -> None:
    table.create_write_transaction(
        list(actions), "append", table.schema(), commit_properties=properties
    )
    sync_newest(path)


def append_rows(
    path: Folder,
    rows: pa.Table,
    claim: JobClaim | None = None,
    read: DeltaTable | None = None,
) -> None:
    """Append rows that are not in the table.

    Args:
        path: Folder of the table.
        rows: Its rows.
        claim: Claim on the table; None if it has none.
        read: The version in which the rows are missing, opened by the claim: delta-rs
            raises if another job has claimed the table or appended since.
    """
    if rows.num_rows:
        part = write_file(path, rows, TABLES[path.name])
        properties = None if claim is None else claim.commit_properties()
        commit_files(path, [part], properties, read=read)


def merge_rows(path: Folder, rows: pa.Table, keys: Iterable[str]) -> None:
    """Insert rows or replace those with the same key; idempotent."""
    if not rows.num_rows:
        return
    with commit_lock(path):
        open_table(path).merge(
            rows,
            predicate=" AND ".join(f"target.{key} = source.{key}" for key in keys),
            source_alias="source",
            target_alias="target",
            # So that statistics of the source exclude files of the target.
            streamed_exec=False,
            writer_properties=WriterProperties(max_row_group_size=ROW_GROUP_ROWS),
        ).when_matched_update_all().when_not_matched_insert_all().execute()
        sync_newest(path)


def delete_rows(path: Folder, predicate: str | None) -> int:
    """Delete rows of a table, all if the predicate is None; returns their number."""
    with commit_lock(path):
        table = open_table(path)
        before = table.version()
        metrics = table.delete(predicate)
        sync_since(path, before)
    return int(metrics["num_deleted_rows"])


def time_literal(unix_us: int) -> str:
    """SQL literal of a time for a predicate; delta-rs compares only equal types."""
    return f"arrow_cast({unix_us}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


def sync_newest(path: Folder) -> None:
    """Fsync the newest version; a version in an object store is durable."""
    if isinstance(path, Path):
        sync_version(path, open_table(path).version())


def sync_since(path: Folder, before: int) -> None:
    """Fsync all versions after `before`; those in an object store are durable."""
    if not isinstance(path, Path):
        return
    for version in range(before + 1, open_table(path).version() + 1):
        sync_version(path, version)


def sync_version(path: Path, version: int) -> None:
    """Fsync a committed version: its files, its commit, and the log's folder."""
    log = path / DELTA_LOG
    for added in read_actions(log / f"{version:020d}.json", "add"):
        # A later commit may have removed the file, and a vacuum deleted it.
        with suppress(FileNotFoundError):
            fsync_file(path / added["path"])
    for file in log.glob(f"{version:020d}.*"):
        fsync_file(file)
    last_checkpoint = log / "_last_checkpoint"
    if last_checkpoint.exists():
        fsync_file(last_checkpoint)
    fsync_folder(log)
    fsync_folder(path)


def update_flags(path: Folder, flags: pa.Table) -> None:
    """Change the flags of readings in silver; rewrites each file that contains one.

    A merge would search for the readings by key in every file, once per group of cells;
    the location of each row is known from reading it.

    Args:
        path: Folder of silver.
        flags: schemas.FLAGS, one row per reading of the table's newest version.

    Raises:
        SupersededError: Another job has rewritten one of the files since.
    """
    if not flags.num_rows:
        return
    parts, files = [], pc.unique(flags["file"]).to_pylist()
    for file in files:
        file_flags = flags.filter(pc.equal(flags["file"], file)).sort_by("row")
        groups = _with_new_flags(path, file, file_flags)
        parts.append(write_row_groups(path, groups, SILVER))
    commit_files(path, parts, REWRITE, removed=files)


def _with_new_flags(path: Folder, file: str, flags: pa.Table) -> Iterator[pa.Table]:
    indices = flags["row"].to_numpy()
    first = 0
    with pq.ParquetFile(file, filesystem=open_files(path)) as parquet:
        for number in range(parquet.num_row_groups):
            rows = cast_to_schema(parquet.read_row_group(number), SILVER)
            begin, end = np.searchsorted(indices, (first, first + rows.num_rows))
            if begin < end:
                group_flags = flags.slice(begin, end - begin)
                rows = _replace_flags(rows, group_flags, indices[begin:end] - first)
            yield rows
            first += rows.num_rows


def _replace_flags(rows: pa.Table, flags: pa.Table, indices: "np.ndarray") -> pa.Table:
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[indices] = True
    for name in ("flag", "flag_why"):
        old, new = rows[name].combine_chunks(), flags[name].combine_chunks()
        replaced = pc.replace_with_mask(old, pa.array(mask), new)
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), replaced)
    return rows


@dataclass(frozen=True)
class StoredCellStates:
    """Stored scoring states of some cells, at the arrival of new readings.

    Attributes:
        valid: For each cell the last state that the readings do not change: its Unix
            time in seconds, and its encoding by `scoring.saved_states`.
        all_times: (cell, Unix time in microseconds) of all stored states.
    """

    valid: Mapping[str, tuple[int, bytes]]
    all_times: Sequence[tuple[str, int]]

    def newest_s(self) -> dict[str, int]:
        """Unix time of the newest state of each cell, valid or not."""
        newest: dict[str, int] = {}
        for cell, at_us in self.all_times:
            newest[cell] = max(at_us // _MICRO, newest.get(cell, 0))
        return newest

    def stale(self, new: pa.Table) -> pa.Table:
        """Keys of the states that are no longer valid, or no longer kept.

        Args:
            new: States to be stored; schemas.CELL_STATES.
        """
        latest = {cell: at_s for cell, (at_s, _) in self.valid.items()}
        times_s = [us // _MICRO for us in new["at"].cast(pa.int64()).to_pylist()]
        newest = latest | dict(zip(new["cell"].to_pylist(), times_s, strict=True))
        invalid = [
            {"cell": cell, "at": at_us}
            for cell, at_us in self.all_times
            if at_us > latest.get(cell, 0) * _MICRO
            or (new.num_rows and not keeps_state(at_us / _MICRO, newest.get(cell, 0)))
        ]
        return pa.Table.from_pylist(invalid, schema=STATE_KEYS)


STATE_KEYS: Final = pa.schema([CELL_STATES.field(name) for name in CELL_AND_TIME])
"""Key of a cell state."""


def replace_cell_states(path: Folder, stale: pa.Table, new: pa.Table) -> None:
    """Delete states, and append others.

    Args:
        path: Folder of the table ``memories``.
        stale: Keys of states to delete.
        new: schemas.CELL_STATES.
    """
    if stale.num_rows:
        matches = (f"target.{key} = source.{key}" for key in CELL_AND_TIME)
        open_table(path).merge(
            stale,
            predicate=" AND ".join(matches),
            source_alias="source",
            target_alias="target",
            streamed_exec=False,
        ).when_matched_delete().execute()
        sync_newest(path)
    append_rows(path, new)


def read_cell_states(
    path: Folder,
    earliest_us: Mapping[str, int],
    known: Iterable[FileRange] | None = None,
) -> StoredCellStates:
    """Read the stored states of the cells that have new readings.

    Args:
        path: Folder of the table ``memories``.
        earliest_us: For each cell the Unix time, in microseconds, of its earliest
            new reading.
        known: Files of the table; None for those of its newest version.
    """
    rows = CellRowReader(path, CELL_STATES, sorted(earliest_us), 0)
    last: dict[str, tuple[int, bytes]] = {}
    others = []
    for row in rows.read(rows.list_files(known)).sort_by("at").to_pylist():
        cell, at_us = row["cell"], round(row["at"].timestamp() * _MICRO)
        others.append((cell, at_us))
        is_valid = at_us / _MICRO <= last_valid_state_s(earliest_us[cell] / _MICRO)
        if is_valid and row["format"] == STATE_FORMAT:
            last[cell] = (at_us // _MICRO, row["body"])
    return StoredCellStates(last, others)
