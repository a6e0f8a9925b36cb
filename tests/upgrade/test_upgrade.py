"""What older programs left on disk, taken up by those of today.

Each archive was made by ``tests/upgrade/keep`` from an older commit.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from conftest import Broker, wait_until

from backend_spark.ingest.segment_log import read_segments
from backend_spark.tables.reader import open_tables
from demo.processes import Processes

KEPT = sorted(Path(__file__).parent.glob("*.tar.xz"))
SETTINGS = {
    "manager": """[manager]
broker = "{0.url}"
data = "state/manager"
[[broker]]
topic = "/"
url = "{2.url}"
""",
    "gateway": """[gateway]
id = "gw-desk"
broker = "{1.url}"
managers = ["{0.url}"]
data = "state/gateway"
""",
    "backend": """[backend]
data = "state/backend"
[ingest]
broker = "{2.url}"
[score]
master = "local[1]"
""",
    "node": """[node]
id = "desk-0001"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["{0.url}"]
gather_s = 0
[queue]
path = "state/queue.db"
[[sensor]]
kind = "rain-gauge"
name = "rain"
pin = 17
[[sensor]]
kind = "wire"
name = "span"
pin = 27
[simulation]
start = "2026-07-01T01:00:00+09:00"
speedup = 20
""",
}
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
Ids = set[tuple[str, str, int]]


@pytest.fixture(params=KEPT, ids=lambda path: path.name)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A machine as it was before the upgrade, and a copy to compare with."""
    with tarfile.open(request.param) as kept:
        kept.extractall(tmp_path, filter="data")
    shutil.copytree(tmp_path / "state", tmp_path / "before")
    return tmp_path


@pytest.fixture
def processes(house: Path) -> Iterator[Processes]:
    """Programs of today in its folder."""
    made = Processes(house)
    yield made
    made.stop()


def waiting(path: Path) -> Ids:
    """Ids in the file of a queue, by its oldest columns."""
    with sqlite3.connect(path) as file:
        return set(file.execute("SELECT node, boot, origin_seq FROM message"))


def logged(backend: Path) -> Counter[tuple[str, str, int]]:
    """How often each id is in the ingester's log."""
    return _counted(backend / "log", frozenset((backend / "log").glob("*.arrow")))


@cache
def _counted(log: Path, _files: frozenset[Path]) -> Counter[tuple[str, str, int]]:
    """Read anew only when there are other files."""
    found: Counter[tuple[str, str, int]] = Counter()
    for _, rows in read_segments(log):
        columns = (rows[name].to_pylist() for name in ("node", "boot", "seq"))
        found.update(zip(*columns, strict=True))
    return found


def asked(house: Path, *words: str) -> str:
    """What an administrator is told; nothing while there is no Manager."""
    try:
        return run(house, "gateway_daemon", *words)
    except AssertionError:
        return ""


def run(house: Path, module: str, *words: str) -> str:
    """A command of today; it ends with 0."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=house,
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_taken_back(house: Path, *admin: str) -> bool:
    """Take the area from its broker; whether the Manager says so."""
    told = asked(house, *admin, "brokers")
    old = told.partition("/3/1  ")[2].strip()
    if old:
        asked(house, *admin, "remove-broker", "/3/1", f"mqtt://{old}")
    return bool(told) and not old


def start_in_order(house: Path, processes: Processes, manager: str) -> None:
    """Backend, Manager, gateway, node; the broker of then gives up its last area."""
    processes.python("ingest", "backend_spark", "ingest", "--config", "backend.toml")
    processes.python("manager", "gateway_daemon", "manager", "--config", "manager.toml")
    admin = ("admin", "--manager", manager)
    wait_until(lambda: "/3/1 " in asked(house, *admin, "brokers"))
    wait_until(lambda: is_taken_back(house, *admin))
    processes.python("gateway", "gateway_daemon", "run", "--config", "gateway.toml")
    processes.python("node", "edge_agent", "run", "--config", "node.toml")


@pytest.mark.broker
@pytest.mark.spark
def test_what_older_programs_left_arrives_once(
    house: Path, processes: Processes, make_broker: Callable[[], Broker]
) -> None:
    """From the node's queue, the gateway's lanes and the log; and it goes on."""
    before = house / "before"
    lanes = [waiting(path) for path in (before / "gateway/lanes").glob("*.db")]
    queue, known = waiting(before / "queue.db"), logged(before / "backend")
    ids = queue.union(known, *lanes)
    brokers = [make_broker() for _ in range(3)]
    for name, text in SETTINGS.items():
        (house / f"{name}.toml").write_text(text.format(*brokers))
    start_in_order(house, processes, brokers[0].url)
    wait_until(lambda: ids <= logged(house / "state/backend").keys(), timeout_s=300)
    processes.stop()
    run(house, "backend_spark", "score", "--once", "--config", "backend.toml")
    messages = open_tables(house / "state/backend").messages().to_pylist()
    scored = Counter((row["node"], row["boot"], row["seq"]) for row in messages)

    assert queue, "there was something on the node"
    assert any(lanes), "and on the gateway"
    assert known, "and in the log"
    assert ids <= scored.keys()
    assert set(scored.values()) == {1}
    assert len(scored) > len(ids), "and it goes on"
