"""Delta commits that are made once and survive a loss of power.

delta-rs writes the same transaction twice when asked twice, and never calls fsync:
both are done here.

Parquet files of a Delta table: written, fsynced, and described for its log.

Changing the flags of readings that are in silver already.

Memories of cells in their table: the last that holds, and new ones in its wake.
"""

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction

from backend_spark.scoring.cell_state import FORMAT, holds_for, is_kept
from backend_spark.tables.reader import CellRows
from backend_spark.tables.recovery import (
    LOG,
    MOST_UNSYNCED,
    actions,
    mend,
    newest_commits,
)
from backend_spark.tables.schemas import MEMORIES, SILVER, TABLES, conform
from service_runtime.files import fsync_file, fsync_folder, make_folder

STATISTICS = ("cell", "at", "received_at", "batch_id")
"""Columns whose range goes into the log, so that readers skip files."""

CLUSTERED = ("cell", "at")
"""Order of rows in a file, so that a reader of some cells skips groups of rows."""

GROUP_ROWS = 16_384
"""Rows that a reader of one cell reads at least."""


@dataclass(frozen=True)
class Part:
    """One file on disk, of no table until it is committed.

    Attributes:
        file: Name within the table's folder.
        size_bytes: Its size.
        modified_ms: Unix time of its writing.
        statistics: Delta's JSON of row count and ranges.
    """

    file: str
    size_bytes: int
    modified_ms: int
    statistics: str

    def action(self, *, changes_data: bool = True) -> AddAction:
        """For the commit that makes it a part of the table."""
        return AddAction(
            self.file,
            self.size_bytes,
            {},
            self.modified_ms,
            changes_data,
            self.statistics,
        )


def write_part(folder: Path, rows: pa.Table, schema: pa.Schema) -> Part:
    """Write rows to one fsynced file, under a name that no other has."""
    rows = rows.select(schema.names).cast(schema)
    if {*CLUSTERED} <= set(schema.names):
        rows = rows.sort_by([(name, "ascending") for name in CLUSTERED])
    return write_groups(folder, [rows], schema)


def write_groups(folder: Path, groups: Iterable[pa.Table], schema: pa.Schema) -> Part:
    """Write groups of rows, of the schema, to one fsynced file as they come."""
    file = folder / f"part-{uuid.uuid4()}.parquet"
    told = []
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in groups:
            writer.write_table(rows, row_group_size=GROUP_ROWS)
            told.append(_ranges(rows))
    fsync_file(file)
    fsync_folder(folder)
    status = file.stat()
    modified_ms = status.st_mtime_ns // 1_000_000
    return Part(file.name, status.st_size, modified_ms, _joined(told))


def statistics(rows: pa.Table) -> str:
    """Delta's statistics of a file: the row count, and the ranges of some columns."""
    return _joined([_ranges(rows)])


def _ranges(rows: pa.Table) -> dict[str, Any]:
    low: dict[str, str | int] = {}
    high: dict[str, str | int] = {}
    nulls: dict[str, int] = {}
    for name in set(STATISTICS) & set(rows.column_names):
        nulls[name] = rows[name].null_count
        ends = pc.min_max(rows[name]).as_py()
        if ends["min"] is not None:
            low[name] = _shown(ends["min"], timedelta(0))
            # Times are kept in milliseconds: the upper end is rounded up.
            high[name] = _shown(ends["max"], timedelta(microseconds=999))
    return {
        "numRecords": rows.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
    }


def _joined(told: Sequence[dict[str, Any]]) -> str:
    """Statistics of groups of rows together."""
    whole: dict[str, Any] = {"numRecords": sum(each["numRecords"] for each in told)}
    ways: dict[str, Callable[[list[Any]], Any]] = {
        "minValues": min,
        "maxValues": max,
        "nullCount": sum,
    }
    for kind, way in ways.items():
        values: dict[str, list[Any]] = {}
        for each in told:
            for name, value in each[kind].items():
                values.setdefault(name, []).append(value)
        whole[kind] = {name: way(found) for name, found in values.items()}
    return json.dumps(whole)


