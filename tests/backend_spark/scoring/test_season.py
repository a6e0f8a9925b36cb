"""Gold over a recorded season: real rain with real gaps."""

import csv
from collections.abc import Sequence

import numpy as np
import pytest
from measurements import seattle

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.score import CellRules, score_cell
from slope_science.criteria import Criteria

T0 = 1_280_000_400  # a full hour
HOURS = 24 * 40


@pytest.fixture(scope="module")
def depths_mm() -> list[float | None]:
    """Forty days of hourly rain, empty cells unknown, around a week of gaps."""
    season = seattle("nws_hourly_rain_2010_2011.csv")
    with season.open(encoding="utf-8") as file:
        told = [row["KTIW_mm"] for row in csv.DictReader(file)]
    gap = next(n for n, text in enumerate(told) if n > HOURS and not text)
    return [float(t) if t else None for t in told[gap - HOURS // 2 :][:HOURS]]


def readings(depths_mm: Sequence[float | None]) -> list[Observation]:
    """A gauge that reports the sixth of each hour every ten minutes, from 0 on."""
    made, total = [Observation(T0, "n", "rain", "mm", 0.0, None, 0.0)], 0.0
    for number in range(len(depths_mm) * 6):
        depth = depths_mm[number // 6]
        if depth is not None:
            total += depth / 6
            at_s = T0 + (number + 1) * 600
            made.append(Observation(at_s, "n", "rain", "mm", depth / 6, None, total))
    return made


def tanks(rain_mm: Sequence[float]) -> list[float]:
    """The index by matrices, in steps of ten minutes; shares nothing with ours."""
    state, dt, told = np.zeros(3), 1 / 6, []
    drain = np.array([[-0.12, 0, 0], [0.12, -0.05, 0], [0, 0.05, -0.01]])
    for depth in rain_mm:
        over = np.array([
            0.1 * max(state[0] - 15, 0) + 0.15 * max(state[0] - 60, 0),
            0.05 * max(state[1] - 15, 0),
            0.01 * max(state[2] - 15, 0),
        ])
        state = state + dt * (drain @ state - over) + np.array([depth, 0, 0])
        told.append(float(state.sum()))
    return told


def test_index_of_gold_is_that_of_an_independent_computation(
    depths_mm: list[float | None],
) -> None:
    """To a millionth of a millimetre over forty days with a gap in them."""
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


def test_gap_of_the_season_is_no_dry_weather(depths_mm: list[float | None]) -> None:
    """While rain is unknown nothing is called known, and completeness falls."""
    rows = score_cell(readings(depths_mm), CellRules(Criteria.assumed_from(150.0))).rows
    unknown = [n for n, depth in enumerate(depths_mm) if depth is None]
    silent = [row for row in rows if not row.rain.is_known]
    lowest = min(row.more["completeness"] for row in rows[144:])

    assert unknown
    assert len(silent) >= len(unknown) * 6 - 6
    assert lowest < 1.0
    assert all(any("lower bound" in r for r in row.sentences) for row in silent)
