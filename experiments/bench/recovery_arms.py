"""Methods of reading the messages of a damaged queue file.

Only this module of the experiment imports ``edge_agent.queue``. Every arm gets a copy
of the file, with its ``-wal`` if there is one, and returns the rows that it finds. A
row is sound if its checksum matches.
"""

import contextlib
import random
import re
import secrets
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqlite_utils import Database

from edge_agent.queue.base import (
    COMMIT_EVERY_PUT,
    MessageDraft,
    QueuedMessage,
    QueueFileError,
)
from edge_agent.queue.file_lifecycle import QueueFile
from edge_agent.queue.recovery import read_records
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.queue.store import QueueRow, has_column_types
from spatial_mqtt.senml import MessageId

COLUMNS = "priority, seq, node, boot, origin_seq, topic, crc, payload"
WIDTH = len(COLUMNS.split(","))
MAX_BYTES = 10**9
MAX_ROWS = 10**7
VALUES = 30
SOURCES = 40
ACKS = 20
"""Messages that one commit removes."""

LONG_EVERY = 50
"""One payload in this number needs overflow pages."""

WEIGHTS = {1: 30, 2: 30, 3: 25, 4: 10, 5: 5}
"""Share of each priority in percent."""

Body = tuple[int, int, str, str, int, str, bytes]
"""Priority, number, id (three columns), topic and payload."""


class FoundRow(NamedTuple):
    """A row that an arm found.

    Attributes:
        body: The message; empty if the types of the columns are wrong.
        is_sound: Whether the message matches its checksum.
    """

    body: Body | None
    is_sound: bool


@dataclass
class Found:
    """Result of an arm.

    Attributes:
        rows: Messages, including those that do not match their checksum.
        values: Stored values: name and text.
        taken: Ranges of ids that were accepted before.
        rss_bytes: Peak memory of the programs that the arm started.
        error: Error that ended the arm early, or empty.
    """

    rows: list[FoundRow] = field(default_factory=list)
    values: set[tuple[Any, ...]] = field(default_factory=set)
    taken: set[tuple[Any, ...]] = field(default_factory=set)
    rss_bytes: int = 0
    error: str = ""


Arm = Callable[[Path, Path], Found]
"""Reads a file: (path of the damaged file, empty folder)."""


def open_queue(path: Path) -> SqliteQueue:
    """Open a queue as a node does, with a commit for every put."""
    return SqliteQueue(path, "node", "boot", MAX_BYTES, durability=COMMIT_EVERY_PUT)


@contextlib.contextmanager
def seeded_ids(chance: random.Random) -> Iterator[None]:
    """Make ids of files and runs reproducible: checksums and pages depend on them."""
    real = secrets.token_hex
    secrets.token_hex = lambda nbytes=None: chance.randbytes(nbytes or 32).hex()
    try:
        yield
    finally:
        secrets.token_hex = real


