"""Levels by JMA's analyses: of cells without a node, and of those with a silent one."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from jma_grib import AT, index_file, rain_file

from backend_spark.analysed_cells import AnalysedLevels, meshes_of_interest
from backend_spark.analysed_rain import AnalysisImporter, AnalysisReader
from backend_spark.config import KeepSection
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import CriteriaTable, cell_at_mesh, read_criteria
from backend_spark.grib_files import Product
from backend_spark.notice_state import LevelReader, NoticePolicy, NoticeState
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.tables.delta_writer import append_rows, create_tables
from backend_spark.tables.maintenance import compact
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, NODES, SPARK_TABLES
from slope_science.levels import Criteria
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, reason_to_json, render_english
from spatial_mqtt.announcements import Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, notice_topic

SHAPE = (60, 90)
AT_S = round(AT.timestamp())
DRY, WET, WITH_NODE = "52354500", "52354590", "52354595"
"""Meshes of three cells; the last cell has a node."""

Drop = Callable[..., None]


@dataclass
class SilentCell:
    """A cell with a node, whose rows a test writes, and its pipeline."""

    pipeline: ScoringPipeline
    cell: str = cell_at_mesh(WITH_NODE)

    def report(self, minutes: int, level: int, **columns: object) -> None:
        """Add a row by readings, as a scoring pass does."""
        row = {"cell": self.cell, "at": AT + timedelta(minutes=minutes), "level": level}
        row |= {"state": "judged", "n_nodes": 1, "version": 1} | columns
        table = pa.Table.from_pylist([row], schema=LEVELS)
        append_rows(self.pipeline.tables / "levels", table)

    def rows(self) -> list[dict[str, Any]]:
        """Its rows by the analyses."""
        rows = DeltaTables(self.pipeline.tables).levels().to_pylist()
        some = [r for r in rows if r["cell"] == self.cell and not r["n_nodes"]]
        return sorted(some, key=lambda row: row["at"])

    def rows_after(self, minutes: int) -> list[dict[str, Any]]:
        """The rows that are made again after readings from a time on were scored."""
        pipeline = self.pipeline
        levels = AnalysedLevels(pipeline.tables, pipeline.cell_rules.table, 99)
        first_us = round((AT_S + 60 * minutes) * 1e6)
        touched = pipeline.silent.with_analyses({self.cell: first_us})
        assert touched
        return pipeline.silent.rows_after(touched, levels)

    def newest(self) -> dict[str, Any]:
        """Its newest row."""
        table = DeltaTables(self.pipeline.tables).newest()
        return next(r for r in table.to_pylist() if r["cell"] == self.cell)


@pytest.fixture
def table(tmp_path: Path) -> CriteriaTable:
    """Criteria of the three meshes."""
    lines = ["mesh,LEVEL1,LEVEL2", *(f"{m},110,150" for m in (DRY, WET, WITH_NODE))]
    path = tmp_path / "criteria.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_criteria(path, Criteria.assumed_from(100.0))


@pytest.fixture
def pipeline(tmp_path: Path, table: CriteriaTable) -> ScoringPipeline:
    """The job's pipeline over empty tables but for one cell, whose node reports."""
    cell = SilentCell(open_pipeline(tmp_path / "tables", table))
    cell.report(9 * 60, 1)
    return cell.pipeline


def open_pipeline(tables: Path, table: CriteriaTable) -> ScoringPipeline:
    """The job's pipeline over empty tables, with a node in one cell."""
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
    """Rows of levels of the cells without a node by cell and time."""
    rows = DeltaTables(pipeline.tables).levels().to_pylist()
    rows = [row for row in rows if row["cell"] != cell_at_mesh(WITH_NODE)]
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


def partly_judged(folder: Path, advisory_mm: int) -> SilentCell:
    """The cell with a node, where the prefecture judges level 2 at most."""
    line = ",".join(f"LEVEL3_{mm:02d}" for mm in range(151))
    limits = ",".join(map(str, [advisory_mm, 999, *[999] * 151]))
    rows = [f"{mesh},{limits}" for mesh in (DRY, WET, WITH_NODE)]
    path = folder / "partly_judged.csv"
    path.write_text("\n".join([f"mesh,LEVEL1,LEVEL2,{line}", *rows]))
    criteria = read_criteria(path, Criteria.assumed_from(100.0))
    return SilentCell(open_pipeline(folder / "tables", criteria))


