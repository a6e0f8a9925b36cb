"""Levels of cells that only the table of criteria names, from JMA's analyses."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from jma_grib import AT, index_file, rain_file

from backend_spark.analysed_rain.cells import meshes_of_interest
from backend_spark.analysed_rain.files import Product
from backend_spark.analysed_rain.table import AnalysisImporter, AnalysisReader
from backend_spark.config import KeepSection
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import CriteriaTable, cell_at_mesh, read_criteria
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.tables.delta_writer import append_rows, create_tables
from backend_spark.tables.maintenance import compact
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import NODES, SPARK_TABLES
from slope_science.criteria import Criteria

SHAPE = (60, 90)
AT_S = round(AT.timestamp())
DRY, WET, WITH_NODE = "52354500", "52354590", "52354595"
"""Meshes of three cells; the last cell has a node."""

Drop = Callable[..., None]


@pytest.fixture
def table(tmp_path: Path) -> CriteriaTable:
    """Criteria of the three meshes."""
    lines = ["mesh,LEVEL1,LEVEL2", *(f"{m},110,150" for m in (DRY, WET, WITH_NODE))]
    path = tmp_path / "criteria.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_criteria(path, Criteria.assumed_from(100.0))


@pytest.fixture
def pipeline(tmp_path: Path, table: CriteriaTable) -> ScoringPipeline:
    """The job's pipeline over empty tables; one cell has a node."""
    tables = tmp_path / "tables"
    create_tables(tables, SPARK_TABLES)
    node = {"node": "n1", "cell": cell_at_mesh(WITH_NODE)}
    append_rows(tables / "nodes", pa.Table.from_pylist([node], schema=NODES))
    rules = CellRuleProvider(table, analyses=AnalysisReader(tables))
    return ScoringPipeline(
        tables.parent, tables, "app", rules, 60 * 86_400, 600, time.monotonic
    )


@pytest.fixture
def load(tmp_path: Path, table: CriteriaTable) -> Drop:
    """Function that imports an index and rain, or one of them, at a time after `AT`."""

    def make(
        index_mm: float | None, rain_mm: float | None, minutes: int, later_s: float
    ) -> None:
        at = AT + timedelta(minutes=minutes)
        field = np.full(SHAPE, 20.0)
        field[-12:, 40:60] = index_mm  # around the meshes
        field[59, 50] = 20.0  # DRY
        name = f"{minutes:04d}_{index_mm}.bin"
        folders = {product: tmp_path / product.value for product in Product}
        files = {
            Product.SOIL_WATER: index_mm and index_file(field, at),
            Product.RAIN: rain_mm and rain_file(np.full(SHAPE, rain_mm), at),
        }
        for product, file in files.items():
            folders[product].mkdir(exist_ok=True)
            if file:
                file.but(north=35.5, west=135.0).write(folders[product] / name)
        meshes = meshes_of_interest(table, [])
        loader = AnalysisImporter(
            tmp_path / "tables", KeepSection(), meshes, AT_S + later_s
        )
        results = list(loader.import_folders(folders))
        assert not [each for each in results if isinstance(each, Exception)]

    return make


def levels(pipeline: ScoringPipeline) -> list[dict[str, Any]]:
    """Rows of levels by cell and time."""
    rows = DeltaTables(pipeline.tables).levels().to_pylist()
    return sorted(rows, key=lambda row: (row["at"], row["swi_mm"]))


def test_every_cell_of_the_criteria_has_a_level(
    pipeline: ScoringPipeline, load: Drop
) -> None:
    """Those with a node are scored with its readings."""
    load(160.0, 12.0, 0, 600)
    pipeline.score_analyses()
    dry, wet = levels(pipeline)

    assert (dry["cell"], wet["cell"]) == (cell_at_mesh(DRY), cell_at_mesh(WET))
    assert (dry["level"], wet["level"]) == (1, 3)
    assert (wet["swi_mm"], wet["r60_mm"], wet["n_nodes"]) == (160.0, 12.0, 0)
    assert (dry["at"], dry["version"]) == (AT, 1)
    assert wet["latest_received"] == AT + timedelta(minutes=10)
    assert wet["reasons"][0] == (
        "analysed by JMA for 2026-07-01 01:00 UTC: "
        "soil water index 160.0 mm >= warning criterion 150.0 mm"
    )


