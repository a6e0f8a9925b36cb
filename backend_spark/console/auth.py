"""Authentication: accounts, password hashes, login sessions, senders of requests.

A line of the accounts file is ``name:role:scrypt$N$r$p$salt$hash``, with salt and hash
in base64. Sessions are stored in a file, so that they survive a restart; the file holds
digests, which cannot be used to log in.
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

from backend_spark.config import ConsoleSection
from service_runtime.errors import FieldError
from service_runtime.files import write_atomic

ROLES: Final = ("viewer", "analyst", "chief")
"""Each role includes those before it: view; acknowledge and note; set thresholds."""

MIN_PASSWORD_LENGTH: Final = 10
MAX_PASSWORD_LENGTH: Final = 1000
MAX_FILE_BYTES: Final = 1_000_000
_NAME: Final = re.compile(r"[\w.@-]{1,64}")
_N, _R, _P = 2**14, 8, 1
_MEMORY_BYTES: Final = 64 * 2**20
_SECRET: Final = re.compile(
    r"scrypt\$([0-9]{1,6})\$([0-9]{1,2})\$([0-9])"
    r"\$[A-Za-z0-9+/]{22}==\$[A-Za-z0-9+/]{86}=="
)

SaltSource = Callable[[int], bytes]


@dataclass(frozen=True)
class Account:
    """Account of a person.

    Attributes:
        name: Login name.
        role: One of `ROLES`.
        password_hash: Hashed password, with its salt and costs.
    """

    name: str
    role: str
    password_hash: str

    def has_role(self, role: str) -> bool:
        """Whether the account has at least a role."""
        return ROLES.index(self.role) >= ROLES.index(role)


def check_account_name(name: str) -> str:
    """Return the name of an account if it is valid.

    Raises:
        FieldError: It is not.
    """
    if not _NAME.fullmatch(name):
        rule = "1 to 64 letters, digits, '.', '-', '_' or '@'"
        raise FieldError("account name", rule, name)
    return name


def hash_password(password: str, salt: SaltSource) -> str:
    """Hash a password for the accounts file.

    Args:
        password: In plain text.
        salt: Source of random bytes.

    Raises:
        FieldError: The password is too short or too long.
    """
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        rule = f"{MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters long"
        raise FieldError("password", rule, f"{len(password)} characters")
    salt_bytes = salt(16)
    key = _scrypt(password, salt_bytes, (_N, _R, _P))
    parts = [str(n) for n in (_N, _R, _P)] + [_text(salt_bytes), _text(key)]
    return "$".join(["scrypt", *parts])


def verify_password(password_hash: str, password: str) -> bool:
    """Whether a password is the one that was hashed."""
    _, n, r, p, salt, key = password_hash.split("$")
    costs = (int(n), int(r), int(p))
    found = _scrypt(password, base64.b64decode(salt), costs)
    return hmac.compare_digest(found, base64.b64decode(key))


def read_accounts(path: Path) -> dict[str, Account]:
    """Read the accounts file; accounts by name.

    Raises:
        FieldError: The file cannot be read, or a line is invalid.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            rule = f"at most {MAX_FILE_BYTES} bytes"
            raise FieldError("console.accounts", rule, f"{path.stat().st_size} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        rule = "a file made by backend-spark console-account"
        raise FieldError("console.accounts", rule, str(path), str(error)) from error
    accounts = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            account = _parse(f"{path} line {number}", line.strip())
            if account.name in accounts:
                where = f"{path} line {number}: name"
                raise FieldError(where, "there once", account.name, "remove one line")
            accounts[account.name] = account
    return accounts


def write_accounts(path: Path, accounts: dict[str, Account]) -> None:
    """Replace the accounts file atomically; only its owner may read it."""
    lines = [f"{a.name}:{a.role}:{a.password_hash}\n" for a in accounts.values()]
    write_atomic(path, "".join(lines).encode(), mode=0o600)


def _parse(where: str, line: str) -> Account:
    name, _, rest = line.partition(":")
    role, _, secret = rest.partition(":")
    if role not in ROLES:
        raise FieldError(f"{where}: role", f"one of {', '.join(ROLES)}", role)
    if not _is_usable(secret):
        rule = "scrypt$N$r$p$salt$hash"
        remedy = "make the account again with console-account"
        raise FieldError(f"{where}: password", rule, "something else", remedy)
    return Account(check_account_name(name), role, secret)


def _is_usable(secret: str) -> bool:
    """Whether the hash is well-formed, and a login takes about a second at most."""
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


class SessionStore:
    """Login sessions in an SQLite file; for use by several threads.

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

    def signing_key(self, make: Callable[[], bytes]) -> bytes:
        """Key of the proofs; made once, so that open pages outlive a restart."""
        with self._lock:
            row = self._db.execute("select secret from seal").fetchone()
            if row is None:
                row = (make(),)
                self._db.execute("insert into seal values (?)", row)
        return bytes(row[0])

    def add(self, session: str, account: Account, until_s: float, now_s: float) -> None:
        """Store a session, and delete expired ones."""
        row = (_digest(session), account.name, _digest(account.password_hash), until_s)
        with self._lock:
            self._db.execute("delete from session where until_s <= ?", (now_s,))
            self._db.execute("insert or replace into session values (?, ?, ?, ?)", row)

    def find(self, session: str, now_s: float) -> tuple[str, str] | None:
        """Account name, and digest of its password hash, of an unexpired session."""
        with self._lock:
            found: tuple[str, str] | None = self._db.execute(
                "select name, secret from session where digest = ? and until_s > ?",
                (_digest(session), now_s),
            ).fetchone()
        return found

    def delete(self, session: str) -> None:
        """End a session."""
        with self._lock:
            self._db.execute(
                "delete from session where digest = ?", (_digest(session),)
            )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


SESSION_S: Final = 12 * 3600.0
"""Lifetime of a session: one shift."""

FREE_ATTEMPTS: Final = 5
MAX_WAIT_S: Final = 900.0
FORGET_S: Final = 3600.0

DUMMY_HASH: Final = "scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAA"
"""Hash that makes unknown user names take as long to reject as wrong passwords."""

TokenSource = Callable[[], str]


class TooManyAttemptsError(Exception):
    """A login attempt came too soon after wrong ones.

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


@dataclass
class LoginService:
    """Logs people in and out, and slows down guessing.

    Attributes:
        accounts: By name.
        token: Makes an unguessable text.
        signing_key: Key of the proofs against forged requests.
        sessions: Sessions of people who are logged in.
    """

    accounts: dict[str, Account]
    token: TokenSource
    signing_key: bytes
    sessions: SessionStore
    _failed: dict[str, FailedAttempts] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def log_in(
        self, name: str, password: str, address: str, now_s: float
    ) -> str | None:
        """Open a session; None for a wrong name or password, which is counted.

        Raises:
            TooManyAttemptsError: The name or the address must wait.
        """
        keys = (f"name {name}", f"from {address}")
        # One attempt at a time: parallel guesses would all pass the check before the
        # first is counted, and each hash takes 16 MB.
        with self._lock:
            wait_s = max(
                self._failed.get(key, FailedAttempts()).wait_s(now_s) for key in keys
            )
            if wait_s > 0:
                raise TooManyAttemptsError(wait_s)
            account = self.accounts.get(name)
            is_right = verify_password(
                account.password_hash if account else DUMMY_HASH, password
            )
            if account is None or not is_right:
                self._count_failure(keys, now_s)
                return None
            for key in keys:
                self._failed.pop(key, None)
        session = self.token()
        self.sessions.add(session, account, now_s + SESSION_S, now_s)
        return session

    def log_out(self, session: str) -> None:
        """End a session."""
        self.sessions.delete(session)

    def account_of(self, session: str, now_s: float) -> Account | None:
        """Account of a session; None if the session is unknown or over.

        A session also ends when its account is removed or gets another password.
        """
        name, secret = self.sessions.find(session, now_s) or ("", "")
        account = self.accounts.get(name)
        return account if account and _digest(account.password_hash) == secret else None

    def proof(self, session: str) -> str:
        """Token that the pages send with every change (CSRF protection)."""
        return hmac.new(self.signing_key, session.encode(), hashlib.sha256).hexdigest()

    def is_proven(self, session: str, proof: str) -> bool:
        """Whether a change was sent by a page of this console."""
        return hmac.compare_digest(self.proof(session).encode(), proof.encode())

    def _count_failure(self, keys: tuple[str, ...], now_s: float) -> None:
        self._failed = {
            key: failed
            for key, failed in self._failed.items()
            if now_s - failed.last_s < FORGET_S
        }
        for key in keys:
            failed = self._failed.setdefault(key, FailedAttempts())
            failed.count += 1
            failed.last_s = now_s


SESSION_COOKIE: Final = "yamamori-session"
PROOF_HEADER: Final = "x-yamamori-proof"
GUEST: Final = Account("", "viewer", "")
"""Account of every request when the console has no accounts file: may view."""


@dataclass(frozen=True)
class Visitor:
    """Sender of a request.

    Attributes:
        account: Name and role.
        session: Text that the proof is computed for.
    """

    account: Account
    session: str


@dataclass(frozen=True)
class Authenticator:
    """Finds the sender of a request: by proxy header, by cookie, or a guest.

    Attributes:
        settings: Of the console.
        logins: Accounts and sessions.
        clock: Unix time.
    """

    settings: ConsoleSection
    logins: LoginService
    clock: Callable[[], float]

    def visitor(self, request: Request) -> Visitor | None:
        """Sender of a request; None if not logged in."""
        name = self._name_by_proxy(request)
        if name is not None:
            account = self.logins.accounts.get(name, Account(name, "viewer", ""))
            return Visitor(account, f"proxy {name}")
        session = request.cookies.get(SESSION_COOKIE, "")
        known = self.logins.account_of(session, self.clock())
        if known is not None:
            return Visitor(known, session)
        if self.settings.accounts is None and self.settings.proxy_header is None:
            return Visitor(GUEST, "guest")
        return None

    def _name_by_proxy(self, request: Request) -> str | None:
        header = self.settings.proxy_header
        if header is None or client_address(request) not in self.settings.proxies:
            return None
        return request.headers.get(header) or None


def client_address(request: Request) -> str:
    """Address that a request came from."""
    return request.client.host if request.client else ""