@pytest.mark.parametrize("is_silent", [False, True])
def test_rain_that_is_judged_at_no_level_gives_none(
    tmp_path: Path, load: Drop, is_silent: bool
) -> None:
    """Level 1 would read as calm; a silent cell keeps the level of its readings."""
    silent = partly_judged(tmp_path, 999)
    if is_silent:
        silent.report(0, 2)
    load(300.0, 12.0, 40, 3000)
    silent.pipeline.score_analyses()
    rows = [*levels(silent.pipeline), *silent.rows()]

    assert len(rows) == 2
    for row in rows:
        assert (row["level"], row["state"]) == (None, "unknown")
        assert row["known_until"] is None
        assert row["reasons"] == [
            "rain: the prefecture does not judge level 2, 3, 4, 5 here"
        ]


def test_reasons_name_the_levels_that_are_not_judged(
    tmp_path: Path, load: Drop
) -> None:
    """Where the index reaches one that is."""
    pipeline = partly_judged(tmp_path, 110).pipeline
    load(300.0, 12.0, 0, 600)
    pipeline.score_analyses()
    dry, wet = levels(pipeline)

    assert (dry["level"], dry["state"], dry["reasons"]) == (1, "judged", [])
    assert (wet["level"], wet["state"]) == (2, "judged")
    assert wet["reasons"][1:] == [
        "rain: the prefecture does not judge level 3, 4, 5 here"
    ]


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


@pytest.fixture
def silent(tmp_path: Path, table: CriteriaTable) -> SilentCell:
    """The cell with a node; it has no rows yet."""
    return SilentCell(open_pipeline(tmp_path / "tables", table))


def test_analyses_raise_a_silent_cell(silent: SilentCell, load: Drop) -> None:
    """Not while its newest row by readings is recent."""
    silent.report(0, 1)
    for minutes in (20, 30, 40):
        load(160.0, 12.0, minutes, 60 * minutes + 600)
        silent.pipeline.score_analyses()
    (row,) = silent.rows()

    assert row["at"] == AT + timedelta(minutes=40)
    assert (row["level"], row["state"], row["version"]) == (3, "judged", 1)
    assert row["reasons"][0].startswith("analysed by JMA for 2026-07-01 01:40 UTC")


def test_level_of_the_readings_returns_when_the_analyses_fall(
    silent: SilentCell, load: Drop
) -> None:
    """One row states it as held; then there are no more rows."""
    tilt = Reason(ReasonCode.TILT, sensor="n1 T", deg_per_h=0.02, limit_deg_per_h=0.01)
    codes = {"reasons": [render_english(tilt)], "reason_codes": [reason_to_json(tilt)]}
    silent.report(0, 2, notice_level=2, **codes)
    for minutes, index_mm in ((40, 160.0), (50, 160.0), (60, 20.0), (70, 20.0)):
        load(index_mm, 12.0, minutes, 60 * minutes + 600)
        silent.pipeline.score_analyses()
    *raised, last = silent.rows()

    assert [row["level"] for row in raised] == [3, 3]
    assert [row["reasons"][1:] for row in raised] == [codes["reasons"]] * 2
    assert last["at"] == AT + timedelta(minutes=60)
    assert (last["level"], last["state"], last["known_until"]) == (2, "held", AT)
    assert last["reasons"] == codes["reasons"]
    assert last["reason_codes"] == codes["reason_codes"]


def test_lower_analysis_adds_nothing_to_a_silent_cell(
    silent: SilentCell, load: Drop
) -> None:
    """Its level is held on reading, as without analyses."""
    silent.report(0, 4)
    load(160.0, 12.0, 40, 3000)
    silent.pipeline.score_analyses()

    assert not silent.rows()
    assert silent.newest()["level"] == 4


