"""Journal of the console: alerts, acknowledgements, notes, thresholds, landslides.

One append-only SQLite table; triggers refuse updates and deletions.
"""

import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from service_runtime.decoding import decode_json

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
class JournalEntry:
    """One entry of the journal.

    Attributes:
        id: Row number.
        at_s: Unix time of writing.
        kind: ``alert``, ``acknowledge``, ``note``, ``threshold`` or ``event``.
        subject: Key of an alert, token of a cell, or empty.
        who: Account name; empty if the console itself wrote the entry.
        body: Fields of the kind.
    """

    id: int
    at_s: float
    kind: str
    subject: str
    who: str
    body: dict[str, Any]


class Journal:
    """The journal file; an entry is on disk when `write` returns.

    Several threads may use it.

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
        """Append an entry, and return its number."""
        row = (at_s, kind, subject, who, msgspec.json.encode(body).decode())
        with self._lock:
            return self._db.execute(_INSERT, row).lastrowid or 0

    def write_alerts(self, at_s: float, alerts: Iterable[dict[str, Any]]) -> int:
        """Append alerts that are new, in one transaction, and return their number."""
        rows = [
            (at_s, "alert", a["key"], "", msgspec.json.encode(a).decode())
            for a in alerts
        ]
        if not rows:
            return 0
        with self._lock:
            self._db.execute("begin")
            inserted = self._db.executemany(_INSERT, rows)
            self._db.execute("commit")
            return inserted.rowcount

    def read(self, *kinds: str, limit: int = 500) -> list[JournalEntry]:
        """Entries of some kinds, newest first."""
        placeholders = ", ".join("?" * len(kinds))
        with self._lock:
            rows = self._db.execute(
                "select id, at_s, kind, subject, who, body from entry"  # noqa: S608
                f" where kind in ({placeholders}) order by id desc limit ?",
                (*kinds, limit),
            ).fetchall()
        return [_entry(row) for row in rows]

    def count_open_alerts(self) -> int:
        """Number of alerts without an acknowledgement."""
        with self._lock:
            row = self._db.execute(
                "select count(*) from entry a where kind = 'alert' and not exists"
                " (select 1 from entry b where b.kind = 'acknowledge'"
                " and b.subject = a.subject)"
            ).fetchone()
        return int(row[0])

    def find(self, number: int) -> JournalEntry | None:
        """Entry with a number."""
        with self._lock:
            row = self._db.execute(
                "select id, at_s, kind, subject, who, body from entry where id = ?",
                (number,),
            ).fetchone()
        return None if row is None else _entry(row)


def _entry(row: tuple[Any, ...]) -> JournalEntry:
    number, at_s, kind, subject, who, body = row
    return JournalEntry(
        number, at_s, kind, subject, who, decode_json(body, dict[str, Any])
    )
