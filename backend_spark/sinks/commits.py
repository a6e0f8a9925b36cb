"""Delta commits that are made once and survive a loss of power.

delta-rs writes the same transaction twice when asked twice, and never calls fsync:
both are done here.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction, RemoveAction

from backend_spark.durability import fsync_file, fsync_folder
from backend_spark.schemas import TABLES

LOG = "_delta_log"
CONFIGURATION = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 7 days",
}


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


def make_tables(folder: Path) -> None:
    """Make every table that is not there, and every column that came later."""
    for name, schema in TABLES.items():
        path = folder / name
        if not DeltaTable.is_deltatable(str(path)):
            path.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                str(path), schema, mode="ignore", configuration=CONFIGURATION
            )
            sync_version(path, 0)
        _add_columns(path, schema)


def _add_columns(path: Path, schema: pa.Schema) -> None:
    table = DeltaTable(str(path))
    there = {field.name for field in table.schema().fields}
    wanted = DeltaSchema.from_arrow(schema).fields
    missing = [field for field in wanted if field.name not in there]
    if missing:
        table.alter.add_columns(missing)
        sync_version(path, DeltaTable(str(path)).version())


def append_files(path: Path, files: Iterable[AddAction], once: Once) -> None:
    """Make Parquet files part of a table, if the batch has not done so already.

    A second writer that commits the same batch in between makes the commit fail
    in delta-rs, because this handle is stale then.
    """
    table = DeltaTable(str(path))
    actions: list[AddAction | RemoveAction] = list(files)
    if not actions or once.is_done(table):
        return
    table.create_write_transaction(
        actions, "append", table.schema(), commit_properties=once.properties()
    )
    sync_version(path, DeltaTable(str(path)).version())


def merge_rows(path: Path, rows: pa.Table, keys: Iterable[str], once: Once) -> None:
    """Insert rows, replacing those with the same key, once per batch."""
    table = DeltaTable(str(path))
    if not rows.num_rows or once.is_done(table):
        return
    table.merge(
        rows,
        predicate=" AND ".join(f"target.{key} = source.{key}" for key in keys),
        source_alias="source",
        target_alias="target",
        # Statistics of the source then tell which files need not be opened.
        streamed_exec=False,
        commit_properties=once.properties(),
    ).when_matched_update_all().when_not_matched_insert_all().execute()
    sync_version(path, DeltaTable(str(path)).version())


def sync_version(path: Path, version: int) -> None:
    """Make a committed version survive a loss of power."""
    log = path / LOG
    commit = log / f"{version:020d}.json"
    for line in commit.read_text(encoding="utf-8").splitlines():
        added = json.loads(line).get("add")
        if added is not None:
            fsync_file(path / added["path"])
    for file in log.glob(f"{version:020d}.*"):
        fsync_file(file)
    last_checkpoint = log / "_last_checkpoint"
    if last_checkpoint.exists():
        fsync_file(last_checkpoint)
    fsync_folder(log)
    fsync_folder(path)
