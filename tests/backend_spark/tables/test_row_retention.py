"""Retention of rows by age, and reading of the tables by other programs."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from backend_spark.config import KeepSection, read_settings
from backend_spark.streaming import job
from backend_spark.streaming.sources import read_table_rows
from backend_spark.tables.delta_writer import (
    commit_files,
    create_tables,
    merge_rows,
    write_file,
)
from backend_spark.tables.maintenance import compact, delete_old_rows
from backend_spark.tables.reader import DeltaTables, open_tables
from backend_spark.tables.schemas import TABLES
from service_runtime.errors import AlreadyRunningError
from service_runtime.files import acquire_lock
from service_runtime.settings import SettingsError

NOW_S = 1_750_000_000
DAY_S = 86_400


def fill(tables: Path, name: str, days: int) -> None:
    """Write one row per day up to now, each in its own file."""
    create_tables(tables, [name])
    for day in range(days):
        at_us = (NOW_S - day * DAY_S) * 1_000_000
        row = {"at": at_us, "received_at": at_us, "cell": "a", "seq": day}
        known = {key: row[key] for key in row if key in TABLES[name].names}
        rows = pa.Table.from_pylist([known], schema=TABLES[name])
        part = write_file(tables / name, rows, TABLES[name])
        commit_files(tables / name, [part])


def test_rows_older_than_the_retention_are_deleted(tmp_path: Path) -> None:
    """By time of receipt, levels by their step; a table without a limit keeps all."""
    for name in ("bronze", "silver", "levels", "messages"):
        fill(tmp_path, name, 10)
    keep = KeepSection(bronze_days=3, levels_days=5, messages_days=100)
    gone = delete_old_rows(
        tmp_path, ["bronze", "silver", "levels", "messages"], keep, NOW_S + 1
    )
    tables = DeltaTables(tmp_path)

    assert gone == {"bronze": 7, "levels": 5, "messages": 0}
    assert sorted(tables.bronze()["seq"].to_pylist()) == [0, 1, 2]
    assert tables.levels().num_rows == 5
    assert tables.silver().num_rows == tables.messages().num_rows == 10


@pytest.mark.parametrize("years", [2, 12])
def test_clock_that_jumped_ahead_deletes_nothing_recent(
    tmp_path: Path, years: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Ages count from the newest reading of a node with a set clock."""
    for name in ("bronze", "levels"):
        fill(tmp_path, name, 10)
    create_tables(tmp_path, ["nodes"])
    newest = [
        {"node": "n", "at": NOW_S * 1_000_000, "synchronised": True},
        {
            "node": "m",
            "at": (NOW_S + years * 365 * DAY_S) * 10**6,
            "synchronised": False,
        },
    ]
    merge_rows(
        tmp_path / "nodes",
        pa.Table.from_pylist(newest, schema=TABLES["nodes"]),
        ["node"],
    )
    keep = KeepSection(bronze_days=8, levels_days=100)
    now_s = NOW_S + years * 365 * DAY_S + 1
    gone = delete_old_rows(tmp_path, ["bronze", "levels"], keep, now_s)

    assert gone == {"bronze": 2, "levels": 0}
    assert f"the clock is {years * 365:.1f} days after" in caplog.text


def test_trim_is_rejected_while_the_job_runs(make_data: Callable[[str], Any]) -> None:
    """Deletes of two writers would make each other's commits fail."""
    data = make_data("[keep]\nbronze_days = 3\n")
    fill(data.folder / "tables", "bronze", 5)
    lock = data.folder / "checkpoints" / ".lock-score"
    held = acquire_lock(lock)
    with pytest.raises(AlreadyRunningError, match=r"restart it after a change of \[k"):
        job.run_trim(data.settings)
    os.close(held)

    assert job.run_trim(data.settings) == {"bronze": 5}


def test_trim_leaves_out_the_alerts_of_a_running_process(
    make_data: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """They run while scoring is stopped; on a full disk nothing could be trimmed."""
    data = make_data("[keep]\nbronze_days = 3\nalerts_days = 3\n")
    tables = data.folder / "tables"
    for name in ("bronze", "alerts"):
        fill(tables, name, 5)
    held = acquire_lock(tables / ".lock-alerts")
    first = job.run_trim(data.settings)
    os.close(held)

    assert first == {"bronze": 5}
    assert "table alerts is left out" in caplog.text
    assert job.run_trim(data.settings) == {"bronze": 0, "alerts": 5}


def test_trim_deletes_the_files_of_an_earlier_one(
    make_data: Callable[[str], Any],
) -> None:
    """A running job did it only after 5,000 batches."""
    data = make_data("[keep]\nbronze_days = 3\n")
    fill(data.folder / "tables", "bronze", 5)
    job.run_trim(data.settings)
    table = data.folder / "tables/bronze"
    before = [*table.glob("*.parquet")]
    for commit in (table / "_delta_log").glob("*.json"):
        commit.write_text(
            re.sub(
                r'"deletionTimestamp":(\d+)',
                lambda found: f'"deletionTimestamp":{int(found[1]) - 2 * DAY_S * 1000}',
                commit.read_text(),
            )
        )
    job.run_trim(data.settings)

    assert len(before) == 5
    assert [*table.glob("*.parquet")] == []


def test_silver_days_below_the_need_of_levels_are_rejected(tmp_path: Path) -> None:
    """Otherwise levels would change silently."""
    path = tmp_path / "backend.toml"
    path.write_text('[backend]\ndata = "/d"\n[keep]\nsilver_days = 30\n')
    with pytest.raises(SettingsError, match=r"keep.silver_days must be 0 or at least"):
        read_settings(path)


@pytest.mark.long
@pytest.mark.spark
def test_duckdb_pandas_and_spark_read_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Before and after compaction, with appends and a merge, at any version."""
    tables = tmp_path / "tables"
    fill(tables, "levels", 5)
    again = pa.Table.from_pylist(
        [{"cell": "a", "at": NOW_S * 1_000_000, "level": 4, "reasons": ["rain"]}],
        schema=TABLES["levels"],
    )
    before = DeltaTable(str(tables / "levels")).version()
    merge_rows(tables / "levels", again, ("cell", "at"))
    opened = open_tables(tmp_path)
    job.register(spark)
    for _ in range(2):
        levels = opened.dataset("levels")
        by_duckdb = duckdb.sql("SELECT level, count(*) FROM levels GROUP BY ALL")
        frame = opened.levels().to_pandas()
        by_spark = (
            read_table_rows(spark, tables, "levels", {}).where("level = 4").collect()
        )

        assert sorted(by_duckdb.fetchall(), key=str) == [(4, 1), (None, 4)]
        assert frame["level"].dropna().tolist() == [4]
        assert len(frame) == 5
        assert [row["reasons"] for row in by_spark] == [["rain"]]
        assert levels.count_rows() == 5
        compact(tables / "levels")
    earlier = DeltaTable(str(tables / "levels"), version=before)

    assert len(DeltaTable(str(tables / "levels")).file_uris()) == 1
    assert earlier.to_pyarrow_table()["level"].to_pylist() == [None] * 5
