"""Authentication: logins, and the senders of requests."""

import asyncio
import base64
import hashlib
import hmac
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from fastapi import Request

from backend_spark.console.accounts import (
    Account,
    Accounts,
    AccountsFile,
    hash_password,
    matching_step,
    verify_password,
)
from backend_spark.console.audit_log import AccessLog
from backend_spark.console.databases import is_full
from backend_spark.console.http import came_from_proxy
from backend_spark.console.logins import (
    LoginThrottle,
    SessionStore,
    TooManyAttemptsError,
)
from backend_spark.console.openid import (
    BegunSignIn,
    OidcSignIn,
    OpenidUser,
    SignInError,
)
from backend_spark.console.settings import ConsoleSection

SESSION_S: Final = 12 * 3600.0
"""Lifetime of a session: one shift."""

DEVICE_S: Final = 30 * 86_400.0
"""How long a browser counts as a known device after a login."""

MAX_WAITING: Final = 16
"""Logins that wait in each lane; later ones are refused at once."""

PROVIDER_THREADS: Final = 4
"""Sign-ins that wait for the OpenID provider at the same time."""

DUMMY_HASH: Final = "scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAA"
"""Hash that makes unknown user names take as long to reject as wrong passwords."""

TokenSource = Callable[[], str]
T = TypeVar("T")


class WrongLoginError(Exception):
    """A name, password or code is wrong."""

    def __init__(self) -> None:
        super().__init__("name, password or code is wrong")


class CodeMissingError(Exception):
    """The password is right, and the account also has a second factor."""

    def __init__(self) -> None:
        super().__init__("code must be the one that the authenticator app shows")


