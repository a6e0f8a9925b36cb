"""Life of a queue file that processes share: locks, users, check, repair, counters."""

import errno
import fcntl
import glob
import logging
import os
import sqlite3
import stat
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

from edge_agent.queue.base import (
    Depth,
    MessageDraft,
    OnPut,
    QueueFileError,
    QueueStats,
)
from edge_agent.queue.disk_reserve import SpaceReserve
from edge_agent.queue.recovery import (
    EMPTIED,
    connect_read_only,
    count_lost_commits,
    has_only_its_log,
    salvage,
)
from edge_agent.queue.schema import (
    FORMAT,
    check_integrity,
    check_tables,
    connect,
    migrate,
    stored_format,
)
from edge_agent.queue.store import COUNTER_COLUMNS, CounterDeltas, Store
from edge_agent.queue.write_journal import MAX_LOST_KEY
from service_runtime.files import file_size
from spatial_mqtt.senml import MessageId

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 0.5
"""When the check on open takes longer, it is repeated in the background."""

_SPACE_ERRORS = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_NO_DAMAGE = _SPACE_ERRORS | {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}


class QueueFile:
    """A queue file with its locks, which are held until `close`.

    A process that opens the file alone checks it and replaces a damaged one. While
    another process uses the file, it must not be replaced.

    Args:
        path: The file; a missing folder is created.

    Attributes:
        path: The file.
        is_checked: Whether the whole file was checked.

    Raises:
        QueueFileError: The file or its locks cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_checked = True
        self._is_suspect = False
        self._locks: list[IO[bytes]] = []
        try:
            if path.is_dir():  # SQLite's error would look like a full disk
                raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            self._users_lock = self._lock_file("lock")
        except OSError as error:
            raise QueueFileError(str(path), str(error)) from error

    def open(self) -> tuple[Store, SpaceReserve]:
        """Open the queue.

        Raises:
            QueueFileError: It cannot be used, or is damaged while others use it.
        """
        try:
            is_alone = self._lock_exclusively()
            self._is_suspect = is_alone and self._suspect_mark.exists()
            try:
                db = self._connect(is_alone)
            except sqlite3.DatabaseError as error:
                self.close()
                raise QueueFileError(str(self.path), str(error)) from error
            if self._is_suspect:
                self._suspect_mark.unlink()
            fcntl.flock(self._users_lock, fcntl.LOCK_SH)
            reserve = SpaceReserve(self.path)
            self.give_to_owner()
            return Store(self.path, db), reserve
        except OSError as error:
            self.close()
            if isinstance(error, QueueFileError):
                raise
            raise QueueFileError(str(self.path), str(error)) from error

    def check_in_background(self) -> None:
        """Check a file that was too large to check on open, in a thread."""
        if not self.is_checked:
            threading.Thread(
                target=self.check_whole_file, name="queue check", daemon=True
            ).start()

    def check_whole_file(self) -> None:
        """Check a file that was too large to check on open.

        Raises:
            QueueFileError: It is damaged. The process should restart: the next open
                without other users recovers the readable messages.
        """
        db = connect(str(self.path))
        try:
            self.is_checked = check_integrity(db)
        except sqlite3.DatabaseError as error:
            self._suspect_mark.touch()
            raise QueueFileError(str(self.path), str(error)) from error
        finally:
            db.close()

    @property
    def _suspect_mark(self) -> Path:
        """Marker file: the next open must check the whole file."""
        return Path(f"{self.path}.suspect")

    def acquire_ownership(self) -> bool:
        """Become the one process that may use a commit window, or return False.

        Raises:
            QueueFileError: The lock cannot be opened.
        """
        try:
            file = self._lock_file("owner")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            self.close()
            raise QueueFileError(str(self.path), str(error)) from error
        return True

    def repair(self) -> tuple[int, Path]:
        """Move the file aside and recover its readable messages into a new one.

        Returns:
            Number of messages in the new file, and the path of the old one.

        Raises:
            QueueFileError: Another process uses the queue, or the disk is full.
        """
        try:
            fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise QueueFileError(
                str(self.path), "another process uses it; stop the agent first"
            ) from error
        try:
            return self._replace_damaged("repair was requested")
        finally:
            self.give_to_owner()

    def close(self) -> None:
        """Release the locks."""
        self.give_to_owner()
        for file in self._locks:
            file.close()

    def give_to_owner(self) -> None:
        """As root, give our files to the owner of their folder: the agent's user.

        An agent that cannot write one of them keeps its messages in memory only.
        """
        if os.geteuid() != 0:
            return
        folder = self.path.parent.stat()
        for file in self.path.parent.glob(f"{glob.escape(self.path.name)}*"):
            with suppress(OSError):  # it is gone meanwhile, or FAT has no owners
                _give(file, folder)

    def _lock_file(self, kind: str) -> IO[bytes]:
        path = f"{self.path}.{kind}"
        file = open(path, "ab", opener=_open_no_link)  # noqa: SIM115 - held until close
        self._locks.append(file)
        return file

    def _lock_exclusively(self) -> bool:
        """Lock the file exclusively, or shared and return False when it is in use."""
        try:
            fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Blocks only while another process opens or repairs the file.
            fcntl.flock(self._users_lock, fcntl.LOCK_SH)
            return False
        return True

    def _connect(self, is_alone: bool) -> sqlite3.Connection:
        if is_alone and Path(f"{self.path}.salvaged").exists():
            self._swap_in_salvaged()
        self._save_log(is_alone)
        try:
            return self._connect_checked(is_alone)
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if self._release_space(code):
                return self._connect_checked(is_alone)
            if not is_alone or code in _NO_DAMAGE:
                raise
            self._replace_damaged(str(error))
            return _connect_migrated(self.path)

    def _release_space(self, code: int) -> bool:
        """Release space of a reserve for an error of a full disk; False for another.

        On a full disk SQLite cannot create the log's index either. It reports a link or
        a missing right by the same code.
        """
        if code not in _SPACE_ERRORS:
            return False
        reserve = SpaceReserve(self.path)
        is_full = code != sqlite3.SQLITE_CANTOPEN or reserve.has_nearly_full_disk()
        return is_full and reserve.release_any()

    def _save_log(self, is_alone: bool) -> None:
        """Recover a log of which SQLite would discard commits when it opens the file.

        It deletes the log beside an empty file, and ignores what follows a damaged
        frame.
        """
        if has_only_its_log(self.path):
            if not is_alone:
                raise QueueFileError(str(self.path), EMPTIED)
            self._replace_damaged(EMPTIED)
        elif is_alone and (commits := count_lost_commits(self.path)):
            self._replace_damaged(f"{commits} commits follow a damaged part of its log")
        elif is_alone and self.path.exists() and file_size(self.path) == 0:
            log.warning("queue file %s is empty; messages in it are lost", self.path)

    def _connect_checked(self, is_alone: bool) -> sqlite3.Connection:
        """Open and check the file; limited in time, because sensors wait for it."""
        db = _connect_migrated(self.path)
        try:
            if is_alone and self._is_suspect:
                check_integrity(db)
            elif is_alone:
                self.is_checked = check_integrity(db, CHECK_TIMEOUT_S)
        except sqlite3.DatabaseError:
            db.close()
            raise
        return db

    def _replace_damaged(self, reason: str) -> tuple[int, Path]:
        """Salvage into a new file, then rename it over the damaged one.

        In this order, a kill or a full disk at any moment leaves either the damaged
        file in place or a complete salvaged one, which the next open swaps in.
        """
        log.error("queue file %s is set aside: %s", self.path, reason)
        if not self.path.exists():  # its name numbers the files that are kept
            open(self.path, "ab", opener=_open_no_link).close()
        new = Path(f"{self.path}.new")
        _delete_with_log(new)
        try:
            count = _salvage_into(new, self.path)
        except BaseException:
            _delete_with_log(new)  # it would keep space of a full disk
            raise
        new.rename(f"{self.path}.salvaged")
        return count, self._swap_in_salvaged()

    def _swap_in_salvaged(self) -> Path:
        """Keep the damaged file for examination, and use the salvaged one."""
        number = 1
        while (
            aside := self.path.with_name(f"{self.path.name}.damaged-{number}")
        ).exists():
            number += 1
        # The log first: SQLite would apply an old log to the new file.
        for file, kept in reversed(
            list(zip(_with_log_files(self.path), _with_log_files(aside), strict=True))
        ):
            if file.exists():
                file.rename(kept)
        Path(f"{self.path}.salvaged").rename(self.path)
        names = [str(each) for each in _with_log_files(aside)[:2] if each.exists()]
        log.error("the damaged queue file is kept as %s", " and ".join(names))
        return aside


def find_damage(path: Path, *, is_in_use: bool) -> str | None:
    """Damage that the next start would find in a queue file, which is only read.

    Args:
        path: The file; it need not exist yet.
        is_in_use: Whether a process uses it, and so may write its log meanwhile.

    Returns:
        What is wrong; None for nothing, or if the file cannot be read.
    """
    if has_only_its_log(path):
        return EMPTIED
    if not path.exists():
        return None
    if not is_in_use and (commits := count_lost_commits(path)):
        return f"{commits} commits follow a damaged part of its log"
    try:
        with closing(connect_read_only(path, is_in_use=is_in_use)) as db:
            if stored_format(db) == FORMAT:  # an older one has fewer columns
                check_tables(db)
            check_integrity(db, CHECK_TIMEOUT_S)
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        return None if code in _NO_DAMAGE else " ".join(str(error).split())
    return None


def _salvage_into(new: Path, damaged: Path) -> int:
    """Salvage a file into a new one that is complete without its log."""
    try:
        with closing(_connect_migrated(new)) as db:
            count = salvage(damaged, Store(new, db))
            # `close` would report no error and leave the messages in the log.
            (is_busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.DatabaseError as error:
        raise QueueFileError(str(new), str(error)) from error
    if is_busy:
        raise QueueFileError(str(new), "another process uses it")
    return count


def _delete_with_log(path: Path) -> None:
    for file in _with_log_files(path):
        file.unlink(missing_ok=True)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _give(path: Path, folder: os.stat_result) -> None:
    """Give a file of root to the owner of its folder.

    Not a link: the owner can make one to any file. Closing a descriptor without
    `O_PATH` would release SQLite's locks.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        is_file = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if is_file and found.st_uid == 0:
            os.chown(f"/proc/self/fd/{descriptor}", folder.st_uid, folder.st_gid)
    finally:
        os.close(descriptor)


