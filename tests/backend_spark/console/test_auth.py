"""Accounts, login, sessions and access control of the console."""

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from console_workspace import (
    PASSWORD,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
    serve,
)

from backend_spark.cli import cli
from backend_spark.config import read_settings
from backend_spark.console import accounts
from backend_spark.console.app import make_services
from backend_spark.console.auth import SESSION_S
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError

OpenApp = Callable[..., httpx.Client]
READ_PATHS = ("cells", "nodes", "history", "live", "node/otani-1", "cell/354e1f64")


def test_passwords_are_stored_as_salted_hashes() -> None:
    """The same password of two accounts gives two different hashes."""
    first, second = (accounts.hash_password(PASSWORD, os.urandom) for _ in range(2))

    assert PASSWORD not in first
    assert first != second
    assert accounts.verify_password(first, PASSWORD)
    assert not accounts.verify_password(first, PASSWORD + " ")


def test_accounts_are_added_changed_and_removed(tmp_path: Path) -> None:
    """With the commands of the how-to; the file has mode 0600."""
    path, run = tmp_path / "accounts", CliRunner()
    add = ["console-account", "add", str(path), "suzuki", "--password", PASSWORD]
    assert run.invoke(cli, [*add, "--role", "chief"]).exit_code == 0
    again = run.invoke(cli, add)
    assert again.output == f"suzuki (chief) is in {path}\n"  # for a lost password
    assert path.stat().st_mode & 0o077 == 0
    listed = run.invoke(cli, ["console-account", "list", str(path)])
    assert listed.output == "suzuki\tchief\t-\n"

    assert run.invoke(cli, ["console-account", "remove", str(path), "x"]).exit_code == 2
    remove = ["console-account", "remove", str(path), "suzuki"]
    for other in ([], ["--role", "viewer"]):
        if other:
            run.invoke(cli, [*add[:3], "tanaka", *add[4:], *other])
        refused = run.invoke(cli, remove)
        assert refused.exit_code == 2
        assert "must be another than the last chief" in refused.output
    run.invoke(cli, [*add[:3], "tanaka", *add[4:], "--role", "chief"])
    assert run.invoke(cli, remove).exit_code == 0
    assert list(accounts.read_accounts(path)) == ["tanaka"]


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_accounts_that_root_changes_stay_readable_for_the_console(
    tmp_path: Path,
) -> None:
    """With a file of root, a removed account stayed valid, and no start succeeded."""
    path, run = tmp_path / "accounts", CliRunner()
    os.chown(tmp_path, 12345, 12346)

    def account(*args: str) -> tuple[int, int, int]:
        done = run.invoke(cli, ["console-account", args[0], str(path), *args[1:]])
        assert done.exit_code == 0
        found = path.stat()
        return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)

    assert account("add", "suzuki", "--password", PASSWORD) == (12345, 12346, 0o600)
    assert account("lock", "suzuki") == (12345, 12346, 0o600)
    account("add", "tanaka", "--password", PASSWORD)
    os.chown(path, 0, 12347)
    path.chmod(0o640)
    assert account("remove", "suzuki") == (0, 12347, 0o640)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which needs root")
