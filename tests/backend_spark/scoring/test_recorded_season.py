"""Scoring of a recorded season: real rain with real gaps."""

import csv
from collections.abc import Sequence

import numpy as np
import pytest
from measurements import seattle

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from slope_science.levels import Criteria

T0 = 1_280_000_400  # a full hour
HOURS = 24 * 40


@pytest.fixture(scope="module")
def depths_mm() -> list[float | None]:
    """Forty days of hourly rain around a gap; empty values are unknown."""
    season = seattle("nws_hourly_rain_2010_2011.csv")
    with season.open(encoding="utf-8") as file:
        values = [row["KTIW_mm"] for row in csv.DictReader(file)]
    gap = next(n for n, text in enumerate(values) if n > HOURS and not text)
    return [float(t) if t else None for t in values[gap - HOURS // 2 :][:HOURS]]


def readings(depths_mm: Sequence[float | None]) -> list[Observation]:
    """A gauge that reports a sixth of the hour's rain every ten minutes."""
    made, total = [Observation(T0, "n", "rain", "mm", 0.0, None, 0.0)], 0.0
    for number in range(len(depths_mm) * 6):
        depth = depths_mm[number // 6]
        if depth is not None:
            total += depth / 6
            at_s = T0 + (number + 1) * 600
            made.append(Observation(at_s, "n", "rain", "mm", depth / 6, None, total))
    return made


def tanks(rain_mm: Sequence[float]) -> list[float]:
    """Soil water index in 10-minute steps by matrices, without product code."""
    state, dt, index_mm = np.zeros(3), 1 / 6, []
    drain = np.array([[-0.12, 0, 0], [0.12, -0.05, 0], [0, 0.05, -0.01]])
    for depth in rain_mm:
        over = np.array([
            0.1 * max(state[0] - 15, 0) + 0.15 * max(state[0] - 60, 0),
            0.05 * max(state[1] - 15, 0),
            0.01 * max(state[2] - 15, 0),
        ])
        state = state + dt * (drain @ state - over) + np.array([depth, 0, 0])
        index_mm.append(float(state.sum()))
    return index_mm


def test_soil_water_index_equals_an_independent_computation(
    depths_mm: list[float | None],
) -> None:
    """To 1e-6 mm up to the first gap; after it the index is a lower bound."""
    rows = score_cell(readings(depths_mm), CellRules(Criteria.assumed_from(150.0))).rows
    steps = [0.0] + [(depth or 0.0) / 6 for depth in depths_mm for _ in range(6)]
    expected = tanks(steps)
    first_gap = next(n for n, depth in enumerate(depths_mm) if depth is None)

    assert len(rows) == len(expected)
    for row, index_mm in zip(rows[: first_gap * 6], expected, strict=False):
        assert row.rain.tanks is not None
        assert abs(row.rain.tanks.index_mm - index_mm) < 1e-6
        assert not row.rain.is_lower_bound
    assert rows[-1].rain.is_lower_bound


def test_gap_does_not_count_as_dry_weather(depths_mm: list[float | None]) -> None:
    """Its steps are unknown, a lower bound, and lower the completeness."""
    rows = score_cell(readings(depths_mm), CellRules(Criteria.assumed_from(150.0))).rows
    unknown = [n for n, depth in enumerate(depths_mm) if depth is None]
    silent = [row for row in rows if not row.rain.is_known]
    lowest = min(row.more["completeness"] for row in rows[144:])

    assert unknown
    assert len(silent) >= len(unknown) * 6 - 6
    assert lowest < 1.0
    assert all(any("lower bound" in r for r in row.sentences) for row in silent)
