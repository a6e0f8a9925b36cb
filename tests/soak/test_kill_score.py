"""The scoring job is killed with kill -9 while it works; every row exists once.

`tests/system/test_nothing_lost.py` also kills it, but mostly while Spark starts. Here
it is killed between the plan and the end of a batch, or while a pass writes levels; a
kill at another moment does not count.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest
from conftest import wait_until
from deltalake import DeltaTable
from storm_log import ids, message

from backend_spark.ingest.segment_log import SegmentWriter
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.recovery import newest_commits, read_actions
from backend_spark.tables.schemas import LEVEL_KEY

pytestmark = [pytest.mark.spark, pytest.mark.long]

KILLS: Final = (
    int(os.environ.get("SOAK_KILLS", "20")) if os.environ.get("SOAK") == "long" else 1
)
SCORE: Final = [sys.executable, "-m", "backend_spark", "score", "--config"]
RECEIVED: Final = ("bronze", "silver", "messages")
START_TIMEOUT_S: Final = 900.0
INTERVAL_S: Final = 0.25
NODES: Final = 2


class Feed:
    """An ingester's log that grows segment by segment.

    Args:
        log: Folder of the log.

    Attributes:
        steps: Number of messages written for each node.
    """

    def __init__(self, log: Path) -> None:
        self.steps = 0
        self._writer = SegmentWriter(log, "ingest-0.0a")
        self._stopped = Event()
        self._thread = Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            self._writer.append([message(self.steps, node) for node in range(NODES)])
            self.steps += 1

    def stop(self) -> None:
        """Stop writing."""
        self._stopped.set()
        self._thread.join()


class Job:
    """The job, its folder, and its progress.

    Args:
        config: Settings file.
        data: Data folder.
    """

    def __init__(self, config: Path, data: Path) -> None:
        self._config = config
        self._tables = data / "tables"
        self._checkpoint = data / "checkpoints" / "score"
        self._log_file = data.parent / "score.err"
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

    def wait_for_a_batch(self) -> None:
        """Return while it works on a batch, after it has completed one."""
        done = self.newest("commits")
        wait_until(
            lambda: self._has_ended() or self.newest("commits") > done, START_TIMEOUT_S
        )
        wait_until(
            lambda: (
                self._has_ended() or self.newest("offsets") > self.newest("commits")
            ),
            START_TIMEOUT_S,
        )

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> str | None:
        """Kill its process group; returns what it was doing, None if it was idle."""
        was_alive = not self._has_ended()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert was_alive, self._log_file.read_text(errors="replace")[-2000:]
        where = self._where()
        self._process = self._started()
        return where

    def _where(self) -> str | None:
        batch = self.newest("offsets")
        if batch > self.newest("commits"):
            app_id = (self._tables / ".app_id").read_text()
            has = [
                name
                for name in RECEIVED
                if DeltaTable(str(self._tables / name)).transaction_version(app_id)
                == batch
            ]
            return f"batch in {has[-1]}" if has else "batch planned"
        last = newest_commits(self._tables / "levels", 1)[0]
        return None if read_actions(last, "txn") else "pass"

    def finish(self) -> None:
        """Run it once more over the rest of the log."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        done = subprocess.run(
            [*SCORE, str(self._config), "--once"], stderr=subprocess.PIPE, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def close(self) -> None:
        """Kill it if it still runs."""
        if not self._has_ended():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Folder of the backend."""
    return tmp_path / "data"


@pytest.fixture
def feed(data: Path) -> Iterator[Feed]:
    """A log that grows."""
    made = Feed(data / "log")
    yield made
    made.stop()


@pytest.fixture
def running(tmp_path: Path, data: Path, quick_java: None) -> Iterator[Job]:
    """The job over the log, with batches and passes without pauses."""
    config = tmp_path / "backend.toml"
    config.write_text(
        f'[backend]\ndata = "{data}"\n[score]\nmaster = "local[2]"\n'
        "max_segments_per_batch = 5\ntrigger_s = 0\nevery_s = 0\n"
    )
    made = Job(config, data)
    yield made
    made.close()


def test_job_killed_while_working_loses_and_doubles_nothing(
    running: Job,
    feed: Feed,
    data: Path,
    chance: random.Random,
    report: Callable[..., None],
) -> None:
    """After kills within a batch or a pass, each row is in its table once."""
    where: Counter[str] = Counter()
    while where.total() < KILLS:
        running.wait_for_a_batch()
        time.sleep(chance.uniform(0, 1.5) if KILLS > 1 else 0)
        killed_in = running.kill()
        where.update([killed_in] if killed_in else [])
    feed.stop()
    running.finish()
    tables = DeltaTables(data / "tables")
    wanted = {(f"node-{n}", s): 1 for n in range(NODES) for s in range(feed.steps)}
    found = {name: ids(tables.read(name)) for name in ("bronze", "messages")}
    levels = tables.read("levels", list(LEVEL_KEY)).to_pylist()
    report(kills=where, sent=len(wanted), in_tables=len(found["messages"]))

    assert found == {"bronze": wanted, "messages": wanted}
    assert ids(tables.silver()) == dict.fromkeys(wanted, 4)
    assert len(levels) == len({tuple(row.values()) for row in levels}) == len(wanted)
