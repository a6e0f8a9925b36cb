"""Replay: silver and gold rebuilt from bronze equal the original rows."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pytest
from pyspark.sql import DataFrame, SparkSession

from backend_spark.config import BackendSettings
from backend_spark.errors import UnfinishedReplayError
from backend_spark.forecast import ForecastRow, add_rows
from backend_spark.ingest.segment_log import LogRow, SegmentWriter
from backend_spark.scoring.revisions import is_unchanged
from backend_spark.streaming import job, pipeline
from backend_spark.streaming.job import ReceiptInterval, read_unfinished_replay
from backend_spark.streaming.session import RestartingQuery
from backend_spark.tables import delta_writer
from backend_spark.tables.current import read_current
from backend_spark.tables.delta_writer import delete_rows, time_literal
from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import SPARK_TABLES
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

pytestmark = pytest.mark.spark

T0 = 1_750_000_200
DAY_S = 86_400
STALE = "stale: issued 3.0 h before, 2 h at most"
SPAN = ReceiptInterval((T0 + DAY_S // 2) * 1_000_000, (T0 + 2 * DAY_S) * 1_000_000)
CELLS = [Cell.at(33.5 + n / 10, 133.5) for n in range(3)]
ORDER = {
    "silver": ("node", "seq", "name"),
    "rejected": ("node", "seq"),
    "messages": ("node", "seq"),
    "levels": ("cell", "at"),
    "sensors": ("cell", "node", "sensor", "at"),
}


def message(seq: int, node: int, late_s: int) -> LogRow:
    """A pack with rain that increases from day to day."""
    at_s = T0 + 3600 * seq
    readings = (
        Reading("rain", "mm", None, seq * (seq + node) / 4),
        Reading("tilt/x", "deg", 0.001 * seq),
        Reading("tilt/y", "deg", 0.0),
    )
    payload = encode_cbor(Pack(MessageId(f"n{node}", "b", seq), 1, at_s, readings))
    received_us = (at_s + 2 + late_s) * 1_000_000
    topic = cell_topic(CELLS[node % len(CELLS)])
    return LogRow(received_us, topic, payload, f"n{node}", "b", seq, 1)


def fill_log(folder: Path) -> None:
    """Three days of four nodes, a fifth of it a day late, and a foreign pack."""
    rng = random.Random(5)
    rows = [
        message(seq, node, DAY_S if rng.random() < 0.2 else 0)
        for seq in range(60)
        for node in range(4)
    ]
    rows.append(LogRow((T0 + DAY_S) * 1_000_000, "/1/2", b"x", "gw", "b", 3, 2))
    rows.sort(key=lambda row: row.received_us)
    writer = SegmentWriter(folder, "ingest-0.0a")
    for at in range(0, len(rows), 20):
        writer.append(rows[at : at + 20])


def forecast(tables: Path) -> None:
    """Some hours of a stormy forecast for the first cell, one issue a day."""
    delta_writer.create_tables(tables, ["forecasts"])
    for day in range(3):
        issued_s = T0 + day * DAY_S
        hours = [issued_s + hour * 3600.0 for hour in range(9)]
        rows = [
            ForecastRow(
                "cell", CELLS[0].parent(12).token, "JMA", issued_s, *span, 60.0, 1, None
            )
            for span in pairwise(hours)
        ]
        add_rows(tables, rows, "f.csv", issued_s + 900)


def snapshot(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of the tables that a replay rebuilds, sorted."""
    tables = open_tables(folder)
    return {
        name: tables
        .read(name)
        .sort_by([(key, "ascending") for key in keys])
        .to_pylist()
        for name, keys in ORDER.items()
    }


class Data(Protocol):
    """Result of `make_data`."""

    folder: Path
    settings: BackendSettings


class CutError(Exception):
    """Raised to interrupt a replay."""


