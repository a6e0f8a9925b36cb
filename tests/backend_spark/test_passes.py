"""Batches and scoring passes that run at the same time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from scored_levels import make_levels_table, score_levels
from storm_log import CELLS, T0, TOKENS, by_key, ids, message, write

from backend_spark.config import BackendSettings
from backend_spark.criteria.cell_rules import change_number, read_applied
from backend_spark.scoring.arrow import HISTORY_COLUMNS, read_observations
from backend_spark.scoring.revisions import is_unchanged
from backend_spark.streaming import job
from backend_spark.streaming.batches import PassCells, ReceivedChanges
from backend_spark.streaming.pipeline import GroupSize, ScoringPipeline
from backend_spark.streaming.session import RestartingQuery
from backend_spark.tables import delta_writer
from backend_spark.tables.delta_writer import append_rows, create_tables
from backend_spark.tables.reader import DeltaTables, open_tables
from backend_spark.tables.schemas import SILVER, SPARK_TABLES
from slope_science.levels import Criteria
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor

pytestmark = pytest.mark.spark

BOTH = range(len(CELLS))
LATE = range(4, 16)


def open_pipeline(spark: SparkSession, settings: BackendSettings) -> ScoringPipeline:
    """The job's pipeline over empty tables."""
    create_tables(Path(settings.backend.data) / "tables", SPARK_TABLES)
    job.register(spark)
    return job.make_pipeline(settings)


def receive(
    spark: SparkSession, settings: BackendSettings, pipeline: ScoringPipeline
) -> None:
    """Run batches over what is in the log."""
    RestartingQuery(
        lambda: job.start_query(spark, settings, pipeline.run_batch, {}, once=True)
    ).wait_until_ended()


def run_before_a_pass(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]
) -> None:
    """Call `work` once, after the next pass has begun and before it scores a cell."""
    score_cells, begun = ScoringPipeline._score, Event()  # noqa: SLF001

    def score_after_it(
        self: ScoringPipeline,
        session: SparkSession,
        touched: ReceivedChanges,
        cells: PassCells,
        until_us: int | None,
    ) -> pa.Table:
        if not begun.is_set():
            begun.set()
            work()
        return score_cells(self, session, touched, cells, until_us)

    monkeypatch.setattr(ScoringPipeline, "_score", score_after_it)


def newest(levels: Sequence[dict[str, Any]]) -> set[tuple[str, float]]:
    """Each cell and the time of its last level."""
    ends = {row["cell"]: row["at"].timestamp() for row in levels}
    return set(ends.items())


