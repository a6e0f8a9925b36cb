"""Levels and quality flags of a cell with JMA's analyses beside its gauge."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import cell_days
import numpy as np
import pytest
from jma_grib import AT, index_file, rain_file
from msgspec.structs import replace

from backend_spark.analysed_rain import (
    AnalysisImporter,
    AnalysisReader,
    ImportedAnalysis,
    TableAnalyses,
)
from backend_spark.config import KeepSection
from backend_spark.grib_files import Product
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import LevelRow, score_cell
from backend_spark.scoring.surrounding_rain import (
    GaugeReports,
    NearbyGauge,
    NearbyRain,
    Span,
)
from slope_science.levels import Criteria
from slope_science.quality import Flag
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import render_english, render_japanese

MESH = 52354500
AT_S = round(AT.timestamp())
CRITERIA = Criteria(150.0, 110.0, 260.0, assumed=False)
HOURS = 30

BESIDE = {ReasonCode.GRID_EXCESS, ReasonCode.GRID_DEFICIT}

Rain = Callable[[int], float]
"""Depth in mm of an hour, by its number."""


def storm(hour: int) -> float:
    """Rain of 30 hours: dry, 20 mm/h, dry."""
    return 20.0 if 10 <= hour < 16 else 0.0


def load(folder: Path, rain: Rain | None, index: Rain | None = None) -> TableAnalyses:
    """Import hourly rain, and an index at each hour's end; nan is no file."""
    for number in range(1, HOURS + 1):
        at = AT + timedelta(hours=number)
        for product, value, form in (
            (Product.RAIN, rain, rain_file),
            (Product.SOIL_WATER, index, index_file),
        ):
            if value is not None and not np.isnan(value(number - 1)):
                mm = np.full((60, 90), value(number - 1))
                file = form(mm, at).but(north=35.5, west=135.0)
                file.write(folder / product.value / f"{number:03d}.bin")
    folders = {p: folder / p.value for p in Product if (folder / p.value).exists()}
    loader = AnalysisImporter(
        folder / "tables", KeepSection(), np.array([MESH]), AT_S + 9e6, as_issued=True
    )
    assert all(isinstance(d, ImportedAnalysis) for d in loader.import_folders(folders))
    reader = AnalysisReader(folder / "tables")
    return reader.of_cell([str(MESH)], reader.newest_version() or 0)


@pytest.fixture(scope="module")
def stormy(tmp_path_factory: pytest.TempPathFactory) -> TableAnalyses:
    """Analysed rain of the storm."""
    folder = tmp_path_factory.mktemp("storm")
    return load(folder, lambda hour: storm(hour) if 1 < hour < 19 else float("nan"))


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


def codes(flagged: Sequence[Observation]) -> set[str]:
    """Codes of the flags of a list of readings."""
    return {reason.code for o in flagged for reason in o.reasons}


def test_analysed_index_gives_the_level(tmp_path: Path) -> None:
    """With the index, its criterion, the source and the time; the gauge is dry."""
    index = {2: 96.0, 4: 112.0, 9: 152.0, 20: 240.0, 23: 264.0}
    cell = load(tmp_path, None, lambda hour: index.get(hour, float("nan")))
    rows, _ = scored(gauge(lambda _: 0.0), cell)

    assert [rows[hour].level for hour in (3, 5, 10, 21, 24)] == [1, 2, 3, 4, 5]
    (reason,) = [r for r in rows[10].reasons if r.code is ReasonCode.GRID_SOIL_WATER]
    assert rows[10].sentences[0] == (
        "analysed by JMA for 2026-07-01 11:00 UTC: "
        "soil water index 152.0 mm >= warning criterion 150.0 mm"
    )
    assert render_japanese(reason) == (
        "JMA の解析（2026-07-01 20:00）では：土壌雨量指数 152.0 mm が警報基準 "
        "150.0 mm 以上"
    )


def at_hour_20(mm: float) -> Rain:
    """A depth in the hour with number 20 only; no file of other hours."""
    return lambda hour: mm if hour == 20 else float("nan")


def test_analysed_rain_moves_the_critical_line(tmp_path: Path) -> None:
    """An index of level 3, and an hour of rain that the gauge did not have."""
    cell = load(tmp_path, at_hour_20(90.0), at_hour_20(160.0))
    rows, _ = scored(gauge(lambda _: 0.0), cell)

    assert [rows[hour].level for hour in (19, 21)] == [1, 4]


def test_analysed_rain_counts_with_the_index_of_the_gauge(tmp_path: Path) -> None:
    """Without an analysed index."""
    cell, readings = load(tmp_path, at_hour_20(90.0)), gauge(lambda _: 12.0)
    without, _ = scored(readings, None)
    rows, _ = scored(readings, cell)

    assert [without[hour].level for hour in (19, 21)] == [3, 3]
    assert [rows[hour].level for hour in (19, 21)] == [3, 4]


