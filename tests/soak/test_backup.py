"""Backups that are taken while the job works: after a restore each row is there once.

The tables are in a folder or in an object store, the backups in a store of the other
kind. The log grows all the time.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from conftest import wait_until
from growing_log import NODES, GrowingLog
from object_stores import run_store
from storm_log import by_key, ids

from backend_spark.config import BackendSection
from backend_spark.exports.backup import restore_backup, write_backup
from backend_spark.ingest.segment_log import (
    SegmentLog,
    SegmentWriter,
    list_segments,
)
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVEL_KEY
from backend_spark.tables.store import parse_folder

pytestmark = [pytest.mark.spark, pytest.mark.long]
BACKUPS: Final = 2
START_S: Final = 900.0


@dataclass(frozen=True)
class Places:
    """Where things are.

    Attributes:
        folder: Of the test.
        tables: Of the running job; None for its data folder.
        backups: Prefix of the backups.
    """

    folder: Path
    tables: str | None
    backups: str

    def section(self, name: str, tables: str | None = None) -> BackendSection:
        """Settings of a backend with a data folder of this name."""
        return BackendSection(data=str(self.folder / name), tables=tables)


@pytest.fixture(params=[("s3", False), ("az", True)], ids=["s3", "az"])
def places(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Places]:
    """Tables in a folder and backups at S3, or both at Azure."""
    scheme, is_store = request.param
    with run_store(scheme, tmp_path / "store.log") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield Places(
            tmp_path,
            server.make_place() if is_store else None,
            server.make_place(),
        )


def command(folder: Path, section: BackendSection, *options: str) -> list[str]:
    """Command of a job, with its settings."""
    config = folder / f"{Path(section.data).name}.toml"
    tables = f'tables = "{section.tables}"\n' if section.tables else ""
    config.write_text(
        f'[backend]\ndata = "{section.data}"\n{tables}[score]\nmaster = "local[2]"\n'
        "max_segments_per_batch = 5\ntrigger_s = 0\nevery_s = 0\n"
    )
    program = [sys.executable, "-m", "backend_spark", "score", "--config"]
    return [*program, str(config), *options]


def score_once(folder: Path, section: BackendSection) -> DeltaTables:
    """Score what is in the log; the tables."""
    subprocess.run(command(folder, section, "--once"), check=True, timeout=START_S)
    return DeltaTables(Path(section.data) / "tables")


def levels_of(tables: DeltaTables) -> list[dict[str, Any]]:
    """What was judged."""
    return by_key(tables.read("levels", [*LEVEL_KEY, "level", "swi_mm", "reasons"]))


@pytest.fixture
def backups(places: Places, quick_java: None) -> list[int]:
    """Backups of a job that works; steps of the log that each has at least."""
    section = places.section("data", places.tables)
    feed = GrowingLog(SegmentWriter(Path(section.data) / "log", "ingest-0.0a"), 0.5)
    with (places.folder / "score.err").open("wb") as log:
        job = subprocess.Popen(
            command(places.folder, section), stderr=log, start_new_session=True
        )
    known = []
    try:
        tables = DeltaTables(parse_folder(places.tables or f"{section.data}/tables"))
        wait_until(lambda: job.poll() or tables.newest().num_rows, START_S)
        for number in range(BACKUPS):
            known.append(feed.steps)
            target = parse_folder(f"{places.backups}/{number}")
            write_backup(section, target, datetime.now(UTC))
            wait_until(lambda: feed.steps > known[-1] + 4)
    finally:
        feed.stop()
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return known


def restore(places: Places, number: int, at_least: int) -> DeltaTables:
    """Restore a backup, score the rest of its log, and check every message."""
    section = places.section(f"restored-{number}")
    restore_backup(section, parse_folder(f"{places.backups}/{number}"))
    log = Path(section.data) / "log"
    before = DeltaTables(Path(section.data) / "tables").read("bronze").num_rows
    tables = score_once(places.folder, section)
    segments = SegmentLog(log).read(list_segments(log))
    wanted = ids(pa.concat_tables(segments))

    assert 0 < before <= wanted.total()
    assert wanted.total() >= at_least * NODES
    for name in ("bronze", "messages"):
        assert ids(tables.read(name)) == wanted, (number, name)
    keys = tables.read("levels", list(LEVEL_KEY)).to_pylist()
    assert len({tuple(key.values()) for key in keys}) == len(keys)
    return tables


def test_backups_of_a_working_job_lose_and_double_nothing(
    places: Places, backups: list[int]
) -> None:
    """Each message of a restored log is in each table once, its levels are right."""
    restored = [
        restore(places, number, at_least) for number, at_least in enumerate(backups)
    ]
    fresh = places.section("fresh")
    log = places.folder / f"restored-{len(backups) - 1}/log"
    shutil.copytree(log, Path(fresh.data) / "log")

    assert levels_of(score_once(places.folder, fresh)) == levels_of(restored[-1])
