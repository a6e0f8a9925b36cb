"""Login sessions, known devices and used codes, in a file that survives a restart.

The file holds digests, which cannot be used to log in.
"""

import hashlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from backend_spark.console.accounts import Account
from backend_spark.console.databases import find_damage, is_damage, set_aside

log = logging.getLogger(__name__)

MAX_DEVICES: Final = 100
"""Devices of one name that are remembered, the newest first."""

_TABLES: Final = """
create table if not exists session (
  digest text primary key, name text not null, secret text not null,
  until_s real not null
) without rowid;
create table if not exists provider_session (
  digest text primary key, name text not null, role text not null,
  origin text not null, until_s real not null
) without rowid;
create table if not exists seal (secret blob not null);
create table if not exists device (
  digest text not null, name text not null, until_s real not null,
  primary key (name, digest)
) without rowid;
create table if not exists used_code (
  name text primary key, step integer not null
) without rowid;
"""


class SessionStore:
    """Sessions, devices and codes in an SQLite file; for use by several threads.

    A damaged file is set aside, at the start or later: it has nothing but logins.

    Args:
        path: Of the file, which only its owner may read; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = threading.Lock()
        if problem := find_damage(path):
            self._set_aside(problem)
        self._open()

    def _open(self) -> None:
        path = self._path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.executescript(_TABLES)

    def _set_aside(self, problem: str) -> None:
        aside = set_aside(self._path)
        log.error("%s is set aside as %s: %s", self._path, aside.name, problem)
        log.error("users log in again, and open pages must be loaded again")

    @contextmanager
    def _intact(self) -> Iterator[None]:
        """Use the file alone; after damage only this use of it fails."""
        with self._lock:
            try:
                yield
            except sqlite3.DatabaseError as error:
                if is_damage(error):
                    damaged = self._db
                    self._set_aside(str(error))
                    self._open()
                    damaged.close()
                raise

    def signing_key(self, make: Callable[[], bytes]) -> bytes:
        """Key of the proofs; made once, so that open pages outlive a restart."""
        with self._intact():
            row = self._db.execute("select secret from seal").fetchone()
            if row is None:
                row = (make(),)
                self._db.execute("insert into seal values (?)", row)
        return bytes(row[0])

    def add(self, session: str, account: Account, until_s: float, now_s: float) -> None:
        """Store a session, and delete expired ones."""
        row = (_digest(session), account.name, account.credentials_digest(), until_s)
        with self._intact():
            self._db.execute("delete from session where until_s <= ?", (now_s,))
            self._db.execute("insert or replace into session values (?, ?, ?, ?)", row)

    def find(self, session: str, now_s: float) -> tuple[str, str] | None:
        """Account name, and digest of its credentials, of an unexpired session."""
        with self._intact():
            found: tuple[str, str] | None = self._db.execute(
                "select name, secret from session where digest = ? and until_s > ?",
                (_digest(session), now_s),
            ).fetchone()
        return found

    def until_s(self, session: str) -> float | None:
        """Unix time at which a session ends; None if there is no such session."""
        digest = _digest(session)
        with self._intact():
            row = self._db.execute(
                "select until_s from session where digest = ? union all"
                " select until_s from provider_session where digest = ?",
                (digest, digest),
            ).fetchone()
        return None if row is None else float(row[0])

    def add_provided(
        self, session: str, account: Account, origin: str, until_s: float, now_s: float
    ) -> None:
        """Store a session of a user of the OpenID provider, and delete expired ones.

        Args:
            session: Text that identifies it.
            account: Name and role of the user.
            origin: Digest of the provider's settings.
            until_s: Unix time of its end.
            now_s: Unix time.
        """
        row = (_digest(session), account.name, account.role, origin, until_s)
        with self._intact():
            self._db.execute(
                "delete from provider_session where until_s <= ?", (now_s,)
            )
            self._db.execute("insert into provider_session values (?, ?, ?, ?, ?)", row)

    def find_provided(self, session: str, origin: str, now_s: float) -> Account | None:
        """User of an unexpired session that began with the settings of `origin`."""
        with self._intact():
            found = self._db.execute(
                "select name, role from provider_session"
                " where digest = ? and origin = ? and until_s > ?",
                (_digest(session), origin, now_s),
            ).fetchone()
        return None if found is None else Account(found[0], found[1], "")

    def delete(self, session: str) -> bool:
        """End a session; whether there was one."""
        digest, count = (_digest(session),), 0
        with self._intact():
            for table in ("session", "provider_session"):
                statement = f"delete from {table} where digest = ?"  # noqa: S608
                count += self._db.execute(statement, digest).rowcount
        return count == 1

    def add_device(self, device: str, name: str, until_s: float, now_s: float) -> None:
        """Remember a device that has logged in, and forget old ones."""
        oldest = (
            "delete from device where name = ? and digest not in (select digest from"
            " device where name = ? order by until_s desc limit ?)"
        )
        with self._intact():
            self._db.execute("delete from device where until_s <= ?", (now_s,))
            self._db.execute(
                "insert or replace into device values (?, ?, ?)",
                (_digest(device), name, until_s),
            )
            self._db.execute(oldest, (name, name, MAX_DEVICES))

    def is_known_device(self, device: str, name: str, now_s: float) -> bool:
        """Whether a device has logged in with a name lately."""
        with self._intact():
            row = self._db.execute(
                "select 1 from device where name = ? and digest = ? and until_s > ?",
                (name, _digest(device), now_s),
            ).fetchone()
        return row is not None

    def use_code(self, name: str, step: int) -> bool:
        """Mark the code of a step as used; False if it, or a later one, was used."""
        with self._intact():
            return (
                self._db.execute(
                    "insert into used_code values (?, ?) on conflict (name)"
                    " do update set step = excluded.step where excluded.step > step",
                    (name, step),
                ).rowcount
                == 1
            )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