def test_batches_during_a_pass_are_scored_by_the_next_pass(
    spark: SparkSession, make_data: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running pass does not use them; the next one revises with a reason."""
    data = make_data()
    log, tables = data.folder / "log", open_tables(data.folder)
    on_time = [s for s in range(24) if s not in LATE]
    write(log, "0a", [[message(s, n) for n in BOTH] for s in on_time])
    write(log, "0b", [[message(s, n, knock_deg=2.0) for n in BOTH] for s in (24,)])
    monkeypatch.setattr("backend_spark.streaming.pipeline.CELLS_AT_ONCE", 1)
    pipeline = open_pipeline(spark, data.settings)
    receive(spark, data.settings, pipeline)
    late = [message(s, n, waited_s=600 * (30 - s)) for s in LATE for n in BOTH]
    rows_of_newest: list[int] = []

    def receive_late() -> None:
        write(log, "0c", [late, [message(25, n) for n in BOTH]])
        receive(spark, data.settings, pipeline)  # in a thread of Spark
        rows_of_newest.append(ids(tables.messages())["node-0", 25])

    run_before_a_pass(monkeypatch, receive_late)
    pipeline.score(spark)
    first = by_key(tables.levels())
    pipeline.score(spark)

    assert rows_of_newest == [1]
    assert {row["version"] for row in first} == {1}
    assert {at for _, at in newest(first)} == {T0 + 600 * 24}
    assert {at for _, at in newest(by_key(tables.levels()))} == {T0 + 600 * 25}
    assert_tables_are_complete(tables)


def assert_tables_are_complete(tables: DeltaTables) -> None:
    """Assert one row per message, consistent levels and flags, and revision reasons."""
    revised = [row for row in by_key(tables.levels()) if row["version"] == 2]
    assert {row["cell"] for row in revised} == {*TOKENS}
    assert all(" late readings of node-" in row["revised_because"] for row in revised)
    expected_ids = {(f"node-{n}", s): 1 for n in BOTH for s in range(26)}
    assert ids(tables.messages()) == expected_ids
    silver = tables.silver()
    assert silver.num_rows == 4 * len(expected_ids)
    knocks = [r for r in silver.to_pylist() if (r["seq"], r["name"]) == (24, "tilt/x")]
    assert [r["flag_why"].partition(":")[0] for r in knocks] == ["spike"] * len(BOTH)
    levels = by_key(tables.levels())
    for token in TOKENS:
        history = silver.filter(pa.compute.equal(silver["cell"], token))
        known = read_observations(history.select(list(HISTORY_COLUMNS)))
        whole = make_levels_table(
            token, score_levels(known, Criteria.assumed_from(150.0))
        )
        ours = [row for row in levels if row["cell"] == token]
        assert len(ours) == whole.num_rows
        for row, expected in zip(ours, whole.to_pylist(), strict=True):
            assert is_unchanged(expected, row)


def test_stopped_pass_leaves_its_cells_to_the_next(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """The cells that it had taken are scored by the next pass."""
    data = make_data()
    write(data.folder / "log", "0a", [[message(s, n) for n in BOTH] for s in (0, 1)])
    pipeline, stop = open_pipeline(spark, data.settings), Event()
    receive(spark, data.settings, pipeline)
    stop.set()
    pipeline.score(spark, stop.is_set)
    before = open_tables(data.folder).levels().num_rows
    pipeline.score(spark)

    assert before == 0
    assert open_tables(data.folder).levels().num_rows == 4


def test_every_commit_of_two_threads_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later sync does not cover older versions."""
    create_tables(tmp_path, ["silver"])
    path, synced = tmp_path / "silver", list[int]()
    sync = delta_writer.sync_version

    def record(of: Path, version: int) -> None:
        sync(of, version)
        synced.append(version)

    monkeypatch.setattr(delta_writer, "sync_version", record)

    def append(node: str) -> None:
        for seq in range(10):
            row = {"cell": "a", "at": seq, "received_at": seq, "node": node, "seq": seq}
            append_rows(path, pa.Table.from_pylist([row], schema=SILVER))

    threads = [Thread(target=append, args=(node,)) for node in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert DeltaTable(str(path)).version() == 20
    assert sorted(synced) == list(range(1, 21))
    assert ids(DeltaTables(tmp_path).silver()).total() == 20


@pytest.mark.long
def test_reading_older_than_the_horizon_revises_nothing(
    spark: SparkSession, make_data: Callable[[str], Any]
) -> None:
    """One of five days before, and one of 1980: stored, and no level changes.

    Scoring anew from there would start from dry soil within the history.
    """
    data = make_data("horizon_days = 2\n")
    log, tables = data.folder / "log", open_tables(data.folder)
    pipeline = open_pipeline(spark, data.settings)
    for day in range(6):
        steps = range(144 * day, 144 * (day + 1), 6)
        write(log, f"0a{day}", [[message(s, n) for s in steps] for n in BOTH])
        receive(spark, data.settings, pipeline)
        pipeline.score(spark)
    before = by_key(tables.levels())
    late = message(31, 0, waited_s=600 * 832)
    rain = (Reading("rain", "mm", 1.0),)
    old = Pack(MessageId("node-0", "b", 32), 1, 315_532_800, rain)
    week_rollover = late._replace(seq=32, payload=encode_cbor(old))
    write(log, "0b", [[late, week_rollover, message(864, 1)]])
    receive(spark, data.settings, pipeline)
    pipeline.score(spark)

    after = by_key(tables.levels())
    new = [row for row in after if row["at"].timestamp() > T0 + 600 * 858]
    assert {row["cell"] for row in new} == {TOKENS[1]}
    assert [row for row in after if row not in new] == before
    assert tables.revisions().num_rows == 0
    assert {31, 32} <= set(tables.silver()["seq"].to_pylist())


def test_pass_reports_the_thresholds_with_which_it_scored(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """A change in the console reaches the levels of its cell, as reported."""
    data = make_data()
    log, changes = data.folder / "log", data.folder / "console" / "criteria.csv"
    criteria = replace(data.settings.criteria, changes=str(changes))
    settings = replace(data.settings, criteria=criteria)
    pipeline = open_pipeline(spark, settings)
    write(log, "0a", [[message(s, n) for n in BOTH] for s in range(20)])
    receive(spark, settings, pipeline)
    pipeline.score(spark)
    before = read_applied(data.folder)
    changes.parent.mkdir()
    row = f"{TOKENS[0]},10,11,900,set by suzuki on 2026-11-21"
    changes.write_text(f"cell,LEVEL1,LEVEL2,SPECIAL,VERSION\n{row}\n")
    write(log, "0b", [[message(20, n) for n in BOTH]])
    receive(spark, settings, pipeline)
    pipeline.score(spark)
    after = read_applied(data.folder)
    number = change_number(pipeline.cell_rules.change_of(TOKENS[0]))
    levels = {
        row["cell"]: row["level"] for row in by_key(open_tables(data.folder).levels())
    }

    assert before
    assert after
    assert (before.changes, before.cells) == (str(changes), {})
    assert set(after.cells) == {TOKENS[0]}
    assert (after.applied_s(TOKENS[0], number) or 0.0) > 0
    assert [levels[token] for token in TOKENS] == [4, 2]  # of the newest steps


def test_groups_of_a_pass_grow_while_they_take_little_time() -> None:
    """A stop waits for one of them; each costs the driver a quarter of a second."""
    cells = [f"{number:05}" for number in range(20_000)]
    changes = ReceivedChanges(dict.fromkeys(cells, 0), 0, {cell: [] for cell in cells})
    seconds = iter([1, 2, 1, 5, 40, 1, 1, 20, *[1] * 10])
    times_s = iter([at_s for each in seconds for at_s in (0, each)])
    size, sizes = GroupSize(lambda: next(times_s)), list[int]()

    for group in changes.groups(lambda: size.cells, lambda _: 1.0):
        with size.measure():
            sizes.append(len(group.earliest_us))

    assert sizes[:5] == [600, 1200, 2400, 2400, 2400]
    assert sizes[5:9] == [900, 1800, 2400, 1800]
    assert sum(sizes) == len(cells)
