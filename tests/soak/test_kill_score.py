"""The scoring job is killed with kill -9 while it works; every row exists once.

`tests/system/test_nothing_lost.py` also kills it, but mostly while Spark starts. Here
it is killed in each phase of a batch in turn: the test waits until the phase is seen in
checkpoint and tables, and finds out after the kill in which one it was. A kill in none
does not count. Then an executor is killed. The tables are in a folder, or in an object
store; the log is a folder, or a topic of Kafka.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from conftest import wait_until
from growing_log import GrowingLog
from kafka_cluster import new_topic, open_kafka
from object_stores import run_store
from pyarrow import fs
from storm_log import TABLE_KEYS, count_doubled, ids

from backend_spark.ingest.kafka_log import KafkaWriter
from backend_spark.ingest.kafka_settings import KafkaSection
from backend_spark.ingest.log import LogWriter
from backend_spark.ingest.segment_log import SegmentWriter
from backend_spark.streaming.pipeline import SCORED_TRANSACTION_PREFIX
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.store import (
    Folder,
    file_names,
    has_file,
    open_files,
    open_table,
    parse_folder,
    read_text,
)

pytestmark = [pytest.mark.spark, pytest.mark.long]

KILLS: Final = (
    int(os.environ.get("SOAK_KILLS", "20")) if os.environ.get("SOAK") == "long" else 1
)
SCORE: Final = [sys.executable, "-m", "backend_spark", "score", "--config"]
RECEIVED: Final = ("bronze", "silver", "messages")
START_TIMEOUT_S: Final = 900.0
PHASES: Final = ("planned", "writing", "committing", "committed")
"""Of a batch: only in Spark's checkpoint, with files that are in no table, in some of
the tables, and in all of them while its cells wait for a pass."""
EXECUTOR_PHASES: Final = ("planned", "writing", "committed")
"""Phases in which an executor decodes, writes or scores."""
STORES: Final = ("file", "s3", "az", "kafka")
LONG_PHASES: Final = ("planned", "writing")
INTERVAL_S: Final = {"file": 0.25, "s3": 1.0, "az": 1.0, "kafka": 0.25}
"""Time between two segments; the servers of the tests are slower than a disk."""


class Job:
    """The job, its folder, and its progress.

    Args:
        config: Settings file.
        data: Data folder.
        tables: Where the tables are.
    """

    def __init__(self, config: Path, data: Path, tables: Folder) -> None:
        self._config = config
        self._tables = tables
        self._checkpoint = data / "checkpoints" / "score"
        self._log_file = data.parent / "score.err"
        self._app_id = ""
        self._known: dict[str, set[str]] = {}
        self._versions: dict[str, int] = {}
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                [*SCORE, str(self._config)], stderr=log, start_new_session=True
            )

    def newest(self, folder: str) -> int:
        """Number of the last batch in ``offsets`` (planned) or ``commits`` (done)."""
        found = (self._checkpoint / folder).glob("*")
        return max((int(p.name) for p in found if p.name.isdigit()), default=-1)

    def wait_for(self, phase: str) -> None:
        """Return in a phase of a batch, after it has completed one, or if it ended."""
        done = self.newest("commits")
        wait_until(
            lambda: self.has_ended() or self.newest("commits") > done, START_TIMEOUT_S
        )
        self._known = {name: self._listed(name) for name in RECEIVED}
        self._versions = {
            name: open_table(self._tables / name).version() for name in RECEIVED
        }
        # Some phases last for some hundredths of a second.
        while not self.has_ended() and not self._has_begun(phase):
            time.sleep(0.002)

    def _has_begun(self, phase: str) -> bool:
        """Whether a phase is seen, by one request to a store: `phase` takes ten."""
        match phase:
            case "planned":
                return self.newest("offsets") > self.newest("commits")
            case "writing":
                is_planned = self.newest("offsets") > self.newest("commits")
                return is_planned and self._listed("bronze") > self._known["bronze"]
            case "committing":
                return self._has_new_version("bronze")
            case _:
                return self._has_new_version("messages")

    def _has_new_version(self, table: str) -> bool:
        name = f"_delta_log/{self._versions[table] + 1:020d}.json"
        return has_file(self._tables / table, name)

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def kill(self) -> str | None:
        """Kill its process group; returns the phase, None if it was idle."""
        was_alive = not self.has_ended()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert was_alive, self._log_file.read_text(errors="replace")[-2000:]
        phase = self.phase()
        self._process = self._started()
        return phase

    def phase(self) -> str | None:
        """Phase of the last batch; None if all cells are scored."""
        batch = self.newest("offsets")
        if self._last("messages") == batch:
            scored = self._last("levels", SCORED_TRANSACTION_PREFIX)
            return None if scored == batch else "committed"
        if self._last("bronze") == batch:
            return "committing"
        # Passes write files of silver, too.
        is_writing = any(map(self._has_loose_files, ("bronze", "messages")))
        return "writing" if is_writing else "planned"

    def _has_loose_files(self, table: str) -> bool:
        """Whether there are files that no batch has committed yet."""
        new = self._listed(table) - self._known[table]
        return bool(new) and not new <= {*file_names(open_table(self._tables / table))}

    def _listed(self, table: str) -> set[str]:
        found = open_files(self._tables / table).get_file_info(fs.FileSelector(""))
        return {file.base_name for file in found if file.is_file}

    def _last(self, table: str, prefix: str = "") -> int | None:
        """Last batch of a table."""
        if not self._app_id:
            self._app_id = read_text(self._tables, ".app_id")
        newest = open_table(self._tables / table)
        return newest.transaction_version(prefix + self._app_id)

    def kill_executor(self) -> bool:
        """Kill a Python worker of Spark; the job may end, and is started again.

        Returns:
            Whether there was one.
        """
        workers = [
            pid for pid in _descendants(self._process.pid) if not _descendants(pid)
        ]
        workers = [pid for pid in workers if b"streaming.workers" in _command(pid)]
        for pid in workers[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(workers)

    def start_if_ended(self) -> None:
        """Start it again after a failed task, as the service manager does."""
        if self.has_ended():
            self._process = self._started()

    def finish(self) -> None:
        """Run it once more over the rest of the log."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        done = subprocess.run(
            [*SCORE, str(self._config), "--once"], stderr=subprocess.PIPE, check=False
        )
        assert done.returncode == 0, done.stderr[-20_000:].decode(errors="replace")

    def close(self) -> None:
        """Kill it if it still runs."""
        if not self.has_ended():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _descendants(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        texts = [(task / "children").read_text() for task in tasks]
    except OSError:
        return []
    children = [int(child) for text in texts for child in text.split()]
    return children + [each for child in children for each in _descendants(child)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """What is not in a folder: the tables at a store, or the log in Kafka."""
    return str(request.param)


@pytest.fixture
def tables(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Folder]:
    """Where the tables are; nothing is there yet."""
    if store in {"file", "kafka"}:
        yield tmp_path / "data/tables"
        return
    with run_store(store, tmp_path / "store.log") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield parse_folder(server.make_place())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Folder of the backend."""
    return tmp_path / "data"


@pytest.fixture
def kafka(store: str) -> Iterator[KafkaSection]:
    """Settings of the log."""
    if store != "kafka":
        yield KafkaSection()
        return
    with open_kafka() as cluster:
        yield KafkaSection(servers=cluster.servers, topic=new_topic(cluster))


@pytest.fixture
def feed(data: Path, store: str, kafka: KafkaSection) -> Iterator[GrowingLog]:
    """A log that grows."""
    writer: LogWriter = SegmentWriter(data / "log", "ingest-0.0a")
    if kafka.servers is not None:
        writer = KafkaWriter(kafka, "ingest-0", wait_s=30.0)
    made = GrowingLog(writer, INTERVAL_S[store])
    yield made
    made.stop()


@pytest.fixture
def running(
    tmp_path: Path, data: Path, tables: Folder, kafka: KafkaSection, quick_java: None
) -> Iterator[Job]:
    """The job over the log, with batches and passes without pauses."""
    config = tmp_path / "backend.toml"
    lines = f'[kafka]\nservers = "{kafka.servers}"\ntopic = "{kafka.topic}"\n'
    servers = lines if kafka.servers else ""
    config.write_text(
        f'{servers}[backend]\ndata = "{data}"\ntables = "{tables}"\n'
        '[score]\nmaster = "local[2]"\n'
        "max_segments_per_batch = 20\ntrigger_s = 0\nevery_s = 0\n"
    )
    made = Job(config, data, tables)
    yield made
    made.close()


Kills = tuple[Counter[str], Counter[str]]
"""Number of kills of the job and of executors, by phase."""


@pytest.fixture
def kill_in_turn(
    running: Job, store: str, chance: random.Random
) -> Callable[[], Kills]:
    """Function that kills the job and executors until each phase was hit.

    A single kill is in another phase with each store.
    """
    first = STORES.index(store)
    phases = [*PHASES[first:], *PHASES[:first]]

    def kill() -> Kills:
        jobs: Counter[str] = Counter()
        executors: Counter[str] = Counter()
        while jobs.total() < KILLS or len(jobs) < min(KILLS, len(PHASES)):
            running.start_if_ended()
            if executors.total() < KILLS and executors.total() <= jobs.total():
                phase = chance.choice(EXECUTOR_PHASES)
                running.wait_for(phase)
                executors.update([phase] * running.kill_executor())
                continue
            phase = min(phases, key=lambda phase: jobs[phase])
            running.wait_for(phase)
            # Others end within the time in which they are seen.
            time.sleep(chance.uniform(0, 0.2) if phase in LONG_PHASES else 0)
            if not running.has_ended():
                hit = running.kill()
                jobs.update([hit] if hit else [])
        return jobs, executors

    return kill


def test_job_killed_while_working_loses_and_doubles_nothing(
    kill_in_turn: Callable[[], Kills],
    running: Job,
    feed: GrowingLog,
    tables: Folder,
    report: Callable[..., None],
) -> None:
    """After kills of job and executors in all phases, each row is there once."""
    kills, executors = kill_in_turn()
    feed.stop()
    running.finish()
    reader = DeltaTables(tables)
    wanted = feed.written()
    found = {name: ids(reader.read(name)) for name in ("bronze", "messages")}
    doubled = count_doubled(reader)
    rows = {name: reader.dataset(name).count_rows() for name in TABLE_KEYS}
    report(
        kills=kills, executors=executors, sent=len(wanted), rows=rows, doubled=doubled
    )

    assert found == {"bronze": wanted, "messages": wanted}
    assert ids(reader.silver()) == dict.fromkeys(wanted, 4)
    assert doubled == dict.fromkeys(TABLE_KEYS, 0)
    assert rows["levels"] == rows["sensors"] == len(wanted)
