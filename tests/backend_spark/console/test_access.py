"""Access ends at once, and leaves entries in the journal."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from conftest import wait_until
from console_workspace import Clock, Workspace, log_in, make_test_services

from backend_spark.console import accounts
from backend_spark.console.audit_log import (
    ACCESS_KINDS,
    FAILURE_RATE,
    AccessLog,
    Journal,
)

OpenApp = Callable[..., httpx.Client]
WRONG = {"name": "a-chief", "password": "wrong password"}


def change(workspace: Workspace, **changed: accounts.Account | None) -> None:
    """Replace accounts in the file, or remove them; names have no hyphen here."""
    path = workspace.folder / "accounts"
    found = accounts.read_accounts(path)
    named = {name.replace("_", "-"): account for name, account in changed.items()}
    kept = {name: a for name, a in found.items() if name not in named}
    accounts.write_accounts(path, kept | {n: a for n, a in named.items() if a})


@contextmanager
def stream_of(client: httpx.Client) -> Iterator[threading.Thread]:
    """Thread that reads the event stream of a client to its end."""
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    url, seen = f"{client.base_url}/api/live", threading.Event()

    def read() -> None:
        headers = {"Cookie": cookies}
        with httpx.stream("GET", url, headers=headers, timeout=60) as answer:
            for _ in answer.iter_bytes():
                seen.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert seen.wait(30)
    yield reader
    wait_until(lambda: not reader.is_alive())


@pytest.mark.attack(
    "console: event stream after the logout",
    "went on for ever",
)
def test_stream_ends_at_logout(open_app: OpenApp, workspace: Workspace) -> None:
    """An open page shows nothing more."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-viewer")
    with stream_of(client):
        client.post("/api/logout", headers=proof)


@pytest.mark.attack(
    "console: a removed account reads on",
    "for 12 hours, until a restart",
)
def test_removed_account_reads_nothing_more(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Without a restart; its stream ends, and it cannot log in again."""
    client = open_app(workspace.with_accounts())
    log_in(client, "a-viewer")
    with stream_of(client):
        change(workspace, a_viewer=None)
        assert client.get("/api/cells").status_code == 401
    with pytest.raises(AssertionError, match="is wrong"):
        log_in(client, "a-viewer")


def test_new_role_holds_at_the_next_request(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """The session of the person stays."""
    client = open_app(workspace.with_accounts())
    proof, note = log_in(client, "a-analyst"), {"text": "x"}
    assert client.post("/api/notes", headers=proof, json=note).status_code == 200
    (analyst,) = [
        account
        for account in accounts.read_accounts(workspace.folder / "accounts").values()
        if account.name == "a-analyst"
    ]
    change(workspace, a_analyst=replace(analyst, role="viewer"))

    assert client.get("/api/session").json()["role"] == "viewer"
    assert client.post("/api/notes", headers=proof, json=note).status_code == 403


def test_new_password_ends_the_sessions_at_once(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Of that account only; the thief's stream ends, too."""
    client = open_app(workspace.with_accounts())
    with httpx.Client(base_url=client.base_url, timeout=60) as other:
        log_in(client, "a-analyst")
        log_in(other, "a-viewer")
        secret = accounts.hash_password("another password", os.urandom)
        with stream_of(client):
            change(workspace, a_analyst=accounts.Account("a", "analyst", secret))
        assert client.get("/api/cells").status_code == 401
        assert other.get("/api/cells").status_code == 200


@pytest.mark.parametrize("content", ["suzuki:king:x\n", None])
def test_damaged_accounts_file_changes_nothing(
    open_app: OpenApp,
    workspace: Workspace,
    caplog: pytest.LogCaptureFixture,
    content: str | None,
) -> None:
    """People keep working with the last good accounts, and the log states the error."""
    client = open_app(workspace.with_accounts())
    path = workspace.folder / "accounts"
    good = path.read_text(encoding="utf-8")
    log_in(client, "a-viewer")
    with caplog.at_level(logging.ERROR):
        if content is None:
            path.unlink()
        else:
            path.write_text(content, encoding="utf-8")
        assert client.get("/api/cells").status_code == 200
        assert client.get("/api/cells").status_code == 200
    assert len(caplog.records) == 1
    assert "the accounts before the change stay in force" in caplog.text

    path.write_text(good, encoding="utf-8")
    change(workspace, a_viewer=None)
    assert client.get("/api/cells").status_code == 401


def entries(workspace: Workspace) -> list[tuple[str, str, str]]:
    """Kind, subject and name of the access entries, oldest first."""
    journal = Journal(workspace.data / "console" / "journal.sqlite")
    found = reversed(journal.read(*ACCESS_KINDS))
    return [(entry.kind, entry.subject, entry.who) for entry in found]


def test_journal_has_logins_failures_and_logouts(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """With names; but not a name without an account, which may be a password."""
    client = open_app(workspace.with_accounts())
    client.post("/api/login", json=WRONG)
    client.post("/api/login", json=WRONG | {"name": "my secret"})
    client.post("/api/logout", headers=log_in(client, "a-chief"))

    assert entries(workspace) == [
        ("accounts", "", ""),
        ("login_failed", "a-chief", ""),
        ("login_failed", "", ""),
        ("login", "", "a-chief"),
        ("logout", "", "a-chief"),
    ]


def test_journal_has_changes_of_accounts(workspace: Workspace, clock: Clock) -> None:
    """Also those made while the console did not run; a restart adds nothing."""
    more = workspace.with_accounts()
    parts = make_test_services(workspace, clock, more)
    secret = accounts.hash_password("another password", os.urandom)
    change(workspace, a_viewer=None, b=accounts.Account("b", "chief", secret))
    assert "b" in parts.auth.logins.accounts.by_name
    change(workspace, b=accounts.Account("b", "viewer", secret))
    newest, middle, first = [
        {name: entry.body[name] for name in ("added", "removed", "changed")}
        for entry in make_test_services(workspace, clock, more).journal.read("accounts")
    ]

    assert first["added"] == ["a-analyst", "a-chief", "a-viewer"]
    assert middle == {"added": ["b"], "removed": ["a-viewer"], "changed": []}
    assert newest == {"added": [], "removed": [], "changed": ["b"]}
    make_test_services(workspace, clock, more)
    assert len(entries(workspace)) == 3


def test_guesses_do_not_fill_the_journal(tmp_path: Path) -> None:
    """A day of guesses is about 1,440 entries, and all of them are counted."""
    journal = Journal(tmp_path / "journal.sqlite")
    access = AccessLog(journal)
    for n in range(5000):
        access.failure(None, "203.0.113.9", n)
    found = journal.read("login_failed")

    assert FAILURE_RATE.burst < len(found) <= FAILURE_RATE.burst + 5000 / 60 + 1
    assert sum(entry.body["count"] for entry in found) > 5000 - 60
