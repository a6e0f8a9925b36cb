"""Runs every line of the page on notebooks."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from console_tables import Slope, storm, write_tables
from deltalake import write_deltalake

from backend_spark.__main__ import main
from backend_spark.tables.schemas import SILVER
from slope_science.creep import fukuzono_displacement_mm
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "notebook.md"
END_S = 1_793_000_400  # 2026-10-26
SLOPE = Slope("otani-1", 33.575, 133.5, storm(26, 60))
TABLE = f"cell,LEVEL1,LEVEL2\n{SLOPE.cell.token},100,140\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tables, criteria and settings that the page uses."""
    write_tables(tmp_path / "data", [SLOPE], END_S)
    first_s = END_S - 42 * 3600
    moved = [
        {"node": "kochi-0001", "name": "span", "unit": "mm", "flag": 1}
        | {"topic": cell_topic(Cell.at(33.575, 133.5)), "synchronised": True}
        | dict.fromkeys(("at", "received_at"), (first_s + step * 600) * 10**6)
        | {"value": fukuzono_displacement_mm(step / 6, 48.0, 0.05)}
        for step in range(42 * 6 + 1)
    ]
    rows = pa.Table.from_pylist(moved, SILVER)
    write_deltalake(str(tmp_path / "data/tables/silver"), rows, mode="append")
    (tmp_path / "criteria.csv").write_text(TABLE)
    (tmp_path / "backend.toml").write_text(
        f'[backend]\ndata = "{tmp_path}/data"\n[console]\nexercise = true\n'
    )
    return tmp_path


def blocks(folder: Path, language: str) -> list[str]:
    """Code blocks of the page, with the paths replaced by those of a folder."""
    text = PAGE.read_text("utf-8")
    for replaced in ("/var/lib/yamamori/backend", "/etc/yamamori", "354e18bc"):
        assert replaced in text
    text = text.replace("/var/lib/yamamori/backend", str(folder / "data"))
    text = text.replace("/etc/yamamori", str(folder))
    text = text.replace("354e18bc", SLOPE.cell.token)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_every_line_of_python_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the page, in one namespace."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for block in blocks(folder, "python"):
        exec(compile(block, PAGE.name, "exec"), names)  # noqa: S102 - the page itself

    assert names["frame"]["level"].iloc[-1] >= 3
    assert names["readings"].num_rows == 253
    for chart in ("snake.png", "rain.png", "snake.svg", "velocity.png"):
        assert (folder / chart).stat().st_size > 10_000, chart


def test_every_command_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes the file that it names."""
    monkeypatch.chdir(folder)
    commands = "".join(blocks(folder, "sh"))
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "backend-spark"
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        with pytest.raises(SystemExit, match=r"^0$"):
            main()

    assert (folder / "velocity.pdf").read_bytes().startswith(b"%PDF")
    page = (folder / "report.html").read_text("utf-8")
    assert SLOPE.cell.token in page
    assert "<link" not in page, "the page needs no other file"
    assert ".badge" in page
