"""A worker and the driver of a Spark cluster are killed; a standby takes over.

The workers have no library of the project: it comes with the job, in an archive.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
import pytest
from conftest import wait_until
from growing_log import GrowingLog
from object_stores import run_store
from packed_environment import pack_environment
from storm_log import ids

import backend_spark
from backend_spark.ingest.segment_log import SegmentWriter
from backend_spark.streaming.pipeline import SCORED_TRANSACTION_PREFIX
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVEL_KEY, SENSOR_KEY
from backend_spark.tables.store import Folder, open_table, parse_folder, read_text
from demo.processes import Processes, free_port, wait_for_port

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.long]

BIN: Final = Path(pyspark.__file__).parent / "bin"
DEPLOY: Final = "org.apache.spark.deploy"
WORKERS: Final = ("worker-1", "worker-2", "worker-3")
START_S: Final = 300.0


class Cluster:
    """A standalone master, three workers, and jobs on them.

    Args:
        folder: Folder of settings, logs and working directories.
        tables: Where the tables are.
    """

    def __init__(self, folder: Path, tables: Folder) -> None:
        self.processes, self.folder = Processes(folder), folder
        self._tables, self._port = DeltaTables(tables), free_port()
        self.url = f"spark://127.0.0.1:{self._port}"
        self.data = folder / "data"
        self.config = folder / "backend.toml"
        self.config.write_text(
            f'[backend]\ndata = "{self.data}"\ntables = "{tables}"\n'
            f'[score]\nmaster = "{self.url}"\n'
            "max_segments_per_batch = 20\ntrigger_s = 0\nevery_s = 0\n"
        )

    def start(self) -> None:
        """Start the master and the workers, which have 1 core and 1 GiB each."""
        spark_class, local = str(BIN / "spark-class"), ("--host", "127.0.0.1")
        self.processes.start(
            "master", spark_class, f"{DEPLOY}.master.Master", *local,
            "--port", str(self._port), "--webui-port", "0",
        )  # fmt: skip
        wait_for_port(self._port, START_S)
        for name in WORKERS:
            self.processes.start(
                name, spark_class, f"{DEPLOY}.worker.Worker", *local, "--cores", "1",
                "--memory", "1g", "--webui-port", "0",
                "--work-dir", str(self.folder / name), self.url,
            )  # fmt: skip

    def submit(self, name: str, archive: Path) -> None:
        """Start a job by spark-submit."""
        self.processes.start(
            name, str(BIN / "spark-submit"), "--master", self.url,
            "--archives", f"{archive}#environment",
            str(Path(backend_spark.__file__).with_name("__main__.py")),
            "score", "--config", str(self.config),
        )  # fmt: skip

    def text(self, name: str) -> str:
        """What a program has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for_text(self, name: str, words: str) -> None:
        """Wait until a program has printed some words."""
        wait_until(
            lambda: words in self.text(name) or name in self.processes.dead(), START_S
        )
        assert name not in self.processes.dead(), self.text(name)[-5000:]

    def has_work(self) -> bool:
        """Whether a pass has ended, and messages since then wait for their levels."""
        scored = self._last("levels", SCORED_TRANSACTION_PREFIX)
        return scored is not None and scored != self._last("messages")

    def _last(self, table: str, prefix: str = "") -> int | None:
        app_id = prefix + read_text(self._tables.folder, ".app_id")
        return open_table(self._tables.folder / table).transaction_version(app_id)

    def levels(self) -> int:
        """Number of rows of levels."""
        return self._tables.dataset("levels").count_rows()


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """An empty prefix of an object store."""
    with run_store("s3", tmp_path / "store.log") as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield parse_folder(store.make_place())


@pytest.fixture
def cluster(
    tmp_path: Path, tables: Folder, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """A running cluster."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_LOG_DIR", str(tmp_path))
    made = Cluster(tmp_path, tables)
    made.start()
    yield made
    made.processes.stop()


@pytest.fixture
def feed(cluster: Cluster) -> Iterator[GrowingLog]:
    """A log that grows."""
    made = GrowingLog(SegmentWriter(cluster.data / "log", "ingest-0.0a"), 1.0)
    yield made
    made.stop()


def run_jobs(cluster: Cluster, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a job by spark-submit, and a standby as a service of systemd does."""
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    # Spark runs the planner of a source on the driver, with the workers' command.
    (cluster.folder / "environment").symlink_to(sys.prefix)
    cluster.submit("driver", archive)
    cluster.wait_for_text("driver", f"with {cluster.url}")
    options = f"--archives {archive}#environment pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", options)
    cluster.processes.python(
        "standby", "backend_spark", "score", "--standby", "--config",
        str(cluster.config),
    )  # fmt: skip


def commands_of_executors() -> set[str]:
    """First words of the commands that run Spark's tasks from the archive."""
    texts = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return {text for text in texts if text.startswith("./environment/bin/python")}


def check_tables(reader: DeltaTables, wanted: dict[tuple[str, int], int]) -> None:
    """Check that each row is in its table once."""
    for name in ("bronze", "messages"):
        assert ids(reader.read(name)) == wanted, name
    assert ids(reader.silver()) == dict.fromkeys(wanted, 4)
    for name, keys in (("levels", LEVEL_KEY), ("sensors", SENSOR_KEY)):
        rows = [
            tuple(row.values()) for row in reader.read(name, list(keys)).to_pylist()
        ]
        assert len(rows) == len(set(rows)) > 0, name
    assert reader.read("levels").num_rows == len(wanted)


def test_standby_completes_the_work_of_a_killed_driver(
    tmp_path: Path,
    cluster: Cluster,
    feed: GrowingLog,
    tables: Folder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After kills of a worker and the driver each row is in its table once."""
    run_jobs(cluster, pack_environment(tmp_path), monkeypatch)
    cluster.wait_for_text("standby", "standby: ")
    wait_until(lambda: cluster.levels() > 0, START_S)
    used = commands_of_executors()
    cluster.processes.kill("worker-1")
    before = cluster.levels()
    wait_until(lambda: cluster.levels() > before, START_S)
    wait_until(cluster.has_work, START_S)
    cluster.processes.kill("driver")
    was_working = cluster.has_work()
    cluster.wait_for_text("standby", f"with {cluster.url}")
    feed.stop()
    wait_until(lambda: cluster.levels() >= len(feed.written()), START_S)
    os.kill(cluster.processes.pid("standby"), signal.SIGTERM)
    wait_until(lambda: "standby" in cluster.processes.dead(), START_S)

    assert used, "executors ran the Python of the archive"
    assert was_working, "the driver was killed while cells waited for their levels"
    check_tables(DeltaTables(tables), feed.written())
