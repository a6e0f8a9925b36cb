"""A job uses the hot states of an earlier one, unless something else has changed."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from storm_log import CELLS, TOKENS, by_key, message

from backend_spark.config import TABLES_FOLDER, read_settings
from backend_spark.ingest.segment_log import LogRow
from backend_spark.scoring.saved_states import HotState, decode_hot
from backend_spark.streaming import hot_files, job
from backend_spark.streaming import pipeline as pipeline_module
from backend_spark.streaming.hot_files import INDEX_FILE, read_hot_states
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.streaming.scoring_tasks import HOT_FOLDER
from backend_spark.tables.delta_writer import create_tables, delete_rows
from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import LOG, SPARK_TABLES
from backend_spark.tables.store import open_table

pytestmark = pytest.mark.spark

BOTH = range(len(CELLS))
HISTORY, LAST = 24, 26
"""Steps of the first pass; the step that the restarted job scores."""


def start(folder: Path, more: str = "") -> ScoringPipeline:
    """The pipeline of a job that starts on a data folder."""
    config = folder.with_name(f"{folder.name}.toml")
    config.write_text(f'[backend]\ndata = "{folder}"\n{more}')
    create_tables(folder / TABLES_FOLDER, SPARK_TABLES)
    return job.make_pipeline(read_settings(config))


def receive(
    spark: SparkSession, pipeline: ScoringPipeline, steps: Iterable[int], batch_id: int
) -> None:
    """Run a batch with a message of each node at each step."""
    rows = [_columns(message(step, node)) for step in steps for node in BOTH]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=LOG))
    pipeline.run_batch(frame, batch_id)


def _columns(row: LogRow) -> dict[str, Any]:
    return dict(zip(LOG.names, row, strict=True))


def hot_states(pipeline: ScoringPipeline) -> dict[str, HotState]:
    """The hot states of a job."""
    bodies = read_hot_states(pipeline.hot.folder, pipeline.hot.of_cells(TOKENS))
    return {cell: decode_hot(body) for cell, body in bodies.items()}


@pytest.fixture(scope="module")
def ended(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder of a job that ended after two passes."""
    folder = tmp_path_factory.mktemp("ended") / "data"
    pipeline = start(folder)
    receive(spark, pipeline, range(HISTORY), 0)
    pipeline.score(spark)
    shutil.copytree(folder / TABLES_FOLDER, folder.with_name("older"))
    receive(spark, pipeline, range(HISTORY, LAST), 1)
    pipeline.score(spark)
    assert set(hot_states(pipeline)) == {*TOKENS}
    shutil.copytree(folder, folder.with_name("copy"))
    return folder


@pytest.fixture
def data(ended: Path) -> Path:
    """That folder as the job left it; its path is part of the settings."""
    return reset(ended)


def reset(folder: Path) -> Path:
    """Restore the data folder as a whole."""
    shutil.rmtree(folder)
    return Path(shutil.copytree(folder.with_name("copy"), folder))


def score_last(
    spark: SparkSession, pipeline: ScoringPipeline
) -> tuple[set[str], list[dict[str, Any]]]:
    """Score the last step; cells that were scored from saved states, and all levels."""
    receive(spark, pipeline, [LAST], 2)
    job.register(spark)
    pipeline.recover(spark)
    pipeline.score(spark)
    newest_s = message(LAST).received_us // 1_000_000 - 2
    cold = {
        cell for cell, state in hot_states(pipeline).items() if state.cold_s == newest_s
    }
    return cold, by_key(open_tables(pipeline.data).levels())


def test_restarted_job_scores_from_the_hot_states_of_the_earlier_one(
    spark: SparkSession, data: Path
) -> None:
    """No cell is scored from its saved state, and levels are those of a job without."""
    cold, levels = score_last(spark, start(data))
    reset(data)
    shutil.rmtree(data / TABLES_FOLDER / HOT_FOLDER)
    expected_cold, expected = score_last(spark, start(data))

    assert (cold, expected_cold) == (set(), {*TOKENS})
    assert levels == expected
    assert len(levels) == len(BOTH) * (LAST + 1)


def trim(data: Path) -> None:
    """Delete the readings of the first steps."""
    assert delete_rows(data / TABLES_FOLDER / "silver", f"seq < {HISTORY // 2}")


