"""Two jobs on the same tables: a standby, or because the lock file was deleted."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import pytest
from conftest import wait_until
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession
from storm_log import message, write

from backend_spark.config import BackendSettings
from backend_spark.errors import SupersededError
from backend_spark.streaming import job, pipeline
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.streaming.sources import read_table_rows
from backend_spark.tables.delta_writer import DataFile, commit_files, create_tables
from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import SPARK_TABLES
from service_runtime.errors import AlreadyRunningError
from service_runtime.files import acquire_lock

pytestmark = pytest.mark.spark
STEPS = 4
LAST_BATCH = 1
"""The tests' jobs read at most three segments in a batch."""


class Jobs:
    """Jobs of one data folder, which holds messages that are not scored.

    Attributes:
        settings: Settings of the data folder.
    """

    def __init__(self, spark: SparkSession, settings: BackendSettings) -> None:
        self._spark, self.settings = spark, settings
        self._tables = Path(settings.backend.data) / "tables"
        write(self._tables.parent / "log", "0a", [[message(s)] for s in range(STEPS)])
        create_tables(self._tables, SPARK_TABLES)
        job.register(spark)
        received = job.make_pipeline(settings)
        start = job.find_start(spark, settings, received)
        batches = job.number_batches(settings, received, start)
        job.start_query(spark, settings, batches, {}, once=True).awaitTermination()

    def start(self) -> ScoringPipeline:
        """Start another job, which has to score all messages."""
        started = job.make_pipeline(self.settings)
        self.mark(started)
        return started

    def mark(self, started: ScoringPipeline) -> None:
        """Let a job score all messages at its next pass."""
        bronze = read_table_rows(self._spark, self._tables, "bronze", {})
        started.mark_for_scoring(bronze, LAST_BATCH)

    def times(self) -> list[object]:
        """Times of the rows of levels."""
        return open_tables(self.settings.backend.data).levels()["at"].to_pylist()


@pytest.fixture
def jobs(spark: SparkSession, make_data: Callable[[], object]) -> Jobs:
    data = make_data()
    return Jobs(spark, data.settings)  # type: ignore[attr-defined]


def test_second_job_ends_the_first(spark: SparkSession, jobs: Jobs) -> None:
    """Its next pass fails, and writes nothing."""
    first, second = jobs.start(), jobs.start()
    first.score(spark)
    second.score(spark)
    jobs.mark(first)
    with pytest.raises(SupersededError, match=r"only one may run.*\.lock-"):
        first.score(spark)

    assert len(jobs.times()) == len(set(jobs.times())) == STEPS


def test_second_job_ends_the_batches_of_the_first(
    spark: SparkSession, jobs: Jobs
) -> None:
    """With a log of its own it would skip a batch whose number the first has used."""
    first = jobs.start()
    first.claim.take()
    second = job.make_pipeline(jobs.settings)
    start = job.find_start(spark, jobs.settings, second)
    messages = read_table_rows(spark, second.tables, "bronze", {})
    with pytest.raises(SupersededError, match="claimed by another job"):
        first.run_batch(messages, start.first_batch + LAST_BATCH + 1)
    second.run_batch(messages, start.first_batch + LAST_BATCH + 1)

    assert open_tables(jobs.settings.backend.data).bronze().num_rows == 2 * STEPS


def test_second_job_starts_within_a_pass_of_the_first(
    spark: SparkSession, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read that the rows are missing; one of them appends them."""
    first = jobs.start()

    def commit_late(
        path: Path,
        files: Sequence[DataFile],
        properties: CommitProperties,
        read: DeltaTable,
    ) -> None:
        monkeypatch.setattr(pipeline, "commit_files", commit_files)
        jobs.start().score(spark)
        commit_files(path, files, properties, read=read)

    monkeypatch.setattr(pipeline, "commit_files", commit_late)
    with pytest.raises(CommitFailedError, match="transaction"):
        first.score(spark)

    assert len(jobs.times()) == len(set(jobs.times())) == STEPS


def test_standby_waits_until_the_running_job_ends(tmp_path: Path) -> None:
    """Then it holds the lock itself."""
    path = tmp_path / ".lock-score"
    running, held = acquire_lock(path), []
    standby = Thread(target=lambda: held.append(job.wait_for_lock(path)))
    standby.start()
    standby.join(2 * job.POLL_S)
    was_waiting = standby.is_alive()
    os.close(running)
    standby.join(60)

    assert was_waiting
    with pytest.raises(AlreadyRunningError, match=r"lock-score"):
        acquire_lock(path)
    os.close(held.pop())


@pytest.mark.long
def test_machine_that_was_replaced_ends_for_good(tmp_path: Path) -> None:
    """The real program: systemd does not start it again, and the new one goes on."""
    tables = tmp_path / "tables"

    def start(name: str) -> subprocess.Popen[str]:
        config = tmp_path / f"{name}.toml"
        config.write_text(
            f'[backend]\ndata = "{tmp_path / name}"\ntables = "{tables}"\n'
            '[score]\nmaster = "local[1]"\n'
        )
        command = [sys.executable, "-m", "backend_spark", "score", "--config"]
        return subprocess.Popen(
            [*command, str(config)], stderr=subprocess.PIPE, text=True
        )

    for name in ("old", "new"):
        running = start(name)
        wait_until((tmp_path / name / "checkpoints/.folder_id").exists, timeout_s=180)
        running.terminate()
        running.communicate(timeout=120)
    replaced = start("old")
    _, stderr = replaced.communicate(timeout=180)

    assert replaced.returncode == 78
    assert f"delete {tmp_path}/old/checkpoints/replaced" in stderr
