"""Record of logins: sessions, devices, used codes; how soon one may be tried again.

What is successful is in a file that survives a restart. It holds digests, which cannot
be used to log in. A known device is a browser that has logged in before, for the same
name. Its failed attempts are counted by themselves, so that guesses from elsewhere
never delay it.
"""

import hashlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
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


FREE_ATTEMPTS: Final = 5
MAX_WAIT_S: Final = 900.0
FORGET_S: Final = 3600.0
SET_BACK_S: Final = 60.0
"""A clock that is earlier by more than this was set back."""


class TooManyAttemptsError(Exception):
    """A login attempt came too soon after others.

    Attributes:
        wait_s: Seconds until the next attempt.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many tries: wait {wait_s:.0f} s")
        self.wait_s = wait_s


@dataclass
class FailedAttempts:
    """Wrong passwords in a row.

    Attributes:
        count: Number of them.
        last_s: Unix time of the last one.
    """

    count: int = 0
    last_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next attempt; the pause doubles from the sixth on."""
        over = self.count - FREE_ATTEMPTS
        if over < 0:
            return 0.0
        pause_s = min(MAX_WAIT_S, 2.0 ** min(over, 20) * 5)
        return max(0.0, self.last_s + pause_s - now_s)


@dataclass(frozen=True)
class AttemptRate:
    """Failed attempts that are allowed.

    Attributes:
        burst: At once.
        interval_s: One more after this time.
    """

    burst: int
    interval_s: float


NAME_RATE: Final = AttemptRate(20, 120.0)
"""Guesses at one name, from all addresses: 720 a day."""

SITE_RATE: Final = AttemptRate(30, 10.0)
"""Guesses from one site, at all names; an office shares one address."""

GLOBAL_RATE: Final = AttemptRate(100, 1.0)
"""Guesses from everywhere: each costs a hash."""


@dataclass
class AttemptBudget:
    """Token bucket of failed attempts.

    Attributes:
        rate: That refills it.
        spent: Failed attempts that are not refilled yet.
        at_s: Unix time of `spent`.
    """

    rate: AttemptRate
    spent: float = 0.0
    at_s: float = 0.0

    def spent_at(self, now_s: float) -> float:
        """Failed attempts that are not refilled at a time."""
        refilled = max(0.0, now_s - self.at_s) / self.rate.interval_s
        return max(0.0, self.spent - refilled)

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next attempt."""
        over = self.spent_at(now_s) + 1 - self.rate.burst
        return max(0.0, over * self.rate.interval_s)

    def add(self, attempts: int, now_s: float) -> None:
        """Spend attempts, or give them back if negative."""
        self.spent = max(0.0, self.spent_at(now_s) + attempts)
        self.at_s = max(self.at_s, now_s)


@dataclass(frozen=True)
class CountedAttempt:
    """An attempt that counts as failed until it is forgiven.

    Attributes:
        key: Of its failed attempts in a row.
        budgets: Keys of the budgets that it spent.
    """

    key: tuple[str, ...]
    budgets: tuple[tuple[str, ...], ...]


@dataclass
class LoginThrottle:
    """Counts failed logins; for one thread."""

    _latest_s: float = 0.0
    _failed: dict[tuple[str, ...], FailedAttempts] = field(default_factory=dict)
    _budgets: dict[tuple[str, ...], AttemptBudget] = field(default_factory=dict)

    def count(
        self, name: str, address: str, device: str | None, now_s: float
    ) -> CountedAttempt:
        """Count an attempt as failed, before its password is checked.

        So parallel guesses cannot all pass before the first one is counted.

        Args:
            name: Of the account.
            address: That the attempt comes from.
            device: That has logged in with this name before; None for any other.
            now_s: Unix time.

        Raises:
            TooManyAttemptsError: It came too soon. It is not counted.
        """
        now_s = self._forget(now_s)
        site = site_of(address)
        key = ("device", device, name) if device else ("site", site, name)
        rates = {} if device else _rates(name, site)
        failed = self._failed.get(key, FailedAttempts())
        budgets = {k: self._budgets.get(k, AttemptBudget(r)) for k, r in rates.items()}
        waits_s = [budget.wait_s(now_s) for budget in budgets.values()]
        wait_s = max(failed.wait_s(now_s), *waits_s, 0.0)
        if wait_s > 0:
            raise TooManyAttemptsError(wait_s)
        failed.count, failed.last_s = failed.count + 1, now_s
        self._failed[key] = failed
        for budget in budgets.values():
            budget.add(1, now_s)
        self._budgets.update(budgets)
        return CountedAttempt(key, tuple(budgets))

    def forgive(self, attempt: CountedAttempt, now_s: float) -> None:
        """Take back an attempt that was successful."""
        self._failed.pop(attempt.key, None)
        for key in attempt.budgets:
            if key in self._budgets:
                self._budgets[key].add(-1, now_s)

    def _forget(self, now_s: float) -> float:
        """Forget what is over; returns the time that counts for an attempt."""
        if now_s < self._latest_s - SET_BACK_S:  # no pause lasts until then
            self._failed, self._budgets = {}, {}
        elif now_s < self._latest_s:  # an attempt that came in at the same time
            now_s = self._latest_s
        self._latest_s = now_s
        self._failed = {
            key: failed
            for key, failed in self._failed.items()
            if now_s - failed.last_s < FORGET_S
        }
        self._budgets = {
            key: budget
            for key, budget in self._budgets.items()
            if budget.spent_at(now_s) > 0
        }
        return now_s


def _rates(name: str, site: str) -> dict[tuple[str, ...], AttemptRate]:
    """Rates that hold for an unknown device."""
    return {
        ("name", name): NAME_RATE,
        ("site", site): SITE_RATE,
        ("all",): GLOBAL_RATE,
    }


def site_of(address: str) -> str:
    """Site of an address: itself, or the /48 network of an IPv6 address.

    A site has 2^80 addresses of IPv6; guesses from all of them are one guesser's.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return "unknown"
    if not isinstance(ip, IPv6Address):
        return str(ip)
    mapped = ip.ipv4_mapped
    return str(mapped or ip_network((int(ip), 48), strict=False))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