def fill(queue: SqliteQueue, count: int, chance: random.Random) -> list[Body]:
    """Put messages of mixed priority and size, and deliver a quarter of them.

    Returns:
        The delivered messages.
    """
    put = 0
    while put < count:
        size = min(chance.randint(1, 40), count - put)
        queue.put([_draft(put + number, chance) for number in range(size)])
        put += size
    names = [f"rain/{number}" for number in range(VALUES)]
    queue.put([], {name: chance.randbytes(8).hex() for name in names})
    leased = queue.lease(MAX_ROWS)
    delivered = chance.sample(leased, len(leased) // 4)
    for at in range(0, len(delivered), ACKS):
        queue.ack(message.seq for message in delivered[at : at + ACKS])
    queue.release_all()
    return [_body(message) for message in delivered]


def _body(message: QueuedMessage) -> Body:
    id_ = message.id
    first, last = (message.priority, message.seq), (message.topic, message.payload)
    return (*first, id_.node, id_.boot, id_.seq, *last)


def _draft(number: int, chance: random.Random) -> MessageDraft:
    (priority,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
    long = number % LONG_EVERY == LONG_EVERY - 1
    size = chance.randint(5000, 9000) if long else chance.randint(120, 420)
    payload = chance.randbytes(size)
    source = None
    if number % 4 == 0:  # a quarter comes from other nodes, with gaps in their ids
        name = f"n-{chance.randrange(SOURCES)}"
        source = MessageId(name, chance.randbytes(4).hex(), chance.randrange(1, 10**6))
    topic = f"/3/1/2/{chance.randrange(4)}/pri{priority}"
    return MessageDraft(priority, topic, lambda _id: payload, source)


def read_all(path: Path) -> Found:
    """Read everything in a sound file, or what SQLite reads until its first error."""
    found = Found()
    url = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(url, uri=True)) as db:
        db.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        _read_into(found, db)
    return found


def _read_into(found: Found, db: sqlite3.Connection) -> None:
    with _recording_error(found):
        message = db.execute(f"SELECT {COLUMNS} FROM message")  # noqa: S608
        found.rows.extend(map(check_row, message))
    with _recording_error(found):
        state = "SELECT name, value FROM state WHERE name LIKE 'rain/%'"
        found.values.update(db.execute(state))
    with _recording_error(found):
        found.taken.update(db.execute("SELECT node, boot, low, high FROM taken"))


@contextlib.contextmanager
def _recording_error(found: Found) -> Iterator[None]:
    """Record the first error of an arm, and continue."""
    try:
        yield
    except (sqlite3.Error, QueueFileError, OSError, UnicodeError) as error:
        found.error = found.error or str(error)


def check_row(values: Sequence[Any]) -> FoundRow:
    """Check the checksum of a row."""
    values = tuple(values[:WIDTH])
    if len(values) < WIDTH or not has_column_types(values):
        return FoundRow(None, is_sound=False)
    row = QueueRow(*values)
    return FoundRow((*row[:6], row.payload), row.is_intact)


def salvage(path: Path, _folder: Path) -> Found:
    """Our recovery: with SQLite as far as it reads, then page by page."""
    failed = Found()
    with _recording_error(failed), closing(QueueFile(path)) as queue_file:
        queue_file.repair()
    return failed if failed.error else read_all(path)


def start(path: Path, _folder: Path) -> Found:
    """Start of a node: detect the damage, recover, then lease everything."""
    found = Found()
    with _recording_error(found):
        queue = open_queue(path)
        found.rows = [
            FoundRow(_body(message), is_sound=True) for message in queue.lease(MAX_ROWS)
        ]
        queue.close()
        rest = read_all(path)
        found.values, found.taken = rest.values, rest.taken
    return found


def every_page(path: Path, _folder: Path) -> Found:
    """Our page reader on every page, even where SQLite reports no error."""
    found = read_all(path)
    bodies = {row.body for row in found.rows if row.is_sound}
    for row in map(check_row, read_records(path)):
        if row.is_sound and row.body not in bodies:
            found.rows.append(row)
            bodies.add(row.body)
    return found


def recover(path: Path, folder: Path, *options: str) -> Found:
    """``.recover`` of the sqlite3 command into a new file."""
    return _by_command(path, folder, " ".join((".recover", *options)))


def version() -> str:
    """Return the version of the sqlite3 command and whether ``.recover`` works."""
    command = ("sqlite3", ":memory:", "SELECT sqlite_version()", ".recover")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    state = "works" if done.returncode == 0 else f"fails: {done.stderr.strip()}"
    return f"sqlite3 {done.stdout.splitlines()[0]}, .recover {state}"


def recover_live(path: Path, folder: Path) -> Found:
    """``.recover`` without the pages that are marked as free."""
    return recover(path, folder, "--ignore-freelist")


def dump(path: Path, folder: Path) -> Found:
    """``.dump`` of the sqlite3 command; its last ROLLBACK becomes a COMMIT."""
    return _by_command(path, folder, ".dump")


def _by_command(path: Path, folder: Path, command: str) -> Found:
    script, new = folder / "script.sql", folder / "new.db"
    with script.open("wb") as out:
        first = _sqlite3(path, command, out)
    raw = script.read_bytes()
    head, mark, tail = raw.rpartition(b"ROLLBACK; -- due to errors")
    script.write_bytes(head + b"COMMIT;" + tail if mark else raw)
    second = _sqlite3(new, f".read {script}", subprocess.DEVNULL)
    found = Found(error=first.error or second.error)
    found.rss_bytes = max(first.rss_bytes, second.rss_bytes)
    with _recording_error(found), closing(sqlite3.connect(new)) as db:
        db.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        _read_into(found, db)
        found.rows.extend(map(check_row, _lost_and_found(db)))
    return found


def _lost_and_found(db: sqlite3.Connection) -> Iterable[tuple[Any, ...]]:
    """Return the rows as wide as a message from pages that belong to no table."""
    columns = [row[1] for row in db.execute("PRAGMA table_info(lost_and_found)")]
    if f"c{WIDTH - 1}" not in columns:
        return []
    fields = ", ".join(f"c{number}" for number in range(WIDTH))
    query = f"SELECT {fields} FROM lost_and_found WHERE nfield IN (?, ?)"  # noqa: S608
    return db.execute(query, (WIDTH, WIDTH + 1))


def _sqlite3(path: Path, command: str, out: Any) -> Found:  # noqa: ANN401 - a file
    memory = ".system grep VmHWM /proc/$PPID/status >&2"
    arguments = ["sqlite3", str(path), command, memory]
    done = subprocess.run(arguments, stdout=out, stderr=subprocess.PIPE, check=False)
    errors = done.stderr.decode(errors="replace")
    peak = re.search(r"VmHWM:\s+(\d+) kB", errors)
    lines = [line for line in errors.splitlines() if not line.startswith("VmHWM")]
    return Found(
        rss_bytes=int(peak[1]) * 1024 if peak else 0, error=" ".join(lines[:1])
    )


def vacuum(path: Path, folder: Path) -> Found:
    """``VACUUM INTO`` a new file; it fails at the first error."""
    failed = Found()
    new = folder / "new.db"
    with _recording_error(failed), closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM INTO ?", (str(new),))
    return failed if failed.error else read_all(new)


def rows_of_sqlite_utils(path: Path, _folder: Path) -> Found:
    """``Table.rows_where`` of sqlite-utils, until the first error."""
    found = Found()
    with _recording_error(found), closing(sqlite3.connect(path)) as connection:
        connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        db = Database(connection)
        for row in db.table("message").rows_where(select=COLUMNS):
            found.rows.append(check_row(tuple(row.values())))
        for row in db.table("state").rows_where("name LIKE 'rain/%'"):
            found.values.add(tuple(row.values()))
        for row in db.table("taken").rows:
            found.taken.add(tuple(row.values()))
    return found


ARMS: dict[str, Arm] = {
    "ours": salvage,
    "node start": start,
    "every page": every_page,
    ".recover": recover,
    ".recover live": recover_live,
    ".dump": dump,
    "VACUUM INTO": vacuum,
    "sqlite-utils": rows_of_sqlite_utils,
}
