"""Who comes in, and who does not."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from console_house import PASSWORD, SLOPES, Clock, House, log_in, parts_of, serve

from backend_spark.cli import cli
from backend_spark.config import read_settings
from backend_spark.console import auth
from backend_spark.console.app import make_services
from backend_spark.console.auth import SESSION_S
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError

Open = Callable[..., httpx.Client]
LOOKS = ("cells", "nodes", "history", "live", "node/otani-1", "cell/354e1f64")


def test_passwords_are_kept_as_salted_hashes() -> None:
    """The file tells nobody the password, nor who shares one."""
    first, second = (auth.hash_password(PASSWORD, os.urandom) for _ in range(2))

    assert PASSWORD not in first
    assert first != second
    assert auth.verify_password(first, PASSWORD)
    assert not auth.verify_password(first, PASSWORD + " ")


def test_accounts_are_made_changed_and_removed(tmp_path: Path) -> None:
    """The commands of the how-to; only the owner may read the file."""
    path, run = tmp_path / "accounts", CliRunner()
    add = ["console-account", "add", str(path), "suzuki", "--password", PASSWORD]
    assert run.invoke(cli, [*add, "--role", "chief"]).exit_code == 0
    assert run.invoke(cli, add).exit_code == 0
    assert path.stat().st_mode & 0o077 == 0
    listed = run.invoke(cli, ["console-account", "list", str(path)])
    assert listed.output == "suzuki\tanalyst\n"

    assert run.invoke(cli, ["console-account", "remove", str(path), "x"]).exit_code == 2
    assert (
        run.invoke(cli, ["console-account", "remove", str(path), "suzuki"]).exit_code
        == 0
    )
    assert auth.read_accounts(path) == {}


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [
        ("a:b", PASSWORD, "account name must be"),
        ("../x", PASSWORD, "account name must be"),
        ("suzuki", "short", "password must be 10 to 1000 characters"),
    ],
)
def test_bad_names_and_short_passwords_are_refused(
    tmp_path: Path, name: str, password: str, said: str
) -> None:
    """With the rule, and without a file."""
    path = tmp_path / "accounts"
    add = ["console-account", "add", str(path), name, "--password", password]
    done = CliRunner().invoke(cli, add)

    assert done.exit_code == 2
    assert said in done.output
    assert not path.exists()


def test_a_damaged_file_of_accounts_is_named(house: House) -> None:
    """Line, rule and remedy, before anything is served."""
    path = house.folder / "accounts"
    path.write_text("suzuki:chief:secret\n", encoding="utf-8")
    with pytest.raises(FieldError, match=r"line 1: password must be scrypt"):
        auth.read_accounts(path)
    good = auth.hash_password(PASSWORD, lambda size: b"s" * size)
    slow = good.replace("$8$1$", "$8$9999$")
    path.write_text(f"suzuki:chief:{slow}\n", encoding="utf-8")
    with pytest.raises(FieldError, match=r"line 1: password must be scrypt"):
        auth.read_accounts(path)
    path.write_text(f"suzuki:chief:{good}\nsuzuki:viewer:{good}\n", encoding="utf-8")
    with pytest.raises(FieldError, match=r"line 2: name must be there once"):
        auth.read_accounts(path)
    path.write_text("suzuki:king:x\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"line 1: role must be one of viewer"):
        make_services(read_settings(house.config(f'accounts = "{path}"')))


def test_strangers_need_accounts(house: House) -> None:
    """Without accounts the console listens on this machine only."""
    with pytest.raises(
        SettingsError, match=r"console\.host must be an address of this"
    ):
        make_services(read_settings(house.config('host = "0.0.0.0"')))


@pytest.mark.parametrize("path", LOOKS)
def test_nothing_is_shown_before_the_login(
    open_app: Open, house: House, path: str
) -> None:
    """Every path with data asks who is there."""
    answer = open_app(house.with_accounts()).get(f"/api/{path}")

    assert answer.status_code == 401
    assert answer.json() == {"detail": "log in first"}


def test_a_session_opens_and_ends(open_app: Open, house: House, clock: Clock) -> None:
    """By logging out, and by itself after a shift."""
    client = open_app(house.with_accounts())
    proof = log_in(client, "a-viewer")
    assert client.get("/api/cells").status_code == 200
    assert client.post("/api/logout", headers=proof).status_code == 200
    assert client.get("/api/cells").status_code == 401

    log_in(client, "a-viewer")
    clock.now_s += SESSION_S
    assert client.get("/api/cells").status_code == 401


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(
    open_app: Open, house: House
) -> None:
    """HttpOnly and SameSite."""
    client = open_app(house.with_accounts())
    login = {"name": "a-viewer", "password": PASSWORD}
    cookie = client.post("/api/login", json=login).headers["set-cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_guessing_gets_slower(open_app: Open, house: House, clock: Clock) -> None:
    """After five wrong passwords even the right one waits; then it opens."""
    client = open_app(house.with_accounts())
    wrong = {"name": "a-chief", "password": "wrong password"}
    for _ in range(5):
        assert client.post("/api/login", json=wrong).status_code == 401
    right = wrong | {"password": PASSWORD}
    answer = client.post("/api/login", json=right)
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "5"

    clock.now_s += 5
    assert client.post("/api/login", json=right).status_code == 200


def test_parallel_guesses_are_counted_too(open_app: Open, house: House) -> None:
    """Handlers run in threads; none passes the check before the others are counted."""
    client = open_app(house.with_accounts())
    wrong = {"name": "a-chief", "password": "wrong password"}
    with ThreadPoolExecutor(9) as pool:
        tries = [pool.submit(client.post, "/api/login", json=wrong) for _ in range(9)]
        statuses = sorted(each.result(60).status_code for each in tries)

    assert statuses == [401] * 5 + [429] * 4


def test_a_login_is_asked_for_before_a_request_is_read(
    open_app: Open, house: House
) -> None:
    """401 for a stranger, whatever the query and the body hold."""
    client = open_app(house.with_accounts())
    answers = [
        client.get("/api/replay/levels?from_s=x"),
        client.post("/api/thresholds", content=b" " * 70_000),
        client.post("/api/log/x/acknowledge", content=b"{"),
    ]

    assert [answer.status_code for answer in answers] == [401] * 3


def test_a_name_that_is_not_there_says_nothing_more(
    open_app: Open, house: House
) -> None:
    """The answer does not tell which names exist."""
    client = open_app(house.with_accounts())
    answers = [
        client.post("/api/login", json={"name": name, "password": "wrong password"})
        for name in ("a-chief", "nobody")
    ]

    assert {(a.status_code, a.text) for a in answers} == {
        (401, '{"detail":"name or password is wrong"}')
    }


def test_a_change_without_the_pages_proof_is_refused(
    open_app: Open, house: House
) -> None:
    """A foreign page that rides on the cookie gets nowhere."""
    client = open_app(house.with_accounts())
    log_in(client, "a-chief")
    for headers in ({}, {"X-Yamamori-Proof": "guess"}):
        assert client.post("/api/logout", headers=headers).status_code == 403
    assert client.get("/api/cells").status_code == 200


def test_a_proxy_names_who_is_there_only_from_its_address(
    open_app: Open, house: House
) -> None:
    """The header of anybody else is not believed."""
    header = 'proxy_header = "X-Remote-User"\n'
    client = open_app(header + house.with_accounts())
    named = {"X-Remote-User": "a-chief"}
    assert client.get("/api/session", headers=named).json()["role"] == "chief"
    assert client.get("/api/cells").status_code == 401
    stranger = {"X-Remote-User": "somebody"}
    assert client.get("/api/session", headers=stranger).json()["role"] == "viewer"


def test_the_header_of_a_stranger_is_not_believed(open_app: Open, house: House) -> None:
    """Only the addresses of the settings are proxies."""
    more = 'proxy_header = "X-Remote-User"\nproxies = ["10.9.9.9"]\n'
    client = open_app(more + house.with_accounts())

    assert (
        client.get("/api/cells", headers={"X-Remote-User": "a-chief"}).status_code
        == 401
    )


def test_every_answer_carries_the_safe_headers(open_app: Open) -> None:
    """Pages, data, errors and files."""
    client = open_app()
    for path in ("/", "/api/cells", "/api/nothing", "/static/app.js"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"


def test_only_the_tile_server_of_the_settings_may_be_asked(open_app: Open) -> None:
    """Its origin, and nothing else, enters the policy."""
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
def test_path_tricks_lead_nowhere(open_app: Open, path: str) -> None:
    """No file of the machine, no error of the server."""
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
def test_a_malformed_login_is_refused(
    open_app: Open, house: House, body: bytes, status: int
) -> None:
    """With what it must be."""
    answer = open_app(house.with_accounts()).post("/api/login", content=body)

    assert answer.status_code == status
    assert "request must be" in answer.json()["detail"]


def test_guests_of_this_machine_may_look_and_not_change(open_app: Open) -> None:
    """Without accounts there is nobody to write into the log."""
    client = open_app()
    assert client.get(f"/api/cell/{SLOPES[0].cell.token}").status_code == 200
    assert client.get("/api/session").json()["role"] == "viewer"


def test_a_session_outlives_a_restart_and_its_page_may_still_write(
    house: House, clock: Clock
) -> None:
    """In the night of a storm nobody must look for a password."""
    more = house.with_accounts()
    with serve(parts_of(house, clock, more), house.port) as client:
        headers = log_in(client, "a-analyst")
        cookies = dict(client.cookies)
    with serve(parts_of(house, clock, more), house.port) as client:
        client.cookies.update(cookies)
        assert client.get("/api/session").json()["user"] == "a-analyst"
        told = client.post("/api/log/note", json={"text": "on"}, headers=headers)
        assert told.status_code == 200, told.text
        client.post("/api/logout", headers=headers)
    with serve(parts_of(house, clock, more), house.port) as client:
        client.cookies.update(cookies)
        assert client.get("/api/cells").status_code == 401


def test_a_session_ends_with_its_password_and_its_account(
    house: House, clock: Clock
) -> None:
    """Whoever changes a password after a theft expects no less."""
    more = house.with_accounts()
    path = house.folder / "accounts"
    with serve(parts_of(house, clock, more), house.port) as client:
        log_in(client, "a-analyst")
        cookies = dict(client.cookies)
    known = auth.read_accounts(path)
    fresh = auth.hash_password("another password", os.urandom)
    changed = auth.Account("a-analyst", "analyst", fresh)
    gone = {name: each for name, each in known.items() if name != "a-analyst"}
    for there in ({**known, "a-analyst": changed}, gone):
        auth.write_accounts(path, there)
        with serve(parts_of(house, clock, more), house.port) as client:
            client.cookies.update(cookies)
            assert client.get("/api/cells").status_code == 401


def test_the_file_of_sessions_lets_nobody_in(house: House, clock: Clock) -> None:
    """Only its owner may read it, and it holds no session."""
    with serve(parts_of(house, clock, house.with_accounts()), house.port) as client:
        log_in(client, "a-chief")
        (session,) = client.cookies.values()
    path = house.data / "console" / "sessions.sqlite"

    assert path.stat().st_mode & 0o077 == 0
    assert session.encode() not in path.read_bytes()
