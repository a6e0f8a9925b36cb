"""Levels and quality flags of a cell with JMA's analyses beside its gauge."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from jma_grib import AT, index_file, rain_file

from backend_spark.analysed_rain.files import Product
from backend_spark.analysed_rain.table import (
    AnalysisImporter,
    AnalysisReader,
    TableAnalyses,
)
from backend_spark.config import KeepSection
from backend_spark.criteria.tables import cell_at_mesh
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.score import CellRules, LevelRow, score_cell
from slope_science.criteria import Criteria
from slope_science.quality import Flag
from slope_science.reason_codes import ReasonCode
from slope_science.reason_text import render_japanese

MESH = 52354500
CELL = cell_at_mesh(str(MESH))
AT_S = round(AT.timestamp())
CRITERIA = Criteria(150.0, 110.0, 260.0, assumed=False)
HOURS = 30

Rain = Callable[[int], float]
"""Depth in mm of an hour, by its number."""


def storm(hour: int) -> float:
    """Rain of 30 hours: dry, 20 mm/h, dry."""
    return 20.0 if 10 <= hour < 16 else 0.0


@pytest.fixture
def analysed(tmp_path: Path) -> Callable[..., TableAnalyses]:
    """Function that imports hourly rain, and an index at each hour's end."""

    def make(rain: Rain | None, index: Rain | None = None) -> TableAnalyses:
        for number in range(1, HOURS + 1):
            at = AT + timedelta(hours=number)
            for product, value, form in (
                (Product.RAIN, rain, rain_file),
                (Product.SOIL_WATER, index, index_file),
            ):
                if value is not None and not np.isnan(value(number - 1)):
                    mm = np.full((60, 90), value(number - 1))
                    file = form(mm, at).but(north=35.5, west=135.0)
                    file.write(tmp_path / product.value / f"{number:03d}.bin")
        folders = {p: tmp_path / p.value for p in Product}
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        tables, now_s = tmp_path / "tables", AT_S + 9e6
        loader = AnalysisImporter(tables, KeepSection(), np.array([MESH]), now_s, True)  # noqa: FBT003
        list(loader.import_folders(folders))
        reader = AnalysisReader(tables)
        return reader.of_cell([str(MESH)], reader.newest_version() or 0)

    return make


