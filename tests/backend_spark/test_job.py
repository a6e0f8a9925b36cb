"""The whole job on a real Spark, with segments of the real log writer."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from scored_levels import make_levels_table, score_levels
from storm_log import T0, TOKENS, by_key, ids, message, write

from backend_spark.config import BackendSettings
from backend_spark.errors import BatchAbandonedError, SupersededError
from backend_spark.ingest.segment_log import LogRow
from backend_spark.scoring.arrow import HISTORY_COLUMNS, read_observations
from backend_spark.scoring.revisions import is_unchanged
from backend_spark.streaming import job
from backend_spark.streaming.batches import ReceivedChanges
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.streaming.session import BatchGate, RestartingQuery
from backend_spark.tables import delta_writer
from backend_spark.tables.current import read_current
from backend_spark.tables.delta_writer import delete_rows, time_literal
from backend_spark.tables.reader import DeltaTables, open_tables
from backend_spark.tables.schemas import SPARK_TABLES, TABLES
from slope_science.levels import Criteria
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import reason_from_json
from spatial_mqtt.senml import Reading

pytestmark = pytest.mark.spark


def run_once(
    spark: SparkSession,
    settings: BackendSettings,
    run_batch: Callable[[DataFrame, int], None] | None = None,
) -> None:
    """Score the messages in the log and wait for the end."""
    delta_writer.create_tables(Path(settings.backend.data) / "tables", SPARK_TABLES)
    pipeline = job.make_pipeline(settings)
    job.register(spark)
    start = job.find_start(spark, settings, pipeline)
    pipeline.recover(spark)
    run_batch = run_batch or job.number_batches(settings, pipeline, start)
    RestartingQuery(
        lambda: job.start_query(spark, settings, run_batch, start.offset, once=True)
    ).wait_until_ended()
    job.run_pass(spark, pipeline)


def assert_node_summaries(tables: DeltaTables) -> None:
    """Assert both nodes' newest reading, and the status report of one of them."""
    nodes = {row["node"]: row for row in tables.nodes().to_pylist()}
    assert {n: row["at"].timestamp() for n, row in nodes.items()} == {
        "node-0": T0 + 9 * 600,
        "node-1": T0 + 8 * 600,
    }
    reports = [(row["queued"], row["battery_v"]) for _, row in sorted(nodes.items())]
    assert reports == [(None, None), ("3:2", 12.5)]
    assert nodes["node-1"]["cell"] == TOKENS[1]
    assert nodes["node-1"]["received_at"].timestamp() == T0 + 8 * 600 + 2
    assert nodes["node-1"]["reported_at"] == nodes["node-1"]["at"]


def assert_newest_levels(tables: DeltaTables) -> None:
    """Assert that the pass stored the newest level of each cell."""
    current = read_current(tables.folder)
    newest = dict(zip(*current.rows.select(["cell", "level"]), strict=True))
    assert current.is_stored
    assert {str(cell): level.as_py() for cell, level in newest.items()} == {
        TOKENS[0]: by_key(tables.levels())[9]["level"],
        TOKENS[1]: 5,
    }


