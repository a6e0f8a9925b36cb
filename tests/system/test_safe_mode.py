"""Safe mode: a node with a broken settings file reports through a real gateway."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from programs import Client, Programs

from edge_agent.queue.file_lifecycle import read_counters
from edge_agent.status import load_status
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.senml import Pack, decode_pack
from spatial_mqtt.topics import offer_topic

pytestmark = pytest.mark.broker

NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["{manager}"]
gather_s = 0
[queue]
path = "{folder}/queue.db"
window_s = 0
[simulation]
start = "2026-07-01T00:00:00+09:00"
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
interval_s = 1
[[sensor]]
kind = "wire"
name = "span"
pin = 17
"""


@pytest.fixture
def reception(
    make_broker: Callable[[], Broker], tmp_path: Path
) -> Iterator[tuple[Broker, Client]]:
    """A Manager's broker, and an analyst's client behind the gateway."""
    programs = Programs(tmp_path)
    manager, local, distributed = make_broker(), make_broker(), make_broker()
    programs.start(
        "manager",
        "manager",
        f'[manager]\nbroker = "{manager.url}"\ndata = "{tmp_path}/manager"\n'
        f'[[broker]]\ntopic = "/"\nurl = "{distributed.url}"\n',
    )
    programs.start(
        "gateway",
        "run",
        f'[gateway]\nid = "gw"\nbroker = "{local.url}"\n'
        f'managers = ["{manager.url}"]\nareas = ["/1"]\ndata = "{tmp_path}/gw"\n',
    )
    fetch_retained(local.endpoint, offer_topic("gw"), "probe", 60)
    yield manager, Client(distributed.endpoint, "analyst", "/1/#")
    programs.kill_all()


class Agent:
    """`edge-agent run` with the given settings."""

    def __init__(self, folder: Path, text: str) -> None:
        path = folder / "node.toml"
        path.write_text(text)
        self.log = folder / "node.log"
        command = [sys.executable, "-m", "edge_agent", "run", "--config", str(path)]
        state = {"RUNTIME_DIRECTORY": str(folder), "STATE_DIRECTORY": str(folder)}
        env = {**os.environ, **state}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env=env)

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def packs(client: Client) -> list[Pack]:
    return [decode_pack(message.payload) for message in client.got]


def names(client: Client) -> set[str]:
    return {reading.name for pack in packs(client) for reading in pack.readings}


@pytest.mark.parametrize("broken", ["a sensor", "the queue", "the file"])
def test_broken_node_reports_its_errors_and_samples_the_usable_sensors(
    reception: tuple[Broker, Client], tmp_path: Path, broken: str
) -> None:
    """It reports each error at priority 3; an invalid queue setting creates no file."""
    manager, analyst = reception
    text = NODE.format(manager=manager.url, folder=tmp_path)
    if broken == "the queue":
        text = text.replace("window_s = 0", 'window_s = "none"')
    if broken == "the file":
        text = text.replace('name = "span"', "name = span")
    agent = Agent(tmp_path, text)
    wait_until(lambda: {"config/health", "rain"} <= names(analyst))
    health = next(p for p in packs(analyst) if p.readings[0].name == "config/health")
    errors = [str(reading.value) for reading in health.readings[1:]]
    line = load_status(tmp_path)["line"]
    status = agent.end()

    assert line.startswith("level 1; safe mode: ")
    assert health.priority == 3
    assert any("span" in error or "line" in error for error in errors)
    assert "span" not in names(analyst)
    assert status == 0
    assert "safe mode: " in agent.log.read_text()
    has_queue = (tmp_path / "queue.db").exists()
    assert has_queue == (broken != "the queue")
    if has_queue:
        assert read_counters(tmp_path / "queue.db")[3]["put"] == 1


def test_node_without_usable_settings_runs_with_those_of_its_last_run(
    reception: tuple[Broker, Client], tmp_path: Path
) -> None:
    """A change that went wrong must not silence all nodes that it reached."""
    manager, analyst = reception
    text = NODE.format(manager=manager.url, folder=tmp_path)
    text = text.replace("pin = 17\n", "pin = 27\n", 1)
    first = Agent(tmp_path, text)
    wait_until(lambda: "rain" in names(analyst))
    assert first.end() == 0
    analyst.got.clear()
    agent = Agent(tmp_path, text.replace("managers = [", "managers = "))
    wait_until(lambda: {"config/health", "rain"} <= names(analyst))
    health = next(p for p in packs(analyst) if p.readings[0].name == "config/health")
    line = load_status(tmp_path)["line"]

    assert agent.end() == 0
    assert line.startswith("level 1; safe mode: ")
    assert str(health.readings[-1].value).startswith("the settings of the last run")
    assert "config/mistake/1" in names(analyst)


def test_node_without_a_valid_position_exits_with_status_78(tmp_path: Path) -> None:
    """There was no run before; systemd does not restart after status 78."""
    text = NODE.format(manager="mqtt://127.0.0.1:9", folder=tmp_path)
    agent = Agent(tmp_path, text.replace("latitude = 33.5588", "latitude = 95"))

    assert agent.process.wait(60) == 78
    assert "node.latitude" in agent.log.read_text()