@pytest.fixture
def scored(
    spark: SparkSession, make_data: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> Data:
    """A data folder filled by the live job in batches, scored after every other one."""
    monkeypatch.setattr(job, "SLICE_US", DAY_S * 1_000_000)
    data = make_data("[criteria]\nlook_ahead_same_rain = true")
    fill_log(data.folder / "log")
    delta_writer.create_tables(data.folder / "tables", SPARK_TABLES)
    forecast(data.folder / "tables")
    live = job.make_pipeline(data.settings)

    def run_and_score(messages: DataFrame, batch_id: int) -> None:
        live.run_batch(messages, batch_id)
        if batch_id % 2:
            live.score(spark)

    settings = data.settings
    RestartingQuery(
        lambda: job.start_query(spark, settings, run_and_score, {}, once=True)
    ).wait_until_ended()
    live.score(spark)
    return data


@pytest.mark.long
def test_full_and_partial_replay_give_the_rows_of_the_job(
    spark: SparkSession, scored: Data
) -> None:
    """Row by row, with other batches and some readings a day late."""
    wanted = snapshot(scored.folder)
    again = job.make_pipeline(scored.settings)
    job.rebuild(spark, again, SPAN)
    part = snapshot(scored.folder)
    for name in ("levels", "sensors", "revisions", "sensor_revisions"):
        delete_rows(again.tables / name, None)
    slices = job.rebuild(spark, again, ReceiptInterval())
    whole = snapshot(scored.folder)

    assert slices >= 3
    assert len(wanted["silver"]) == 3 * 4 * 60
    assert len(wanted["rejected"]) == 1
    assert {row["level"] for row in wanted["levels"]} > {1}
    assert {row["forecast_why"] for row in wanted["levels"]} >= {None, STALE}
    assert any(
        "by JMA's forecast" in r["reasons"][0] for r in wanted["levels"] if r["reasons"]
    )
    assert part == wanted, "with every version and revision"
    for name, rows in wanted.items():
        pairs = zip(whole[name], rows, strict=True)
        assert all(is_unchanged(one, other) for one, other in pairs), name


def test_job_is_rejected_after_an_interrupted_replay(
    spark: SparkSession, scored: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Incomplete tables are not scored; the same replay again completes them."""
    wanted = snapshot(scored.folder)
    tables = scored.folder / "tables"

    def cut(*_: object, **__: object) -> None:
        raise CutError("cut")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.ScoringPipeline, "score", cut)
        with pytest.raises(CutError, match="cut"):
            job.rebuild(spark, job.make_pipeline(scored.settings), SPAN)
    half, left = snapshot(scored.folder), read_unfinished_replay(tables)
    with pytest.raises(UnfinishedReplayError, match="cannot score while a replay"):
        job.run_job(scored.settings, once=True, master=None)
    job.rebuild(spark, job.make_pipeline(scored.settings), SPAN)

    assert half["silver"] != wanted["silver"]
    assert left == SPAN
    assert read_unfinished_replay(tables) is None
    assert snapshot(scored.folder) == wanted
    assert read_current(tables).is_stored


@pytest.mark.parametrize(
    "from_us", [None, pytest.param(T0 * 1_000_000, marks=pytest.mark.long)]
)
def test_replay_keeps_what_bronze_no_longer_has(
    spark: SparkSession, scored: Data, from_us: int | None
) -> None:
    """Older rows cannot be rebuilt; levels after them have their history still."""
    tables, wanted = scored.folder / "tables", snapshot(scored.folder)
    gone = f"received_at < {time_literal((T0 + 2 * DAY_S) * 1_000_000)}"
    assert delete_rows(tables / "bronze", gone)
    job.rebuild(spark, job.make_pipeline(scored.settings), ReceiptInterval(from_us))
    kept = snapshot(scored.folder)
    delete_rows(tables / "bronze", None)
    job.rebuild(spark, job.make_pipeline(scored.settings), ReceiptInterval())

    assert kept == wanted
    assert snapshot(scored.folder) == wanted