def roll_back(data: Path) -> None:
    """Restore an earlier version of levels by a commit."""
    table = open_table(data / TABLES_FOLDER / "levels")
    table.restore(table.version() - 1)


def rewrite_silver(data: Path) -> None:
    """Replace silver by a table with as many versions and another newest commit."""
    log = data / TABLES_FOLDER / "silver" / "_delta_log"
    newest = max(log.glob("*.json"))
    newest.write_text(newest.read_text() + "\n")


def damage_index(data: Path) -> None:
    """Leave half of the index."""
    index = data / TABLES_FOLDER / HOT_FOLDER / INDEX_FILE
    index.write_bytes(index.read_bytes()[:100])


@pytest.mark.parametrize("change", [trim, roll_back, rewrite_silver, damage_index])
def test_changed_tables_make_a_start_cold(
    data: Path, change: Callable[[Path], None]
) -> None:
    """Hot states of other tables are deleted."""
    change(data)
    pipeline = start(data)

    assert not pipeline.hot.of_cells(TOKENS)
    assert not list(pipeline.hot.folder.glob("*.arrow"))


@pytest.mark.parametrize("names", [("silver",), ("levels",), tuple(SPARK_TABLES)])
def test_restored_older_tables_make_a_start_cold(
    ended: Path, data: Path, names: tuple[str, ...]
) -> None:
    """A backup has not all that the hot states contain."""
    for name in names:
        shutil.rmtree(data / TABLES_FOLDER / name)
        shutil.copytree(ended.with_name("older") / name, data / TABLES_FOLDER / name)

    assert not start(data).hot.of_cells(TOKENS)


def test_another_program_or_other_settings_start_cold(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their hot states could differ."""
    unchanged = set(start(data).hot.of_cells(TOKENS))
    with monkeypatch.context() as patch:
        patch.setattr(hot_files, "program_digest", lambda: "an upgrade")
        upgraded = set(start(data).hot.of_cells(TOKENS))
    reset(data)
    other = set(start(data, "[score]\nnearby_km = 3.0\n").hot.of_cells(TOKENS))

    assert (unchanged, upgraded, other) == ({*TOKENS}, set(), set())


def test_changed_criteria_need_saved_states(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    """Only the cell whose criteria changed is scored from its saved state."""
    changes = tmp_path / "criteria.csv"
    lines = "cell,LEVEL1,LEVEL2,SPECIAL,VERSION"
    pipeline = start(data)
    pipeline = replace(
        pipeline, cell_rules=replace(pipeline.cell_rules, changes=changes)
    )
    changes.write_text(f"{lines}\n{TOKENS[0]},10,11,900,set by suzuki\n")
    cold, levels = score_last(spark, pipeline)

    assert cold == {TOKENS[0]}
    assert len(levels) == len(BOTH) * (LAST + 1)


def test_damaged_files_are_not_used(spark: SparkSession, data: Path) -> None:
    """Levels are complete although a byte of each file is another one."""
    for file in (data / TABLES_FOLDER / HOT_FOLDER).glob("*.arrow"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    cold, levels = score_last(spark, start(data))

    assert cold == {*TOKENS}
    assert len(levels) == len(BOTH) * (LAST + 1)


class PowerCutError(Exception):
    """Ends a pass."""


def cut_power(*_: object) -> None:
    """End a pass after its levels are written."""
    raise PowerCutError("before the flags")


def test_job_that_ended_in_a_pass_repeats_it_from_the_pass_before(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits are usual ones, and the pass that is repeated changes no row."""
    killed = start(data)
    receive(spark, killed, [LAST], 2)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline_module, "update_flags", cut_power)
        with pytest.raises(PowerCutError, match="before the flags"):
            killed.score(spark)
    written = open_tables(data).levels().num_rows
    job.register(spark)
    pipeline = start(data)
    pipeline.recover(spark)
    is_warm = set(pipeline.hot.of_cells(TOKENS)) == {*TOKENS}
    pipeline.score(spark)
    levels = by_key(open_tables(data).levels())

    assert is_warm
    assert written == len(levels)
    assert [row["version"] for row in levels] == [1] * len(BOTH) * (LAST + 1)
