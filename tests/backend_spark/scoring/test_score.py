"""Scoring of a cell, without Spark."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scored_levels import score_levels

from backend_spark.scoring.arrow import HotScorer, ScoreCollector, Scorer
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rain import SubstituteRain
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.saved_states import decode_head
from backend_spark.scoring.score import LevelRow, score_cell
from backend_spark.tables.reader import HISTORY_SCHEMA, ROW_LOCATION
from slope_science.levels import Criteria
from slope_science.official_rain import (
    ForecastInterval,
    ForecastIssue,
    select_forecast,
)
from slope_science.rain_and_soil_water import (
    SnakePoint,
    critical_line_margin_mm,
    soil_water_series,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

T0 = 1_700_000_400  # a full ten minutes
STEP = 600
CRITERIA = Criteria.assumed_from(150.0)


def rain(depths_mm: list[float], node: str = "n1", first: int = 1) -> list[Observation]:
    """A gauge that reports the rain of every step, after a first dry reading."""
    total, readings = 0.0, [Observation(T0, node, "rain", "mm", 0.0, None, 0.0, 1)]
    for number, depth in enumerate(depths_mm, start=first):
        total += depth
        at_s = T0 + number * STEP
        readings.append(Observation(at_s, node, "rain", "mm", depth, None, total, 1))
    return readings


def tilt(degrees: list[float], every_s: int = STEP) -> list[Observation]:
    """A tilt meter that tilts along x only."""
    return [
        Observation(T0 + n * every_s, "n1", f"tilt/{axis}", "deg", value)
        for n, x in enumerate(degrees)
        for axis, value in (("x", x), ("y", 0.0))
    ]


def wire(number: int, is_cut: bool) -> Observation:
    """A trip wire's report in a step."""
    text = str(is_cut).lower()
    return Observation(T0 + number * STEP, "n1", "wire", None, float(is_cut), text)


