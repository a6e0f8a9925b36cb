"""Runs every line of the page on notebooks."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import free_port, wait_until
from console_tables import Slope, storm, write_tables
from deltalake import write_deltalake
from java_start import java_options

from backend_spark.__main__ import main
from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import SILVER
from slope_science.movement import fukuzono_displacement_mm
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "notebook.md"
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


@pytest.fixture
def connect(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Text of the client of the page's Spark Connect server, which runs."""
    server, client = blocks(folder, "text")
    port = str(free_port())
    (folder / "token").write_text("secret")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(folder),
        "JAVA_TOOL_OPTIONS": java_options(),
        "PYSPARK_PYTHON": sys.executable,
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", server.replace("15002", port)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait_until(lambda: process.poll() is not None or is_open(int(port)), 300.0)
    assert process.poll() is None, (folder / "server.log").read_text()
    yield client.replace("15002", port)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def is_open(port: int) -> bool:
    """Whether a port of this machine accepts connections."""
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.spark
@pytest.mark.long
def test_spark_connect_reads_the_tables(connect: str, folder: Path) -> None:
    """As the page says; without the token the server refuses."""
    done = {}
    for token in ("secret", "wrong"):
        done[token] = subprocess.run(
            [sys.executable, "-c", f"{connect}\nprint(frame.to_json())"],
            env=os.environ | {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    levels = open_tables(folder / "data").levels(["level"])["level"].to_pylist()

    assert done["secret"].returncode == 0, done["secret"].stderr
    frame = json.loads(done["secret"].stdout.splitlines()[-1])
    found = zip(frame["level"].values(), frame["rows"].values(), strict=True)
    assert dict(found) == dict(Counter(levels))
    assert done["wrong"].returncode != 0
    assert "UNAUTHENTICATED" in done["wrong"].stderr


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