def test_links_in_the_folder_of_the_console_give_no_file_of_root_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile console owns the folder in which root changes the accounts."""
    folder, victim = tmp_path / "backend", tmp_path / "shadow"
    folder.mkdir()
    os.chown(folder, 12345, 12346)
    victim.touch(mode=0o600)
    path, beside = folder / "accounts", folder / "accounts.new"
    swapped = []

    def fsync_then_swap(descriptor: int) -> None:
        sync(descriptor)
        if beside.exists():
            beside.unlink()
            beside.symlink_to(victim)
            swapped.append(beside)

    sync = os.fsync
    add = ["console-account", "add", str(path), "suzuki", "--password", PASSWORD]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync_then_swap)
        CliRunner().invoke(cli, add)
    refused = CliRunner().invoke(cli, add)  # the link is now the file itself
    found = victim.stat()

    assert swapped
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o600)
    assert victim.read_bytes() == b""
    assert path.is_symlink()
    assert "must be a file, not a symbolic link" in str(refused.exception)


def test_locked_account_is_shown_and_unlocked_by_command(tmp_path: Path) -> None:
    """The only chief may have been locked by one of the provider, who is away."""
    path, run = tmp_path / "accounts", CliRunner()

    def account(*args: str) -> str:
        done = run.invoke(cli, ["console-account", args[0], str(path), *args[1:]])
        assert done.exit_code == 0
        return done.output

    account("add", "suzuki", "--password", PASSWORD)
    account("lock", "suzuki")
    assert "it is locked" in account("add", "suzuki", "--password", PASSWORD)
    assert account("list") == "suzuki\tanalyst\tlocked\n"
    account("lock", "suzuki", "--remove")

    assert account("list") == "suzuki\tanalyst\t-\n"


@pytest.mark.parametrize(
    ("name", "password", "message"),
    [
        ("a:b", PASSWORD, "account name must be"),
        ("../x", PASSWORD, "account name must be"),
        ("suzuki", "short", "password must be 10 to 1000 characters"),
    ],
)
def test_invalid_names_and_short_passwords_are_rejected(
    tmp_path: Path, name: str, password: str, message: str
) -> None:
    """The error states the rule, and no file is written."""
    path = tmp_path / "accounts"
    add = ["console-account", "add", str(path), name, "--password", password]
    done = CliRunner().invoke(cli, add)

    assert done.exit_code == 2
    assert message in done.output
    assert not path.exists()


def test_damaged_accounts_file_is_reported_by_line(workspace: Workspace) -> None:
    """The error names line and rule, and the console does not start."""
    path = workspace.folder / "accounts"
    path.write_text("suzuki:chief:secret\n", encoding="utf-8")
    with pytest.raises(FieldError, match=r"line 1: password must be scrypt"):
        accounts.read_accounts(path)
    good = accounts.hash_password(PASSWORD, lambda size: b"s" * size)
    slow = good.replace("$8$1$", "$8$9999$")
    path.write_text(f"suzuki:chief:{slow}\n", encoding="utf-8")
    with pytest.raises(FieldError, match=r"line 1: password must be scrypt"):
        accounts.read_accounts(path)
    path.write_text(f"suzuki:chief:{good}\nsuzuki:viewer:{good}\n", encoding="utf-8")
    with pytest.raises(FieldError, match=r"line 2: name must be there once"):
        accounts.read_accounts(path)
    path.write_text("suzuki:king:x\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"line 1: role must be one of viewer"):
        make_services(read_settings(workspace.config(f'accounts = "{path}"')))


def test_damaged_line_is_replaced_or_removed_by_command(tmp_path: Path) -> None:
    """What its error advises; the other lines stay."""
    path, run = tmp_path / "accounts", CliRunner()
    good = accounts.hash_password(PASSWORD, lambda size: b"s" * size)
    line = f"suzuki:chief:{good}\n"
    damaged = f"{line}tanaka:chief:scrypt$16\n"
    add = ["console-account", "add", str(path), "tanaka", "--password", PASSWORD]
    path.write_text(damaged, encoding="utf-8")
    listed = run.invoke(cli, ["console-account", "list", str(path)])
    assert "add FILE NAME --role ROLE replaces the line" in listed.output
    asked = run.invoke(cli, add)
    assert asked.exit_code == 2
    assert "--role must be given" in asked.output
    assert path.read_text("utf-8") == damaged

    assert run.invoke(cli, [*add, "--role", "chief"]).exit_code == 0
    assert [each.role for each in accounts.read_accounts(path).values()] == [
        "chief"
    ] * 2
    path.write_text(damaged, encoding="utf-8")
    done = run.invoke(cli, ["console-account", "remove", str(path), "tanaka"])
    assert done.exit_code == 0
    assert path.read_text("utf-8") == line


@pytest.mark.parametrize("content", ["", "# those of the office\n"])
def test_file_without_accounts_is_refused(workspace: Workspace, content: str) -> None:
    """At the start, by the check, and in use, where the accounts before stay valid."""
    path, run = workspace.folder / "accounts", CliRunner()
    add = ["console-account", "add", str(path), "suzuki", "--password", PASSWORD]
    path.write_text(content, encoding="utf-8")
    config = workspace.config(f'accounts = "{path}"')
    with pytest.raises(SettingsError, match=r"with an account, .*console-account add"):
        make_services(read_settings(config))
    checked = run.invoke(cli, ["check", "--config", str(config), "console"])
    assert "console.accounts must be a file with an account" in checked.output

    assert run.invoke(cli, [*add, "--role", "chief"]).exit_code == 0
    file = accounts.AccountsFile(path)
    path.write_text(content, encoding="utf-8")
    assert list(file.by_name) == ["suzuki"]


def test_public_address_requires_accounts(workspace: Workspace) -> None:
    """Without accounts only a loopback address is accepted."""
    with pytest.raises(
        SettingsError, match=r"console\.host must be an address of this"
    ):
        make_services(read_settings(workspace.config('host = "0.0.0.0"')))


@pytest.mark.parametrize("path", READ_PATHS)
def test_data_requires_login(
    open_app: OpenApp, workspace: Workspace, path: str
) -> None:
    """Every path that returns data answers 401 without a session."""
    answer = open_app(workspace.with_accounts()).get(f"/api/{path}")

    assert answer.status_code == 401
    assert answer.json() == {"detail": "log in first"}


def test_session_ends_at_logout_and_after_its_lifetime(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """The lifetime is `SESSION_S`."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-viewer")
    assert client.get("/api/cells").status_code == 200
    assert client.post("/api/logout", headers=proof).status_code == 200
    assert client.get("/api/cells").status_code == 401

    log_in(client, "a-viewer")
    clock.now_s += SESSION_S
    assert client.get("/api/cells").status_code == 401


