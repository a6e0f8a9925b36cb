"""From a request to who sent it and what they may do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from backend_spark.console.accounts import Account
from backend_spark.console.answers import refuse
from backend_spark.console.doors import Doors
from backend_spark.sections import ConsoleSettings

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