def by_step(rows: list[LevelRow]) -> dict[int, LevelRow]:
    """Rows by the number of their step from `T0`."""
    return {(row.end_s - T0) // STEP: row for row in rows}


def test_no_readings_give_no_rows() -> None:
    """A cell without readings has no rows."""
    assert score_levels([], CRITERIA) == []


def test_each_step_has_a_row_with_the_soil_water_index() -> None:
    """For steady rain in 10-minute steps it equals `soil_water_series`."""
    depths = [5.0] * 30
    rows = score_levels(rain(depths), CRITERIA)
    expected = list(soil_water_series([0.0, *depths]))

    assert [row.end_s for row in rows] == [T0 + n * STEP for n in range(31)]
    assert [row.rain.tanks for row in rows] == pytest.approx(expected)
    assert rows[30].rain.r60_mm == pytest.approx(30.0)
    assert not rows[30].rain.is_lower_bound


def test_level_rises_with_the_soil_water_index() -> None:
    """Through all levels, with number and criterion in the reason."""
    rows = score_levels(rain([5.0] * 120), CRITERIA)
    levels = [row.level for row in rows]

    assert levels == sorted(levels, key=lambda level: level or 0)
    assert set(levels) == {1, 2, 3, 4, 5}
    assert "special-warning criterion 277.1 mm (assumed" in rows[-1].sentences[0]


def test_gap_drains_the_tanks_and_sets_the_lower_bound() -> None:
    """Rain in a gap is unknown, not zero; the mark stays when data return."""
    wet = rain([10.0] * 6)
    after = rain([0.0] * 3, first=20)[1:]
    after = [replace(o, sum=60.0 + (o.sum or 0)) for o in after]
    rows = by_step(score_levels(wet + after, CRITERIA))

    assert [rows[n].rain.is_known for n in (6, 7, 19, 20)] == [True, False, False, True]
    assert [rows[n].rain.is_lower_bound for n in (6, 7, 22)] == [False, True, True]
    assert rows[7].rain.tanks is not None
    assert rows[6].rain.tanks is not None
    assert rows[7].rain.tanks.index_mm < rows[6].rain.tanks.index_mm
    assert rows[19].rain.r60_mm is None
    assert "lower bound" in rows[22].sentences[-1]


def test_no_level_after_a_day_without_rain_data() -> None:
    """After more than 24 hours; the row has the reason."""
    readings = [*rain([1.0]), wire(200, is_cut=False)]
    rows = by_step(score_levels(readings, CRITERIA))

    assert rows[145].level == 1
    assert rows[146].level is None
    assert rows[200].sentences == ("no judgement of rain: no rain data for 33 h",)


def test_cell_without_a_gauge_gets_a_level_from_a_cut_wire_only() -> None:
    """An intact wire gives no level; a cut one gives level 5."""
    rows = by_step(
        score_levels([wire(0, is_cut=False), wire(3, is_cut=True)], CRITERIA)
    )

    assert rows[2].level is None
    assert rows[2].rain.tanks is None
    assert rows[3].level == 5
    assert rows[3].sentences[0].startswith("n1 wire is cut")


def test_rain_from_elsewhere_gives_no_level_to_a_cell_without_a_gauge() -> None:
    """That rain is added to no index: level 1 would claim calm in a storm."""
    reason = Reason(ReasonCode.RAIN_FROM_GAUGE, node="n2", km=1.0)
    rules = CellRules(CRITERIA, substitutes=[lambda _: SubstituteRain(9.0, reason)])
    intact = [wire(number, is_cut=False) for number in range(60)]
    rows = score_cell([*intact, wire(60, is_cut=True)], rules).rows

    assert {(row.level, row.state) for row in rows[:-1]} == {(None, "unknown")}
    assert rows[0].sentences == ("no judgement of rain: no rain data yet",)
    assert (rows[-1].level, rows[-1].state) == (5, "judged")


def test_cut_wire_keeps_the_level_until_repaired() -> None:
    """The last report of the wire counts; the level is held for half an hour."""
    reports = [wire(1, is_cut=True), wire(5, is_cut=False)]
    rows = by_step(score_levels([*rain([0.0] * 9), *reports], CRITERIA))

    assert [rows[n].level for n in range(10)] == [1, *[5] * 7, 1, 1]


@pytest.mark.parametrize(("deg_per_h", "level"), [(0.005, 1), (0.03, 2), (0.3, 4)])
def test_tilt_rate_sets_the_level(deg_per_h: float, level: int) -> None:
    """Level 4 from 0.1 degrees per hour, over one hour, at once and unconfirmed.

    Level 3, from 0.01, is level 2 while the warmth of the day may be the cause.
    """
    tilting = tilt([deg_per_h * n / 6 for n in range(7)])
    rows = score_levels([*rain([0.0] * 6), *tilting], CRITERIA)

    assert rows[-1].tilt_rate_deg_per_h == pytest.approx(deg_per_h)
    assert rows[-1].level == level


def test_tilt_needs_four_readings_in_the_hour() -> None:
    """Three readings give no rate."""
    rows = by_step(
        score_levels([*rain([0.0] * 6), *tilt([0.0, 1.0, 2.0, 3.0])], CRITERIA)
    )

    assert rows[2].tilt_rate_deg_per_h is None
    assert rows[3].tilt_rate_deg_per_h == pytest.approx(6.0)


def test_only_rows_that_a_new_reading_can_change_are_returned() -> None:
    """Two hours: flags change back for one hour, and rain is spread over another.

    The state of the step before is that at its last report until the next one.
    """
    observations = rain([1.0] * 20)
    everything = score_levels(observations, CRITERIA)
    rewritten = score_levels(observations, CRITERIA, touched_s=T0 + 20 * STEP)

    assert rewritten == everything[7:]


def test_steps_of_a_gap_get_rows_when_data_return() -> None:
    """The steps between the last reading and the new one are included."""
    observations = [*rain([1.0] * 3), wire(30, is_cut=False)]
    rows = by_step(score_levels(observations, CRITERIA, touched_s=T0 + 30 * STEP))

    assert set(range(4, 31)) <= set(rows)


def test_rows_have_node_count_and_last_receipt() -> None:
    """A row has the number of nodes with readings in its step."""
    other = [replace(o, received_us=9) for o in rain([1.0], node="n2")]
    rows = by_step(score_levels([*rain([1.0, 1.0]), *other], CRITERIA))

    assert [(rows[n].n_nodes, rows[n].latest_received_us) for n in (1, 2)] == [
        (2, 9),
        (1, 1),
    ]


def history(cells: dict[str, list[Observation]]) -> pa.Table:
    """Silver rows of cells."""
    rows = [
        {
            "cell": cell,
            "at": round(o.at_s * 1e6),
            "received_at": round(o.at_s * 1e6),
            **{name: getattr(o, name) for name in ("node", "name", "unit", "value")},
            **{name: getattr(o, name) for name in ("sum", "boot", "seq")},
            "synchronised": True,
            "file": "silver",
            "row": number,
        }
        for cell, readings in cells.items()
        for number, o in enumerate(readings)
    ]
    schema = pa.schema([*HISTORY_SCHEMA, *ROW_LOCATION])
    return pa.Table.from_pylist(rows, schema=schema)


def fail(_end_s: int) -> SubstituteRain | None:
    """A rule that cannot judge a step with unknown rain."""
    raise ValueError


def score_two(rules: dict[str, CellRules]) -> ScoreCollector:
    """Score two cells with the same gap in their rain."""
    readings = [replace(o, boot="b" if o.at_s > T0 else "a") for o in rain([1.0] * 30)]
    gap = [readings[0], *readings[20:]]
    found = ScoreCollector()
    scorer = Scorer(rules, 10**9, {}, makes_hot=True)
    scorer.collect(history(dict.fromkeys("ab", gap)), found)
    return found


def cells_of(found: ScoreCollector) -> set[str]:
    """Cells with rows of levels."""
    return {row["cell"] for row in found.tables()["levels"].to_pylist()}


GOOD_RULES, FAILING_RULES = CellRules(CRITERIA), CellRules(CRITERIA, substitutes=[fail])


def test_cell_that_cannot_be_scored_stops_no_other() -> None:
    """It has no new row and no hot state."""
    found = score_two({"a": FAILING_RULES, "b": GOOD_RULES})

    assert cells_of(found) == {"b"}
    assert found.hot["a"] is None


def score_two_hot(rules: dict[str, CellRules], found: ScoreCollector) -> list[str]:
    """Score two cells from hot states; returns those that it leaves."""
    hot = score_two(dict.fromkeys("ab", GOOD_RULES)).hot
    bodies = {cell: body or b"" for cell, body in hot.items()}
    heads = {cell: decode_head(body) for cell, body in bodies.items()}
    new = wire(40, is_cut=False)
    touched_us = dict.fromkeys("ab", round(new.at_s * 1e6))
    scorer = HotScorer(rules, touched_us, bodies, heads, {})
    return scorer.collect(history({cell: [new] for cell in "ab"}), found)


def test_cell_that_fails_from_its_hot_state_is_scored_from_a_saved_one() -> None:
    """Other cells are scored from theirs."""
    found = ScoreCollector()
    rest = score_two_hot({"a": FAILING_RULES, "b": GOOD_RULES}, found)

    assert rest == ["a"]
    assert cells_of(found) == {"b"}


@pytest.mark.parametrize("error", [pa.ArrowInvalid, pa.ArrowKeyError])
def test_damaged_table_fails_the_pass(error: type[Exception]) -> None:
    """It is read for every cell, and the pass would end without a level."""

    def read(_end_s: int) -> SubstituteRain | None:
        raise error("corrupt page")

    rules = dict.fromkeys("ab", CellRules(CRITERIA, substitutes=[read]))
    with pytest.raises(error):
        score_two(rules)
    with pytest.raises(error):
        score_two_hot(rules, ScoreCollector())


STORMS = {"constant": (60.0, 0.0), "rising": (10.0, 20.0), "falling": (70.0, -20.0)}
"""Rate at the begin in mm/h, and its change in an hour."""


def fallen_mm(storm: str, at_s: float) -> float:
    """Rain of a storm up to a moment."""
    (rate, more), hours = STORMS[storm], max(0.0, at_s - T0) / 3600
    return rate * hours + more * hours**2 / 2


def storm_reports(storm: str, phase_s: float, every_s: int) -> list[Observation]:
    """Counter of a gauge that reports at any time of a step, for 2.6 hours."""
    times = [T0 + phase_s + n * every_s for n in range(round(2.6 * 3600 / every_s))]
    return [
        Observation(at_s, "n1", "rain", "mm", sum=fallen_mm(storm, at_s))
        for at_s in times
    ]


@pytest.mark.parametrize("storm", STORMS)
@pytest.mark.parametrize("every_s", [60, 300, 600])
@pytest.mark.parametrize("phase_s", [0, 5, 59, 150, 299, 301, 450, 599])
def test_newest_row_is_that_of_the_last_report(
    storm: str, every_s: int, phase_s: float
) -> None:
    """Not of a step of which only a part has been reported.

    It is not lower than the row before, nor higher than that of the whole step by more
    than the rain of an hour before in the part that is not over.
    """
    reports = storm_reports(storm, phase_s, every_s)
    whole = {row.end_s: row.rain for row in score_levels(reports, CRITERIA)}
    late = [n for n, o in enumerate(reports) if 2.1 < (o.at_s - T0) / 3600 < 2.4]
    for last in late:
        at_s = reports[last].at_s
        *_, before, row = score_levels(reports[: last + 1], CRITERIA, at_s)
        rain, complete = row.rain, whole[row.end_s]
        assert rain.tanks
        assert before.rain.tanks
        assert complete.tanks
        assert rain.r60_mm is not None
        hour_mm = fallen_mm(storm, at_s) - fallen_mm(storm, at_s - 3600)
        assert rain.r60_mm == pytest.approx(hour_mm, abs=0.5)
        rest_s = row.end_s - at_s
        replaced_mm = STORMS["falling"][0] / 3600 * rest_s
        assert rain.r60_mm <= (complete.r60_mm or 0.0) + replaced_mm + 1e-6
        assert before.rain.tanks.index_mm <= rain.tanks.index_mm + 1e-6
        assert rain.tanks.index_mm <= complete.tanks.index_mm + 1e-6
        if storm != "falling":
            assert (row.level or 0) >= (before.level or 0)
        point = SnakePoint(rain.r60_mm, rain.tanks.index_mm)
        margin_mm = critical_line_margin_mm(point, CRITERIA)
        assert row.more["margin_mm"] == pytest.approx(margin_mm)


def newest_rows(
    observations: list[Observation], rules: CellRules = GOOD_RULES
) -> list[LevelRow]:
    """The newest row after each reading of the second and third hour."""
    known = sorted(observations, key=lambda o: o.at_s)
    passes = [n for n, o in enumerate(known) if o.at_s > T0 + 5400]
    return [score_cell(known[: n + 1], rules).rows[-1] for n in passes]


def test_newest_row_does_not_depend_on_other_sensors() -> None:
    """A dry gauge and a wire that report earlier in the step than the wet gauge."""
    wet = storm_reports("constant", 300, 600)
    dry = [replace(o, node="n2", at_s=o.at_s - 240, sum=0.0) for o in wet]
    wires = [
        replace(wire(n, is_cut=False), at_s=T0 + n * STEP + 120) for n in range(15)
    ]
    for others in (dry, wires, [*dry, *wires]):
        rows = newest_rows([*wet, *others])
        hours_mm = [row.rain.r60_mm for row in rows]
        assert hours_mm == pytest.approx([60.0] * len(rows), abs=1e-6)
        levels = [row.level or 0 for row in rows]
        assert levels == sorted(levels)
        assert set(levels) == {1, 2}
        assert not any(row.rain.is_lower_bound for row in rows)


def test_rain_that_is_not_reported_yet_is_not_missing() -> None:
    """Nothing takes its place; a step later the gauge is silent."""
    reason = Reason(ReasonCode.RAIN_FROM_GAUGE, node="n2", km=1.0)
    rules = CellRules(CRITERIA, substitutes=[lambda _: SubstituteRain(90.0, reason)])
    known = storm_reports("constant", 0, 600)[:12]
    last = newest_rows(known, rules)[-1]
    soon = newest_rows([*known, wire(12, is_cut=False)], rules)[-1]
    later = newest_rows([*known, wire(13, is_cut=False)], rules)[-1]

    assert soon.end_s == last.end_s + STEP
    assert (soon.rain.r60_mm, soon.rain.is_known) == (last.rain.r60_mm, False)
    assert soon.level == last.level
    assert not any("n2" in sentence for sentence in soon.sentences)
    assert any("n2" in sentence for sentence in later.sentences)


def test_forecast_begins_at_the_last_report() -> None:
    """Rain between it and the end of its step is neither observed nor left out."""
    known = storm_reports("constant", 60, 600)
    last_s = known[-1].at_s
    cloudburst = ForecastInterval(last_s, last_s + 540, 54.0)
    dry = ForecastInterval(last_s + 540, last_s + 3 * 3600, 0.0)
    issue = ForecastIssue("JMA", last_s - 60, last_s - 60, [cloudburst, dry])
    rules = CellRules(CRITERIA, forecast=lambda at_s: select_forecast([issue], at_s))
    row = newest_rows(known, rules)[-1]

    assert row.more["forecast_mm"] == pytest.approx((54.0, *[0.0] * 11))
    assert row.more["margin_forecast_mm"] < row.more["margin_dry_mm"]


depths = st.lists(st.floats(0, 50), min_size=1, max_size=40)


@settings(max_examples=60)
@given(depths, st.data())
def test_more_rain_never_lowers_a_level(wet: list[float], data: st.DataObject) -> None:
    """Soil water index and level are monotone in rain and never negative."""
    more = [depth + data.draw(st.floats(0, 20)) for depth in wet]
    for less_row, more_row in zip(
        score_levels(rain(wet), CRITERIA),
        score_levels(rain(more), CRITERIA),
        strict=True,
    ):
        assert less_row.rain.tanks is not None
        assert more_row.rain.tanks is not None
        low_mm, high_mm = less_row.rain.tanks.index_mm, more_row.rain.tanks.index_mm
        assert 0 <= low_mm <= high_mm + 1e-9
        assert (less_row.level or 0) <= (more_row.level or 0)


@settings(max_examples=60)
@given(st.floats(0, 20), st.integers(2, 10), st.integers(1, 15))
def test_lost_readings_never_count_as_zero_rain(
    depth_mm: float, before: int, lost: int
) -> None:
    """A gap of up to an hour is filled from the sum, a longer one only if it rained."""
    readings = rain([depth_mm] * (before + lost + 3))
    kept = readings[: before + 1] + readings[before + 1 + lost :]
    rows = by_step(score_levels(kept, CRITERIA))
    silent = [rows[n].rain for n in range(before + 1, before + lost + 1)]
    is_filled = (lost + 1) * STEP <= 3600 or depth_mm > 0

    assert all(state.is_known == is_filled for state in silent)
    assert rows[before + lost + 3].rain.is_lower_bound != is_filled
    if is_filled:
        assert rows[before + lost].rain.r60_mm == pytest.approx(
            depth_mm * min(6, before + lost)
        )
