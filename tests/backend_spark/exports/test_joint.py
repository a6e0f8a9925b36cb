"""``backend-spark joint``: several backends in one view, none left out."""

import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from backend_spark.exports.sql import read_joint_settings
from backend_spark.tables.delta_writer import append_rows, create_tables
from backend_spark.tables.schemas import LEVELS, TABLES
from service_runtime.settings import SettingsError


def make_backend(folder: Path, ages: dict[str, timedelta], level: int = 3) -> Path:
    """Tables with one level of each cell, of some age."""
    create_tables(folder, TABLES)
    now = datetime.now(UTC)
    rows = [
        {"cell": cell, "at": now - age, "level": level, "state": "judged"}
        for cell, age in ages.items()
    ]
    append_rows(folder / "levels", pa.Table.from_pylist(rows, schema=LEVELS))
    return folder


def write_config(path: Path, backends: dict[str, object], more: str = "") -> Path:
    """Settings of a joint view."""
    parts = [
        f'[[backend]]\nname = "{name}"\ntables = "{place}"\n'
        for name, place in backends.items()
    ]
    path.write_text(more + "".join(parts))
    return path


def ask(
    config: Path, *query: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "backend_spark", "joint", "--format", "json"]
    return subprocess.run(
        [*command, "--config", str(config), *query],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_backends_in_every_state_are_listed_and_named(tmp_path: Path) -> None:
    """Also one whose log is damaged, and one whose store accepts but never answers."""
    minute = timedelta(minutes=1)
    damaged = make_backend(tmp_path / "damaged", {"354e18d4": minute})
    for commit in (damaged / "levels/_delta_log").glob("*.json"):
        commit.write_text("{")
    create_tables(tmp_path / "empty", TABLES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        places = {
            "kochi": make_backend(
                tmp_path / "kochi", {"354e18bc": minute, "354e18c4": 50 * minute}
            ),
            "ehime": make_backend(
                tmp_path / "ehime", {"354e18cc": timedelta(days=2)}, level=2
            ),
            "kagawa": make_backend(tmp_path / "kagawa", {"354e18dc": -60 * minute}),
            "tokushima": tmp_path / "empty",
            "tottori": tmp_path / "unmounted",
            "shimane": damaged,
            "oita": "s3://oita/backend",
        }
        config = write_config(
            tmp_path / "joint.toml", places, "[joint]\ntimeout_s = 8\n"
        )
        store = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "ap-northeast-1",
        }
        listed = ask(config, **store)
    found = {row["backend"]: row for row in json.loads(listed.stdout)}

    assert listed.returncode == 75, listed.stderr
    assert {name: row["state"] for name, row in found.items()} == {
        "kochi": "current",
        "ehime": "stale",
        "kagawa": "ahead",
        "tokushima": "empty",
        "tottori": "unreachable",
        "shimane": "unreachable",
        "oita": "unreachable",
    }
    assert found["kochi"] | {"newest": None} == {
        "backend": "kochi",
        "state": "current",
        "newest": None,
        "cells": 2,
        "highest": 3,
        "judged": 1,
        "held": 1,
        "unknown": 0,
        "problem": "",
    }
    assert found["ehime"]["unknown"] == 1  # a level of 2 is held for a day
    assert found["oita"]["problem"] == "no answer within 8 s"
    named = [line.split(": ")[:2] for line in listed.stderr.splitlines()]
    for name in set(places) - {"kochi"}:
        assert [name, found[name]["state"]] in named


def test_query_reads_the_cells_of_all_backends(tmp_path: Path) -> None:
    """A cell of two backends has two rows; status 0 when all are current."""
    soon = timedelta(minutes=5)
    places: dict[str, object] = {
        name: make_backend(tmp_path / name, {"354e18bc": soon, cell: soon}, level)
        for name, cell, level in (("a", "354e18c4", 2), ("b", "354e18cc", 4))
    }
    places["old"] = make_backend(
        tmp_path / "old", {"354e18d4": timedelta(days=12), "354e18dc": soon}, 4
    )
    config = write_config(tmp_path / "joint.toml", places)
    current = "FROM cells WHERE backend <> 'old' ORDER BY ALL"
    answer = ask(config, f"SELECT backend, cell, level {current}")
    since = "SELECT level, level_since = time FROM cells WHERE backend = 'old'"
    began = ask(config, f"{since} ORDER BY cell")
    wrong = ask(config, "SELECT depth FROM levels")

    assert (answer.returncode, answer.stderr) == (0, "")
    assert [tuple(row.values()) for row in json.loads(answer.stdout)] == [
        ("a", "354e18bc", 2),
        ("a", "354e18c4", 2),
        ("b", "354e18bc", 4),
        ("b", "354e18cc", 4),
    ]
    rows = [tuple(row.values()) for row in json.loads(began.stdout)]
    assert rows == [(None, None), (4, True)]
    assert wrong.returncode == 2
    assert "the tables are cells, backends" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "backend must be given once or more"),
        (2 * '[[backend]]\nname = "a"\ntables = "/x"\n', "a name of its own"),
        ('[[backend]]\nname = "a"\ntables = "ftp://x"\n', "tables must be a folder"),
    ],
)
def test_wrong_settings_name_the_key(tmp_path: Path, text: str, problem: str) -> None:
    config = tmp_path / "joint.toml"
    config.write_text(text)
    with pytest.raises(SettingsError, match=problem):
        read_joint_settings(config)