@pytest.mark.parametrize(("index_mm", "level"), [(float("nan"), None), (50.0, 1)])
def test_cell_without_a_gauge_is_judged_by_an_analysed_index_only(
    tmp_path: Path, index_mm: float, level: int | None
) -> None:
    """Analysed rain alone says nothing of the water in the soil."""
    cell = load(tmp_path, lambda _: 3.0, lambda _: index_mm)
    soil = [
        replace(o, name="soil", unit="/", value=0.3, sum=None)
        for o in gauge(lambda _: 0.0)
    ]
    rows, _ = scored(soil, cell)

    assert {rows[hour].level for hour in range(2, HOURS)} == {level}
    assert rows[HOURS - 1].state == ("judged" if level else "unknown")


@pytest.mark.parametrize("feed", ["index", "rain"])
def test_doubtful_rain_is_not_taken_for_analysed(tmp_path: Path, feed: str) -> None:
    """One feed only; a false report of 200 mm takes the place of the other."""
    feeds: dict[str, Rain] = {"index": lambda _: 145.0, "rain": at_hour_20(90.0)}
    false = [
        replace(o, sum=(o.sum or 0.0) + 200.0, value=200.0 * (o.seq == 124))
        if o.seq >= 124
        else o
        for o in gauge(lambda _: 0.0)
    ]
    feed_only = {name: feeds[name] if name == feed else None for name in feeds}
    cell = load(tmp_path, feed_only["rain"], feed_only["index"])
    rows, _ = scored(false, cell)

    assert max(row.level or 0 for row in rows.values()) == 3


def test_last_analysis_is_held_when_the_feed_ends(tmp_path: Path) -> None:
    """Unknown does not lower the level; after six hours the hold ends."""
    cell = load(tmp_path, None, lambda hour: 300.0 if hour < 10 else float("nan"))
    rows, _ = scored(gauge(lambda _: 0.0), cell)

    assert [rows[hour].level for hour in (10, 11, 15, 17)] == [5, 5, 5, 1]
    assert ReasonCode.HELD not in {r.code for r in rows[10].reasons}
    assert rows[11].reasons[0].code is ReasonCode.HELD


@pytest.mark.parametrize("ended", ["index", "rain"])
def test_end_of_one_feed_lowers_no_level_while_the_other_goes_on(
    tmp_path: Path, ended: str
) -> None:
    """The gauge in its place has a fifth of the rain, which is no doubt yet."""
    storm_mm = dict.fromkeys(range(9, 15), 90.0)
    feeds: dict[str, Rain] = {
        "index": lambda _: 160.0,
        "rain": lambda hour: storm_mm.get(hour, 0.0 if hour > 9 else float("nan")),
    }
    whole = feeds[ended]
    feeds[ended] = lambda hour: whole(hour) if hour < 10 else float("nan")
    cell = load(tmp_path, feeds["rain"], feeds["index"])
    rows, _ = scored(gauge(lambda hour: 18.5 * (hour in storm_mm)), cell)
    after = {"index": 1, "rain": 3}

    assert [rows[hour].level for hour in (10, 11, 15)] == [4, 4, 4]
    assert rows[17].level == after[ended]
    assert ReasonCode.HELD not in {r.code for r in rows[10].reasons}
    assert rows[12].reasons[0].code is ReasonCode.HELD


FAULTS: dict[str, tuple[Callable[[float], float], ReasonCode, str]] = {
    "inches": (lambda mm: mm / 25.4, ReasonCode.GRID_DEFICIT, "25.4 times"),
    "a tenth": (lambda mm: mm / 10, ReasonCode.GRID_DEFICIT, "10.0 times"),
    "tenfold": (lambda mm: mm * 10, ReasonCode.GRID_EXCESS, "10.0 times"),
    "mm as inches": (lambda mm: mm * 25.4, ReasonCode.GRID_EXCESS, "25.4 times"),
    "clogged": (lambda _: 0.0, ReasonCode.GRID_DEFICIT, "40.0 times"),
    "leaking": (lambda mm: mm / 4, ReasonCode.GRID_DEFICIT, "4.0 times"),
    "tips fourfold": (lambda mm: mm * 4, ReasonCode.GRID_EXCESS, "4.0 times"),
}
WITHIN_A_DAY = {"leaking", "tips fourfold"}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_gauge_is_suspect(stormy: TableAnalyses, fault: str) -> None:
    """Against the analysed rain, with factor and time; strong ones within an hour."""
    wrong, code, factor = FAULTS[fault]
    _, flagged = scored(gauge(lambda hour: wrong(storm(hour))), stormy)
    found = [o for o in flagged if code in {r.code for r in o.reasons}]

    assert {o.flag for o in found} == {Flag.SUSPECT}
    first_h = (found[0].at_s - AT_S) / 3600
    assert 10 < first_h <= (16 if fault in WITHIN_A_DAY else 11)
    (reason,) = [r for r in found[0].reasons if r.code is code]
    assert factor in render_english(reason)
    assert "of analysed rain up to 2026-07-01 1" in render_english(reason)


