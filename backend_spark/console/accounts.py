"""Accounts of the console: names, roles, passwords, second factors, and their file.

A line of the accounts file is ``name:role:scrypt$N$r$p$salt$hash``, with salt and hash
in base64, ``:totp$SECRET`` after it if the account has a second factor, and
``:token$DIGEST`` if programs may read with a token, and ``:locked`` at its end while
nobody may use it. The second factor is a time-based one-time password (RFC 6238).
"""

import base64
import hashlib
import hmac
import logging
import os
import re
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from service_runtime.errors import FieldError
from service_runtime.files import write_for_service

log = logging.getLogger(__name__)

ROLES: Final = ("viewer", "analyst", "chief")
"""Each role includes those before it: view; acknowledge and note; set thresholds."""

MIN_PASSWORD_LENGTH: Final = 10
MAX_PASSWORD_LENGTH: Final = 1000
MAX_FILE_BYTES: Final = 1_000_000
_NAME: Final = re.compile(r"[\w.@-]{1,64}")
_NAME_RULE: Final = "1 to 64 letters, digits, '.', '-', '_' or '@'"
_N, _R, _P = 2**14, 8, 1
_MEMORY_BYTES: Final = 64 * 2**20
_SECRET: Final = re.compile(
    r"scrypt\$([0-9]{1,6})\$([0-9]{1,2})\$([0-9])"
    r"\$[A-Za-z0-9+/]{22}==\$[A-Za-z0-9+/]{86}=="
)
_MEND: Final = (
    "console-account add FILE NAME --role ROLE replaces the line, and remove deletes it"
)
_TOTP: Final = re.compile(r"totp\$([A-Z2-7]{32})")
_TOKEN: Final = re.compile(r"token\$([0-9a-f]{64})")

SaltSource = Callable[[int], bytes]


@dataclass(frozen=True)
class Account:
    """Account of a person.

    Attributes:
        name: Login name.
        role: One of `ROLES`.
        password_hash: Hashed password, with its salt and costs.
        totp_secret: Secret of the second factor in base32; empty without one.
        token_digest: Digest of the token of programs; empty without one.
        is_locked: Whether nobody may use it.
    """

    name: str
    role: str
    password_hash: str
    totp_secret: str = ""
    token_digest: str = ""
    is_locked: bool = False

    def has_role(self, role: str) -> bool:
        """Whether the account has at least a role."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def credentials_digest(self) -> str:
        """Digest of what a login needs; a session ends when it changes."""
        secrets = self.password_hash + self.totp_secret
        return hashlib.sha256(secrets.encode()).hexdigest()

    def has_token(self, token: str) -> bool:
        """Whether a text is the token of the account."""
        digest = digest_token(token).encode()
        return not self.is_locked and hmac.compare_digest(
            self.token_digest.encode(), digest
        )


def digest_token(token: str) -> str:
    """Digest of a token: it has 256 random bits, so a fast hash is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def check_account_name(name: str) -> str:
    """Return the name of an account if it is valid.

    Raises:
        FieldError: It is not.
    """
    if not _NAME.fullmatch(name):
        raise FieldError("account name", _NAME_RULE, name)
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


CODE_STEP_S: Final = 30
CODE_DIGITS: Final = 6
SECRET_BYTES: Final = 20
"""Length that RFC 4226 recommends; 32 letters in base32."""

CODE_WINDOW: Final = (0, -1, 1)
"""Steps around the present whose codes are accepted: clocks differ."""

_CODE: Final = re.compile(r"[0-9]{6}")


def one_time_code(key: bytes, step: int, digits: int = CODE_DIGITS) -> str:
    """Code of a step (RFC 4226 with SHA-1, which authenticator apps support)."""
    digest = hmac.digest(key, step.to_bytes(8, "big"), "sha1")
    offset = digest[-1] & 0xF
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**digits:0{digits}d}"


