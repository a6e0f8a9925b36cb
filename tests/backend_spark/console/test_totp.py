"""Second factor: codes of RFC 6238, each accepted once, and their commands."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from console_workspace import (
    PASSWORD,
    TOTP_SECRET,
    Clock,
    Workspace,
    code_at,
    log_in,
)

from backend_spark.cli import cli
from backend_spark.console import accounts
from service_runtime.errors import FieldError

OpenApp = Callable[..., httpx.Client]
RFC_KEY = b"12345678901234567890"
RFC_CODES = (
    (59, "94287082"),
    (1_111_111_109, "07081804"),
    (1_111_111_111, "14050471"),
    (1_234_567_890, "89005924"),
    (2_000_000_000, "69279037"),
    (20_000_000_000, "65353130"),
)
"""Appendix B of RFC 6238, SHA-1."""


@pytest.mark.parametrize(("at_s", "code"), RFC_CODES)
def test_codes_are_those_of_rfc_6238(at_s: int, code: str) -> None:
    """With eight digits, and with the last six of them."""
    step = at_s // accounts.CODE_STEP_S

    assert accounts.one_time_code(RFC_KEY, step, digits=8) == code
    assert accounts.one_time_code(RFC_KEY, step) == code[2:]


def test_clock_may_differ_by_one_step() -> None:
    """Not by two; spaces are ignored, and other characters are wrong."""
    now_s = 1_793_000_400.0
    found = [
        accounts.matching_step(TOTP_SECRET, code_at(now_s + 30 * n), now_s)
        for n in (-2, -1, 0, 1, 2)
    ]
    step = int(now_s // 30)
    code = code_at(now_s)

    assert found == [None, step - 1, step, step + 1, None]
    assert accounts.matching_step(TOTP_SECRET, f"{code[:3]} {code[3:]}", now_s) == step
    for wrong in ("", "12345", "1234567", "abcdef", "１２３４５６", code + "\n"):
        assert accounts.matching_step(TOTP_SECRET, wrong, now_s) is None


def enter(client: httpx.Client, code: str, password: str = PASSWORD) -> httpx.Response:
    """Log in with a code."""
    login = {"name": "a-chief", "password": password, "code": code}
    return client.post("/api/login", json=login)


def test_login_needs_the_code(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """Only who has the password learns that; other accounts need none."""
    client = open_app(workspace.with_second_factor())
    assert enter(client, "", "wrong password").json() == {
        "detail": "name, password or code is wrong"
    }
    missing = enter(client, "")
    assert (missing.status_code, missing.json()["needs"]) == (401, "code")
    assert enter(client, "000000").status_code == 401
    assert client.get("/api/cells").status_code == 401
    assert enter(client, code_at(clock.now_s), "wrong password").status_code == 401

    assert enter(client, code_at(clock.now_s)).status_code == 200
    assert client.get("/api/session").json()["role"] == "chief"
    log_in(client, "a-viewer")


@pytest.mark.attack(
    "console: overheard password and code",
    "password alone was enough",
)
def test_code_is_accepted_once(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """Neither it nor an earlier one, also after a restart: the store remembers."""
    client = open_app(workspace.with_second_factor())
    code, before = code_at(clock.now_s), code_at(clock.now_s - 30)
    assert enter(client, code).status_code == 200
    assert enter(client, code).status_code == 401
    assert enter(client, before).status_code == 401
    clock.now_s += 30

    assert enter(client, code).status_code == 401
    assert enter(client, code_at(clock.now_s)).status_code == 200


def test_guessed_codes_are_throttled(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """As wrong passwords are."""
    client = open_app(workspace.with_second_factor())
    statuses = [enter(client, "000000").status_code for _ in range(6)]

    assert statuses == [401] * 5 + [429]
    assert enter(client, code_at(clock.now_s)).status_code == 429


def run_account(*args: str) -> str:
    """Run console-account; returns its output."""
    done = CliRunner().invoke(cli, ["console-account", *args])
    assert done.exit_code == 0, done.output
    return done.output


def test_administrator_adds_and_removes_the_second_factor(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """Both end the sessions at once; a new password keeps the second factor."""
    client = open_app(workspace.with_accounts())
    path = workspace.folder / "accounts"
    log_in(client, "a-chief")
    secret = enroll(path)
    assert client.get("/api/cells").status_code == 401
    assert "a-chief\tchief\ttotp\n" in run_account("list", str(path))
    add = ("add", str(path), "a-chief", "--role", "chief", "--password", PASSWORD)
    run_account(*add)
    clock.now_s = time.time()
    assert enter(client, code_at(clock.now_s, secret)).status_code == 200

    run_account("totp", str(path), "a-chief", "--remove")
    assert client.get("/api/cells").status_code == 401
    assert enter(client, "").status_code == 200


def enroll(path: Path) -> str:
    """Run the command as a person does; returns the secret."""
    command = [sys.executable, "-m", "backend_spark", "console-account", "totp"]
    with subprocess.Popen(
        [*command, str(path), "a-chief"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        secret, uri = (process.stdout.readline().strip() for _ in range(2))
        assert uri.startswith(f"otpauth://totp/Yamamori:a-chief?secret={secret}&")
        process.stdin.write(code_at(time.time(), secret) + "\n")
        process.stdin.close()
        assert process.wait(60) == 0
    return secret


def test_wrong_code_changes_no_account(workspace: Workspace) -> None:
    """A secret that no app has would lock its owner out."""
    workspace.with_accounts()
    path = workspace.folder / "accounts"
    before = path.read_bytes()
    command = ["console-account", "totp", str(path), "a-chief"]
    done = CliRunner().invoke(cli, command, input="12345\n")

    assert done.exit_code == 2
    assert "code must be that of the app now" in done.output
    assert path.read_bytes() == before


@pytest.mark.parametrize("field", ["totp$abc", "totp$" + "A" * 33, "x", ""])
def test_damaged_second_factor_is_reported(workspace: Workspace, field: str) -> None:
    """It must not become an account with a password alone."""
    workspace.with_accounts()
    path = workspace.folder / "accounts"
    line = path.read_text(encoding="utf-8").splitlines()[0]
    path.write_text(f"{line}:{field}\n", encoding="utf-8")

    with pytest.raises(FieldError, match="line 1: second factor must be"):
        accounts.read_accounts(path)