@pytest.mark.parametrize("factor", [0.4, 0.7, 1.0, 1.6, 2.5])
def test_good_gauge_is_not_suspect(stormy: TableAnalyses, factor: float) -> None:
    """Showers differ between a point and its square kilometre."""
    _, flagged = scored(gauge(lambda hour: factor * storm(hour)), stormy)

    assert not codes(flagged) & BESIDE


def test_gauge_below_the_analysis_leaves_its_rain_to_it(tmp_path: Path) -> None:
    """40 mm/h for 14 h: a dry gauge claims no calm, and JMA's rain takes its place."""
    cell = load(tmp_path, lambda hour: 40.0 if 4 <= hour < 18 else 0.0)
    rows, _ = scored(gauge(lambda _: 0.0), cell)
    truth, _ = scored(gauge(lambda hour: 40.0 if 4 <= hour < 18 else 0.0), None)

    assert not any(rows[hour].rain.is_known for hour in range(5, 18))
    assert [rows[hour].level for hour in (4, 9, 12, 18)] == [
        truth[hour].level for hour in (4, 9, 12, 18)
    ]
    assert truth[18].level == 5
    assert rows[18].state == "held"


@pytest.mark.parametrize("where", ["alone", "cell", "nearby"])
def test_rain_above_the_analysis_is_doubtful_unless_another_gauge_had_it(
    stormy: TableAnalyses, where: str
) -> None:
    """Ten times too much is level 3; where a radar fails, two gauges count in full."""
    readings = gauge(lambda hour: 10 * storm(hour) / 4)
    other = [replace(o, node="n2") for o in gauge(lambda hour: 7 * storm(hour) / 4)]
    readings = [replace(o, sum=None, value=2 * (o.value or 0.0)) for o in readings]
    other = [replace(o, sum=None, value=2 * (o.value or 0.0)) for o in other]
    near = GaugeReports(other)
    nearby = NearbyRain((NearbyGauge("n2", 2.0, near),) if where == "nearby" else ())
    rules = CellRules(CRITERIA, look_ahead=False, analyses=stormy)
    both = [*readings, *other] if where == "cell" else readings
    rows = score_cell(both, rules, nearby=nearby).rows

    assert max(row.level or 0 for row in rows) == (3 if where == "alone" else 5)


def test_hours_in_which_the_gauge_was_off_flag_nothing(stormy: TableAnalyses) -> None:
    """Its first report after them contains the rain of all."""
    off = [o for o in gauge(storm) if not 10 <= (o.at_s - AT_S) / 3600 < 16]
    _, flagged = scored(off, stormy)

    assert not codes(flagged) & BESIDE


def test_missing_analyses_flag_nothing(tmp_path: Path) -> None:
    """A file of missing values is no dry hour."""
    mm = np.full((60, 90), np.nan)
    rain_file(mm, AT + timedelta(hours=12)).but(north=35.5, west=135.0).write(
        tmp_path / "rain" / "nan.bin"
    )
    _, flagged = scored(gauge(storm), load(tmp_path, None))

    assert not codes(flagged) & BESIDE


def test_flags_do_not_depend_on_the_order_of_passes(stormy: TableAnalyses) -> None:
    """Scored hour by hour, the flags are those of one pass at the end."""
    readings = gauge(lambda hour: storm(hour) / 10)
    rules = CellRules(CRITERIA, look_ahead=False, analyses=stormy)
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


class LateAnalyses(TableAnalyses):
    """Analyses that each become known a quarter of an hour after their time."""

    def hours(self, from_s: float, to_s: float, known_s: float) -> Mapping[int, Span]:
        """Those that were known a quarter of an hour before."""
        return super().hours(from_s, to_s, known_s - 900)


def test_dry_hours_after_a_storm_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each late analysis would change a published level from judged to held."""
    monkeypatch.setitem(globals(), "HOURS", 42)
    cell = load(tmp_path, storm)
    late = LateAnalyses(cell.tables, cell.version, cell.meshes, cell.max_age_s)
    monkeypatch.setattr(cell_days, "RULES", CellRules(CRITERIA, analyses=late))
    store, states = cell_days.Store(), []
    for o in gauge(lambda hour: 0.3 * storm(hour), 42):
        store.add([o])
        newest = max(key for key in store.gold if not isinstance(key, tuple))
        states.append(store.gold[newest]["state"])

    after = states[16 * 6 :]
    assert list(pairwise(after)).count(("held", "judged")) == 1
    assert after[-1] == "judged"
    suspects = [o for o in store.silver.values() if o.flag == Flag.SUSPECT]
    assert {(o.at_s - AT_S - 1) // 3600 for o in suspects} == {11, 12, 13, 14, 15}
