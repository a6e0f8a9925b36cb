"""Accounts: a file of names, roles and hashed passwords, one line each.

Form of a line: ``name:role:scrypt$N$r$p$salt$hash``, salt and hash in base64.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backend_spark.durability import fsync_file, fsync_folder
from spatial_mqtt.errors import FieldError

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
