"""State that older programs left on disk, read by the present programs.

Each archive was made by `tests/upgrade/keep` from an older commit.
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
from java_start import java_options

from backend_spark.ingest.segment_log import read_segments
from backend_spark.tables.reader import open_tables
from demo.processes import Processes

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))
# The log keeps the archive's scored segments, however old they are.
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
keep_days = 3650
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
Ids = set[tuple[str, str, int]]


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
def old_machine(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the state before the upgrade, and a copy to compare with."""
    with tarfile.open(request.param) as kept:
        kept.extractall(tmp_path, filter="data")
    shutil.copytree(tmp_path / "state", tmp_path / "before")
    return tmp_path


@pytest.fixture
def processes(old_machine: Path) -> Iterator[Processes]:
    """Starts the present programs in that folder."""
    started = Processes(old_machine)
    yield started
    started.stop()


def queued_ids(path: Path) -> Ids:
    """Ids in a queue file, by its oldest columns."""
    with sqlite3.connect(path) as file:
        return set(file.execute("SELECT node, boot, origin_seq FROM message"))


def log_counts(backend: Path) -> Counter[tuple[str, str, int]]:
    """How often each id is in the ingester's log."""
    return _count_ids(backend / "log", frozenset((backend / "log").glob("*.arrow")))


@cache
def _count_ids(log: Path, _files: frozenset[Path]) -> Counter[tuple[str, str, int]]:
    """Cached by the set of files."""
    found: Counter[tuple[str, str, int]] = Counter()
    for _, rows in read_segments(log):
        columns = (rows[name].to_pylist() for name in ("node", "boot", "seq"))
        found.update(zip(*columns, strict=True))
    return found


def admin_output(old_machine: Path, *words: str) -> str:
    """Output of an admin command; empty while there is no Manager."""
    try:
        return run(old_machine, "gateway_daemon", *words)
    except AssertionError:
        return ""


def run(old_machine: Path, module: str, *words: str) -> str:
    """Run a command of the present programs, which must exit with 0."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=old_machine,
        env={**os.environ, "JAVA_TOOL_OPTIONS": java_options()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def remove_old_area(old_machine: Path, *admin: str) -> bool:
    """Remove area /3/1 from its broker; return whether the table no longer has it."""
    brokers = admin_output(old_machine, *admin, "brokers")
    old = brokers.partition("/3/1  ")[2].strip()
    if old:
        admin_output(old_machine, *admin, "remove-broker", "/3/1", f"mqtt://{old}")
    return bool(brokers) and not old


def start_in_order(old_machine: Path, processes: Processes, manager: str) -> None:
    """Start backend, Manager, gateway and node; remove the old broker's last area."""
    processes.python("ingest", "backend_spark", "ingest", "--config", "backend.toml")
    processes.python("manager", "gateway_daemon", "manager", "--config", "manager.toml")
    admin = ("admin", "--manager", manager)
    wait_until(lambda: "/3/1 " in admin_output(old_machine, *admin, "brokers"))
    wait_until(lambda: remove_old_area(old_machine, *admin))
    processes.python("gateway", "gateway_daemon", "run", "--config", "gateway.toml")
    processes.python("node", "edge_agent", "run", "--config", "node.toml")


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.spark
def test_state_of_older_programs_is_delivered_once(
    old_machine: Path, processes: Processes, make_broker: Callable[[], Broker]
) -> None:
    """From the node's queue, the gateway's queues and the log; new data follows."""
    before = old_machine / "before"
    gateway_queues = [
        queued_ids(path) for path in (before / "gateway/lanes").glob("*.db")
    ]
    queue, logged = queued_ids(before / "queue.db"), log_counts(before / "backend")
    ids = queue.union(logged, *gateway_queues)
    brokers = [make_broker() for _ in range(3)]
    for name, text in SETTINGS.items():
        (old_machine / f"{name}.toml").write_text(text.format(*brokers))
    start_in_order(old_machine, processes, brokers[0].url)
    wait_until(
        lambda: ids <= log_counts(old_machine / "state/backend").keys(), timeout_s=300
    )
    processes.stop()
    run(old_machine, "backend_spark", "score", "--once", "--config", "backend.toml")
    messages = open_tables(old_machine / "state/backend").messages().to_pylist()
    scored = Counter((row["node"], row["boot"], row["seq"]) for row in messages)

    assert queue, "the node's queue held messages"
    assert any(gateway_queues), "the gateway's queues held messages"
    assert logged, "the log held messages"
    assert ids <= scored.keys()
    assert set(scored.values()) == {1}
    assert len(scored) > len(ids), "new messages follow"