def test_silent_cell_is_unknown_again_after_its_hold(
    silent: SilentCell, load: Drop
) -> None:
    """The analyses do not judge movement, so their level 1 is not the cell's."""
    silent.report(0, 2)
    for hours, index_mm in ((25, 160.0), (26, 20.0), (27, 20.0)):
        load(index_mm, 12.0, 60 * hours, 3600 * hours + 600)
        silent.pipeline.score_analyses()
    raised, ended = silent.rows()

    assert (raised["level"], len(raised["reasons"])) == (3, 1)
    assert (ended["level"], ended["state"]) == (None, "unknown")
    assert ended["reasons"][0].startswith("unknown: level 2 was last judged at")


@pytest.mark.parametrize(
    ("index_mm", "expected"), [(230.0, (5, "held", 4)), (300.0, (5, "judged", None))]
)
def test_analyses_raise_the_notice_of_a_silent_cell(
    silent: SilentCell,
    load: Drop,
    index_mm: float,
    expected: tuple[int, str, int | None],
) -> None:
    """A sensor alone had given level 5, and a notice of 3."""
    silent.report(0, 5, notice_level=3)
    load(index_mm, 12.0, 40, 3000)
    silent.pipeline.score_analyses()
    (row,) = silent.rows()

    assert (row["level"], row["state"], row["notice_level"]) == expected


@pytest.mark.parametrize("is_restarted", [False, True])
def test_cell_that_is_silent_for_long_is_unknown_without_a_higher_analysis(
    silent: SilentCell, load: Drop, is_restarted: bool
) -> None:
    """Longer than any hold; not level 1."""
    silent.report(0, 3)
    days = 24 * 60
    load(230.0, 12.0, 9 * days, 9 * 86_400 + 600)
    silent.pipeline.score_analyses()
    pipeline = replace(silent.pipeline) if is_restarted else silent.pipeline
    for minutes in (10, 20):
        load(20.0, 12.0, 9 * days + minutes, 9 * 86_400 + 60 * minutes + 600)
        pipeline.score_analyses()

    assert [(row["level"], row["state"]) for row in silent.rows()] == [
        (4, "judged"),
        (None, "unknown"),
    ]


def test_held_level_counts_after_a_restart_without_the_node(
    silent: SilentCell, load: Drop
) -> None:
    """The table of nodes has no time of its readings."""
    silent.report(0, 3)
    for minutes, index_mm in ((40, 230.0), (50, 20.0)):
        load(index_mm, 12.0, minutes, 60 * minutes + 600)
        replace(silent.pipeline).score_analyses()

    assert [row["level"] for row in silent.rows()] == [4, 3]


def test_rows_between_two_readings_are_not_made_again(
    silent: SilentCell, load: Drop
) -> None:
    """They have no nodes either, but rest on readings."""
    silent.report(0, 4)
    silent.report(10, 4, n_nodes=0, state="held")
    silent.report(20, 3)
    load(230.0, 12.0, 60, 4200)
    silent.pipeline.score_analyses()
    rows = silent.rows_after(0)

    assert [row["at"] for row in rows] == [round((AT_S + 3600) * 1e6)]
    assert rows[0]["level"] == 4


def test_first_node_of_a_cell_is_not_hidden_by_its_analyses(
    silent: SilentCell, load: Drop
) -> None:
    """The analysis is of a time when the cell had no node."""
    load(20.0, 12.0, 40, 3000)
    silent.pipeline.score_analyses()
    new = replace(silent, cell=cell_at_mesh(WET))
    assert new.newest()["level"] == 1

    new.report(30, 5)
    (row,) = new.rows_after(30)
    assert (row["level"], row["state"]) == (5, "judged")


def test_analyses_do_not_hide_late_readings(silent: SilentCell, load: Drop) -> None:
    """A movement that is received after the analyses, and was before them."""
    silent.report(0, 1)
    for minutes in (40, 50):
        load(160.0, 12.0, minutes, 60 * minutes + 600)
    silent.pipeline.score_analyses()
    silent.report(10, 5)
    rows = silent.rows_after(10)

    assert [(r["level"], r["state"]) for r in rows] == [(5, "judged"), (5, "held")]
    assert rows[1]["known_until"] == round((AT_S + 600) * 1e6)


