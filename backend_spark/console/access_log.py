"""Journal entries of logins, failures, logouts and changes of accounts."""

import hashlib
import logging
import sqlite3
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from backend_spark.console.accounts import Account, Accounts
from backend_spark.console.audit_log import Journal, JournalDraft
from backend_spark.console.databases import is_full
from backend_spark.console.throttle import AttemptBudget, AttemptRate

log = logging.getLogger(__name__)

FAILURE_RATE: Final = AttemptRate(20, 60.0)
"""Entries of failures. Those beyond it are counted in the next entry, because guesses
for a year must not fill the disk."""

ACCESS_KINDS: Final = ("login", "login_failed", "logout", "accounts")


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