class LoginLane:
    """Runs what takes long at a login outside the event loop, a little at a time.

    A hash of a password takes about 50 ms of a processor and 16 MB, an answer of an
    OpenID provider up to some seconds.

    Args:
        name: Of the threads.
        threads: How many logins run at the same time.
    """

    def __init__(self, name: str = "password-hash", threads: int = 1) -> None:
        self._thread = ThreadPoolExecutor(threads, name)
        self._waiting = 0

    def check_room(self) -> None:
        """Refuse more work while too much waits.

        Raises:
            TooManyAttemptsError: Too much waits.
        """
        if self._waiting >= MAX_WAITING:
            raise TooManyAttemptsError(1.0)

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread of the lane."""
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1


@dataclass(frozen=True)
class LoginAttempt:
    """What a login request holds.

    Attributes:
        name: Of the account.
        password: In plain text.
        code: Of the second factor; empty without one.
        address: That the request came from.
        device: Text that a browser got at an earlier login, or anything.
    """

    name: str
    password: str
    code: str
    address: str
    device: str


@dataclass(frozen=True)
class OpenedSession:
    """What a successful login gives.

    Attributes:
        session: Text that identifies the session.
        device: Text that identifies the browser at later logins.
    """

    session: str
    device: str


@dataclass
class LoginService:
    """Logs people in and out, and slows down guessing.

    Attributes:
        accounts: Of the accounts file.
        token: Makes an unguessable text.
        signing_key: Key of the proofs against forged requests.
        sessions: Sessions of people who are logged in, and known devices.
        log: Journal of logins.
        provider: Signs users in by the OpenID provider; None without one.
    """

    accounts: AccountsFile
    token: TokenSource
    signing_key: bytes
    sessions: SessionStore
    log: AccessLog
    provider: OidcSignIn | None = None
    _throttle: LoginThrottle = field(default_factory=LoginThrottle)
    _known_lane: LoginLane = field(default_factory=LoginLane)
    _other_lane: LoginLane = field(default_factory=LoginLane)
    _provider_lane: LoginLane = field(
        default_factory=lambda: LoginLane("openid-provider", PROVIDER_THREADS)
    )
    _renewal: threading.Lock = field(default_factory=threading.Lock)

    async def log_in(self, attempt: LoginAttempt, now_s: float) -> OpenedSession:
        """Open a session; called on the event loop.

        Raises:
            WrongLoginError: Name, password or code is wrong.
            CodeMissingError: The account needs a code.
            TooManyAttemptsError: The name, the address or the device must wait.
            OSError, sqlite3.Error: It cannot be recorded, so it is refused.
        """
        is_known = await asyncio.to_thread(
            self.sessions.is_known_device, attempt.device, attempt.name, now_s
        )
        device = attempt.device if is_known else None
        # Guesses from elsewhere must not take the place of a known device.
        lane = self._known_lane if is_known else self._other_lane
        lane.check_room()  # before it counts as failed
        counted = self._throttle.count(attempt.name, attempt.address, device, now_s)
        try:
            opened = await lane.run(lambda: self._open(attempt, device, now_s))
        except (OSError, sqlite3.Error) as error:
            if is_full(error):  # the password was right
                self._throttle.forgive(counted, now_s)
            raise
        self._throttle.forgive(counted, now_s)
        return opened

    def _open(
        self, attempt: LoginAttempt, device: str | None, now_s: float
    ) -> OpenedSession:
        account = self.accounts.by_name.get(attempt.name)
        if account is not None and account.is_locked:
            account = None
        if not self._is_right(account, attempt, now_s) or account is None:
            self.log.failure(account, attempt.address, now_s)
            raise WrongLoginError
        opened = OpenedSession(self.token(), device or self.token())
        name, address = account.name, attempt.address
        self.log.login(name, address, now_s, is_known=device is not None)
        self.sessions.add_device(opened.device, name, now_s + DEVICE_S, now_s)
        self.sessions.add(opened.session, account, now_s + SESSION_S, now_s)
        return opened

    def _is_right(
        self, account: Account | None, attempt: LoginAttempt, now_s: float
    ) -> bool:
        """Whether password and code are right; a code is right once.

        Raises:
            CodeMissingError: The password is right and a code is missing.
        """
        password_hash = account.password_hash if account else DUMMY_HASH
        is_right = verify_password(password_hash, attempt.password)
        if account is None or not is_right or not account.totp_secret:
            return is_right
        if not attempt.code:
            raise CodeMissingError
        step = matching_step(account.totp_secret, attempt.code, now_s)
        return step is not None and self.sessions.use_code(account.name, step)

    async def begin_sign_in(self, now_s: float) -> BegunSignIn:
        """Begin a sign-in by the provider.

        Raises:
            SignInError: There is no provider, it is away, or too many wait for it.
        """
        provider = self._sign_in_by()
        return await self._provider_lane.run(lambda: provider.begin(now_s))

    async def finish_sign_in(
        self, answer: Mapping[str, str], cookie: str, address: str, now_s: float
    ) -> str:
        """Open a session for a user of the provider; returns its text.

        Args:
            answer: Parameters that the provider gave the browser.
            cookie: Of the sign-in's beginning.
            address: That the request came from.
            now_s: Unix time.

        Raises:
            SignInError: The sign-in failed.
        """
        provider = self._sign_in_by()

        def finish() -> str:
            try:
                identity = provider.finish(answer, cookie, now_s)
                return self._open_provided(provider, identity, address, now_s)
            except SignInError as error:
                if error.reason != "away":
                    self.log.failure(None, address, now_s)
                raise
            except (OSError, sqlite3.Error) as error:
                if not is_full(error):
                    raise
                raise SignInError("full", f"it cannot be recorded: {error}") from error

        return await self._provider_lane.run(finish)

    def _sign_in_by(self) -> OidcSignIn:
        if self.provider is None:
            raise SignInError("away", "console.oidc is not set")
        try:
            self._provider_lane.check_room()
        except TooManyAttemptsError as error:
            raise SignInError("away", f"sign-in by the provider: {error}") from error
        return self.provider

    def _open_provided(
        self, provider: OidcSignIn, user: OpenidUser, address: str, now_s: float
    ) -> str:
        if user.name in self.accounts.by_name:
            # Who may choose a name at the provider must not become the chief here.
            text = f"{user.name!r} must not be the name of an account of the console"
            raise SignInError("name", text)
        account, session = Account(user.name, user.role, ""), self.token()
        section = provider.provider.section
        self.log.sign_in(account, section.issuer, user.subject, address, now_s)
        until_s = now_s + SESSION_S
        self.sessions.add_provided(session, account, section.digest, until_s, now_s)
        return session

    async def change_password(
        self, attempt: LoginAttempt, session: str, new: str, now_s: float
    ) -> None:
        """Replace the password of an account; its other sessions end.

        Args:
            attempt: The account, and its password until now; guesses are slowed down
                as at the login.
            session: Session that goes on.
            new: The new password.
            now_s: Unix time.

        Raises:
            FieldError: The new password is refused, or the file cannot be written.
            TooManyAttemptsError: The name or the address must wait.
            WrongLoginError: The password is wrong.
        """
        lane = self._known_lane
        lane.check_room()
        counted = self._throttle.count(attempt.name, attempt.address, None, now_s)
        await lane.run(lambda: self._replace(attempt, session, new, now_s))
        self._throttle.forgive(counted, now_s)

    def _replace(
        self, attempt: LoginAttempt, session: str, new: str, now_s: float
    ) -> None:
        name = attempt.name
        if not verify_password(
            self.accounts.by_name[name].password_hash, attempt.password
        ):
            raise WrongLoginError
        secret = hash_password(new, os.urandom)

        def edit(accounts: Accounts) -> Accounts:
            changed = replace(accounts[name], password_hash=secret)
            return accounts | {name: changed}

        with self._renewal:
            self.accounts.change(edit, name)
            account = self.accounts.by_name[name]
            self.sessions.add(session, account, now_s + SESSION_S, now_s)

    def log_out(self, visitor: "Visitor", now_s: float) -> None:
        """End a session; nothing for a guest or a user of the proxy, who has none."""
        if self.sessions.delete(visitor.session):
            self.log.logout(visitor.account.name, now_s)

    def account_of(self, session: str, now_s: float) -> Account | None:
        """Account of a session; None if the session is unknown or over.

        A session also ends when its account is removed or locked, or its password
        or second factor changes; one by the provider when an account gets its name.
        """
        account = self._find_account(session, now_s) or self._find_user(session, now_s)
        if account is None and session:
            # A change of password writes the account before the session that goes on.
            with self._renewal:
                account = self._find_account(session, now_s)
        return account

    def _find_account(self, session: str, now_s: float) -> Account | None:
        name, digest = self.sessions.find(session, now_s) or ("", "")
        account = self.accounts.by_name.get(name)
        if account is None or account.is_locked:
            return None
        return account if account.credentials_digest() == digest else None

    def _find_user(self, session: str, now_s: float) -> Account | None:
        if self.provider is None or not session:
            return None
        origin = self.provider.provider.section.digest
        user = self.sessions.find_provided(session, origin, now_s)
        return None if user is None or user.name in self.accounts.by_name else user

    def proof(self, session: str) -> str:
        """Token that the pages send with every change (CSRF protection)."""
        return hmac.new(self.signing_key, session.encode(), hashlib.sha256).hexdigest()

    def is_proven(self, session: str, proof: str) -> bool:
        """Whether a change was sent by a page of this console."""
        return hmac.compare_digest(self.proof(session).encode(), proof.encode())


SESSION_COOKIE: Final = "yamamori-session"
SIGN_IN_COOKIE: Final = "yamamori-sign-in"
DEVICE_COOKIE: Final = "yamamori-device"
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
            known = self.logins.accounts.by_name.get(name)
            if known is not None and known.is_locked:
                return None
            return Visitor(known or Account(name, "viewer", ""), f"proxy {name}")
        session = request.cookies.get(SESSION_COOKIE, "")
        account = self.logins.account_of(session, self.clock())
        if account is not None:
            return Visitor(account, session)
        if self.settings.accounts is None and self.settings.proxy_header is None:
            return Visitor(GUEST, "guest")
        return None

    def reader(self, request: Request) -> Account | None:
        """Account of a program, or of a person, that reads; None if there is none.

        A program sends its token: as the password of HTTP Basic with the name of the
        account, or as a Bearer token. A token is too long to guess, so that nobody is
        kept waiting, and it opens nothing that changes something.
        """
        visitor = self.visitor(request)
        if visitor is not None:
            return visitor.account
        header = request.headers.get("authorization", "")
        if not header:
            return None
        name, token = _credentials(header)
        known = self.logins.accounts.by_name
        among = known.values() if name is None else filter(None, [known.get(name)])
        account = next((each for each in among if each.has_token(token)), None)
        if account is None:
            address = client_address(request)
            self.logins.log.failure(known.get(name or ""), address, self.clock())
        return account

    def _name_by_proxy(self, request: Request) -> str | None:
        header = self.settings.proxy_header
        if header is None or not came_from_proxy(request):
            return None
        return request.headers.get(header) or None


def _credentials(header: str) -> tuple[str | None, str]:
    """Name and token of an Authorization header; no name with a Bearer token."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return None, value.strip()
    try:
        decoded = base64.b64decode(value.strip(), validate=True).decode()
    except ValueError:
        decoded = ""
    name, _, token = decoded.partition(":")
    return name, token if scheme.lower() == "basic" else ""


def client_address(request: Request) -> str:
    """Address that a request came from, as a trusted proxy names it."""
    return request.client.host if request.client else ""
