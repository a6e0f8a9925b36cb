"""Spare queue file in memory, for a node whose disk cannot be written at its start.

A worn SD card becomes read-only. What it has is read once, and nothing on it changes.
A path that the node may not write has the same consequence and another remedy.
"""

import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from edge_agent.queue.base import QueueFileError, SpareReason
from edge_agent.queue.recovery import has_only_its_log, salvage
from edge_agent.queue.schema import connect, migrate
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.queue.store import Store
from edge_agent.queue.write_journal import journal_path

log = logging.getLogger(__name__)

SPARE_BYTES = 10_000_000
"""Budget of a spare queue. Its file takes as much of the memory."""

_MISPLACED = {
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
"""Errors of a path or of rights, which no disk has."""

_IN_USE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def open_or_spare(
    open_queue: Callable[[Path | None], SqliteQueue],
    path: Path,
    folder: Path,
    state_folder: Path | None = None,
) -> SqliteQueue:
    """Open a queue, or a spare one in memory if its disk cannot be written.

    Args:
        open_queue: Opens the queue, or a spare file.
        path: The queue file.
        folder: For the spare file, in memory; replaced.
        state_folder: The folder that systemd lets the service write; None without it.

    Raises:
        QueueFileError: The queue cannot be opened, for another reason or because
            there is no memory either; or another agent uses it.
    """
    try:
        return _owned(open_queue(None), path)
    except QueueFileError as error:
        if not is_disk_failure(error):
            raise
        is_misplaced = _is_misplaced(error, path, state_folder)
        remedy = _remedy(state_folder) if is_misplaced else "replace the SD card"
        log.error("%s; messages are in memory only: %s", error, remedy)  # noqa: TRY400
        try:
            made = open_queue(make_spare(path, folder))
        except OSError as second:
            log.error("there is no queue in memory either: %s", second)  # noqa: TRY400
            raise error from error.__cause__
        failure = f"{error}; {remedy}" if is_misplaced else str(error)
        made.spare_for = SpareReason(failure, is_misplaced)
        return made


def _owned(opened: SqliteQueue, path: Path) -> SqliteQueue:
    """The queue, unless another agent leases from it.

    Both would send the same messages, and end each other's connections.
    """
    if opened.is_owner:
        return opened
    opened.close()
    reason = "another agent uses it; stop that one, as by systemctl stop edge-agent"
    raise QueueFileError(str(path), reason)


def _is_misplaced(error: QueueFileError, path: Path, state_folder: Path | None) -> bool:
    """Whether a path or its owner is wrong, and not the disk."""
    cause = error.__cause__
    if not isinstance(cause, OSError):  # SQLite: the lock files could be written
        # It makes its log in the folder. On a card that has just become read-only,
        # nothing may be written, whoever owns it.
        is_read_only = os.statvfs(path.parent).f_flag & os.ST_RDONLY
        needed = [each for each in (path, path.parent) if each.exists()]
        return not (is_read_only or all(os.access(each, os.W_OK) for each in needed))
    if cause.errno == errno.EROFS:  # for a service, all but its folder is read-only
        return state_folder is not None and not path.is_relative_to(state_folder)
    return cause.errno in _MISPLACED


def _remedy(state_folder: Path | None) -> str:
    where = "in a folder" if state_folder is None else f"below {state_folder}, in one"
    return (
        f"queue.path must be {where} that user {os.geteuid()} may write: correct it "
        "in the settings, or the owner of the folder and its files by chown"
    )


def is_disk_failure(error: QueueFileError) -> bool:
    """Whether a queue cannot be opened because of its disk.

    A file that another process uses, or a later version wrote, is no failure of it.
    """
    cause = error.__cause__
    if isinstance(cause, sqlite3.DatabaseError):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF not in _IN_USE
    return isinstance(cause, OSError)


def make_spare(queue: Path, folder: Path) -> Path:
    """Make a queue file of what can be read of another one.

    Ids and priorities are kept: what was sent before is a duplicate for its receiver.

    Args:
        queue: The file that cannot be written.
        folder: In memory; replaced.

    Returns:
        The new file, with the journal of the old one beside it.

    Raises:
        OSError: The folder cannot be made.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    spare = folder / "queue.db"  # the path may have no name, as an empty one
    with closing(connect(str(spare))) as db:
        migrate(db)
        try:
            if queue.is_file() or has_only_its_log(queue):
                salvage(queue, Store(spare, db), SPARE_BYTES)
            if journal_path(queue).exists():
                shutil.copyfile(journal_path(queue), journal_path(spare))
        except (OSError, sqlite3.DatabaseError) as error:
            log.error("the rest of %s cannot be read: %s", queue, error)  # noqa: TRY400
    return spare
