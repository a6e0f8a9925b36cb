"""Columns of gold besides the level, and rows of single sensors."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from scored_levels import make_levels_table, make_sensors_table

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from backend_spark.tables.schemas import LEVELS, SENSORS
from slope_science.levels import NO_LINE, NOT_JUDGED_MM, Criteria
from slope_science.movement import fukuzono_displacement_mm
from slope_science.official_rain import ForecastRain
from slope_science.rain_and_soil_water import antecedent_index, effective_rain
from slope_science.reason_compat import parse_why

T0 = 1_700_006_400  # a full hour
STEP = 600
RULES = CellRules(Criteria.assumed_from(150.0))
DEFAULT_SPECIAL_MM = RULES.criteria.special_mm
DAY = 144


def gauge(depths: list[float], node: str = "n1") -> list[Observation]:
    """Reports of a rain gauge with its counter, one per step."""
    total, made = 0.0, []
    for n, depth in enumerate(depths):
        total += depth
        at_s = T0 + n * STEP
        made.append(Observation(at_s, node, "rain", "mm", depth, None, total, seq=n))
    return made


def series(name: str, unit: str, values: list[float]) -> list[Observation]:
    """Readings of one sensor, one per step."""
    return [
        Observation(T0 + n * STEP, "n1", name, unit, value, seq=n)
        for n, value in enumerate(values)
    ]


def columns(observations: list[Observation], rules: CellRules = RULES) -> list[dict]:
    """Rows of the table `levels`."""
    rows = score_cell(observations, rules).rows
    return make_levels_table("c", rows).to_pylist()  # type: ignore[no-any-return]


def test_effective_and_antecedent_rain_match_the_formulas() -> None:
    """Effective rain of both half-lives, and seven days weighted by age."""
    depths = [0.5 * (n % 7) for n in range(8 * DAY)]
    last = columns(gauge(depths))[-1]
    days = [sum(depths[len(depths) - DAY * (d + 1) :][:DAY]) for d in range(7)]

    assert last["effective_1h5_mm"] == pytest.approx(
        effective_rain(depths, 1 / 6, 1.5)[-1]
    )
    assert last["effective_72h_mm"] == pytest.approx(
        effective_rain(depths, 1 / 6, 72.0)[-1]
    )
    assert last["antecedent_mm_per_day"] == pytest.approx(antecedent_index(days))


def test_margins_of_futures_are_ordered_by_their_rain() -> None:
    """Without rain the margin grows; with the rain of the last hour it shrinks."""
    last = columns(gauge([6.0] * 20))[-1]

    assert last["margin_same_mm"] < last["margin_mm"] < last["margin_dry_mm"]
    assert last["level_dry"] <= last["level_same"]
    assert last["level_forecast"] is None
    assert last["margin_forecast_mm"] is None


def test_continued_rain_raises_the_level_only_if_enabled() -> None:
    """That is a forecast of ours: by default only an official one raises the level."""
    storm = gauge([8.0] * 12)
    observed = columns(storm)[-1]
    ahead = columns(storm, replace(RULES, same_rain=True))[-1]

    assert observed["level"] == 1
    assert ahead["level"] == observed["level_same"] == 3
    assert ahead["reasons"][0].startswith("in ")
    assert "if the rain of the last hour goes on" in ahead["reasons"][0]


@pytest.mark.parametrize("doubted", [0, 15])
def test_doubt_of_another_time_does_not_restrict_the_same_rain(doubted: int) -> None:
    """With two readings of the hour missing; the doubt is of 0.2 mm before or after."""
    rules, last = replace(RULES, same_rain=True), 14
    sure = gauge([0.2] * 6 + [12.0] * 9 + [0.2])
    for refused in (last - 3, last - 1):
        sure[refused] = structs.replace(sure[refused], node_flag=4)
    doubtful = list(sure)
    doubtful[doubted] = structs.replace(sure[doubted], node_flag=3)

    assert columns(sure, rules)[last]["level"] == 4
    assert columns(doubtful, rules)[last]["level"] == 4


STORM = ForecastRain("JMA", T0, (20.0,) * 12)


def test_forecast_gives_a_third_future() -> None:
    """Its margin, level, source and depths have columns."""
    rules = replace(RULES, forecast=lambda _: STORM)
    last = columns(gauge([2.0] * 12), rules)[-1]

    assert last["margin_forecast_mm"] < last["margin_same_mm"] < last["margin_mm"]
    assert last["level_forecast"] == 4 > last["level_same"]
    assert (last["level"], last["forecast_source"]) == (4, "JMA")
    observed = columns(gauge([2.0] * 12), replace(rules, look_ahead=False))[-1]
    assert (observed["level"], observed["level_forecast"]) == (1, 4)
    assert last["forecast_issued_at"].timestamp() == T0
    assert last["forecast_mm"] == [20.0] * 12
    assert not [text for text in last["assumed"] if "forecast" in text]


def test_look_ahead_uses_the_forecast_if_there_is_one() -> None:
    """Both a forecast storm and a forecast end of rain count."""
    ahead = replace(RULES, same_rain=True)
    dry = ForecastRain("JMA", T0, (0.0,) * 12)
    coming = columns(gauge([0.0] * 12), replace(ahead, forecast=lambda _: STORM))[-1]
    ending = columns(gauge([8.0] * 12), replace(ahead, forecast=lambda _: dry))[-1]

    assert coming["level"] == coming["level_forecast"] == 4
    assert "by JMA's forecast of 2023-11-15 00:00 UTC" in coming["reasons"][0]
    assert (ending["level"], ending["level_same"]) == (1, 3)


def test_unused_forecast_is_recorded_with_its_reason() -> None:
    """A stale forecast is replaced by the rain of the last hour."""
    stale = ForecastRain(
        "JMA", T0, None, parse_why("stale: issued 3.0 h before, 2 h at most")
    )
    rules = replace(RULES, same_rain=True, forecast=lambda _: stale)
    last = columns(gauge([8.0] * 12), rules)[-1]

    assert (last["margin_forecast_mm"], last["level_forecast"]) == (None, None)
    assert (
        last["forecast_why"] == stale.why == "stale: issued 3.0 h before, 2 h at most"
    )
    assert last["level"] == last["level_same"] == 3
    assert "rain to come: no official forecast is used" in last["assumed"]


def test_three_hours_ahead_reach_what_two_do_not() -> None:
    """The look-ahead of the prefecture; its hours are a column."""
    late = ForecastRain("JMA", T0, (0.0,) * 14 + (25.0,) * 4)
    three = replace(RULES.criteria, look_ahead_h=3)
    rows = [
        columns(gauge([2.0] * 12), replace(RULES, criteria=c, forecast=lambda _: late))
        for c in (RULES.criteria, three)
    ]
    two_h, three_h = (each[-1] for each in rows)

    assert (two_h["level"], two_h["look_ahead_h"]) == (1, 2)
    assert (three_h["level"], three_h["look_ahead_h"]) == (2, 3)
    assert three_h["reasons"][0].startswith("in 180 min, by JMA's forecast of ")


def test_level_that_the_prefecture_does_not_judge() -> None:
    """LEVEL2=999: level 2 at most, and reasons and assumptions name the others."""
    only_2 = Criteria(NOT_JUDGED_MM, 60.0, NOT_JUDGED_MM, assumed=False, line=NO_LINE)
    rules = replace(RULES, criteria=only_2, forecast=lambda _: STORM, same_rain=True)
    rows = columns(gauge([3.0] * 12 + [25.0] * 12), rules)
    note = "rain: the prefecture does not judge level 3, 4, 5 here"

    assert [rows[0]["level"], rows[-1]["level"], rows[-1]["level_forecast"]] == [
        2,
        2,
        2,
    ]
    assert rows[-1]["swi_mm"] > DEFAULT_SPECIAL_MM
    assert note in rows[-1]["reasons"]
    assert all(note in row["assumed"] for row in rows)
    assert {row["margin_mm"] for row in rows} == {None}


def test_rain_that_is_not_judged_gives_no_level() -> None:
    """Level 1 would read as calm; movement still gives its level."""
    none = Criteria(*[NOT_JUDGED_MM] * 3, assumed=False, line=NO_LINE)
    last = columns(gauge([4.0] * 60), replace(RULES, criteria=none))[-1]

    assert last["level"] is None
    assert last["reasons"] == [
        "rain: the prefecture does not judge level 2, 3, 4, 5 here"
    ]


def test_unknown_rain_gives_no_future_of_the_same_rain() -> None:
    """After an hour without data the rain of the last hour is unknown."""
    wire = Observation(T0 + 30 * STEP, "n1", "wire", None, 0.0, "false")
    last = columns([*gauge([3.0] * 10), wire])[-1]

    assert last["margin_same_mm"] is None
    assert last["margin_dry_mm"] is not None


def test_completeness_is_the_share_of_a_day_with_known_rain() -> None:
    """Missing rain lowers it, and so does time before the first data."""
    whole = columns(gauge([0.0] * (DAY + 1)))
    kept = [o for o in gauge([0.0] * (2 * DAY)) if not 100 <= o.seq < 172]
    gap = columns(kept)[-1]

    assert whole[0]["completeness"] == pytest.approx(1 / DAY)
    assert whole[-1]["completeness"] == pytest.approx(1.0)
    assert gap["completeness"] == pytest.approx(1 - 28 / DAY)
    assert gap["n_nodes_day"] == 1


def test_assumptions_are_listed() -> None:
    """Criteria, critical line and dry soil at the beginning, each until known."""
    assumed = columns(gauge([0.0] * DAY))[-1]["assumed"]
    line = ((0.0, 220.0), (100.0, 150.0))
    table = Criteria(150.0, 110.0, 275.0, assumed=False, line=line)
    sure = columns(gauge([0.0] * DAY), CellRules(table))[-1]["assumed"]
    no_line = CellRules(replace(table, line=()))

    assert assumed[0].startswith("criteria: planning defaults")
    assert sure == [
        "soil: dry when the data began 1 days before",
        "rain to come: no official forecast is used",
    ]
    assert columns(gauge([0.0]), no_line)[0]["assumed"][0].startswith("critical line")


def test_percentile_needs_two_weeks_of_data() -> None:
    """The highest value is 100; a median reading is about 50."""
    past = [0.2 + 0.0001 * (n % 100) for n in range(14 * DAY)]
    rows = columns(series("soil", "/", [*past, 0.4, 0.2050]))

    assert rows[DAY]["moisture_percentile"] is None
    assert rows[-2]["moisture_percentile"] == pytest.approx(100.0)
    assert rows[-1]["moisture_percentile"] == pytest.approx(51.4, abs=0.1)
    assert rows[-1]["pore_percentile"] is None


SOIL = [0.2 + 0.0001 * (n % 100) for n in range(14 * DAY)]
RISE = [0.2 + 0.01 * n for n in range(12)]


def wet_rows(rain_mm: float, name: str = "soil", unit: str = "/") -> list[dict]:
    """Two weeks of a sensor, then three hours in which it rises in the rain."""
    values = [*SOIL, *RISE, *[RISE[-1]] * 12]
    if unit == "hPa":
        values = [1000 * value - 250.0 for value in values]
    return columns([
        *series(name, unit, values),
        *gauge([*[0.0] * len(SOIL), *[rain_mm] * 12, *[0.0] * 12]),
    ])


def test_rising_soil_moisture_above_its_percentile_in_rain_is_level_2() -> None:
    """With a reason; held for an hour, then dropped."""
    rows = wet_rows(0.5)
    levels = [row["level"] for row in rows[len(SOIL) :]]

    assert levels[0] == 1, "high, but not enough rain yet"
    assert levels[1:12] == [2] * 11
    assert rows[len(SOIL) + 11]["reasons"][0].startswith("n1 soil 0.310 m3/m3 is at")
    assert levels[12:18] == [2] * 6, "it holds for an hour"
    assert levels[22:] == [1] * 2
    assert {row["level"] for row in wet_rows(0.0)} == {1}


def test_pore_pressure_above_zero_is_level_2_without_rain() -> None:
    """From suction to positive; unlike the percentile, this needs no rain."""
    rows = wet_rows(0.0, "pore", "hPa")
    reasons = [row["reasons"][0] for row in rows if row["reasons"]]

    assert reasons[0] == "n1 pore passed from suction to 0.0 hPa, +48.5 within 1 h"
    assert rows[len(SOIL) + 5]["level"] == 2


def test_suspect_soil_reading_does_not_raise_the_level() -> None:
    """A broken cable looks like wet soil; the reading is only listed as suspect."""
    values = [*SOIL, 0.2, 0.2, 0.55, 0.55]
    rain = [*[0.0] * len(SOIL), *[2.0] * 4]
    rows = columns([*series("soil", "/", values), *gauge(rain)])

    assert (rows[-2]["level"], rows[-1]["level"]) == (1, 2), (
        "a second reading confirms it"
    )
    assert any(reason.startswith("suspect: n1 soil") for reason in rows[-2]["reasons"])


def tilt(x_deg: list[float], temp: list[float]) -> list[Observation]:
    """A tilt meter that reports its temperature."""
    parts = {"x": x_deg, "y": [0.0001 * (n % 3) for n in range(len(x_deg))]}
    axes = [series(f"tilt/{axis}", "deg", values) for axis, values in parts.items()]
    return [*axes[0], *axes[1], *series("tilt/temp", "Cel", temp)]


def test_thermal_drift_is_removed_from_tilt() -> None:
    """Warming looks like creep until a few days of data give the coefficient."""
    days = 6
    temp = [15 + 8 * math.sin(2 * math.pi * n / DAY) for n in range(days * DAY)]
    rows = score_cell(tilt([0.008 * t for t in temp], temp), RULES).sensors
    first, last = rows[DAY - 1], rows[-1]

    assert first["thermal_deg_per_k"] is None
    assert first["tilt_rate_deg_per_h"] > 0.01
    assert last["thermal_deg_per_k"] == pytest.approx(0.008, rel=0.02)
    assert last["tilt_rate_deg_per_h"] < 0.002
    assert (
        score_cell(tilt([0.008 * t for t in temp], temp), RULES).rows[-1].level is None
    )


def test_tilt_row_has_a_noise_bound() -> None:
    """A rate below the bound is noise, one above is movement."""
    noise = random.Random(4)
    still = [noise.gauss(0, 0.003) for _ in range(40)]
    moving = [0.05 * n / 6 + v for n, v in enumerate(still)]
    quiet = score_cell(tilt(still, [15.0] * 40), RULES).sensors[-1]
    creep = score_cell(tilt(moving, [15.0] * 40), RULES).sensors[-1]

    assert quiet["tilt_rate_6h_deg_per_h"] < quiet["tilt_noise_6h_deg_per_h"]
    assert creep["tilt_rate_6h_deg_per_h"] > creep["tilt_noise_6h_deg_per_h"]
    assert (creep["kind"], creep["n_readings"], creep["worst_flag"]) == ("tilt", 1, 1)


def creeping(hours: float, sigma_mm: float = 0.0) -> list[Observation]:
    """The worked example of tertiary creep, read each ten minutes."""
    noise = random.Random(1)
    count = int(hours * 6) + 1
    moved = [fukuzono_displacement_mm(n / 6, 48.0, 0.05) for n in range(count)]
    return series("rod", "mm", [mm + noise.gauss(0, sigma_mm) for mm in moved])


def test_failure_time_has_interval_and_gate() -> None:
    """Six hours ahead the time is right within its interval and usable."""
    found = score_cell(creeping(42.0, 0.02), RULES)
    last = make_sensors_table("c", found.sensors).to_pylist()[-1]
    left_h = (last["failure_at"].timestamp() - T0) / 3600 - 42.0

    assert last["velocity_mm_per_h"] == pytest.approx(3.2, abs=0.3)
    assert last["failure_usable"]
    assert last["failure_gate"] is None
    assert abs(left_h - 6.0) <= last["failure_half_width_h"] + 0.5
    assert (
        last["failure_earliest_at"] <= last["failure_at"] <= last["failure_latest_at"]
    )
    assert last["moved_24h_mm"] == pytest.approx(
        fukuzono_displacement_mm(42, 48, 0.05) - fukuzono_displacement_mm(18, 48, 0.05),
        abs=0.2,
    )
    assert found.rows[-1].level in {3, 4}
    assert any("by inverse velocity" in reason for reason in found.rows[-1].sentences)


def test_early_failure_time_is_not_usable() -> None:
    """Far ahead the row has the reason why the time is not usable."""
    last = score_cell(creeping(6.0), RULES).sensors[-1]

    assert not last["failure_usable"]
    assert last["failure_gate"].endswith(" speeds of 8")


def test_still_rod_has_no_failure_time() -> None:
    """Noise gives neither a speed nor a failure time."""
    noise = random.Random(2)
    still = series("rod", "mm", [noise.gauss(0, 0.05) for _ in range(DAY)])
    rows = score_cell(still, RULES).sensors

    assert all("failure_at" not in row for row in rows)
    assert score_cell(still, RULES).rows[-1].level is None


@pytest.mark.parametrize(
    ("mm_per_h", "hours", "level"),
    [(1.9, 5, None), (2.1, 1, 2), (2.1, 5, 3), (-2.1, 5, 3), (4.1, 1, 4), (30, 1, 4)],
)
def test_speed_sets_the_level(mm_per_h: float, hours: int, level: int | None) -> None:
    """Level 2 from 2 mm/h, 3 if that lasts two hours, 4 from 4 mm/h."""
    moved = [mm_per_h * n / 6 for n in range(hours * 6 + 1)]

    assert score_cell(series("rod", "mm", moved), RULES).rows[-1].level == level


def test_rows_fit_their_tables() -> None:
    """Every column that scoring returns exists in its table."""
    found = score_cell([*gauge([1.0] * 9), *creeping(1.0)], RULES)
    names = {name for row in found.sensors for name in row}

    assert names | {"cell"} <= set(SENSORS.names)
    assert {name for row in found.rows for name in row.more} <= set(LEVELS.names)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 30), min_size=1, max_size=30), st.data())
def test_rain_columns_are_monotone_in_rain(
    depths: list[float], data: st.DataObject
) -> None:
    """They grow with rain and are never negative; margins shrink.

    Rain of one gauge that is too much to be believed gives level 3 at most (decision
    45), and does not lower a level below that.
    """
    more = [depth + data.draw(st.floats(0, 20)) for depth in depths]
    grow = ("effective_1h5_mm", "effective_72h_mm", "antecedent_mm_per_day", "swi_mm")
    for low, high in zip(columns(gauge(depths)), columns(gauge(more)), strict=True):
        for name in (*grow, "r60_mm", "level_same", "level_dry"):
            assert 0 <= low[name] <= high[name] + 1e-9
        is_capped = any("high, unconfirmed" in reason for reason in high["reasons"])
        assert 0 <= min(low["level"], 3 if is_capped else 5) <= high["level"]
        for name in ("margin_mm", "margin_same_mm", "margin_dry_mm"):
            assert high[name] <= low[name] + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 10), st.integers(8, 30))
def test_gap_lowers_completeness(depth_mm: float, lost: int) -> None:
    """A node that was off has counted nothing: no zero rain, but a lower bound."""
    whole = gauge([depth_mm] * (lost + 20))
    kept = [o for o in whole if o.seq < 10]
    kept += [structs.replace(o, boot="2") for o in whole if o.seq >= 10 + lost]
    row, full = columns(kept)[-1], columns(whole)[-1]

    missing = full["completeness"] - row["completeness"]
    assert missing * DAY == pytest.approx(lost)
    assert row["lower_bound"]
    assert row["swi_mm"] > 0
    assert any("lower bound" in reason for reason in row["reasons"])


@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 5), st.integers(8, 30))
def test_counter_completes_a_gap_of_reports(depth_mm: float, lost: int) -> None:
    """Steady rain over the gap is as if no report were lost; its steps are marked."""
    whole = gauge([depth_mm] * (lost + 20))
    kept = [o for o in whole if not 10 <= o.seq < 10 + lost]
    rows, full = columns(kept), columns(whole)
    marked = [any("came as one sum" in r for r in row["reasons"]) for row in rows]

    assert marked == [*[False] * 10, *[True] * (lost + 1), *[False] * 9]
    for row, expected in zip(rows, full, strict=True):
        assert row["completeness"] == expected["completeness"]
        assert row["swi_mm"] == pytest.approx(expected["swi_mm"])


def test_forecast_on_doubtful_rain_alone_gives_level_3_at_most() -> None:
    """Doubtful tips fill the soil; rain to come then reaches level 4, on them alone."""
    shower = ForecastRain("JMA", T0, (10.0,) * 12)
    rules = replace(RULES, forecast=lambda _: shower)
    storm = gauge([9.0] * 14)
    doubtful = [structs.replace(o, node_flag=3) for o in storm]
    sure, doubted = columns(storm, rules)[-1], columns(doubtful, rules)[-1]

    assert sure["level"] == sure["level_forecast"] == 4
    assert (doubted["level"], doubted["level_forecast"]) == (3, 4)