def _with_log_files(path: Path) -> list[Path]:
    return [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")]


def _connect_migrated(path: Path) -> sqlite3.Connection:
    db = connect(str(path))
    try:
        _check_format(db, path)
        migrate(db)
        check_tables(db)
    except (sqlite3.DatabaseError, QueueFileError):
        db.close()
        raise
    return db


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    """Raise QueueFileError for a newer format, which would look like damage."""
    if (stored := stored_format(db)) > FORMAT:
        raise QueueFileError(
            str(path),
            f"it has format {stored}, this version reads up to {FORMAT}; "
            "install the newer version again",
        )


def read_counters(path: Path) -> dict[int, dict[str, int]]:
    """Counters of each priority in a queue file, most urgent first; read only.

    Returns:
        Priority to rows, bytes, put, acked, dropped, duplicates.

    Raises:
        QueueFileError: The file is not a queue.
    """
    refuse_emptied(path)
    if not path.is_file():
        raise QueueFileError(str(path), "there is no such file; has the agent run yet?")
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True)
        connection.row_factory = sqlite3.Row
        found = connection.execute("SELECT * FROM tally ORDER BY priority DESC")
        rows = [dict(row) for row in found]
    except sqlite3.DatabaseError as error:
        raise QueueFileError(str(path), str(error)) from error
    connection.close()
    return {row.pop("priority"): row for row in rows}


