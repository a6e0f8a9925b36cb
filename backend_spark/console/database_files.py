"""Files of the console's journal and notifications, which only a backup can replace.

SQLite takes an emptied file for a new database, and deletes the write-ahead log beside
it, which may have most of the content. Such a file is therefore refused before SQLite
opens it, also for reading, and a new one is never empty on the disk.
"""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from backend_spark.errors import DamagedDatabaseError
from service_runtime.files import file_size, fsync_folder, write_atomic

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


def find_emptied(path: Path) -> str:
    """Why SQLite would replace a database by a new one; empty if it would not."""
    if path.exists():
        return "" if file_size(path) else "a file of 0 bytes"
    log = path.with_name(f"{path.name}-wal")
    return f"no file beside {log.name}" if file_size(log) else ""


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
