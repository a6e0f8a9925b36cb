"""Tables of the queue file, their migrations, and integrity checks.

The key of a message is (priority, seq). There is no other index, because it would
cost a page write per message. `tally` has the counters of each priority, so that
rows need not be counted.
"""

import secrets
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edge_agent.queue.base import ROW_OVERHEAD_BYTES
from spatial_mqtt.priority import LADDER


@contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """Make modules that are not loaded yet impossible to import."""
    hidden: dict[str, Any] = {each: None for each in names if each not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


# sqlite-utils imports them where they are installed, as beside a backend: a second of
# processor time and 80 MB for types that no queue stores.
with _hidden("pandas", "numpy"):
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

FORMAT = 1
"""Format of the rows. It grows with a migration that an older version cannot work with,
and not with one that only adds."""

INTERRUPT_S = 0.01
"""Time between interrupts of a check that is over its limit."""

_EACH_BYTE = 0x01010101
"""Factor of the stored format: a bit error does not look like a newer one."""

migrations = Migrations("queue")


# The names of migrations are stored in the files and must not change.
@migrations()
def first_tables(db: Database) -> None:
    """Create the tables for messages, known ids, counters and state."""
    db.execute("""
        CREATE TABLE message (
            priority INTEGER NOT NULL, seq INTEGER NOT NULL,
            node TEXT NOT NULL, boot TEXT NOT NULL, origin_seq INTEGER NOT NULL,
            topic TEXT NOT NULL, crc INTEGER NOT NULL, payload BLOB NOT NULL,
            PRIMARY KEY (priority, seq)
        ) WITHOUT ROWID""")
    db.execute("""
        CREATE TABLE taken (
            node TEXT NOT NULL, boot TEXT NOT NULL,
            low INTEGER NOT NULL, high INTEGER NOT NULL,
            PRIMARY KEY (node, boot, low)
        ) WITHOUT ROWID""")
    db.execute("""
        CREATE TABLE tally (
            priority INTEGER PRIMARY KEY,
            rows INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
            put INTEGER NOT NULL DEFAULT 0, acked INTEGER NOT NULL DEFAULT 0,
            dropped INTEGER NOT NULL DEFAULT 0, duplicates INTEGER NOT NULL DEFAULT 0
        )""")
    db.execute(
        "CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
    )
    db.table("tally").insert_all({"priority": p} for p in LADDER.descending)
    db.table("state").insert_all([
        {"name": "queue/next_seq", "value": "1"},
        {"name": "queue/file_id", "value": secrets.token_hex(8)},
    ])


@migrations()
def ages_and_reasons(db: Database) -> None:
    """Add the time of the put, and drops by reason."""
    db.execute("ALTER TABLE message ADD COLUMN born_ms INTEGER")
    db.execute("""
        CREATE TABLE dropped (
            priority INTEGER NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL,
            PRIMARY KEY (priority, reason)
        ) WITHOUT ROWID""")


def connect(path: str, busy_timeout_s: float = 5.0) -> sqlite3.Connection:
    """Open a queue file so that a commit is on disk when it returns."""
    connection = sqlite3.connect(
        path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
    )
    # A bit error must not make the other rows of its page unreadable.
    connection.text_factory = decode_text
    connection.execute("PRAGMA journal_mode=WAL")
    # The usual NORMAL does not sync the log at each commit.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA wal_autocheckpoint=1000")
    connection.execute("PRAGMA journal_size_limit=4194304")
    return connection


def decode_text(raw: bytes) -> str:
    """Decode text that may be damaged."""
    return raw.decode(errors="surrogateescape")


@contextmanager
def _interrupted_after(
    connection: sqlite3.Connection, timeout_s: float | None
) -> Iterator[None]:
    """Interrupt what the connection does when a time is over; None: never."""
    ended = threading.Event()

    def interrupt() -> None:
        # An interrupt before the statement has begun is lost.
        while not ended.is_set():
            connection.interrupt()
            ended.wait(INTERRUPT_S)

    if timeout_s is None:
        yield
        return
    timer = threading.Timer(timeout_s, interrupt)
    timer.start()
    try:
        yield
    finally:
        ended.set()
        timer.cancel()
        timer.join()  # it must not interrupt the next statement


def check_integrity(
    connection: sqlite3.Connection, timeout_s: float | None = None
) -> bool:
    """Check the integrity of the file.

    Args:
        connection: To the file.
        timeout_s: Time limit in seconds; None for no limit.

    Returns:
        Whether the check finished within the limit.

    Raises:
        sqlite3.DatabaseError: The file is damaged.
    """
    try:
        with _interrupted_after(connection, timeout_s):
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            is_ordered = verdict != "ok" or _is_in_order(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return False
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    if not is_ordered:
        raise sqlite3.DatabaseError("messages are out of the order of their keys")
    return True


def _is_in_order(connection: sqlite3.Connection) -> bool:
    """Whether the messages are stored in the order of their keys.

    SQLite does not detect a bit error in a key, but a search ends at that row and
    misses the messages behind it.
    """
    previous = (-1, -1)
    for key in connection.execute("SELECT priority, seq FROM message"):
        if tuple(map(type, key)) != (int, int) or key <= previous:
            return False
        previous = key
    return True


def check_tables(connection: sqlite3.Connection) -> None:
    """Check the columns of all tables, that the initial rows exist, and the counters.

    SQLite's own check does not detect a bit error in the name of a table, or in a
    number or its type.

    Raises:
        sqlite3.DatabaseError: A table, a column or an initial row is missing, or a
            counter is impossible.
    """
    connection.execute(
        "SELECT priority, seq, node, boot, origin_seq, topic, crc, payload, born_ms "
        "FROM message LIMIT 0"
    )
    connection.execute("SELECT node, boot, low, high FROM taken LIMIT 0")
    drops = connection.execute("SELECT priority, count FROM dropped").fetchall()
    tally = connection.execute(
        "SELECT priority, rows, bytes, put, acked, dropped, duplicates FROM tally"
    ).fetchall()
    state = dict(connection.execute("SELECT name, value FROM state"))
    is_whole = {row[0] for row in tally} == set(LADDER.descending)
    if not is_whole or not str(state.get("queue/next_seq")).isdecimal():
        raise sqlite3.DatabaseError("the first rows of a table are damaged")
    if any(type(number) is not int for row in tally + drops for number in row):
        raise sqlite3.DatabaseError("a counter is not a number")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    for _, rows, size, *_ in tally:
        # Too high a size would make the queue full for ever.
        if not 0 <= size - rows * ROW_OVERHEAD_BYTES <= pages * page_bytes or rows < 0:
            raise sqlite3.DatabaseError("the counters of its messages are impossible")


def migrate(connection: sqlite3.Connection) -> None:
    """Upgrade the tables to this version."""
    migrations.apply(Database(connection, execute_plugins=False))
    if stored_format(connection) != FORMAT:
        connection.execute(f"PRAGMA user_version = {FORMAT * _EACH_BYTE}")
        # Into the file's header, where a Debian package reads it before a downgrade.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def stored_format(connection: sqlite3.Connection) -> int:
    """Format of the file; 0 for a new file, an early one or a damaged number."""
    stored: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return stored // _EACH_BYTE if stored % _EACH_BYTE == 0 else 0
