"""Accounts: a file of names, roles and hashed passwords, one line each.

Form of a line: ``name:role:scrypt$N$r$p$salt$hash``, salt and hash in base64.

Who comes in: sessions, proofs against forged requests, and a door slow to guess.

From a request to who sent it and what they may do.

Who is logged in, in a file: a restart in the night sends nobody to the login.

The file holds no session, only its digest: whoever reads it cannot come in.
"""

import base64
import hashlib
import hmac
import os
import re
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fastapi import Request

from backend_spark.config import ConsoleSettings
from backend_spark.console.http import refuse
from service_runtime.errors import FieldError
from service_runtime.files import fsync_file, fsync_folder

ROLES: Final = ("viewer", "analyst", "chief")
"""May look; may acknowledge and note as well; may change thresholds as well."""

SHORTEST_PASSWORD: Final = 10
LONGEST_PASSWORD: Final = 1000
MOST_BYTES: Final = 1_000_000
_NAME: Final = re.compile(r"[\w.@-]{1,64}")
_N, _R, _P = 2**14, 8, 1
_MEMORY_BYTES: Final = 64 * 2**20
_SECRET: Final = re.compile(
    r"scrypt\$([0-9]{1,6})\$([0-9]{1,2})\$([0-9])"
    r"\$[A-Za-z0-9+/]{22}==\$[A-Za-z0-9+/]{86}=="
)

Salt = Callable[[int], bytes]


@dataclass(frozen=True)
class Account:
    """Who may log in.

    Attributes:
        name: Of the person.
        role: One of `ROLES`.
        secret: Hashed password, with its salt and costs.
    """

    name: str
    role: str
    secret: str

    def may(self, role: str) -> bool:
        """Whether the account has at least a role."""
        return ROLES.index(self.role) >= ROLES.index(role)


def check_name(name: str) -> str:
    """Let the name of an account through.

    Raises:
        FieldError: It is none.
    """
    if not _NAME.fullmatch(name):
        rule = "1 to 64 letters, digits, '.', '-', '_' or '@'"
        raise FieldError("account name", rule, name)
    return name


def hashed(password: str, salt: Salt) -> str:
    """A password as the file keeps it.

    Raises:
        FieldError: It is too short or too long.
    """
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        rule = f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters long"
        raise FieldError("password", rule, f"{len(password)} characters")
    grain = salt(16)
    key = _scrypt(password, grain, (_N, _R, _P))
    parts = [str(n) for n in (_N, _R, _P)] + [_text(grain), _text(key)]
    return "$".join(["scrypt", *parts])


def matches(secret: str, password: str) -> bool:
    """Whether a password is the one that was hashed."""
    _, n, r, p, salt, key = secret.split("$")
    costs = (int(n), int(r), int(p))
    found = _scrypt(password, base64.b64decode(salt), costs)
    return hmac.compare_digest(found, base64.b64decode(key))


def read(path: Path) -> dict[str, Account]:
    """Accounts by their names.

    Raises:
        FieldError: The file cannot be read, or a line is wrong.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            rule = f"at most {MOST_BYTES} bytes"
            raise FieldError("console.accounts", rule, f"{path.stat().st_size} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        rule = "a file made by backend-spark console-account"
        raise FieldError("console.accounts", rule, str(path), str(error)) from error
    known = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            account = _parse(f"{path} line {number}", line.strip())
            if account.name in known:
                where = f"{path} line {number}: name"
                raise FieldError(where, "there once", account.name, "remove one line")
            known[account.name] = account
    return known


def write(path: Path, known: dict[str, Account]) -> None:
    """Replace the file in one step; only its owner may read it."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.touch(mode=0o600)
    lines = [f"{a.name}:{a.role}:{a.secret}\n" for a in known.values()]
    fresh.write_text("".join(lines), encoding="utf-8")
    fsync_file(fresh)
    fresh.rename(path)
    fsync_folder(path.parent)


def _parse(where: str, line: str) -> Account:
    name, _, rest = line.partition(":")
    role, _, secret = rest.partition(":")
    if role not in ROLES:
        raise FieldError(f"{where}: role", f"one of {', '.join(ROLES)}", role)
    if not _is_usable(secret):
        rule = "scrypt$N$r$p$salt$hash"
        remedy = "make the account again with console-account"
        raise FieldError(f"{where}: password", rule, "something else", remedy)
    return Account(check_name(name), role, secret)


def _is_usable(secret: str) -> bool:
    """Whether a login can be compared with it, within a second or so."""
    match = _SECRET.fullmatch(secret)
    if match is None:
        return False
    n, r, p = map(int, match.groups())
    is_power = n > 1 and n & (n - 1) == 0
    return is_power and r * p > 0 and 128 * r * (n + p + 2) <= _MEMORY_BYTES


def _scrypt(password: str, salt: bytes, costs: tuple[int, int, int]) -> bytes:
    n, r, p = costs
    secret = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=n, r=r, p=p, maxmem=_MEMORY_BYTES)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


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


SESSION_S: Final = 12 * 3600.0
"""A shift; then one logs in again."""

