"""No message is lost or doubled when each program is killed with kill -9."""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import Broker, wait_until
from deltalake import DeltaTable
from programs import run_command
from storm_log import ID, TABLE_KEYS, count_doubled

from backend_spark.ingest.segment_log import read_segments
from backend_spark.streaming.pipeline import SCORED_TRANSACTION_PREFIX
from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import SPARK_TABLES
from demo.processes import Processes
from demo.witness import ToReal, judge, read_ledgers
from edge_agent.queue.file_lifecycle import read_counters
from spatial_mqtt.client import fetch_retained
from spatial_mqtt.topics import offer_topic

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.spark]

IS_LONG = os.environ.get("SOAK") == "long"
ROUNDS = int(os.environ.get("SOAK_KILLS", "20")) if IS_LONG else 1
"""How often each program is killed."""

VICTIMS = ("gateway", "node", "ingest", "alerts", "local", "distributed")
STARTED_S = 900.0
"""Time for Spark's first batch after a start, on a busy machine."""

CAUGHT_UP_S = 240.0 + 60.0 * ROUNDS
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

    def kill_and_send(self, name: str) -> list[str]:
        """Kill and restart; messages are sent during a broker's outage or a restart."""
        if name in self.brokers:
            self.brokers[name].kill()
            sent = self.send(30)
            self.brokers[name].start()
            return sent
        self.kill_and_start(name)
        return self.send(30)

    def kill_and_start(self, name: str) -> None:
        self.processes.kill(name)
        self.start(name)

    def kill_score(self, chance: random.Random) -> None:
        """Kill the job some time after a commit, not while Spark starts."""
        before = self.commits()
        wait_until(lambda: self.commits() > before, STARTED_S)
        time.sleep(chance.uniform(0, 3))
        self.kill_and_start("score")

    def commits(self) -> int:
        """Number of commits to the tables that the job writes."""
        paths = [self.tables / name for name in SPARK_TABLES]
        existing = [path for path in paths if DeltaTable.is_deltatable(str(path))]
        return sum(DeltaTable(str(path)).version() for path in existing)

    def send(self, count: int) -> list[str]:
        lines = "\n".join(
            json.dumps({
                "pri": 1 + n % 5,
                "e": [{"n": "test", "u": "mm", "v": float(n)}],
            })
            for n in range(count)
        )
        config = str(self.folder / "node.toml")
        done = run_command("edge_agent", "send", "--config", config, given=lines)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def archived(self) -> set[str]:
        return set(self.verdict([]).arrivals)

    def verdict(self, scored: list[str]):  # noqa: ANN201
        start_s = 1782831600.0  # 2026-07-01 00:00 in Japan
        put = read_ledgers([self.folder / "node.ledger"])
        to_real = ToReal(start_s, self.started_s, 60.0)
        return judge(put, self.folder / "backend" / "log", scored, to_real)

    def ids(self, table: str) -> list[str]:
        rows = open_tables(self.folder / "backend").read(table, list(ID)).to_pylist()
        return [":".join(str(row[name]) for name in ID) for row in rows]

    def doubled(self) -> dict[str, int]:
        """Number of duplicate rows by table."""
        return count_doubled(open_tables(self.folder / "backend"))

    def is_scored(self) -> bool:
        """Whether the levels table covers all batches of the silver table."""
        app_id = (self.tables / ".app_id").read_text()
        silver, levels = (
            DeltaTable(str(self.tables / name)) for name in ("silver", "levels")
        )
        upto = levels.transaction_version(SCORED_TRANSACTION_PREFIX + app_id)
        return upto == silver.transaction_version(app_id)

    @property
    def tables(self) -> Path:
        return self.folder / "backend" / "tables"

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


def kill_all(system: System, chance: random.Random) -> tuple[list[str], Counter[str]]:
    """Kill each once a round, in random order; returns the ids sent, and the kills."""
    kills: Counter[str] = Counter()
    sent: list[str] = []
    for _ in range(ROUNDS):
        for victim in chance.sample(VICTIMS, len(VICTIMS)):
            time.sleep(chance.uniform(0, 0.5))
            sent += system.kill_and_send(victim)
            kills[victim] += 1
        if IS_LONG:
            system.kill_score(chance)
        else:
            system.kill_and_start("score")  # in a batch: tests/soak/test_kill_score
        kills["score"] += 1
    return sent, kills


def catch_up(system: System, sent: list[str]) -> None:
    """Wait until every table has the sent messages and the levels are up to date."""
    wait_until(lambda: set(sent) <= system.archived(), CAUGHT_UP_S)
    system.processes.stop("node")
    wait_until(lambda: not system.verdict([]).lost or _is_idle(system), CAUGHT_UP_S)
    wait_until(lambda: set(system.ids("messages")) >= system.archived(), STARTED_S)
    wait_until(lambda: set(system.ids("alerts")) >= set(system.urgent()), CAUGHT_UP_S)
    wait_until(system.is_scored, STARTED_S)


def test_every_message_reaches_the_gold_table_once_despite_kills(
    system: System, chance: random.Random, report: Callable[..., None]
) -> None:
    """Kills node, gateway, ingester, alerts writer, scoring job and both brokers."""
    fetch_retained(system.brokers["local"].endpoint, offer_topic("gw-1"), "probe", 60)
    first = system.send(60)
    sent, kills = kill_all(system, chance)
    sent += first
    catch_up(system, sent)
    verdict, doubled = system.verdict(system.ids("messages")), system.doubled()
    held = sum(row["rows"] for row in read_counters(system.folder / "node.db").values())
    lost = len(verdict.lost) - held
    report(kills=kills, sent=len(verdict.sent), lost=max(lost, 0), doubled=doubled)

    assert len(sent) == len(set(sent)) == 60 + 30 * len(VICTIMS) * ROUNDS
    assert set(sent) <= verdict.sent.keys()
    assert len(verdict.sent) > len(sent), "the node's own sensors sent, too"
    assert lost <= 0
    assert verdict.unscored == set()
    assert verdict.duplicates == 0
    assert doubled == dict.fromkeys(TABLE_KEYS, 0)
    assert set(system.ids("bronze")) == set(verdict.arrivals)
    assert set(system.ids("silver")) == set(verdict.arrivals)
    alerts = system.ids("alerts")
    assert set(alerts) == set(system.urgent())
    assert len(alerts) >= len(sent) * 2 // 5


def _is_idle(system: System) -> bool:
    """Whether only messages in the stopped node's queue are missing."""
    held = sum(row["rows"] for row in read_counters(system.folder / "node.db").values())
    return len(system.verdict([]).lost) <= held
