"""The printable situation report."""

import shutil
from collections.abc import Callable

import httpx
import pytest
from click.testing import CliRunner
from console_tables import dry_slope, write_tables
from console_workspace import (
    HIGHEST,
    NOW_S,
    SLOPES,
    Workspace,
    add_alert,
    log_in,
)

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


@pytest.mark.parametrize(
    ("silent_places", "words"),
    [
        ([], ""),
        ([0], "Cells that cannot be judged: 0; silent nodes: 1"),
        ([1, 2], "Cells that cannot be judged: 2; silent nodes: 2"),
    ],
)
def test_level_1_is_the_headline_only_where_all_is_known(
    open_app: OpenApp, workspace: Workspace, silent_places: list[int], words: str
) -> None:
    """One cell is judged; a gateway has stopped, of a node there or of other cells."""
    silent = [dry_slope(f"n{at}", at, is_silent=True) for at in silent_places]
    shutil.rmtree(workspace.data)
    write_tables(workspace.data, [*silent, dry_slope("dry")], NOW_S)
    page = open_app().get("/report", params={"lang": "en"}).text
    headline, _, rest = page.partition("Cells by level")

    assert words in headline
    assert words in rest
    assert ("no criterion reached" in headline.lower()) == (not words)
    assert ("No cell has reached a criterion" in rest) == (not words)


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("ja", "未対応の事象 4 件、最高 レベル5相当"),
        ("en", "4 open events, highest: Equivalent to level 5"),
    ],
)
def test_open_event_above_the_cells_is_in_the_report(
    open_app: OpenApp, workspace: Workspace, language: str, words: str
) -> None:
    """The mayor's page had level 4 alone, while a wire outside the cells was cut."""
    add_alert(workspace)
    page = open_app().get("/report", params={"lang": language}).text

    assert f'<p class="unjudged">{words}</p>' in page


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
