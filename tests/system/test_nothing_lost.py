"""The promise of the whole: every program a process, each killed -9 in the middle."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import Broker, wait_until

from backend_spark.ingest.log import read_segments
from backend_spark.tables import open_tables
from demo.processes import Processes
from demo.witness import ToReal, judge, read_ledgers
from edge_agent.queue.inspection import read_tally
from spatial_mqtt.retained import fetch_retained
from spatial_mqtt.topics import offer_topic

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.spark]

ROUNDS = 20 if os.environ.get("SOAK") == "long" else 1
"""How often each program of the backend, and its broker, is killed."""

NODE = """
[node]
id = "kochi-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
gather_s = 0
managers = ["{manager}"]
rate_bytes_per_s = 20000
[queue]
path = "{folder}/node.db"
window_s = 0
[simulation]
start = "2026-07-01T00:00:00+09:00"
epoch_unix_s = {now}
speedup = 60
total_mm = 300
ledger = "{folder}/node.ledger"
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
interval_s = 30
[[sensor]]
kind = "wire"
name = "wire"
pin = 27
interval_s = 30
"""
MANAGER = """
[manager]
broker = "{manager}"
data = "{folder}/manager"
[[broker]]
topic = "/"
url = "{distributed}"
"""
GATEWAY = """
[gateway]
id = "gw-1"
broker = "{local}"
managers = ["{manager}"]
areas = ["/1/2/2"]
data = "{folder}/gateway"
"""
BACKEND = """
[backend]
data = "{folder}/backend"
[ingest]
id = "ingest-0"
broker = "{distributed}"
[score]
master = "local[2]"
"""
PROGRAMS = {
    "manager": ("gateway_daemon", "manager", MANAGER),
    "gateway": ("gateway_daemon", "run", GATEWAY),
    "ingest": ("backend_spark", "ingest", BACKEND),
    "node": ("edge_agent", "run", NODE),
    "alerts": ("backend_spark", "alerts", BACKEND),
    "score": ("backend_spark", "score", BACKEND),
}


class System:
    """Brokers and programs of one test."""

    def __init__(self, folder: Path, brokers: dict[str, Broker]) -> None:
        self.folder = folder
        self.brokers = brokers
        self.processes = Processes(folder)
        self.started_s = time.time()
        urls = {name: broker.url for name, broker in brokers.items()}
        for name, (_, _, template) in PROGRAMS.items():
            text = template.format(**urls, folder=folder, now=self.started_s)
            (folder / f"{name}.toml").write_text(text)
        for name in PROGRAMS:
            self.start(name)

    def start(self, name: str) -> None:
        module, command, _ = PROGRAMS[name]
        config = str(self.folder / f"{name}.toml")
        self.processes.python(name, module, command, "--config", config)

    def kill_and_start(self, name: str) -> None:
        self.processes.kill(name)
        self.start(name)

    def send(self, count: int) -> list[str]:
        lines = "\n".join(
            json.dumps({
                "pri": 1 + n % 5,
                "e": [{"n": "test", "u": "mm", "v": float(n)}],
            })
            for n in range(count)
        )
        config = str(self.folder / "node.toml")
        done = subprocess.run(
            [sys.executable, "-m", "edge_agent", "send", "--config", config],
            input=lines,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    def archived(self) -> set[str]:
        return set(self.verdict([]).arrivals)

    def verdict(self, scored: list[str]):  # noqa: ANN201
        start_s = 1782831600.0  # 2026-07-01 00:00 in Japan
        put = read_ledgers([self.folder / "node.ledger"])
        to_real = ToReal(start_s, self.started_s, 60.0)
        return judge(put, self.folder / "backend" / "log", scored, to_real)

    def scored(self) -> list[str]:
        return self.ids("messages")

    def ids(self, table: str) -> list[str]:
        rows = open_tables(self.folder / "backend").read(table).to_pylist()
        return [f"{row['node']}:{row['boot']}:{row['seq']}" for row in rows]

    def urgent(self) -> list[str]:
        """Ids of the log with priority 4 or 5."""
        rows = pa.concat_tables(
            table for _, table in read_segments(self.folder / "backend" / "log")
        ).to_pylist()
        return [
            f"{row['node']}:{row['boot']}:{row['seq']}"
            for row in rows
            if row["pri"] and row["pri"] >= 4
        ]


@pytest.fixture
def system(tmp_path: Path, make_broker) -> Iterator[System]:  # noqa: ANN001
    names = ("manager", "local", "distributed")
    made = System(tmp_path, {name: make_broker() for name in names})
    yield made
    made.processes.stop()


def test_every_message_arrives_in_gold_once_though_everything_is_killed(
    system: System,
) -> None:
    """Node, gateway, ingest, scoring and both brokers die by kill -9 on the way."""
    fetch_retained(system.brokers["local"].endpoint, offer_topic("gw-1"), "probe", 60)
    sent = system.send(60)
    for victim in ("gateway", "node", *("ingest", "alerts", "score") * ROUNDS):
        system.kill_and_start(victim)
        sent += system.send(30)
    for victim in ("local", *("distributed",) * ROUNDS):
        system.brokers[victim].kill()
        sent += system.send(30)
        system.brokers[victim].start()
    wait_until(lambda: set(sent) <= system.archived(), 180 * ROUNDS)
    system.processes.stop("node")
    wait_until(lambda: not system.verdict([]).lost or _is_idle(system), 60)
    wait_until(lambda: set(system.scored()) >= system.archived(), 240)
    wait_until(lambda: set(system.ids("alerts")) >= set(system.urgent()), 60)

    verdict = system.verdict(system.scored())

    assert len(sent) == len(set(sent)) == 60 + 30 * (3 + 4 * ROUNDS)
    assert set(sent) <= verdict.sent.keys()
    assert len(verdict.sent) > len(sent), "the node's own sensors were heard, too"
    still_held = sum(
        row["rows"] for row in read_tally(system.folder / "node.db").values()
    )
    assert len(verdict.lost) <= still_held
    assert verdict.unscored == set()
    assert verdict.duplicates == 0
    alerts = system.ids("alerts")
    assert len(alerts) == len(set(alerts)), "each urgent message is one alert"
    assert set(alerts) == set(system.urgent())
    assert len(alerts) >= len(sent) * 2 // 5


def _is_idle(system: System) -> bool:
    """What the stopped node still holds is not lost."""
    held = sum(row["rows"] for row in read_tally(system.folder / "node.db").values())
    return len(system.verdict([]).lost) <= held
