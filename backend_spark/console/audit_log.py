"""The console's own book: alerts, who saw them, notes, thresholds. Nothing is erased.

One SQLite table that refuses changes; what follows from an entry is another entry.
"""

import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

_TABLE: Final = """
create table if not exists entry (
  id integer primary key autoincrement,
  at_s real not null,
  kind text not null,
  subject text not null,
  who text not null,
  body text not null
);
create unique index if not exists one_alert on entry (subject) where kind = 'alert';
create index if not exists of_kind on entry (kind, id);
create index if not exists of_subject on entry (subject, kind);
create trigger if not exists no_change before update on entry
  begin select raise(abort, 'the book is not changed'); end;
create trigger if not exists no_removal before delete on entry
  begin select raise(abort, 'nothing leaves the book'); end;
"""

_INSERT: Final = (
    "insert or ignore into entry (at_s, kind, subject, who, body)"
    " values (?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class Entry:
    """One line of the book.

    Attributes:
        id: Its number.
        at_s: Unix time of writing.
        kind: ``alert``, ``acknowledge``, ``note``, ``threshold`` or ``event``.
        subject: What it is about: the key of an alert, a cell, or nothing.
        who: Account; empty for the console itself.
        body: The rest.
    """

    id: int
    at_s: float
    kind: str
    subject: str
    who: str
    body: dict[str, Any]


class Journal:
    """Reads and appends; an entry is on disk when `write` returns.

    Args:
        path: Of the file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.executescript(_TABLE)

    def write(
        self, at_s: float, kind: str, subject: str, who: str, body: dict[str, Any]
    ) -> int:
        """Append an entry; its number."""
        row = (at_s, kind, subject, who, msgspec.json.encode(body).decode())
        with self._lock:
            return self._db.execute(_INSERT, row).lastrowid or 0

    def write_alerts(self, at_s: float, alerts: Iterable[dict[str, Any]]) -> int:
        """Append alerts in one go, those that are not there; how many those were."""
        rows = [
            (at_s, "alert", a["key"], "", msgspec.json.encode(a).decode())
            for a in alerts
        ]
        if not rows:
            return 0
        with self._lock:
            self._db.execute("begin")
            done = self._db.executemany(_INSERT, rows)
            self._db.execute("commit")
            return done.rowcount

    def read(self, *kinds: str, most: int = 500) -> list[Entry]:
        """The newest entries of some kinds, newest first."""
        marks = ", ".join("?" * len(kinds))
        with self._lock:
            rows = self._db.execute(
                "select id, at_s, kind, subject, who, body from entry"  # noqa: S608
                f" where kind in ({marks}) order by id desc limit ?",
                (*kinds, most),
            ).fetchall()
        return [_entry(row) for row in rows]

    def waiting(self) -> int:
        """How many alerts nobody has acknowledged."""
        with self._lock:
            row = self._db.execute(
                "select count(*) from entry a where kind = 'alert' and not exists"
                " (select 1 from entry b where b.kind = 'acknowledge'"
                " and b.subject = a.subject)"
            ).fetchone()
        return int(row[0])

    def one(self, number: int) -> Entry | None:
        """An entry by its number."""
        with self._lock:
            row = self._db.execute(
                "select id, at_s, kind, subject, who, body from entry where id = ?",
                (number,),
            ).fetchone()
        return None if row is None else _entry(row)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _entry(row: tuple[Any, ...]) -> Entry:
    number, at_s, kind, subject, who, body = row
    return Entry(number, at_s, kind, subject, who, msgspec.json.decode(body))
