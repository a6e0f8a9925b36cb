"""`edge-agent triage`: levels of a table of readings by the code of the node."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from reading_tables import START_S, rain_rows, table_text

from edge_agent.cli import cli
from edge_agent.config import read_node_settings
from edge_agent.triage.engine import Triage
from slope_science.quality import Flag
from spatial_mqtt.senml import Reading

SETTINGS = """
[node]
id = "n1"
latitude = 33.5588
longitude = 133.5312
[uplink]
gateway = "mqtt://127.0.0.1:1883"
[queue]
path = "{folder}/queue.db"
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
mm_per_tip = 0.5
[[sensor]]
kind = "wire"
name = "wire"
pin = 22
"""
STORM_MM = [0.0] * 6 + [5.0] * 60


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(SETTINGS.format(folder=tmp_path))
    return path


def run(config: Path, text: str, *options: str) -> Result:
    table = config.parent / "readings.csv"
    table.write_text(text)
    return CliRunner().invoke(
        cli, ["triage", str(table), "--config", str(config), *options]
    )


def test_levels_are_those_of_triage(config: Path) -> None:
    result = json.loads(run(config, table_text(rain_rows(STORM_MM)), "--json").output)
    triage = Triage(read_node_settings(config).sensors)
    expected = [
        triage.assess([Reading("rain", "mm", mm)], START_S + at * 600).level
        for at, mm in enumerate(STORM_MM)
    ]
    assert [step["level"] for step in result["steps"]] == expected
    assert expected[-1] >= 3
    assert result["steps"][-1]["reasons"][0]["code"] == "rule"


def test_flags_are_those_of_the_node(config: Path) -> None:
    depths = [0.0, 1000.0]
    steps = json.loads(run(config, table_text(rain_rows(depths)), "--json").output)[
        "steps"
    ]
    assert steps[1]["flags"].get("rain", Flag.GOOD) >= Flag.SUSPECT


def test_late_rows_are_judged_in_the_order_of_time(config: Path) -> None:
    rows = rain_rows(STORM_MM)
    lines = run(config, table_text(rows)).stdout
    mixed = run(config, table_text([*rows[30:], *rows[:30]])).stdout
    assert mixed == lines


def test_unknown_sensor_is_refused(config: Path) -> None:
    rows = [(0.0, "n1", "crack", "displacement", 1.0, "mm")]
    done = run(config, table_text(rows))
    assert done.exit_code == 65
    assert "sensor must be one of the settings' sensors, rain, wire" in done.stderr


def test_sensor_of_another_quantity_is_refused(config: Path) -> None:
    done = run(config, table_text([(0.0, "n1", "wire", "rain", 1.0, "mm")]))
    assert "quantity must be wire is cut" in done.stderr


def test_node_of_the_table_is_chosen(config: Path) -> None:
    both = table_text([*rain_rows([0.0]), *rain_rows([0.0], node="n2")])
    assert json.loads(run(config, both, "--json").output)["node"] == "n1"
    chosen = run(config, both, "--json", "--node", "n2")
    assert json.loads(chosen.output)["node"] == "n2"
    others = table_text([*rain_rows([0], node="a"), *rain_rows([0], node="b")])
    assert "one of the table's nodes, a, b" in run(config, others).stderr
