"""The printable situation report."""

from collections.abc import Callable

import httpx
import pytest
from click.testing import CliRunner
from console_workspace import HIGHEST, SLOPES, Workspace, log_in

from backend_spark.cli import cli
from backend_spark.console.level_grid import HELD_OFFSET

OpenApp = Callable[..., httpx.Client]


@pytest.mark.parametrize(
    ("language", "level"),
    [("ja", "レベル{}相当"), ("en", "Equivalent to level {}"), ("", "レベル{}相当")],
)
def test_report_has_level_place_and_cell(
    open_app: OpenApp, language: str, level: str
) -> None:
    """In the requested language, or else in that of the settings.

    The headline has the judged level, although a silent cell holds the same one.
    """
    page = open_app().get("/report", params={"lang": language}).text

    assert "大谷町" in page
    assert f'<p class="badge big l{HIGHEST}">{level.format(HIGHEST)}</p>' in page
    assert f"l{HELD_OFFSET + HIGHEST}" in page
    assert SLOPES[0].cell.token in page
    assert "警戒レベル" not in page


def test_report_states_its_limits(open_app: OpenApp) -> None:
    """Assumed criteria, and cells without data."""
    page = open_app().get("/report", params={"lang": "en"}).text

    assert "Criteria are assumed" in page
    assert "A cell without data is not a safe cell" in page


def test_notes_in_the_report_are_escaped(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """HTML in a note is shown as text."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    client.post("/api/notes", headers=proof, json={"text": "<script>x()</script>"})
    page = client.get("/report").text

    assert "<script>" not in page
    assert "&lt;script&gt;x()&lt;/script&gt;" in page


def test_report_requires_login(open_app: OpenApp, workspace: Workspace) -> None:
    """The answer is 401 without a session."""
    assert open_app(workspace.with_accounts()).get("/report").status_code == 401


def test_unknown_language_falls_back_to_the_settings(open_app: OpenApp) -> None:
    """Any other value of `lang` is ignored."""
    answer = open_app().get("/report", params={"lang": "../../etc/passwd"})

    assert answer.status_code == 200
    assert "土砂災害 状況報告" in answer.text


@pytest.mark.parametrize("place", ["nowhere/report.html", "data", "backend.toml/r"])
def test_file_that_cannot_be_written_is_named(workspace: Workspace, place: str) -> None:
    """By the command; its status is that of a wrong option."""
    out = workspace.folder / place
    command = ["report", "--config", str(workspace.config()), "--out", str(out)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 2, done.exception
    words = " ".join(done.output.split())
    assert f"--out must be writable, got {out}; " in words