def matching_step(secret: str, code: str, now_s: float) -> int | None:
    """Step whose code was given; None if it belongs to no step near the present.

    Args:
        secret: In base32.
        code: As typed; spaces are ignored.
        now_s: Unix time.
    """
    typed = code.replace(" ", "")
    if not _CODE.fullmatch(typed):
        return None
    key, present = base64.b32decode(secret), int(now_s // CODE_STEP_S)
    for step in (present + offset for offset in CODE_WINDOW):
        if hmac.compare_digest(one_time_code(key, step), typed):
            return step
    return None


def make_totp_secret(random: Callable[[int], bytes]) -> str:
    """A new secret in base32."""
    return base64.b32encode(random(SECRET_BYTES)).decode("ascii")


def provisioning_uri(secret: str, name: str) -> str:
    """Address with which an authenticator app adds the account, also as a QR code."""
    return (
        f"otpauth://totp/Yamamori:{quote(name, safe='')}?secret={secret}"
        f"&issuer=Yamamori&algorithm=SHA1&digits={CODE_DIGITS}&period={CODE_STEP_S}"
    )


def read_accounts(path: Path) -> dict[str, Account]:
    """Read the accounts file; accounts by name.

    Raises:
        FieldError: The file cannot be read, a line is invalid, or there is no account,
            as after a lost write: nobody could log in.
    """
    accounts, damaged = scan_accounts(path)
    for error in damaged.values():
        raise error
    if not accounts:
        remedy = f"backend-spark console-account add {path} NAME --role chief"
        raise FieldError(
            "console.accounts", "a file with an account", str(path), remedy
        )
    return accounts


def scan_accounts(path: Path) -> tuple[dict[str, Account], dict[str, FieldError]]:
    """Read an accounts file of which lines may be damaged, to mend it.

    Returns:
        The accounts by name, and what is wrong with others by the name of their line.

    Raises:
        FieldError: The file cannot be read.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            rule = f"at most {MAX_FILE_BYTES} bytes"
            raise FieldError("console.accounts", rule, f"{path.stat().st_size} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        rule = "a file made by backend-spark console-account"
        raise FieldError("console.accounts", rule, str(path), str(error)) from error
    accounts: dict[str, Account] = {}
    damaged: dict[str, FieldError] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name = line.strip().partition(":")[0]
        try:
            accounts[name] = _parse(f"{path} line {number}", line.strip(), accounts)
        except FieldError as error:
            damaged.setdefault(name, error)
    return accounts, damaged


def write_accounts(path: Path, accounts: dict[str, Account]) -> None:
    """Replace the accounts file atomically; only its owner may read a new one.

    Root keeps its owner and mode, so that the console can still read it.
    """
    lines = [_line(account) for account in accounts.values()]
    write_for_service(path, "".join(lines).encode(), mode=0o600)


def _line(account: Account) -> str:
    fields = [account.name, account.role, account.password_hash]
    if account.totp_secret:
        fields.append(f"totp${account.totp_secret}")
    if account.token_digest:
        fields.append(f"token${account.token_digest}")
    if account.is_locked:
        fields.append("locked")
    return ":".join(fields) + "\n"


def _parse(where: str, line: str, known: Container[str]) -> Account:
    name, _, rest = line.partition(":")
    role, _, rest = rest.partition(":")
    secret, *more = rest.split(":")
    if not _NAME.fullmatch(name):
        raise FieldError(f"{where}: name", _NAME_RULE, name, "delete the line")
    if name in known:
        raise FieldError(f"{where}: name", "there once", name, _MEND)
    if role not in ROLES:
        raise FieldError(f"{where}: role", f"one of {', '.join(ROLES)}", role, _MEND)
    if not _is_usable(secret):
        rule = "scrypt$N$r$p$salt$hash"
        raise FieldError(f"{where}: password", rule, "something else", _MEND)
    totp_secret = _take(_TOTP, more)
    token_digest = _take(_TOKEN, more)
    is_locked = more == ["locked"]
    if more and not is_locked:
        rule = "totp$ and 32 of base32, token$ and 64 hexadecimal digits, then locked"
        raise FieldError(f"{where}: second factor", rule, "something else", _MEND)
    return Account(name, role, secret, totp_secret, token_digest, is_locked)


def _take(form: re.Pattern[str], fields: list[str]) -> str:
    """Take the next field if it has a form; empty if it has another."""
    match = form.fullmatch(fields[0]) if fields else None
    if match is None:
        return ""
    del fields[0]
    return match[1]


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


Accounts = dict[str, Account]
AccountsListener = Callable[[Accounts, str], object]
"""Takes the accounts, and the name of the account that changed them in the page."""


class AccountsFile:
    """The accounts of a file, read again when it changes; for several threads.

    Args:
        path: Of the file; None for no accounts.

    Raises:
        FieldError: The file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._name = str(path)
        self._lock = threading.Lock()
        self._version = self._stat()
        self._accounts = read_accounts(path) if path else {}
        self._on_change: AccountsListener = lambda _now, _who: None

    def subscribe(self, on_change: AccountsListener) -> None:
        """Call a function with the accounts now, and after each change."""
        self._on_change = on_change
        on_change(self._accounts, "")

    def change(self, edit: Callable[[Accounts], Accounts], who: str) -> None:
        """Replace the accounts in the file.

        Args:
            edit: Gives the new accounts from those in the file.
            who: Name of the account that changes them.

        Raises:
            FieldError: The file cannot be read or written, or `edit` refuses.
        """
        with self._lock:
            if self._path is None:
                rule, remedy = "set", "start the console with an accounts file"
                raise FieldError("console.accounts", rule, "none", remedy)
            changed = edit(read_accounts(self._path))
            try:
                write_accounts(self._path, changed)
            except OSError as error:
                rule = "in a folder that the console may write"
                remedy = "use backend-spark console-account on its machine"
                raise FieldError(
                    "console.accounts", rule, self._name, remedy
                ) from error
            self._version, self._accounts = self._stat(), changed
            self._on_change(changed, who)

    @property
    def by_name(self) -> Accounts:
        """Accounts by name, as the file has them now.

        While the file is missing or damaged, the last good accounts stay valid: an
        error of an editor in a storm must not lock everyone out.
        """
        with self._lock:
            version = self._stat()
            if self._path is not None and version != self._version:
                self._version = version
                self._read_again(self._path)
            return self._accounts

    def _read_again(self, path: Path) -> None:
        try:
            self._accounts = read_accounts(path)
        except FieldError as error:
            log.error("the accounts before the change stay in force: %s", error)  # noqa: TRY400 - the error says it all
        else:
            self._on_change(self._accounts, "")

    def _stat(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._name)  # noqa: PTH116 - at each request, twice as fast
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
