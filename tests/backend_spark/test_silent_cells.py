"""JMA's analyses beside the readings of a cell whose node is silent for a while."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from storm_log import T0, TOKENS, by_key, message, write

from backend_spark.analysed_cells import cell_meshes
from backend_spark.criteria.tables import read_criteria
from backend_spark.ingest.segment_log import LogRow
from backend_spark.streaming import job
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.streaming.session import RestartingQuery
from backend_spark.tables.delta_writer import append_rows, create_tables
from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import ANALYSES, SPARK_TABLES
from slope_science.levels import Criteria

pytestmark = pytest.mark.spark

CELL = TOKENS[0]


@dataclass
class AnalysedCell:
    """The job's pipeline with criteria of one cell of the storm.

    Times are in steps of ten minutes since `T0`.
    """

    spark: SparkSession
    data: Any
    pipeline: ScoringPipeline
    runs: Iterator[int] = field(default_factory=lambda: count(1))

    def receive(self, *messages: LogRow) -> tuple[float, int | None, int]:
        """Score messages; returns time, level and number of nodes of the newest row."""
        write(self.data.folder / "log", f"0{next(self.runs):x}", [messages])
        settings, run_batch = self.data.settings, self.pipeline.run_batch
        RestartingQuery(
            lambda: job.start_query(self.spark, settings, run_batch, {}, once=True)
        ).wait_until_ended()
        self.pipeline.score(self.spark)
        newest = open_tables(self.data.folder).newest().to_pylist()
        row = next(row for row in newest if row["cell"] == CELL)
        return _step(row), row["level"], row["n_nodes"]

    def analyse(self, step: int, index_mm: float) -> None:
        """Add an analysis of the soil water index, received ten minutes later."""
        at_us = (T0 + step * 600) * 1_000_000
        mesh, received_us = int(cell_meshes(CELL)[0]), at_us + 600_000_000
        row = {"product": "soil_water", "mesh": mesh, "mm": index_mm, "at": at_us}
        row |= {"issued_at": at_us, "received_at": received_us, "batch_id": 1}
        table = pa.Table.from_pylist([row], schema=ANALYSES)
        append_rows(self.pipeline.tables / "analyses", table)


def _step(row: dict[str, Any]) -> int:
    return round((row["at"].timestamp() - T0) / 600)


@pytest.fixture
def cell(
    spark: SparkSession, make_data: Callable[[], Any], tmp_path: Path
) -> AnalysedCell:
    """The cell, without messages."""
    data = make_data()
    create_tables(data.folder / "tables", [*SPARK_TABLES, "analyses"])
    job.register(spark)
    criteria = tmp_path / "criteria.csv"
    criteria.write_text(f"cell,LEVEL1,LEVEL2\n{CELL},300,400\n")
    pipeline = job.make_pipeline(data.settings)
    table = read_criteria(criteria, Criteria.assumed_from(100.0))
    rules = replace(pipeline.cell_rules, table=table)
    return AnalysedCell(spark, data, replace(pipeline, cell_rules=rules))


def test_analyses_do_not_hide_late_readings(cell: AnalysedCell) -> None:
    """The wire was cut before the analysis, and the message is received after it.

    When the node reports again, its rows replace those by the analyses.
    """
    silent = cell.receive(*(message(n) for n in range(3)))
    cell.analyse(7, 450.0)
    raised = cell.receive(message(3, node=1))
    cut = cell.receive(message(3, is_cut=True, waited_s=6000))
    back = cell.receive(message(9, is_cut=True))
    tables = open_tables(cell.data.folder)
    levels = [row for row in by_key(tables.levels()) if row["cell"] == CELL]
    past = [(r["level"], r["version"]) for r in by_key(tables.revisions())]

    assert (silent, raised) == ((2, 1, 1), (7, 3, 0))
    assert (cut, back) == ((7, 5, 0), (9, 5, 1))
    assert [_step(row) for row in levels] == [*range(10)]
    assert past == [(3, 1)]