FREE_TRIES: Final = 5
SLOWEST_S: Final = 900.0
FORGET_S: Final = 3600.0

NOBODY: Final = "scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAA"
"""A name that is not there takes as long to refuse as one that is."""

Token = Callable[[], str]


@dataclass
class Tries:
    """Wrong passwords in a row.

    Attributes:
        count: How many.
        last_s: When the last was.
    """

    count: int = 0
    last_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """How long until the next try; it doubles from the sixth on."""
        over = self.count - FREE_TRIES
        if over < 0:
            return 0.0
        pause_s = min(SLOWEST_S, 2.0 ** min(over, 20) * 5)
        return max(0.0, self.last_s + pause_s - now_s)


@dataclass
class Doors:
    """Sessions, and how long who guessed must wait.

    Attributes:
        accounts: By name.
        token: Makes an unguessable text.
        secret: Signs the proofs against forged requests.
        sessions: Keeps them over a restart.
    """

    accounts: dict[str, Account]
    token: Token
    secret: bytes
    sessions: Sessions
    _tries: dict[str, Tries] = field(default_factory=dict)

    def wait_s(self, name: str, address: str, now_s: float) -> float:
        """How long a name or an address must wait for its next try."""
        keys = (f"name {name}", f"from {address}")
        return max(self._tries.get(key, Tries()).wait_s(now_s) for key in keys)

    def enter(self, name: str, password: str, address: str, now_s: float) -> str | None:
        """A session for the right password; None for a wrong one, which is counted."""
        account = self.accounts.get(name)
        is_right = matches(account.secret if account else NOBODY, password)
        keys = (f"name {name}", f"from {address}")
        if account is None or not is_right:
            self._forget(now_s)
            for key in keys:
                tries = self._tries.setdefault(key, Tries())
                tries.count += 1
                tries.last_s = now_s
            return None
        for key in keys:
            self._tries.pop(key, None)
        session = self.token()
        self.sessions.put(session, account, now_s + SESSION_S, now_s)
        return session

    def who(self, session: str, now_s: float) -> Account | None:
        """The account of a session; None when it is over or never was.

        It is over, too, when the account has another password now, or is gone.
        """
        name, secret = self.sessions.name(session, now_s) or ("", "")
        account = self.accounts.get(name)
        return account if account and is_of(account, secret) else None

    def leave(self, session: str) -> None:
        """End a session."""
        self.sessions.drop(session)

    def proof(self, session: str) -> str:
        """What a page of ours sends along with every change."""
        return hmac.new(self.secret, session.encode(), hashlib.sha256).hexdigest()

    def is_proven(self, session: str, proof: str) -> bool:
        """Whether a change was sent by a page of ours."""
        return hmac.compare_digest(self.proof(session).encode(), proof.encode())

    def _forget(self, now_s: float) -> None:
        self._tries = {
            key: tries
            for key, tries in self._tries.items()
            if now_s - tries.last_s < FORGET_S
        }


COOKIE: Final = "yamamori-session"
PROOF: Final = "x-yamamori-proof"
GUEST: Final = Account("", "viewer", "")
"""On this machine, without a file of accounts: may look."""


@dataclass(frozen=True)
class Visitor:
    """Who sent a request.

    Attributes:
        account: Name and role.
        session: What the proof is made for.
    """

    account: Account
    session: str


@dataclass(frozen=True)
class Gate:
    """Lets requests through.

    Attributes:
        settings: Of the console.
        doors: Sessions.
        clock: Unix time.
    """

    settings: ConsoleSettings
    doors: Doors
    clock: Callable[[], float]

    def visitor(self, request: Request) -> Visitor | None:
        """Who sent a request; None: nobody we know."""
        name = self._by_proxy(request)
        if name is not None:
            account = self.doors.accounts.get(name, Account(name, "viewer", ""))
            return Visitor(account, f"proxy {name}")
        session = request.cookies.get(COOKIE, "")
        known = self.doors.who(session, self.clock())
        if known is not None:
            return Visitor(known, session)
        if self.settings.accounts is None and self.settings.proxy_header is None:
            return Visitor(GUEST, "guest")
        return None

    def look(self, request: Request) -> Visitor:
        """Who looks.

        Raises:
            HTTPException: 401, nobody we know.
        """
        visitor = self.visitor(request)
        if visitor is None:
            raise refuse(401, "log in first")
        return visitor

    def change(self, request: Request, role: str = "analyst") -> Visitor:
        """Who changes something.

        Raises:
            HTTPException: 401 for nobody, 403 without the role or the page's proof.
        """
        visitor = self.look(request)
        if not visitor.account.may(role):
            who = visitor.account.name or "a guest"
            raise refuse(403, f"the account must have the role {role}, got {who!r}")
        if not self.doors.is_proven(visitor.session, request.headers.get(PROOF, "")):
            raise refuse(403, "the page is old: load it again")
        return visitor

    def _by_proxy(self, request: Request) -> str | None:
        header = self.settings.proxy_header
        if header is None or address_of(request) not in self.settings.proxies:
            return None
        return request.headers.get(header) or None


def address_of(request: Request) -> str:
    """Where a request came from."""
    return request.client.host if request.client else ""
