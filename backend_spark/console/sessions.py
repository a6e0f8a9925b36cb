"""Who is logged in, in a file: a restart in the night sends nobody to the login.

The file holds no session, only its digest: whoever reads it cannot come in.
"""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from backend_spark.console.accounts import Account

_TABLES = """
create table if not exists session (
  digest text primary key, name text not null, secret text not null,
  until_s real not null
) without rowid;
create table if not exists seal (secret blob not null);
"""


class Sessions:
    """Sessions of people.

    Args:
        path: Of the file, which only its owner may read; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.executescript(_TABLES)

    def seal(self, make: Callable[[], bytes]) -> bytes:
        """What signs the proofs of pages: made once, so that open pages stay good."""
        with self._lock:
            row = self._db.execute("select secret from seal").fetchone()
            if row is None:
                row = (make(),)
                self._db.execute("insert into seal values (?)", row)
        return bytes(row[0])

    def put(self, session: str, account: Account, until_s: float, now_s: float) -> None:
        """Keep a session; those that are over go."""
        row = (_digest(session), account.name, _digest(account.secret), until_s)
        with self._lock:
            self._db.execute("delete from session where until_s <= ?", (now_s,))
            self._db.execute("insert or replace into session values (?, ?, ?, ?)", row)

    def name(self, session: str, now_s: float) -> tuple[str, str] | None:
        """Name, and digest of the password's hash, of a session that is not over."""
        with self._lock:
            found: tuple[str, str] | None = self._db.execute(
                "select name, secret from session where digest = ? and until_s > ?",
                (_digest(session), now_s),
            ).fetchone()
        return found

    def drop(self, session: str) -> None:
        """End a session."""
        with self._lock:
            self._db.execute(
                "delete from session where digest = ?", (_digest(session),)
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def is_of(account: Account, secret: str) -> bool:
    """Whether the account still has the password that a session was opened with."""
    return _digest(account.secret) == secret


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