def test_session_cookie_is_httponly_and_samesite(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Neither scripts nor other sites can use the cookie."""
    client = open_app(workspace.with_accounts())
    login = {"name": "a-viewer", "password": PASSWORD}
    cookie = client.post("/api/login", json=login).headers["set-cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_login_is_throttled_after_five_wrong_passwords(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """The correct password is rejected too until Retry-After has passed."""
    client = open_app(workspace.with_accounts())
    wrong = {"name": "a-chief", "password": "wrong password"}
    for _ in range(5):
        assert client.post("/api/login", json=wrong).status_code == 401
    right = wrong | {"password": PASSWORD}
    answer = client.post("/api/login", json=right)
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "5"

    clock.now_s += 5
    assert client.post("/api/login", json=right).status_code == 200


def test_parallel_login_attempts_are_counted(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Handlers run in threads; counting and checking must be atomic."""
    client = open_app(workspace.with_accounts())
    wrong = {"name": "a-chief", "password": "wrong password"}
    with ThreadPoolExecutor(9) as pool:
        tries = [pool.submit(client.post, "/api/login", json=wrong) for _ in range(9)]
        statuses = sorted(each.result(60).status_code for each in tries)

    assert statuses == [401] * 5 + [429] * 4


def test_login_is_checked_before_query_and_body_are_parsed(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Without a session the answer is 401, however malformed the request."""
    client = open_app(workspace.with_accounts())
    answers = [
        client.get("/api/replay/levels?from_s=x"),
        client.post("/api/thresholds", content=b" " * 70_000),
        client.post("/api/events/state", content=b"{"),
    ]

    assert [answer.status_code for answer in answers] == [401] * 3


def test_unknown_name_gets_the_same_answer_as_a_wrong_password(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """The answer does not reveal which account names exist."""
    client = open_app(workspace.with_accounts())
    answers = [
        client.post("/api/login", json={"name": name, "password": "wrong password"})
        for name in ("a-chief", "nobody")
    ]

    assert {(a.status_code, a.text) for a in answers} == {
        (401, '{"detail":"name, password or code is wrong"}')
    }


def test_change_without_csrf_token_is_rejected(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A request from another site carries the cookie but not the token."""
    client = open_app(workspace.with_accounts())
    log_in(client, "a-chief")
    for headers in ({}, {"X-Yamamori-Proof": "guess"}):
        assert client.post("/api/logout", headers=headers).status_code == 403
    assert client.get("/api/cells").status_code == 200


def test_user_header_of_the_proxy_selects_the_account(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A name without an account gets the role viewer."""
    header = 'proxy_header = "X-Remote-User"\n'
    client = open_app(header + workspace.with_accounts())
    named = {"X-Remote-User": "a-chief"}
    assert client.get("/api/session", headers=named).json()["role"] == "chief"
    assert client.get("/api/cells").status_code == 401
    stranger = {"X-Remote-User": "somebody"}
    assert client.get("/api/session", headers=stranger).json()["role"] == "viewer"


def test_user_header_from_an_unlisted_address_is_ignored(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Only addresses in `proxies` may set the header."""
    more = 'proxy_header = "X-Remote-User"\nproxies = ["10.9.9.9"]\n'
    client = open_app(more + workspace.with_accounts())

    assert (
        client.get("/api/cells", headers={"X-Remote-User": "a-chief"}).status_code
        == 401
    )


def test_every_response_has_the_security_headers(open_app: OpenApp) -> None:
    """Pages, data, errors and files."""
    client = open_app()
    for path in ("/", "/api/cells", "/api/nothing", "/static/app.js"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"


def test_content_policy_allows_only_the_configured_tile_server(
    open_app: OpenApp,
) -> None:
    """Only its origin is added to img-src."""
    client = open_app('tiles = "https://tiles.example/{z}/{x}/{y}.png"')
    policy = client.get("/").headers["content-security-policy"]

    assert "img-src 'self' data: blob: https://tiles.example;" in policy


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../config.py",
        "/static/%2e%2e/%2e%2e/config.py",
        "/static/..%2f..%2fconfig.py",
        "/static//etc/passwd",
        "/api/node/..%2f..%2fetc%2fpasswd",
        "/api/cell/..%2F..%2Flevels",
        "/api/cell/" + "a" * 5000,
        "/api/download/..%2f..%2f..%2fbackend.toml",
        "/api/download/%2e%2e/%2e%2e/accounts",
        "/api/download/levels.geojson/..%2faccounts",
    ],
)
def test_path_traversal_returns_404(open_app: OpenApp, path: str) -> None:
    """The answer contains no file of the machine and no server error."""
    answer = open_app().get(path)

    assert answer.status_code == 404
    assert "import" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b'{"name": 1}', 422),
        (b'{"name": "\xff", "password": "x"}', 422),
        (b"[]", 422),
        (b" " * 70_000, 413),
    ],
)
def test_malformed_login_is_rejected(
    open_app: OpenApp, workspace: Workspace, body: bytes, status: int
) -> None:
    """The error states what the request must contain."""
    answer = open_app(workspace.with_accounts()).post("/api/login", content=body)

    assert answer.status_code == status
    assert "request must be" in answer.json()["detail"]