def gauge(rain: Rain, hours: int = HOURS, node: str = "n1") -> list[Observation]:
    """Reports each ten minutes of a gauge with a counter."""
    total, found = 0.0, []
    for step in range(hours * 6 + 1):
        depth_mm = rain((step - 1) // 6) / 6 if step else 0.0
        total, at_s = total + depth_mm, AT_S + 600 * step
        found.append(
            Observation(
                at_s, node, "rain", "mm", depth_mm, sum=total, seq=step,
                received_us=(at_s + 2) * 1_000_000,
            )
        )  # fmt: skip
    return found


def scored(
    readings: Sequence[Observation], analyses: TableAnalyses | None
) -> tuple[dict[int, LevelRow], list[Observation]]:
    """Rows by hour, and the readings with a new flag."""
    rules = CellRules(CRITERIA, look_ahead=False, analyses=analyses)
    scores = score_cell(readings, rules)
    hourly = {(row.end_s - AT_S) // 3600: row for row in scores.rows}
    return hourly, scores.reflagged


def codes(flagged: Sequence[Observation]) -> set[ReasonCode]:
    """Codes of the flags of a list of readings."""
    return {reason.code for o in flagged for reason in o.reasons}


def test_analysed_index_gives_the_level(analysed: Callable[..., TableAnalyses]) -> None:
    """With the index, its criterion, the source and the time; the gauge is dry."""
    cell = analysed(lambda _: 0.0, lambda hour: 80.0 + 8 * hour)
    rows, _ = scored(gauge(lambda _: 0.0), cell)

    assert [rows[hour].level for hour in (3, 5, 10, 21, 24)] == [1, 2, 3, 3, 5]
    (reason,) = [r for r in rows[10].reasons if r.code is ReasonCode.GRID_SOIL_WATER]
    assert rows[10].sentences[0] == (
        "analysed by JMA for 2026-07-01 11:00 UTC: "
        "soil water index 152.0 mm >= warning criterion 150.0 mm"
    )
    assert render_japanese(reason) == (
        "JMA の解析（2026-07-01 11:00 UTC）では：土壌雨量指数 152.0 mm が警報基準 "
        "150.0 mm 以上"
    )


def test_analysed_rain_moves_the_critical_line(
    analysed: Callable[..., TableAnalyses],
) -> None:
    """The gauge's own index, with an hour of rain that the gauge did not have."""
    dry = analysed(None, lambda _: 160.0)
    wet = analysed(lambda hour: 90.0 if hour == 20 else 0.0)

    assert scored(gauge(lambda _: 0.0), dry)[0][20].level == 3
    rows, _ = scored(gauge(lambda _: 0.0), wet)
    assert (rows[20].level, rows[21].level, rows[23].level) == (3, 4, 3)


def test_old_analysis_is_not_used(analysed: Callable[..., TableAnalyses]) -> None:
    """After an hour without a newer one."""
    cell = analysed(None, lambda hour: 300.0 if hour < 10 else float("nan"))
    rows, _ = scored(gauge(lambda _: 0.0), cell)

    assert (rows[10].level, rows[11].level, rows[13].level) == (5, 5, 1)


FAULTS = {
    "inches": (lambda mm: mm / 25.4, ReasonCode.GRID_DEFICIT),
    "a tenth": (lambda mm: mm / 10, ReasonCode.GRID_DEFICIT),
    "tenfold": (lambda mm: mm * 10, ReasonCode.GRID_EXCESS),
    "mm as inches": (lambda mm: mm * 25.4, ReasonCode.GRID_EXCESS),
    "clogged": (lambda _: 0.0, ReasonCode.GRID_DEFICIT),
    "half open": (lambda mm: mm / 4, ReasonCode.GRID_DEFICIT),
    "tips fourfold": (lambda mm: mm * 4, ReasonCode.GRID_EXCESS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_gauge_is_suspect(
    analysed: Callable[..., TableAnalyses], fault: str
) -> None:
    """Against the analysed rain, with factor and time; strong ones within an hour."""
    wrong, code = FAULTS[fault]
    _, flagged = scored(gauge(lambda hour: wrong(storm(hour))), analysed(storm))
    found = [o for o in flagged if code in {r.code for r in o.reasons}]

    assert found
    assert {o.flag for o in found} == {Flag.SUSPECT}
    first_h = (found[0].at_s - AT_S) / 3600
    strong = fault not in {"half open", "tips fourfold"}
    assert 10 < first_h <= 11 if strong else first_h <= 16
    (reason,) = [r for r in found[0].reasons if r.code is code]
    assert 3 <= dict(reason.params)["factor"] if hasattr(reason, "params") else True


@pytest.mark.parametrize("factor", [0.4, 0.7, 1.0, 1.6, 2.5])
def test_good_gauge_is_not_suspect(
    analysed: Callable[..., TableAnalyses], factor: float
) -> None:
    """Showers differ between a point and its square kilometre."""
    _, flagged = scored(gauge(lambda hour: factor * storm(hour)), analysed(storm))

    assert not codes(flagged) & {ReasonCode.GRID_EXCESS, ReasonCode.GRID_DEFICIT}


def test_unknown_hours_flag_nothing(analysed: Callable[..., TableAnalyses]) -> None:
    """Of the gauge, which was off, or of the analysis."""
    off = [o for o in gauge(storm) if not 10 <= (o.at_s - AT_S) / 3600 < 16]
    _, flagged = scored(off, analysed(storm))
    assert ReasonCode.GRID_DEFICIT not in codes(flagged)

    _, flagged = scored(gauge(storm), analysed(lambda _: float("nan")))
    assert not flagged or ReasonCode.GRID_EXCESS not in codes(flagged)


def test_flags_do_not_depend_on_the_order_of_passes(
    analysed: Callable[..., TableAnalyses],
) -> None:
    """Scored hour by hour, the flags are those of one pass at the end."""
    cell, readings = analysed(storm), gauge(lambda hour: storm(hour) / 10)
    rules = CellRules(CRITERIA, look_ahead=False, analyses=cell)
    once = {o.at_s: o.flag for o in score_cell(readings, rules).reflagged}
    kept: list[Observation] = []
    for hour in range(HOURS):
        news = readings[hour * 6 + (hour > 0) : hour * 6 + 7]
        changed = score_cell([*kept, *news], rules, news[0].at_s).reflagged
        new_flags = {o.at_s: o for o in changed}
        kept = [new_flags.get(o.at_s, o) for o in [*kept, *news]]

    suspects = {at_s for at_s, flag in once.items() if flag == Flag.SUSPECT}
    assert suspects
    assert {o.at_s for o in kept if o.flag == Flag.SUSPECT} == suspects
