"""Accounts changed in the page: one's own password, and the accounts of others."""

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest
from console_workspace import PASSWORD, Clock, Workspace, log_in, make_test_services

from backend_spark.console import accounts
from backend_spark.console.auth import LoginAttempt

OpenApp = Callable[..., httpx.Client]
NEW = "a longer battery staple"


def post(
    client: httpx.Client, path: str, who: str, /, **body: object
) -> httpx.Response:
    """Log in, and send a change."""
    return client.post(path, headers=log_in(client, who), json=body)


def can_log_in(client: httpx.Client, name: str, password: str) -> bool:
    """Whether a login succeeds."""
    body = {"name": name, "password": password}
    return client.post("/api/login", json=body).status_code == 200


def test_own_password_is_changed_and_ends_other_sessions(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """The session that changes it goes on; the file has the new hash at once."""
    client = open_app(workspace.with_accounts())
    with httpx.Client(base_url=client.base_url, timeout=60) as other:
        log_in(other, "a-viewer")
        answer = post(client, "/api/password", "a-viewer", old=PASSWORD, new=NEW)

        assert answer.status_code == 200, answer.text
        assert other.get("/api/health").status_code == 401
        assert client.get("/api/health").status_code == 200
        assert not can_log_in(other, "a-viewer", PASSWORD)
        assert can_log_in(other, "a-viewer", NEW)
    stored = accounts.read_accounts(workspace.folder / "accounts")["a-viewer"]
    assert accounts.verify_password(stored.password_hash, NEW)


def test_own_session_is_known_while_the_password_changes(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page asks every few seconds; a refusal would show it the login form."""
    clock = Clock()
    services = make_test_services(workspace, clock, workspace.with_accounts())
    logins = services.auth.logins
    attempt = LoginAttempt("a-viewer", PASSWORD, "", "192.0.2.1", "")
    opened = asyncio.run(logins.log_in(attempt, clock()))
    found: list[accounts.Account | None] = []
    asking = threading.Thread(
        target=lambda: found.append(logins.account_of(opened.session, clock()))
    )
    add = logins.sessions.add

    def add_late(session: str, account: accounts.Account, *times_s: float) -> None:
        asking.start()
        asking.join(0.2)
        add(session, account, *times_s)

    monkeypatch.setattr(logins.sessions, "add", add_late)
    asyncio.run(logins.change_password(attempt, opened.session, NEW, clock()))
    asking.join()

    assert [each.name if each else None for each in found] == ["a-viewer"]


@pytest.mark.parametrize(
    ("old", "new", "status"), [("wrong", NEW, 403), (PASSWORD, "short", 422)]
)
def test_password_needs_the_old_one_and_a_length(
    open_app: OpenApp, workspace: Workspace, old: str, new: str, status: int
) -> None:
    """Nothing changes, and the session goes on."""
    client = open_app(workspace.with_accounts())
    answer = post(client, "/api/password", "a-viewer", old=old, new=new)

    assert answer.status_code == status
    assert client.get("/api/health").status_code == 200
    assert can_log_in(client, "a-viewer", PASSWORD)


def test_guesses_of_the_old_password_are_slowed_down(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """An open page of somebody else must not become a way to guess."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-viewer")
    body = {"old": "wrong", "new": NEW}
    found = {
        client.post("/api/password", headers=proof, json=body).status_code
        for _ in range(8)
    }

    assert found == {403, 429}


def test_chief_adds_locks_and_changes_accounts(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A locked account reads nothing more at once; the journal has the names."""
    client = open_app(workspace.with_accounts())
    new = {"name": "tanaka", "role": "analyst", "password": NEW}
    rows = post(client, "/api/accounts", "a-chief", **new).json()
    assert {"name": "tanaka", "role": "analyst"}.items() <= rows[-1].items()
    with httpx.Client(base_url=client.base_url, timeout=60) as other:
        assert can_log_in(other, "tanaka", NEW)
        change = {"name": "tanaka", "locked": True}
        post(client, "/api/accounts/change", "a-chief", **change)
        assert other.get("/api/health").status_code == 401
        assert not can_log_in(other, "tanaka", NEW)
    change = {"name": "tanaka", "locked": False, "role": "viewer"}
    rows = post(client, "/api/accounts/change", "a-chief", **change).json()
    assert (rows[-1]["role"], rows[-1]["locked"]) == ("viewer", False)
    assert can_log_in(client, "tanaka", NEW)


def test_journal_names_who_changed_an_account(
    workspace: Workspace, clock: Clock
) -> None:
    """The command line has no name."""
    parts = make_test_services(workspace, clock, workspace.with_accounts())
    logins = parts.auth.logins
    logins.accounts.change(lambda known: {"a-chief": known["a-chief"]}, "a-chief")
    (entry, *_) = parts.journal.read("accounts", limit=1)

    assert entry.who == "a-chief"
    assert entry.body["removed"] == ["a-analyst", "a-viewer"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/accounts", {"name": "a-viewer", "role": "viewer", "password": NEW}),
        ("/api/accounts", {"name": "a b", "role": "viewer", "password": NEW}),
        ("/api/accounts", {"name": "b", "role": "king", "password": NEW}),
        ("/api/accounts/change", {"name": "a-chief", "locked": True}),
        ("/api/accounts/change", {"name": "nobody", "locked": True}),
    ],
)
def test_bad_change_of_an_account_is_refused(
    open_app: OpenApp, workspace: Workspace, path: str, body: dict[str, object]
) -> None:
    """The file stays as it is; chiefs cannot lock themselves out."""
    client = open_app(workspace.with_accounts())
    before = (workspace.folder / "accounts").read_bytes()
    answer = post(client, path, "a-chief", **body)

    assert answer.status_code == 422
    assert (workspace.folder / "accounts").read_bytes() == before


def test_only_chiefs_see_accounts(open_app: OpenApp, workspace: Workspace) -> None:
    """An analyst gets neither the list nor a change."""
    client = open_app(workspace.with_accounts())
    assert post(client, "/api/accounts", "a-analyst", name="x").status_code == 403
    assert client.get("/api/accounts").status_code == 403