def test_without_accounts_visitors_are_viewers(open_app: OpenApp) -> None:
    """Data can be read, and the role is viewer."""
    client = open_app()
    assert client.get(f"/api/cell/{SLOPES[0].cell.token}").status_code == 200
    session = client.get("/api/session").json()
    assert session["role"] == "viewer"
    assert session["until_s"] is None


def test_session_states_when_it_ends(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """A page can state it before; its own clock may be wrong."""
    client = open_app(workspace.with_accounts())
    log_in(client, "a-analyst")
    clock.now_s += 60.0
    session = client.get("/api/session").json()

    assert session["until_s"] - session["now_s"] == SESSION_S - 60.0


def test_session_and_csrf_token_survive_a_restart(
    workspace: Workspace, clock: Clock
) -> None:
    """A restart during a storm must not log analysts out."""
    more = workspace.with_accounts()
    with serve(make_test_services(workspace, clock, more), workspace.port) as client:
        headers = log_in(client, "a-analyst")
        cookies = dict(client.cookies)
    with serve(make_test_services(workspace, clock, more), workspace.port) as client:
        client.cookies.update(cookies)
        assert client.get("/api/session").json()["user"] == "a-analyst"
        answer = client.post("/api/notes", json={"text": "on"}, headers=headers)
        assert answer.status_code == 200, answer.text
        client.post("/api/logout", headers=headers)
    with serve(make_test_services(workspace, clock, more), workspace.port) as client:
        client.cookies.update(cookies)
        assert client.get("/api/cells").status_code == 401


def test_session_ends_when_its_password_or_account_changes(
    workspace: Workspace, clock: Clock
) -> None:
    """Changing a stolen password must end the thief's session."""
    more = workspace.with_accounts()
    path = workspace.folder / "accounts"
    with serve(make_test_services(workspace, clock, more), workspace.port) as client:
        log_in(client, "a-analyst")
        cookies = dict(client.cookies)
    known = accounts.read_accounts(path)
    fresh = accounts.hash_password("another password", os.urandom)
    changed = accounts.Account("a-analyst", "analyst", fresh)
    gone = {name: each for name, each in known.items() if name != "a-analyst"}
    for there in ({**known, "a-analyst": changed}, gone):
        accounts.write_accounts(path, there)
        with serve(
            make_test_services(workspace, clock, more), workspace.port
        ) as client:
            client.cookies.update(cookies)
            assert client.get("/api/cells").status_code == 401


def test_session_file_cannot_be_used_to_log_in(
    workspace: Workspace, clock: Clock
) -> None:
    """It has mode 0600 and contains no session token."""
    with serve(
        make_test_services(workspace, clock, workspace.with_accounts()), workspace.port
    ) as client:
        log_in(client, "a-chief")
        session = client.cookies["yamamori-session"]
    path = workspace.data / "console" / "sessions.sqlite"

    assert path.stat().st_mode & 0o077 == 0
    assert session.encode() not in path.read_bytes()
