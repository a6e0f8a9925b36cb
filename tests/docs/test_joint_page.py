"""Runs every command of the page on the joint view, on two backends of its settings."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.schemas import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "joint.md"


def block(language: str) -> str:
    """Text of the page's block in a language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize("command", block("sh").splitlines())
def test_command_of_the_page_runs(command: str, tmp_path: Path) -> None:
    """The backends have no levels, which each command says."""
    settings = block("toml")
    for name, place in re.findall(r'name = "(\w+)"\ntables = "([^"]+)"', settings):
        create_tables(tmp_path / name, TABLES)
        settings = settings.replace(place, str(tmp_path / name))
    config = tmp_path / "joint.toml"
    config.write_text(settings)
    program, *arguments = shlex.split(command.replace("joint.toml", str(config)))
    answer = subprocess.run(
        [sys.executable, "-m", "backend_spark", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert program == "backend-spark"
    assert answer.returncode == 75, answer.stderr
    assert "kochi: empty" in answer.stderr
    assert "ehime: empty" in answer.stderr
