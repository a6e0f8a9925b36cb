"""A queue's file among processes: who uses it, who leases, who may repair it."""

import fcntl
import logging
import sqlite3
import threading
from pathlib import Path
from typing import IO

from edge_agent.queue.base import QueueFileError
from edge_agent.queue.recovery import commits_cut_off, salvage
from edge_agent.queue.schema import check, check_tables, connect, migrate
from edge_agent.queue.space_reserve import Reserve
from edge_agent.queue.store import Store

log = logging.getLogger(__name__)

CHECK_WITHIN_S = 0.5
"""A file that takes longer to look at is looked at while it is used."""

_SPACE_ERRORS = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_NO_DAMAGE = _SPACE_ERRORS | {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}


class Place:
    """Locks on one queue file, held as long as it is open.

    Whoever opens the file alone checks it, and sets a damaged one aside; beside
    another process that would pull the file from under its feet.

    Args:
        path: The file; its folder is made when missing.

    Attributes:
        path: The same.
        is_checked: Whether the file was looked at as a whole.

    Raises:
        QueueFileError: The file or its locks cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_checked = True
        self._is_suspect = False
        self._locks: list[IO[bytes]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._users = self._lock_file("lock")
        except OSError as error:
            raise QueueFileError(str(path), str(error)) from error

    def open(self) -> tuple[Store, Reserve]:
        """Open the queue.

        Raises:
            QueueFileError: It cannot be used, or is damaged while others use it.
        """
        try:
            is_alone = self._is_alone()
            self._is_suspect = is_alone and self._suspicion.exists()
            try:
                db = self._opened(is_alone)
            except sqlite3.DatabaseError as error:
                self.close()
                raise QueueFileError(str(self.path), str(error)) from error
            if self._is_suspect:
                self._suspicion.unlink()
            fcntl.flock(self._users, fcntl.LOCK_SH)
            return Store(self.path, db), Reserve(self.path)
        except OSError:
            self.close()
            raise

    def check_meanwhile(self) -> None:
        """Look at the rest of a large file while it is used, in a thread."""
        if not self.is_checked:
            look = self.check_the_rest
            threading.Thread(target=look, name="queue check", daemon=True).start()

    def check_the_rest(self) -> None:
        """Look at a file that was too large to be looked at while opening it.

        Raises:
            QueueFileError: It is damaged. The next open of it alone salvages what can
                be read, so the process should end and start anew.
        """
        db = connect(str(self.path))
        try:
            self.is_checked = check(db)
        except sqlite3.DatabaseError as error:
            self._suspicion.touch()
            raise QueueFileError(str(self.path), str(error)) from error
        finally:
            db.close()

    @property
    def _suspicion(self) -> Path:
        return Path(f"{self.path}.suspect")

    def own(self) -> bool:
        """Become the one process that may keep messages in memory."""
        file = self._lock_file("owner")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def repair(self) -> tuple[int, Path]:
        """Set the file aside and make a new one of what can be read.

        Returns:
            Messages in the new file, and where the old one is kept.

        Raises:
            QueueFileError: Another process uses the queue, or the disk is full.
        """
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise QueueFileError(
                str(self.path), "another process uses it; stop the agent first"
            ) from error
        return self._renew("repair was asked for")

    def close(self) -> None:
        """Let the locks go."""
        for file in self._locks:
            file.close()

    def _lock_file(self, kind: str) -> IO[bytes]:
        file = Path(f"{self.path}.{kind}").open("ab")  # noqa: SIM115 - held until close
        self._locks.append(file)
        return file

    def _is_alone(self) -> bool:
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Waits only while another process opens or repairs the file.
            fcntl.flock(self._users, fcntl.LOCK_SH)
            return False
        return True

    def _opened(self, is_alone: bool) -> sqlite3.Connection:
        if is_alone and Path(f"{self.path}.salvaged").exists():
            self._finish()
        # Before SQLite opens the file: it forgets what it cannot read of the log.
        if is_alone and (commits := commits_cut_off(self.path)):
            self._renew(f"{commits} commits of its log are behind a damaged part")
        try:
            return self._checked(is_alone)
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            # A full disk has no room for the log's index either.
            if code in _SPACE_ERRORS and Reserve(self.path).spend():
                return self._checked(is_alone)
            if not is_alone or code in _NO_DAMAGE:
                raise
            self._renew(str(error))
            return _usable(self.path)

    def _checked(self, is_alone: bool) -> sqlite3.Connection:
        """Open and look at the file, but do not keep sensors waiting for it."""
        db = _usable(self.path)
        try:
            if is_alone and self._is_suspect:
                check(db)
            elif is_alone:
                self.is_checked = check(db, CHECK_WITHIN_S)
        except sqlite3.DatabaseError:
            db.close()
            raise
        return db

    def _renew(self, why: str) -> tuple[int, Path]:
        """Salvage into a new file, then put it in the place of the damaged one.

        In this order a kill at any moment leaves either the damaged file where it
        was, or a whole salvaged one that `_finish` finds.
        """
        log.error("queue file %s is set aside: %s", self.path, why)
        new = Path(f"{self.path}.new")
        for part in _parts(new):
            part.unlink(missing_ok=True)
        db = _usable(new)
        try:
            saved = salvage(self.path, Store(new, db))
        finally:
            db.close()
        new.rename(f"{self.path}.salvaged")
        return saved, self._finish()

    def _finish(self) -> Path:
        """Keep the damaged file for a person, and use the salvaged one."""
        number = 1
        while (
            aside := self.path.with_name(f"{self.path.name}.damaged-{number}")
        ).exists():
            number += 1
        # The log first: beside a new file, an old log would be applied to it.
        for part, kept in reversed(
            list(zip(_parts(self.path), _parts(aside), strict=True))
        ):
            if part.exists():
                part.rename(kept)
        Path(f"{self.path}.salvaged").rename(self.path)
        log.error("the damaged queue file is kept as %s", aside)
        return aside


def _parts(path: Path) -> list[Path]:
    return [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]


def _usable(path: Path) -> sqlite3.Connection:
    db = connect(str(path))
    try:
        migrate(db)
        check_tables(db)
    except sqlite3.DatabaseError:
        db.close()
        raise
    return db
