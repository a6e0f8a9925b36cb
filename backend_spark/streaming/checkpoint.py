"""Checkpoint of the scoring query: kept on disk, and checked against the tables.

Spark never calls fsync, so a power cut may lose or tear files of the checkpoint.

Bronze has, in the commit of each batch, the batch's number and the offset of the log
up to which messages are in the tables. A checkpoint that does not agree with them was
deleted or restored from a backup, or the tables were. It is discarded, and Spark starts
at the offset of bronze: no message is missing or doubled.
"""

import json
import logging
import shutil
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backend_spark.ingest.log import (
    REPLACED_FILE,
    MessageLog,
    check_not_replaced,
)
from backend_spark.ingest.retention import read_planned_offset
from backend_spark.ingest.segment_log import LogOffset
from backend_spark.tables.reader import read_transactions
from backend_spark.tables.store import (
    APP_ID_FILE,
    Folder,
    has_file,
    open_table,
    read_text,
    write_text,
)
from service_runtime.files import fsync_file, fsync_folder, make_folder, write_atomic

log = logging.getLogger(__name__)

FOLDER_ID_FILE: Final = ".folder_id"
_CLAIMED_BY: Final = ".claimed_by"
FIRST_BATCH_FILE: Final = "first_batch"
START_FILE: Final = "start_offset"
_DISCARDED: Final = ".discarded"
METADATA_FILE: Final = "metadata"
_LINES: Final = {"offsets": 3, "commits": 2}
"""Lines of a file: version, settings and offset; version and settings."""


@dataclass(frozen=True)
class QueryStart:
    """Where the query continues.

    Attributes:
        first_batch: Number in the tables of the batch that Spark counts as 0.
        offset: Offset of the log at which that batch starts. Spark stores only where
            it ends, and asks again if the batch is not finished.
        is_new: Whether Spark has not planned a batch in this checkpoint.
    """

    first_batch: int
    offset: LogOffset
    is_new: bool


def read_app_id(tables: Folder, checkpoint: Path) -> str:
    """Id of the batches in transactions of the tables; made if missing.

    Earlier versions had it in the checkpoint only.
    """
    name, earlier = APP_ID_FILE, checkpoint / APP_ID_FILE[1:]
    if not has_file(tables, name):
        known = earlier.read_text(encoding="ascii") if earlier.exists() else ""
        write_text(tables, name, known or str(uuid.uuid4()))
    return read_text(tables, name)


def check_folder(tables: Folder, checkpoints: Path) -> None:
    """Check that no other data folder has the job of the tables since this one had it.

    A folder that had it, and finds another one there, belongs to a machine that was
    replaced. It does not take the tables back: its log lacks what the new machine has
    received, and both would end each other's jobs for ever.

    Args:
        tables: Tables outside of the data folder.
        checkpoints: Folder of the checkpoints, in the data folder.

    Raises:
        SettingsError: This machine was replaced.
    """
    check_not_replaced(checkpoints)
    known, current = _read_claims(tables, checkpoints)
    if known is not None and current not in {None, known}:
        machine = str(current).partition(" ")[2]
        write_atomic(checkpoints / REPLACED_FILE, machine.encode())
        (checkpoints / FOLDER_ID_FILE).unlink()
        check_not_replaced(checkpoints)


def claim_for_folder(tables: Folder, checkpoints: Path) -> None:
    """Store in the tables that this data folder has their job; after `check_folder`.

    Only once the job runs: a trial start on another machine must not replace this one.
    """
    known, current = _read_claims(tables, checkpoints)
    if known is None or current is None:
        known = known or f"{uuid.uuid4()} {socket.gethostname()}"
        write_text(tables, _CLAIMED_BY, known)
        make_folder(checkpoints)
        write_atomic(checkpoints / FOLDER_ID_FILE, known.encode())


def _read_claims(tables: Folder, checkpoints: Path) -> tuple[str | None, str | None]:
    """Id of the data folder, and that of the folder that the tables name."""
    path = checkpoints / FOLDER_ID_FILE
    known = path.read_text(encoding="utf-8") if path.exists() else None
    current = read_text(tables, _CLAIMED_BY) if has_file(tables, _CLAIMED_BY) else None
    return known, current


def check_checkpoint(
    checkpoint: Path, bronze: Folder, messages: MessageLog, app_id: str
) -> QueryStart:
    """Discard a checkpoint that does not agree with bronze; where the query continues.

    Args:
        checkpoint: Folder of the checkpoint, after `repair_checkpoint`.
        bronze: Folder of the table.
        messages: The log.
        app_id: Made by `read_app_id`.
    """
    shutil.rmtree(checkpoint.parent / _DISCARDED, ignore_errors=True)
    make_folder(checkpoint)
    table, bounds = open_table(bronze), messages.bounds()
    version = table.transaction_version(app_id)
    last = -1 if version is None else version
    plans = _newest_first(checkpoint / "offsets")
    planned = read_planned_offset(plans[0]) or {} if plans else {}
    streams = bounds.keys() | planned.keys()
    offset = read_transactions(table, streams)
    if plans:
        known = _read_start(checkpoint)
        if _agrees(checkpoint, int(plans[0].name), last - known.first_batch):
            return known
        if last >= 0 and not offset:
            log.error(
                "tables and checkpoint are of different times, and the tables are of a "
                "version that did not store their offset: messages may be missing "
                "from %s; restore tables and checkpoints of one backup",
                bronze.parent,
            )
            return known
        _report_gap(planned, offset, bounds)
        _discard(checkpoint, last)
    if table.count() and not offset:
        log.warning("no checkpoint and no offset: all segments are read again")
    write_atomic(checkpoint / FIRST_BATCH_FILE, str(last + 1).encode())
    write_atomic(checkpoint / START_FILE, json.dumps(offset).encode())
    return QueryStart(last + 1, offset, is_new=True)