def test_job_fills_every_table_and_a_second_run_adds_nothing(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """Bronze by message, silver by reading, levels by step, each id once."""
    data = make_data()
    log = data.folder / "log"
    foreign = LogRow(T0 * 1_000_000, "/1/2", b"foreign", "gw", "b", 3, 2)
    first = [[message(s, n) for n in (0, 1) for s in (t, t + 1)] for t in (0, 2, 4, 6)]
    write(log, "0a", [*first, [foreign]])
    run_once(spark, data.settings)
    status = (Reading("agent/queued", None, "3:2"), Reading("agent/battery", "V", 12.5))
    wire = message(8, 1, is_cut=True, status=status)
    write(log, "0b", [[message(8), wire], [message(9)]])
    run_once(spark, data.settings)
    tables = open_tables(data.folder)
    files = {
        name: DeltaTable(str(tables.path(name))).file_uris() for name in SPARK_TABLES
    }
    run_once(spark, data.settings)

    wanted = {("node-0", s): 1 for s in range(10)} | {
        ("node-1", s): 1 for s in range(9)
    }
    assert ids(tables.messages()) == wanted | {("gw", 3): 1}
    assert ids(tables.bronze()) == wanted | {("gw", 3): 1}
    assert tables.silver().num_rows == 4 * len(wanted) + len(status)
    assert [(r["node"], r["seq"]) for r in tables.rejected().to_pylist()] == [("gw", 3)]
    levels = by_key(tables.levels())
    assert Counter(row["cell"] for row in levels) == {TOKENS[0]: 10, TOKENS[1]: 9}
    assert [r["level"] for r in levels if r["cell"] == TOKENS[1]][-2:] == [2, 5]
    assert_node_summaries(tables)
    assert_newest_levels(tables)
    assert files == {
        name: DeltaTable(str(tables.path(name))).file_uris() for name in SPARK_TABLES
    }


def test_levels_of_many_batches_equal_those_of_one(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """Scoring batch by batch gives the same levels as scoring all history at once."""
    data = make_data()
    late = [message(s) for s in (3, 4)]
    order = [[message(s)] for s in (0, 1, 2, 5, 6, 7, 20, 21)]
    write(data.folder / "log", "0a", [*order, late])
    run_once(spark, data.settings)
    tables = open_tables(data.folder)
    history = tables.silver().select(list(HISTORY_COLUMNS))
    whole = score_levels(read_observations(history), Criteria.assumed_from(150.0))
    levels = by_key(tables.levels())

    expected = make_levels_table(TOKENS[0], whole).to_pylist()
    assert len(levels) == len(expected)
    for row, wanted in zip(levels, expected, strict=True):
        assert is_unchanged(wanted, row)
        assert wanted["history_days"] == row["history_days"]
        assert wanted["assumed"] == row["assumed"]
    # The counter tells the rain of the gap, spread over it and marked.
    assert [row["rain_known"] for row in levels] == [True] * 22
    marks = [(ReasonCode.CATCH_UP in codes_of(row)) for row in levels]
    assert marks == [*[False] * 8, *[True] * 13, False]


def test_restarted_job_continues_from_saved_states(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """Old readings are not read again: the levels are the same without them."""
    data = make_data()
    hours = [message(6 * hour) for hour in range(96)]
    for run, day in enumerate(range(0, 96, 32)):
        write(data.folder / "log", f"0{run}", [hours[day : day + 32]])
        if day == 64:
            tables = open_tables(data.folder)
            before = tables.silver().select(list(HISTORY_COLUMNS))
            gone = f"at < {time_literal((T0 + 24 * 3600) * 1_000_000)}"
            assert delete_rows(tables.path("silver"), gone) == 4 * 24
        run_once(spark, data.settings)
    late = tables.silver().select(list(HISTORY_COLUMNS)).to_pylist()
    history = before.to_pylist() + [row for row in late if row["seq"] >= 6 * 64]
    known = read_observations(pa.Table.from_pylist(history, schema=before.schema))
    whole = make_levels_table(
        TOKENS[0], score_levels(known, Criteria.assumed_from(150.0))
    )
    levels = by_key(tables.levels())

    assert tables.read("memories").num_rows >= 3
    assert len(levels) == whole.num_rows
    for row, wanted in zip(levels, whole.to_pylist(), strict=True):
        assert is_unchanged(wanted, row)


@pytest.mark.long
def test_late_readings_of_two_days_revise_levels(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """Every changed row has a new version with a reason, and the old one is kept."""
    data = make_data()
    log = data.folder / "log"
    live = [message(s) for s in range(300) if not 4 <= s < 292]
    late = [message(s, waited_s=600 * (295 - s)) for s in range(4, 292)]
    write(log, "0a", [live])
    run_once(spark, data.settings)
    tables = open_tables(data.folder)
    before = {row["at"]: row for row in by_key(tables.levels())}
    write(log, "0b", [late])
    run_once(spark, data.settings)
    run_once(spark, data.settings)
    levels = by_key(tables.levels())
    gone = {row["at"]: row for row in tables.revisions().to_pylist()}
    whole = score_levels(
        read_observations(tables.silver().select(list(HISTORY_COLUMNS))),
        Criteria.assumed_from(150.0),
    )

    assert [row["swi_mm"] for row in levels] == [
        row.rain.tanks and row.rain.tanks.index_mm for row in whole
    ]
    revised = [row for row in levels if row["version"] == 2]
    assert {row["at"] for row in revised} == set(gone)
    assert len(revised) > 280
    assert revised[0]["revised_because"].startswith(
        "1140 late readings of node-0 from "
    )
    for at, row in gone.items():
        kept = {name: row[name] for name in before[at]}
        assert kept == before[at]
        assert row["superseded_because"] == revised[0]["revised_because"]
    assert {row["version"] for row in levels} == {1, 2}


@pytest.mark.long
def test_flags_of_silver_change_with_later_readings(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """A step becomes a spike when the next reading is back; no row is duplicated."""
    data = make_data()
    log = data.folder / "log"
    write(log, "0a", [[message(0), message(1), message(2, knock_deg=2.0)]])
    run_once(spark, data.settings)
    tables = open_tables(data.folder)
    before = {(r["seq"], r["name"]): r["flag_why"] for r in rows_of(tables)}
    write(log, "0b", [[message(3)]])
    run_once(spark, data.settings)
    run_once(spark, data.settings)
    after = {(r["seq"], r["name"]): r["flag_why"] for r in rows_of(tables)}

    assert before[2, "tilt/x"] == "step: 2.002 > 1"
    assert after[2, "tilt/x"] == "spike: 1.998 there and back > 0.5; step: 2.002 > 1"
    assert {after[key] for key in after if key != (2, "tilt/x")} == {None}
    assert len(rows_of(tables)) == 16
    assert {r["flag"] for r in rows_of(tables) if r["name"] == "wire"} == {2}


def codes_of(row: dict[str, Any]) -> set[str]:
    """Codes of the reasons of a row of levels."""
    return {reason_from_json(code).code for code in row["reason_codes"]}


def rows_of(tables: DeltaTables) -> list[dict[str, Any]]:
    """Rows of silver."""
    return tables.silver().to_pylist()  # type: ignore[no-any-return]


class PowerCutError(Exception):
    """Raised to simulate the death of a batch."""


def test_batch_that_dies_between_tables_is_finished_without_duplicates(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """The batch dies after each table in turn; its next run adds the missing rows."""
    data = make_data()
    write(data.folder / "log", "0a", [[message(s)] for s in range(3)])
    delta_writer.create_tables(data.folder / "tables", SPARK_TABLES)
    pipeline = job.make_pipeline(data.settings)
    ran: list[int] = []

    def die_after(table: str) -> Callable[[DataFrame, int], None]:
        def run_batch(messages: DataFrame, batch_id: int) -> None:
            pipeline.run_batch(messages, batch_id)
            ran.append(batch_id)
            # Remove the later tables, as if the batch had not written them.
            for later in SPARK_TABLES[SPARK_TABLES.index(table) + 1 :]:
                shutil.rmtree(data.folder / "tables" / later)
            raise PowerCutError

        return run_batch

    for table in ("bronze", "silver", "messages"):
        with pytest.raises(StreamingQueryException, match="PowerCutError"):
            run_once(spark, data.settings, die_after(table))
    run_once(spark, data.settings)
    tables = open_tables(data.folder)

    assert ran == [0, 0, 0]
    assert ids(tables.messages()) == {("node-0", s): 1 for s in range(3)}
    assert ids(tables.bronze()) == {("node-0", s): 1 for s in range(3)}
    assert tables.silver().num_rows == 12
    assert tables.levels().num_rows == 3


def copy_aside(folder: Path) -> Path:
    """Copy a folder of the data, as a backup does."""
    return shutil.copytree(folder, folder.with_name(f"backup-{folder.name}"))


def restore(folder: Path) -> None:
    """Replace a folder of the data by its copy; delete it without one."""
    shutil.rmtree(folder)
    copy = folder.with_name(f"backup-{folder.name}")
    if copy.exists():
        shutil.copytree(copy, folder)


@pytest.mark.parametrize(
    ("copied", "restored"),
    [
        ([], ["checkpoints"]),
        (["tables"], ["tables"]),
        pytest.param([], ["tables"], marks=pytest.mark.long),
        pytest.param(["checkpoints"], ["checkpoints"], marks=pytest.mark.long),
        pytest.param(["tables"], ["tables", "checkpoints"], marks=pytest.mark.long),
        pytest.param(
            ["tables", "checkpoints"],
            ["tables", "checkpoints"],
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda names: "+".join(names) or "nothing",
)
def test_tables_and_checkpoint_of_different_times(
    spark: SparkSession,
    make_data: Callable[[], Any],
    copied: list[str],
    restored: list[str],
) -> None:
    """A backup of one of them is restored, or one is deleted: each message once."""
    data = make_data()
    write(data.folder / "log", "0a", [[message(s)] for s in range(5)])
    run_once(spark, data.settings)
    for name in copied:
        copy_aside(data.folder / name)
    write(data.folder / "log", "0b", [[message(s)] for s in range(5, 10)])
    run_once(spark, data.settings)
    for name in restored:
        restore(data.folder / name)
    write(data.folder / "log", "0c", [[message(s)] for s in range(10, 12)])
    run_once(spark, data.settings)
    run_once(spark, data.settings)
    tables = open_tables(data.folder)

    once = {("node-0", s): 1 for s in range(12)}
    assert ids(tables.bronze()) == ids(tables.messages()) == once
    assert tables.silver().num_rows == 4 * len(once)
    assert [row["at"].timestamp() for row in by_key(tables.levels())] == [
        T0 + 600 * s for s in range(12)
    ]
    numbers = {row["batch_id"] for row in tables.bronze().to_pylist()}
    assert numbers == set(range(len(numbers)))


def check_each_once(folder: Path, count: int) -> None:
    """Check that each message is in each table once."""
    tables = open_tables(folder)
    once = {("node-0", s): 1 for s in range(count)}
    assert ids(tables.bronze()) == ids(tables.messages()) == once
    assert tables.silver().num_rows == 4 * len(once)
    assert tables.levels().num_rows == len(once)


@pytest.mark.parametrize(
    "table", ["bronze", pytest.param("silver", marks=pytest.mark.long)]
)
def test_first_batch_of_a_new_checkpoint_dies(
    spark: SparkSession,
    make_data: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    table: str,
) -> None:
    """Its next run begins where the checkpoint did: each message is there once."""
    data = make_data()
    write(data.folder / "log", "0a", [[message(s)] for s in range(3)])
    run_once(spark, data.settings)
    restore(data.folder / "checkpoints")
    write(data.folder / "log", "0b", [[message(s)] for s in range(3, 6)])

    def die_before(path: Path, *more: object) -> None:
        if path.name == table:
            raise PowerCutError
        delta_writer.append_files(path, *more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("backend_spark.streaming.pipeline.append_files", die_before)
        with pytest.raises(StreamingQueryException, match="PowerCutError"):
            run_once(spark, data.settings)
    write(data.folder / "log", "0c", [[message(6)]])
    run_once(spark, data.settings)

    check_each_once(data.folder, 7)


@pytest.mark.long
def test_checkpoint_is_deleted_while_a_batch_is_half_written(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """The tables that lack the batch are completed from bronze."""
    data = make_data()
    write(data.folder / "log", "0a", [[message(s)] for s in range(3)])
    run_once(spark, data.settings)
    earlier = copy_aside(data.folder / "tables")
    write(data.folder / "log", "0b", [[message(s)] for s in range(3, 6)])
    run_once(spark, data.settings)
    # As if the job had died after bronze; its levels are from before the batch, too.
    for name in SPARK_TABLES[1:]:
        shutil.rmtree(data.folder / "tables" / name)
        shutil.copytree(earlier / name, data.folder / "tables" / name)
    restore(data.folder / "checkpoints")
    run_once(spark, data.settings)

    check_each_once(data.folder, 6)


@pytest.mark.long
def test_segments_missing_after_a_restore_are_counted(
    spark: SparkSession, make_data: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The log was trimmed after the backup of the tables: the job says what is lost."""
    data = make_data()
    write(data.folder / "log", "0a", [[message(s)] for s in range(3)])
    run_once(spark, data.settings)
    copy_aside(data.folder / "tables")
    write(data.folder / "log", "0b", [[message(s)] for s in range(3, 7)])
    run_once(spark, data.settings)
    restore(data.folder / "tables")
    first, second, *rest = sorted((data.folder / "log").glob("*.0b-*"))
    first.unlink()
    second.unlink()
    for path in rest:  # while they are new, a listing may just lack those before
        os.utime(path, (0, 0))
    run_once(spark, data.settings)

    assert "2 segments are neither in the tables nor in the log" in caplog.text
    assert set(ids(open_tables(data.folder).messages())) == {
        ("node-0", s) for s in (0, 1, 2, 5, 6)
    }


def test_interrupted_scoring_is_finished_by_the_next_process(
    spark: SparkSession, make_data: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Received but unscored messages are found in bronze; nothing is duplicated."""
    data = make_data()
    write(data.folder / "log", "0a", [[message(s, n) for n in (0, 1)] for s in (0, 1)])
    monkeypatch.setattr("backend_spark.streaming.pipeline.CELLS_AT_ONCE", 1)
    commit = ScoringPipeline._score  # noqa: SLF001
    scored: list[str] = []

    def die_after_a_cell(
        self: ScoringPipeline,
        session: SparkSession,
        touched: ReceivedChanges,
        *more: object,
    ) -> pa.Table:
        if scored:
            raise PowerCutError("power cut")
        scored.extend(touched.earliest_us)
        return commit(self, session, touched, *more)

    monkeypatch.setattr(ScoringPipeline, "_score", die_after_a_cell)
    with pytest.raises(PowerCutError, match="power cut"):
        run_once(spark, data.settings)
    monkeypatch.setattr(ScoringPipeline, "_score", commit)
    tables = open_tables(data.folder)
    half = {row["cell"] for row in by_key(tables.levels())}
    run_once(spark, data.settings)
    files = DeltaTable(str(tables.path("levels"))).file_uris()
    run_once(spark, data.settings)

    assert half == set(scored) == {min(TOKENS)}
    assert Counter(row["cell"] for row in by_key(tables.levels())) == dict.fromkeys(
        TOKENS, 2
    )
    assert DeltaTable(str(tables.path("levels"))).file_uris() == files


class Stoppable:
    """Fake query that records whether it was stopped."""

    was_stopped = False

    def stop(self) -> None:
        """Record the stop."""
        self.was_stopped = True


def test_batch_during_a_stop_is_not_committed() -> None:
    """A rejected batch raises, so that the checkpoint does not move past it."""
    ran: list[int] = []
    gate = BatchGate(lambda _messages, batch_id: ran.append(batch_id))
    query = Stoppable()
    gate(None, 1)
    gate.close(query)
    with pytest.raises(BatchAbandonedError, match="cannot run batch 2 while stopping"):
        gate(None, 2)

    assert ran == [1]
    assert query.was_stopped


class Failed:
    """Fake query that has ended with the error of a batch."""

    def wait_until_ended(self, within_s: float) -> bool:
        """Raise the error."""
        assert within_s > 0
        raise StreamingQueryException("no space left")


def test_error_of_a_batch_stops_a_pass_between_lots() -> None:
    """A pass may take minutes, so it checks before each group."""
    groups: list[int] = []

    def score(must_stop: Callable[[], bool]) -> None:
        for group in range(3):
            if must_stop():
                return
            groups.append(group)

    passes = job.ScoringSchedule(score, 0.0, maintain=lambda: None, trim=lambda: None)
    with pytest.raises(StreamingQueryException, match="no space left"):
        passes.run_if_due(BatchGate(lambda *_: None), Failed())

    assert groups == []


def test_batch_of_a_superseded_job_ends_it_with_the_cause(
    spark: SparkSession, make_data: Callable[[], Any]
) -> None:
    """Spark's own error would not give the exit status of another running job."""
    data = make_data()
    write(data.folder / "log", "0a", [[message(0)]])

    def run_batch(_messages: DataFrame, _batch_id: int) -> None:
        raise SupersededError(data.folder)

    gate = BatchGate(run_batch)
    query = RestartingQuery(
        lambda: job.start_query(spark, data.settings, gate, {}, once=True)
    )
    passes = job.ScoringSchedule(lambda _: None, 60.0, lambda: None, lambda: None)
    with pytest.raises(SupersededError, match="was claimed by another job"):
        job.score_until_stopped(spark, query, gate, passes)


def test_master_comes_from_command_line_then_spark_submit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The settings are used last."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    by_settings = job.choose_master(None, "local[2]")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    assert by_settings == "local[2]"
    assert job.choose_master(None, "local[2]") is None
    assert job.choose_master("spark://a:7077", "local[2]") == "spark://a:7077"


def test_missing_tables_are_empty(tmp_path: Path) -> None:
    """Before the first batch a table has columns and no rows."""
    levels = open_tables(tmp_path).levels()

    assert levels.num_rows == 0
    assert levels.schema == TABLES["levels"]
