"""Databases of the console: opened safely; a full disk and damage, and what to do.

A loop of the console that meets the damage ends it, as the start does; a request is
refused, because a page that only it reads hinders nobody else.

SQLite's own errors name no file. The console never replaces the journal and the
notifications itself, because they cannot be made anew: a person decides between a
backup and an empty file. A damaged page that nothing reads does not hinder the start.

SQLite takes an emptied file for a new database, and deletes the write-ahead log beside
it, which may have most of the content. Such a file is therefore refused before SQLite
opens it, also for reading, and a new one is never empty on the disk.
"""

import asyncio
import errno
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fastapi import Request, Response

from backend_spark.console.http import json_response
from backend_spark.errors import DamagedDatabaseError, FullDiskError
from service_runtime.files import file_size, fsync_folder, write_atomic
from service_runtime.lifecycle import LogLimit

log = logging.getLogger(__name__)

JOURNAL_FILE: Final = "journal.sqlite"
NOTIFICATIONS_FILE: Final = "notifications.sqlite"

LOSSES: Final = {
    JOURNAL_FILE: "decisions about events and readings, notes, thresholds set in the "
    "page, landslides, CAP messages, overlays and the record of logins are then lost, "
    "and events found again are notified again",
    NOTIFICATIONS_FILE: "what waits for delivery and the delivery log are then lost, "
    "and events with a sign in the last day are notified again",
}
"""What is lost with each file."""

INSUFFICIENT_STORAGE: Final = 507
"""HTTP status; source: RFC 4918, section 11.5."""

Handler = Callable[[Request, Exception], Awaitable[Response]]

_ENDS: Final = ("-journal", "-wal", "-shm", "")
"""Ends of the names of a database's files. The logs are moved first: SQLite would apply
them to a new file."""


def find_emptied(path: Path) -> str:
    """Why SQLite would replace a database by a new one; empty if it would not."""
    if path.exists():
        return "" if file_size(path) else "a file of 0 bytes"
    wal = path.with_name(f"{path.name}-wal")
    return f"no file beside {wal.name}" if file_size(wal) else ""


def refuse_emptied(path: Path, file: str) -> None:
    """Refuse a database that SQLite would replace by a new one.

    Args:
        path: Of the database.
        file: Which one it is, a key of `LOSSES`.

    Raises:
        DamagedDatabaseError: SQLite would.
    """
    if problem := find_emptied(path):
        raise DamagedDatabaseError(path, problem, LOSSES[file])


def open_database(
    path: Path, tables: str, mode: int | None = None
) -> sqlite3.Connection:
    """Open a database for several threads; each commit is on disk.

    Args:
        path: Of the file; its folder is made.
        tables: SQL that makes the tables that are missing.
        mode: Permission bits of a new file; None leaves them to the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _create(path, tables, mode)
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    db.executescript(tables)
    return db


def _create(path: Path, tables: str, mode: int | None) -> None:
    """Make a new database, unless another process does.

    A kill leaves the whole file or none, and perhaps a folder that nothing reads; its
    name is not of the form ``*.sqlite*``, which a restore looks for.
    """
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(tables)
        content = db.serialize()
    with TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
        new = Path(folder) / path.name
        write_atomic(new, content, mode)
        with suppress(FileExistsError):
            os.link(new, path)  # a rename would replace the other process's file
    fsync_folder(path.parent)


def is_full(error: Exception) -> bool:
    """Whether a write failed for want of space."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in {
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_CANTOPEN,
        }
    full = {errno.ENOSPC, errno.EDQUOT}
    return isinstance(error, OSError) and error.errno in full


def find_damage(path: Path) -> str:
    """What is wrong with a database; empty if nothing is, or there is none."""
    if not path.exists():
        return ""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as db:
            return check_integrity(db)
    except sqlite3.DatabaseError as error:
        return str(error) if is_damage(error) else ""


def check_integrity(db: sqlite3.Connection) -> str:
    """The first thing that SQLite finds wrong in a database; empty if nothing."""
    (found,) = db.execute("pragma integrity_check(1)").fetchone()
    return "" if found == "ok" else " ".join(str(found).split())


def is_damage(error: Exception) -> bool:
    """Whether the file is wrong, and not its rights, a lock or the disk."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def set_aside(path: Path) -> Path:
    """Rename a damaged database and what belongs to it; returns the new name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for end in _ENDS:
        part = path.with_name(path.name + end)
        if part.exists():
            part.rename(aside.with_name(aside.name + end))
    return aside


@contextmanager
def naming_damage(folder: Path) -> Iterator[None]:
    """Name the file, or the folder, when the console's databases cannot be opened.

    Args:
        folder: Of the databases.

    Raises:
        DamagedDatabaseError: One is damaged, or was emptied, also before the use.
        FullDiskError: Their disk is full.
        PermissionError: This user may not write one, or the folder.
    """
    _refuse_emptied(folder)
    try:
        yield
    except (OSError, sqlite3.DatabaseError) as error:
        _check_rights(folder)
        if is_full(error):
            raise FullDiskError(folder, str(error)) from error
        if not is_damage(error):
            raise
        _refuse_emptied(folder)
        found = {name: find_damage(folder / name) for name in LOSSES}
        damaged = next((name for name, problem in found.items() if problem), None)
        if damaged is None:
            raise
        raise DamagedDatabaseError(
            folder / damaged, found[damaged], LOSSES[damaged]
        ) from error


def _refuse_emptied(folder: Path) -> None:
    for name in LOSSES:
        refuse_emptied(folder / name, name)


def _check_rights(folder: Path) -> None:
    """SQLite reports forbidden files as a full or read-only disk."""
    for path in (folder, *folder.glob("*.sqlite*")):
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def fault_handler(folder: Path, limit: LogLimit) -> Handler:
    """Make the handler of a request that the storage refuses.

    It answers 507 on a full disk, and 500 if a database is damaged. The page translates
    the former, and needs the folder for it.

    Args:
        folder: Of the databases.
        limit: Limits the lines in the log, which anyone can cause.
    """
    found = ""  # the file can only be replaced while the console is stopped

    async def refuse(request: Request, error: Exception) -> Response:
        nonlocal found
        if is_damage(error):
            found = found or await asyncio.to_thread(_named, folder, error)
            problem = found or f"a database in {folder} was damaged: {error}; try again"
            status, body = 500, {"detail": problem}
        elif is_full(error):
            remedy = "free space on its disk, then try again"
            problem = f"cannot be saved in {folder}: {error}; {remedy}"
            status = INSUFFICIENT_STORAGE
            body = {"detail": f"the request {problem}", "folder": str(folder)}
        else:
            raise error
        path = request.url.path
        if (count := limit.count(path)) is not None:
            log.error("%d requests of %s: %s", count, path, problem)
        return json_response(body, status)

    return refuse


def _named(folder: Path, error: Exception) -> str:
    """File, problem and remedy; empty if no file is damaged any more."""
    try:
        with naming_damage(folder):
            raise error
    except DamagedDatabaseError as named:
        return str(named)
    except sqlite3.Error:
        return ""