def _read_start(checkpoint: Path) -> QueryStart:
    """Where a checkpoint with a plan began; earlier versions stored less."""
    first_batch, start = checkpoint / FIRST_BATCH_FILE, checkpoint / START_FILE
    return QueryStart(
        int(first_batch.read_text(encoding="ascii")) if first_batch.exists() else 0,
        json.loads(start.read_text(encoding="utf-8")) if start.exists() else {},
        is_new=False,
    )


def _agrees(checkpoint: Path, planned: int, in_bronze: int) -> bool:
    """Whether bronze ends with the last planned batch, or with the one before.

    A batch with a commit file is in bronze. That file is not fsynced, so it may be
    missing.
    """
    commits = _newest_first(checkpoint / "commits")
    committed = int(commits[0].name) if commits else -1
    return max(committed, planned - 1) <= in_bronze <= planned


def _report_gap(
    planned: LogOffset, offset: LogOffset, bounds: Mapping[str, tuple[int, int]]
) -> None:
    """Log an error if segments that the tables lack have been deleted."""
    first = {stream: low for stream, (low, _) in bounds.items()}
    gaps = (
        min(first.get(stream, seq + 1), seq + 1) - offset.get(stream, -1) - 1
        for stream, seq in planned.items()
    )
    if count := sum(max(0, gap) for gap in gaps):
        log.error(
            "%d segments are neither in the tables nor in the log: their messages are "
            "lost unless a backup of the log has them",
            count,
        )


def _discard(checkpoint: Path, last: int) -> None:
    """Move the checkpoint away as a whole, and delete it."""
    log.warning(
        "the checkpoint does not agree with the tables, which end with batch %d; "
        "the query starts at their offset",
        last,
    )
    away = checkpoint.parent / _DISCARDED
    make_folder(away)
    checkpoint.rename(away / checkpoint.name)
    fsync_folder(checkpoint.parent)
    shutil.rmtree(away)
    make_folder(checkpoint)


def sync_plan(checkpoint: Path, batch_id: int) -> None:
    """Fsync the plan of a batch, before any table has a row of the batch.

    The file ``offsets/N`` determines which segments batch N reads. A batch that is
    planned again may read more segments, and a table that already has batch N would
    skip them.
    """
    plan = checkpoint / "offsets" / str(batch_id)
    for path in (checkpoint / METADATA_FILE, plan):
        for file in (path, _checksum(path)):
            if file.exists():
                fsync_file(file)
        fsync_folder(path.parent)


def repair_checkpoint(checkpoint: Path) -> list[Path]:
    """Delete files that a power cut tore, with which Spark would not start.

    No table has a row of a batch whose plan is torn (`sync_plan`). A batch whose commit
    is lost is run again, and its tables have it already.

    Returns:
        The deleted files.
    """
    torn = []
    for folder, lines in _LINES.items():
        for path in _newest_first(checkpoint / folder):
            # A torn checksum would make Spark reject a complete file.
            _checksum(path).unlink(missing_ok=True)
            if _is_complete(path, lines):
                break
            torn.append(path)
    metadata, plans = checkpoint / METADATA_FILE, _newest_first(checkpoint / "offsets")
    has_begun = any(_newest_first(checkpoint / "commits")) or len(plans) > 1
    if metadata.exists() and not has_begun and not _is_complete(metadata, 1):
        torn += [metadata, _checksum(metadata), *plans]
    for path in dict.fromkeys(torn):
        log.warning("%s was torn by a power cut: deleted", path)
        path.unlink(missing_ok=True)
        fsync_folder(path.parent)
    for name in _LINES:
        for path in _unfinished(checkpoint / name):
            path.unlink()
    return torn


def _unfinished(folder: Path) -> list[Path]:
    """Files that Spark had not renamed yet when it was killed, and stray checksums.

    Spark does not start its first batch in a folder that has any file.
    """
    kept = {_checksum(path) for path in _newest_first(folder)}
    return [path for path in folder.glob(".*") if path.is_file() and path not in kept]


def _newest_first(folder: Path) -> list[Path]:
    numbered = [path for path in folder.glob("*") if path.name.isdigit()]
    return sorted(numbered, key=lambda path: int(path.name), reverse=True)


def _is_complete(path: Path, min_lines: int) -> bool:
    """Whether a file has enough lines and the last one is complete JSON."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        return len(lines) >= min_lines and bool(json.loads(lines[-1]))
    except json.JSONDecodeError:
        return False


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")