def refuse_emptied(path: Path) -> None:
    """Raise QueueFileError for a file whose log SQLite would delete on open."""
    if has_only_its_log(path):
        remedy = "start the agent, or run edge-agent queue repair; both recover them"
        raise QueueFileError(str(path), f"{EMPTIED}; {remedy}")


LOCKS = Path("/proc/locks")


def processes_using(path: Path) -> list[int]:
    """Processes that have a queue file open, read without taking its locks.

    Returns:
        Their process ids; 0 for one in another namespace.
    """
    try:
        stat = Path(f"{path}.lock").stat()
        rows = [line.split() for line in LOCKS.read_text().splitlines()]
    except OSError:
        return []
    inode = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    return [int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == inode]


def ledger_writer(ledger: Path) -> OnPut:
    """Hook for `SqliteQueue.on_put` that appends ``<id> <priority>`` lines to a file.

    Tests and simulations compare the file with the messages that arrived.
    """
    ledger.touch()

    def write(ids: Sequence[MessageId | None], drafts: Sequence[MessageDraft]) -> None:
        put = zip(ids, drafts, strict=True)
        with ledger.open("a", encoding="ascii") as file:
            file.writelines(f"{id_} {d.priority}\n" for id_, d in put if id_)

    return write


def read_stats(store: Store, changes: CounterDeltas, leased: int) -> QueueStats:
    """Counters of the file plus `changes`, which are not in it yet."""
    tally = store.read_counters()
    now = {
        column: {p: row[column] + changes.get(p, column) for p, row in tally.items()}
        for column in COUNTER_COLUMNS
    }
    reasons: dict[int, dict[str, int]] = {p: {} for p in tally}
    for counts in (store.read_drop_reasons(), changes.drop_reasons):
        for (priority, reason), count in counts.items():
            group = reasons.setdefault(priority, {})
            group[reason] = group.get(reason, 0) + count
    return QueueStats(
        depth={p: Depth(now["rows"][p], now["bytes"][p]) for p in tally},
        leased=leased,
        put=now["put"],
        acked=now["acked"],
        dropped=now["dropped"],
        duplicates=sum(now["duplicates"].values()),
        drop_reasons=reasons,
        max_lost=store.get_int(MAX_LOST_KEY, 0),
    )
