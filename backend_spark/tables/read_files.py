"""Import of files into a table; the next runs skip files without opening them.

Which were read is in a cache: without it, or beside another table or an older version,
all are read again.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from backend_spark.config import KeepSection
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.maintenance import delete_old_rows
from backend_spark.tables.store import Folder, open_table
from service_runtime.files import acquire_lock, write_best_effort

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

SAVE_EVERY: Final = 100
"""Files read between two savings, so that a run that is killed is not in vain."""

Mark = list[int]
"""Inode, size and time of the last change of a file, which no copying program sets."""


class ReadFiles:
    """Files whose rows are in a table."""

    def __init__(self, cache: Path, table: Folder) -> None:
        """Load the cache.

        Args:
            cache: File of the cache.
            table: Folder of the table, which only the caller writes.
        """
        self._cache, self._table = cache, table
        self._marks = self._load()
        self._unsaved = 0

    def load_new(
        self, file: Path, load: Callable[[Path], T], nothing: T, refused: type[E]
    ) -> T | E:
        """Load the rows of a file into the table.

        Args:
            file: The file.
            load: Loads them; what it raises leaves the file unread.
            nothing: Result if the file was read, and has not changed since.
            refused: Error for an invalid file, which is returned.
        """
        name, mark = str(file.absolute()), _mark_of(file)
        if mark is not None and self._marks.get(name) == mark:
            return nothing
        try:
            result = load(file)
        except refused as error:
            return error
        # The mark of before: the file may have been replaced since.
        if mark is not None:
            self._marks[name] = mark
            self._unsaved += 1
        if self._unsaved >= SAVE_EVERY:
            self.save()
        return result

    def save(self) -> None:
        """Save what was read since the last time."""
        if not self._unsaved:
            return
        table = open_table(self._table)
        files = {
            name: mark for name, mark in self._marks.items() if Path(name).exists()
        }
        stored = {
            "table": table.metadata().id,
            "version": table.version(),
            "files": files,
        }
        write_best_effort(self._cache, json.dumps(stored).encode())
        self._unsaved = 0

    def _load(self) -> dict[str, Mark]:
        table = open_table(self._table)
        try:
            stored = json.loads(self._cache.read_bytes())
            is_of_table = stored["table"] == table.metadata().id
            # A restored table may lack rows of files that were read after the backup.
            if is_of_table and stored["version"] <= table.version():
                return dict(stored["files"])
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return {}


@contextmanager
def importing(
    tables: Folder, name: str, keep: KeepSection, now_s: float, locks: Path | None
) -> Iterator[ReadFiles]:
    """Make a table if need be, for an import; delete its old rows after it.

    Args:
        tables: Folder of the tables.
        name: Name of the table.
        keep: How long rows stay.
        now_s: Unix time.
        locks: Folder of the lock and of the cache; None: that of the tables.

    Raises:
        AlreadyRunningError: Another process imports.
    """
    folder = locks or Path(str(tables))
    lock = acquire_lock(folder / f".lock-{name}")
    try:
        create_tables(tables, [name])
        known = ReadFiles(folder / f".read-{name}.json", tables / name)
        try:
            yield known
        finally:
            known.save()
        delete_old_rows(tables, [name], keep, now_s)
    finally:
        os.close(lock)


def _mark_of(file: Path) -> Mark | None:
    """Mark of a file; None if it cannot be read."""
    try:
        status = file.stat()
    except OSError:
        return None
    return [status.st_ino, status.st_size, status.st_ctime_ns]