def _shown(value: str | int | datetime, add: timedelta) -> str | int:
    if isinstance(value, str | int):
        return value
    shown = (value + add).astimezone(UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")


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


def reflag(path: Path, flags: pa.Table) -> None:
    """Give readings of silver other flags, each file that holds one written anew.

    A merge would look for the readings by their names, in every file again for each
    lot of cells; whoever read them knows where they are.

    Args:
        path: Folder of silver.
        flags: schemas.FLAGS, one row a reading of the table's newest version.
    """
    if not flags.num_rows:
        return
    parts, gone = [], []
    for file in pc.unique(flags["file"]).to_pylist():
        ours = flags.filter(pc.equal(flags["file"], file)).sort_by("row")
        parts.append(write_groups(path, _reflagged(path / file, ours), SILVER))
        gone.append(file)
    commit_files(DeltaTable(str(path)), path, parts, gone=gone)


def _reflagged(file: Path, flags: pa.Table) -> Iterator[pa.Table]:
    places = flags["row"].to_numpy()
    first = 0
    with pq.ParquetFile(file) as parquet:
        for number in range(parquet.num_row_groups):
            rows = conform(parquet.read_row_group(number), SILVER)
            begin, end = np.searchsorted(places, (first, first + rows.num_rows))
            if begin < end:
                ours = flags.slice(begin, end - begin)
                rows = _changed(rows, ours, places[begin:end] - first)
            yield rows
            first += rows.num_rows


def _changed(rows: pa.Table, flags: pa.Table, places: "np.ndarray") -> pa.Table:
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[places] = True
    for name in ("flag", "flag_why"):
        old, new = rows[name].combine_chunks(), flags[name].combine_chunks()
        changed = pc.replace_with_mask(old, pa.array(mask), new)
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), changed)
    return rows


KEY = ("cell", "at")
_MICRO = 1_000_000


@dataclass(frozen=True)
class Remembered:
    """Memories of some cells, as new readings find them.

    Attributes:
        path: Folder of the table.
        last: Of each cell the last that the readings leave as it is: its moment in
            Unix seconds, and what `transforms.memory.encode` wrote.
        others: (cell, moment in Unix microseconds) of all.
    """

    path: Path
    last: Mapping[str, tuple[int, bytes]]
    others: Sequence[tuple[str, int]]

    def replace(self, new: pa.Table) -> None:
        """Add memories, and delete those of their cells that hold no longer.

        Args:
            new: schemas.MEMORIES.
        """
        latest = {c: at for c, (at, _) in self.last.items()}
        newest = latest | dict(zip(new["cell"].to_pylist(), _seconds(new), strict=True))
        gone = [
            {"cell": cell, "at": at_us}
            for cell, at_us in self.others
            if at_us > latest.get(cell, 0) * _MICRO
            or (new.num_rows and not is_kept(at_us / _MICRO, newest.get(cell, 0)))
        ]
        self._delete(gone)
        append_rows(self.path, new)

    def _delete(self, keys: Sequence[dict[str, object]]) -> None:
        if not keys:
            return
        schema = pa.schema([MEMORIES.field(name) for name in KEY])
        DeltaTable(str(self.path)).merge(
            pa.Table.from_pylist(list(keys), schema=schema),
            predicate=" AND ".join(f"target.{key} = source.{key}" for key in KEY),
            source_alias="source",
            target_alias="target",
            streamed_exec=False,
        ).when_matched_delete().execute()
        sync_version(self.path, DeltaTable(str(self.path)).version())


def remembered(path: Path, earliest_us: Mapping[str, int]) -> Remembered:
    """Memories of the cells that new readings came for.

    Args:
        path: Folder of the table.
        earliest_us: For each cell the Unix time, in microseconds, of its earliest
            new reading.
    """
    rows = CellRows(str(path), MEMORIES, sorted(earliest_us), 0)
    last: dict[str, tuple[int, bytes]] = {}
    others = []
    for row in rows.read(rows.files()).sort_by("at").to_pylist():
        cell, at_us = row["cell"], round(row["at"].timestamp() * _MICRO)
        others.append((cell, at_us))
        holds = at_us / _MICRO <= holds_for(earliest_us[cell] / _MICRO)
        if holds and row["format"] == FORMAT:
            last[cell] = (at_us // _MICRO, row["body"])
    return Remembered(path, last, others)


def _seconds(rows: pa.Table) -> list[int]:
    return [us // _MICRO for us in rows["at"].cast(pa.int64()).to_pylist()]
