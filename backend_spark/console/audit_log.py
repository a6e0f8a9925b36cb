"""Journal of the console: decisions about events, notes, thresholds, and logins.

One append-only SQLite table; triggers refuse updates, deletions and replacements. Each
entry has a hash over itself and the hash before, so that a change behind the triggers
shows. The head, the newest hash, is logged with each entry: kept elsewhere, it also
shows whether the whole file was written anew.
"""

import hashlib
import json
import logging
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from backend_spark.console.accounts import Account, Accounts
from backend_spark.console.databases import (
    JOURNAL_FILE,
    is_full,
    open_database,
    refuse_emptied,
)
from backend_spark.console.logins import AttemptBudget, AttemptRate
from service_runtime.decoding import decode_json
from service_runtime.errors import FieldError

log = logging.getLogger(__name__)

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
-- "insert or replace" deletes the old row without the trigger of deletions.
create trigger if not exists no_replacement before insert on entry
  when exists (select 1 from entry where id = new.id)
  begin select raise(abort, 'the book is not changed'); end;
create trigger if not exists no_second_alert before insert on entry
  when new.kind = 'alert'
    and exists (select 1 from entry where kind = 'alert' and subject = new.subject)
  begin select raise(ignore); end;
"""

_HASHES: Final = (
    "create table entry_hash (id integer primary key, hash blob not null)",
    (
        "create trigger no_hash_change before update on entry_hash"
        " begin select raise(abort, 'the book is not changed'); end"
    ),
    (
        "create trigger no_hash_removal before delete on entry_hash"
        " begin select raise(abort, 'nothing leaves the book'); end"
    ),
    (
        "create trigger no_hash_replacement before insert on entry_hash"
        " when exists (select 1 from entry_hash where id = new.id)"
        " begin select raise(abort, 'the book is not changed'); end"
    ),
)

_INSERT: Final = (
    "insert into entry (at_s, kind, subject, who, body) values (?, ?, ?, ?, ?)"
)
_COLUMNS: Final = "id, at_s, kind, subject, who, body"
_HEAD: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_FIRST: Final = bytes(32)
"""What stands before the first hash."""

FAILURE_RATE: Final = AttemptRate(20, 60.0)
"""Entries of failures. Those beyond it are counted in the next entry, because guesses
for a year must not fill the disk."""

ACCESS_KINDS: Final = ("login", "login_failed", "logout", "accounts")


@dataclass(frozen=True)
class JournalEntry:
    """One entry of the journal.

    Attributes:
        id: Row number.
        at_s: Unix time of writing.
        kind: ``alert`` (an event of a slope), ``event_state`` (a decision about one;
            ``acknowledge`` in earlier releases), ``note``, ``threshold``, ``event`` (a
            landslide), ``cap`` (a message made), ``drill``, ``review`` (a decision
            about readings), ``review_end`` (its end), or one of `ACCESS_KINDS`.
        subject: Key of an alert, slope of a decision, token of a cell, identifier of a
            message, or empty.
        who: Account name; empty if the console itself wrote the entry.
        body: Fields of the kind.
    """

    id: int
    at_s: float
    kind: str
    subject: str
    who: str
    body: dict[str, Any]


@dataclass(frozen=True)
class JournalDraft:
    """An entry to write; the attributes are those of `JournalEntry`."""

    kind: str
    subject: str
    who: str
    body: dict[str, Any]


@dataclass(frozen=True)
class JournalHead:
    """Number and hash of the newest entry.

    Attributes:
        number: Of the entry; 0 without entries.
        hash: Over all entries up to it.
    """

    number: int
    hash: bytes

    @classmethod
    def parse(cls, text: str) -> "JournalHead":
        """Parse a head as it was logged.

        Raises:
            FieldError: It has another form.
        """
        match = _HEAD.fullmatch(text)
        if match is None:
            rule = "a number, a colon and 64 hexadecimal digits, as in the log"
            raise FieldError("head", rule, text)
        return cls(int(match[1]), bytes.fromhex(match[2]))

    def __str__(self) -> str:
        """As in the log."""
        return f"{self.number}:{self.hash.hex()}"


class Journal:
    """The journal file; an entry is on disk when `write` returns.

    Several threads may use it.

    Args:
        path: Of the file; its folder is made.

    Attributes:
        opened_at: Number of its newest entry when it was opened; 0 without entries.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._db = open_database(path, _TABLE)
        self._add_hashes()
        self.opened_at: Final = self._head().number

    def write(
        self, at_s: float, kind: str, subject: str, who: str, body: dict[str, Any]
    ) -> int:
        """Append an entry, and return its number."""
        (entry,) = self.write_all(at_s, [JournalDraft(kind, subject, who, body)])
        return entry.id if entry else 0

    def write_all(
        self, at_s: float, drafts: Iterable["JournalDraft"]
    ) -> list["JournalEntry | None"]:
        """Append entries in one transaction; None for an alert that is there."""
        encoded = [(d, msgspec.json.encode(d.body).decode()) for d in drafts]
        if not encoded:
            return []
        with self.batch():
            numbers = [
                self._append((at_s, d.kind, d.subject, d.who, text))
                for d, text in encoded
            ]
        return [
            JournalEntry(n, at_s, d.kind, d.subject, d.who, d.body) if n else None
            for n, (d, _) in zip(numbers, encoded, strict=True)
        ]

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Make one transaction of all entries that are written within."""
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            with self._transaction() as before:
                yield
            head = self._newest
        if head != before:
            log.info("journal head %s", head)

    @contextmanager
    def _transaction(self) -> Iterator["JournalHead"]:
        """A transaction; yields the head before it."""
        with self._lock:
            self._db.execute("begin immediate")
            try:
                # Kept in memory within: another process cannot write meanwhile.
                self._newest = self._head()
                yield self._newest
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:  # SQLite ends it itself on a full disk
                    self._db.execute("rollback")
                raise

    def _append(self, row: tuple[Any, ...]) -> int:
        """Append an entry and its hash; 0 if it is an alert that is there already."""
        inserted = self._db.execute(_INSERT, row)
        if inserted.rowcount != 1:
            return 0
        number = inserted.lastrowid or 0
        self._newest = JournalHead(number, _hash(self._newest.hash, (number, *row)))
        self._add_hash(number, self._newest.hash)
        return number

    def _add_hashes(self) -> None:
        """Give the entries of an earlier release their hashes."""
        tables = "select 1 from sqlite_master where name = 'entry_hash'"
        if self._db.execute(tables).fetchone() is not None:
            return
        self._db.execute("begin immediate")
        for statement in _HASHES:
            self._db.execute(statement)
        newest = _FIRST
        entries = self._db.execute(f"select {_COLUMNS} from entry order by id")  # noqa: S608
        for row in entries.fetchall():
            newest = _hash(newest, row)
            self._add_hash(row[0], newest)
        self._db.execute("commit")

    def _add_hash(self, number: int, digest: bytes) -> None:
        self._db.execute("insert into entry_hash values (?, ?)", (number, digest))

    def _head(self) -> "JournalHead":
        row = self._db.execute(
            "select id, hash from entry_hash order by id desc limit 1"
        ).fetchone()
        return JournalHead(*row) if row else JournalHead(0, _FIRST)

    def read(self, *kinds: str, limit: int = -1) -> list[JournalEntry]:
        """Entries of some kinds, newest first; all by default."""
        with self._lock:
            return _newest(self._db, kinds, limit)

    def read_after(self, number: int, *kinds: str) -> list[JournalEntry]:
        """Entries of some kinds after a number, oldest first."""
        placeholders = ", ".join("?" * len(kinds))
        with self._lock:
            rows = self._db.execute(
                f"select {_COLUMNS} from entry"  # noqa: S608
                f" where kind in ({placeholders}) and id > ? order by id",
                (*kinds, number),
            ).fetchall()
        return [_entry(row) for row in rows]

    def find(self, number: int) -> JournalEntry | None:
        """Entry with a number."""
        with self._lock:
            row = self._db.execute(
                f"select {_COLUMNS} from entry where id = ?",  # noqa: S608
                (number,),
            ).fetchone()
        return None if row is None else _entry(row)


def _newest(
    db: sqlite3.Connection, kinds: Sequence[str], limit: int
) -> list[JournalEntry]:
    placeholders = ", ".join("?" * len(kinds))
    rows = db.execute(
        f"select {_COLUMNS} from entry"  # noqa: S608
        f" where kind in ({placeholders}) order by id desc limit ?",
        (*kinds, limit),
    ).fetchall()
    return [_entry(row) for row in rows]


def _entry(row: tuple[Any, ...]) -> JournalEntry:
    number, at_s, kind, subject, who, body = row
    return JournalEntry(
        number, at_s, kind, subject, who, decode_json(body, dict[str, Any])
    )


def _hash(before: bytes, row: tuple[Any, ...]) -> bytes:
    """Hash of an entry: SHA-256 over the hash before and the row as a JSON array."""
    number, at_s, *texts = row
    encoded = json.dumps([number, float(at_s), *texts], separators=(",", ":"))
    return hashlib.sha256(before + encoded.encode("ascii")).digest()


@dataclass(frozen=True)
class JournalCheck:
    """Result of checking a journal against its hashes.

    Attributes:
        head: Newest entry with a hash.
        problems: One sentence for each entry that is not as it was written.
    """

    head: JournalHead
    problems: tuple[str, ...]


@contextmanager
def _read_only(path: Path) -> Iterator[sqlite3.Connection]:
    refuse_emptied(path, JOURNAL_FILE)
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as db:
            yield db
    except sqlite3.Error as error:
        rule = "a journal that this release of the console has opened"
        raise FieldError("journal", rule, str(path), str(error)) from error


def read_journal(path: Path, *kinds: str, limit: int) -> list[JournalEntry]:
    """Entries of some kinds of a journal, newest first; the file is only read.

    Raises:
        DamagedDatabaseError: The file was emptied.
        FieldError: It is no journal.
    """
    with _read_only(path) as db:
        return _newest(db, kinds, limit)


def check_journal(path: Path, known: Iterable[JournalHead] = ()) -> JournalCheck:
    """Check every entry of a journal, which is only read.

    Args:
        path: Of the file.
        known: Heads that were logged earlier.

    Raises:
        DamagedDatabaseError: The file was emptied.
        FieldError: It is no journal with hashes.
    """
    with _read_only(path) as db:
        db.execute("begin")  # both tables at one moment: the console may write
        rows = db.execute(f"select {_COLUMNS} from entry").fetchall()  # noqa: S608
        hashes = dict(db.execute("select id, hash from entry_hash"))
    problems = _wrong_entries(rows, hashes)
    for head in known:
        if hashes.get(head.number) != head.hash:
            problems.append(f"entry {head.number} had another hash when it was logged")
    newest = max(hashes, default=0)
    return JournalCheck(
        JournalHead(newest, hashes.get(newest, _FIRST)), tuple(problems)
    )


def _wrong_entries(
    rows: Iterable[tuple[Any, ...]], hashes: dict[int, bytes]
) -> list[str]:
    """One sentence for each entry that differs from its hash."""
    entries = {row[0]: row for row in rows}
    problems, before = [], _FIRST
    for number in sorted(entries.keys() | hashes.keys()):
        if number not in hashes:
            problems.append(f"entry {number} was not written by the console")
            continue
        if number not in entries:
            problems.append(f"entry {number} is missing")
        elif hashes[number] != _hash(before, entries[number]):
            problems.append(f"entry {number} was changed")
        before = hashes[number]
    return problems


@dataclass
class AccessLog:
    """Writes access to the console into the journal; for several threads.

    While the disk is full, a login fails, as it must not be without an entry. What has
    happened whether it is written or not waits in memory, with its time.

    Attributes:
        journal: The journal.
    """

    journal: Journal
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failures: AttemptBudget = field(
        default_factory=lambda: AttemptBudget(FAILURE_RATE)
    )
    _unwritten: int = 0
    _waiting: list[tuple[float, JournalDraft]] = field(default_factory=list)

    def login(self, name: str, address: str, now_s: float, *, is_known: bool) -> None:
        """Write a login, with its address and whether the device was known."""
        body = {"address": address, "known_device": is_known}
        self._write(now_s, JournalDraft("login", "", name, body))

    def sign_in(
        self, account: Account, issuer: str, subject: str, address: str, now_s: float
    ) -> None:
        """Write a login by the OpenID provider, with whom it is at the provider."""
        body = {"address": address, "issuer": issuer, "subject": subject}
        body["role"] = account.role
        self._write(now_s, JournalDraft("login", "", account.name, body))

    def logout(self, name: str, now_s: float) -> None:
        """Write a logout."""
        with self._lock:
            self._write_or_keep(now_s, JournalDraft("logout", "", name, {}))

    def failure(self, account: Account | None, address: str, now_s: float) -> None:
        """Write a failed login, at a limited rate.

        An unknown name is not written: it may be a password in the wrong field.
        """
        with self._lock:
            self._unwritten += 1
            if self._failures.wait_s(now_s) > 0:
                return
            self._failures.add(1, now_s)
            count, self._unwritten = self._unwritten, 0
            name = account.name if account else ""
            body = {"address": address, "count": count}
            self._write_or_keep(now_s, JournalDraft("login_failed", name, "", body))

    def accounts(self, accounts: Accounts, now_s: float, who: str = "") -> None:
        """Write which accounts were added, removed or changed since the last entry.

        Args:
            accounts: The accounts now.
            now_s: Unix time.
            who: Account that changed them in the page; empty for the command line.
        """
        with self._lock:
            newest = [draft for _, draft in self._waiting if draft.kind == "accounts"]
            entries = newest[-1:] or self.journal.read("accounts", limit=1)
            before = entries[0].body["accounts"] if entries else {}
            after = {name: _state(account) for name, account in accounts.items()}
            if before == after:
                return
            body = {"accounts": after, **_changes(before, after)}
            self._write_or_keep(now_s, JournalDraft("accounts", "", who, body))

    def write_waiting(self) -> None:
        """Write what waits for space on the disk.

        Raises:
            OSError, sqlite3.Error: There is none.
        """
        with self._lock:
            if self._waiting:
                self._write_after_waiting()

    def _write(self, now_s: float, draft: JournalDraft) -> None:
        with self._lock:
            self._write_after_waiting((now_s, draft))

    def _write_or_keep(self, now_s: float, draft: JournalDraft) -> None:
        try:
            self._write_after_waiting((now_s, draft))
        except (OSError, sqlite3.Error) as error:
            if not is_full(error):
                raise
            log.error("an entry (%s) waits for space: %s", draft.kind, error)  # noqa: TRY400
            self._waiting.append((now_s, draft))

    def _write_after_waiting(self, *more: tuple[float, JournalDraft]) -> None:
        with self.journal.batch():
            for at_s, draft in (*self._waiting, *more):
                self.journal.write_all(at_s, [draft])
        self._waiting.clear()


def _state(account: Account) -> dict[str, Any]:
    """State of an account; the fingerprint shows that its password changed."""
    secret = hashlib.sha256(account.password_hash.encode()).hexdigest()
    totp = bool(account.totp_secret)
    state = {"role": account.role, "password": secret[:16], "second_factor": totp}
    token = {"token": account.token_digest[:16]} if account.token_digest else {}
    return state | token | ({"locked": True} if account.is_locked else {})


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[str]]:
    both = before.keys() & after.keys()
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(name for name in both if before[name] != after[name]),
    }