def test_each_time_has_one_row(pipeline: ScoringPipeline, load: Drop) -> None:
    """Also when nothing is new, and after a restart with another app id."""
    load(160.0, 12.0, 0, 600)
    pipeline.score_analyses()
    load(230.0, 12.0, 10, 1200)
    pipeline.score_analyses()
    pipeline.score_analyses()
    again = ScoringPipeline(
        pipeline.data,
        pipeline.tables,
        "other",
        pipeline.cell_rules,
        pipeline.horizon_s,
        600,
        time.monotonic,
    )
    again.score_analyses()

    assert [row["level"] for row in levels(pipeline)] == [1, 3, 1, 4]
    assert {row["version"] for row in levels(pipeline)} == {1}


def test_later_issue_revises_the_level(pipeline: ScoringPipeline, load: Drop) -> None:
    """With the earlier row among the revisions."""
    load(160.0, 12.0, 0, 600)
    pipeline.score_analyses()
    load(300.0, 12.0, 0, 2 * 3600)
    pipeline.score_analyses()
    _, wet = levels(pipeline)
    (before,) = DeltaTables(pipeline.tables).dataset("revisions").to_table().to_pylist()

    assert (wet["level"], wet["version"]) == (5, 2)
    assert (before["level"], before["version"]) == (3, 1)
    assert wet["revised_because"] == "readings of JMA"


@pytest.mark.parametrize("is_compacted", [False, True])
def test_of_two_issues_of_one_run_the_later_counts(
    pipeline: ScoringPipeline, load: Drop, tmp_path: Path, is_compacted: bool
) -> None:
    """Both have the same time of receipt."""
    earlier = index_file(np.full(SHAPE, 90.0)).but(north=35.5, west=135.0)
    earlier.write(tmp_path / Product.SOIL_WATER.value / "0000_.bin")
    load(160.0, 12.0, 0, 600)
    if is_compacted:
        compact(tmp_path / "tables" / "analyses")
    pipeline.score_analyses()
    _, wet = levels(pipeline)

    assert (wet["swi_mm"], wet["level"], wet["version"]) == (160.0, 3, 1)


def test_missing_index_gives_no_level(pipeline: ScoringPipeline, load: Drop) -> None:
    """Rain alone is no judgement, and missing is not zero."""
    load(float("nan"), 50.0, 0, 600)
    pipeline.score_analyses()

    assert [row["cell"] for row in levels(pipeline)] == [cell_at_mesh(DRY)]


def test_end_of_the_rain_holds_the_level(pipeline: ScoringPipeline, load: Drop) -> None:
    """For six hours; then the critical line is that without rain."""
    load(160.0, 90.0, 0, 600)
    for hour in range(1, 8):
        load(160.0, None, 60 * hour, 3600 * hour + 600)
        pipeline.score_analyses()
    rows = levels(pipeline)[1::2]

    assert [row["level"] for row in rows] == [4] * 7 + [3]
    assert [row["state"] for row in rows] == ["judged", *["held"] * 6, "judged"]
    assert rows[1]["known_until"] == AT
    assert rows[1]["reasons"][0].endswith("(a while ago)")
    assert not any(row["rain_known"] for row in rows[1:])


def test_late_rain_changes_the_level(pipeline: ScoringPipeline, load: Drop) -> None:
    """Of the index half an hour later too, and the end of a hold."""
    load(160.0, 90.0, 0, 600)
    load(160.0, None, 60, 4200)
    load(160.0, None, 80, 5400)
    pipeline.score_analyses()
    before = levels(pipeline)[1::2]
    load(None, 2.0, 60, 6000)
    pipeline.score_analyses()
    after = levels(pipeline)[1::2]

    assert [row["level"] for row in before] == [4, 4, 4]
    assert [row["level"] for row in after] == [4, 3, 3]
    assert [row["state"] for row in after] == ["judged"] * 3
    assert [row["r60_mm"] for row in after] == [90.0, 2.0, 2.0]