@dataclass
class PublishedNotice:
    """The publisher's notice of a cell; its levels are current for half an hour."""

    tables: DeltaTables
    file: Path
    cell: str

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start the publisher again."""
        policy = NoticePolicy(2, hold_s=10_800.0, calm_s=3600.0)
        self.state = NoticeState(policy, self.file)
        self.read_levels = LevelReader(self.tables, max_age_s=1800.0)

    def at(self, minutes: int) -> Notice | None:
        """The notice in force at a time."""
        now_s = AT_S + 60.0 * minutes
        self.state.update(self.read_levels(now_s), now_s)
        topic = notice_topic(cell_topic(Cell.from_token(self.cell)))
        return self.state.notices.get(topic)

    def each_10_minutes(self, first: int, last: int) -> list[tuple[int, str, bool]]:
        """Level, state and withdrawal of the notice at times."""
        found = [self.at(minutes) for minutes in range(first, last + 1, 10)]
        return [(n.level, n.state, n.withdrawn) for n in found if n]


@pytest.fixture
def published(silent: SilentCell, tmp_path: Path) -> PublishedNotice:
    """The notice of the cell with a silent node."""
    tables = DeltaTables(silent.pipeline.tables)
    return PublishedNotice(tables, tmp_path / "notices.json", silent.cell)


def analyse(silent: SilentCell, load: Drop, analyses: dict[int, float]) -> None:
    """Import and score soil water indices by minute."""
    for minutes, index_mm in analyses.items():
        load(index_mm, 12.0, minutes, 60 * minutes + 60)
        silent.pipeline.score_analyses()


@pytest.mark.parametrize(
    "restarted_at", [None, 60, pytest.param(80, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("level", [1, 3])
def test_notice_of_the_readings_returns_when_the_analyses_fall(
    silent: SilentCell,
    load: Drop,
    published: PublishedNotice,
    level: int,
    restarted_at: int | None,
) -> None:
    """After `calm_s`, when the row is no longer current; a restart begins it anew."""
    silent.report(0, level)
    before = published.each_10_minutes(0, 40)
    analyse(silent, load, {50: 230.0})
    assert published.each_10_minutes(50, 50) == [(4, "judged", False)]
    if restarted_at == 60:
        published.restart()
    analyse(silent, load, {60: 20.0})
    falling = published.each_10_minutes(60, 80)
    if restarted_at == 80:
        published.restart()
    falling += published.each_10_minutes(90, 110)
    after = published.each_10_minutes(160, 400)

    assert set(falling) == {(4, "held", False)}
    if level == 1:
        assert (before, set(after)) == ([], {(1, "judged", True)})
    else:
        assert before[-1] == (3, "held", False)
        assert set(after) == {(3, "held", False)}


def test_notice_from_before_the_readings_stays(
    silent: SilentCell, load: Drop, published: PublishedNotice
) -> None:
    """The held row has a lower level than the notice had."""
    silent.report(0, 3)
    published.at(0)
    silent.report(10, 2, state="held", known_until=AT)
    analyse(silent, load, {50: 230.0, 60: 20.0})
    published.at(50)

    assert published.each_10_minutes(60, 400)[-1] == (3, "held", False)


def test_end_of_the_rain_lowers_no_notice(
    silent: SilentCell, load: Drop, published: PublishedNotice
) -> None:
    """The index falls while the last rain holds the level of the analyses."""
    silent.report(0, 1)
    load(300.0, 90.0, 50, 3060)
    silent.pipeline.score_analyses()
    assert published.each_10_minutes(50, 50) == [(5, "judged", False)]
    load(160.0, None, 90, 5460)
    silent.pipeline.score_analyses()
    row = silent.newest()

    assert (row["level"], row["state"]) == (4, "held")
    assert published.each_10_minutes(90, 300)[-1] == (5, "held", False)
