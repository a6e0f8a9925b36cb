"""Who comes in: sessions, proofs against forged requests, and a door slow to guess."""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from backend_spark.console.accounts import Account, matches
from backend_spark.console.sessions import Sessions, is_of

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
