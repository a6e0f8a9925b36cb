import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors.analog import (
    MEAN_EFFICIENCY,
    interquartile_mean,
    standard_error,
)


def test_outliers_do_not_change_the_mean() -> None:
    """A quarter of outliers on one side does not change the mean."""
    assert interquartile_mean([1.0] * 12 + [9.0] * 4) == 1.0
    assert interquartile_mean([1.0, 2.0, 3.0, 4.0]) == 2.5
    assert (interquartile_mean([7.0]), standard_error([7.0])) == (7.0, 0.0)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=64))
def test_mean_lies_between_the_samples(values: list[float]) -> None:
    """For any samples."""
    assert min(values) - 1e-9 <= interquartile_mean(values) <= max(values) + 1e-9


def test_error_and_efficiency_hold_for_gaussian_noise() -> None:
    """The estimated error of a burst agrees with the spread of many bursts."""
    rng = random.Random(1)
    bursts = [[rng.gauss(0, 1) for _ in range(16)] for _ in range(4000)]
    spread = statistics.stdev(interquartile_mean(burst) for burst in bursts)
    estimated = statistics.fmean(standard_error(burst) for burst in bursts)
    assert estimated == pytest.approx(spread, rel=0.08)
    assert pytest.approx((MEAN_EFFICIENCY * 16) ** -0.5, rel=0.03) == spread
