"""Thermal drift of tilt sensors."""

import math
import random

import pytest

from slope_science.evidence.thermal import ThermalRegression


def regression_of(
    count: float, *, k: float, deg_per_k: float, creep_deg: float = 0.0
) -> ThermalRegression:
    """A regression over hourly readings with a daily amplitude of k kelvin."""
    rng, regression = random.Random(1), ThermalRegression()

    def temp(hour: int) -> float:
        return k * math.sin(hour / 24 * 2 * math.pi)

    for hour in range(int(count * 24)):
        warmer = temp(hour + 1) - temp(hour)
        x = deg_per_k * warmer + creep_deg + rng.gauss(0, 0.0005)
        regression = regression.updated(warmer, x, rng.gauss(0, 0.0005))
    return regression


def test_coefficient_is_found_beside_noise_and_steady_creep() -> None:
    """Creep is steady; the temperature has a daily cycle."""
    found = regression_of(14, k=8, deg_per_k=0.0086, creep_deg=0.005).deg_per_k
    assert found is not None
    assert found[0] == pytest.approx(0.0086, abs=2e-4)
    assert found[1] == pytest.approx(0.0, abs=2e-4)


@pytest.mark.parametrize(
    ("count", "k", "deg_per_k"), [(2, 8, 0.0086), (14, 0.2, 0.0086), (14, 8, 0.03)]
)
def test_coefficient_is_unknown(count: float, k: float, deg_per_k: float) -> None:
    """After two days, with a small amplitude, and with an implausible coefficient."""
    assert regression_of(count, k=k, deg_per_k=deg_per_k).deg_per_k is None


def test_movement_and_invalid_numbers_are_not_learned() -> None:
    """A slide in the afternoon is not attributed to the temperature."""
    regression = regression_of(14, k=8, deg_per_k=0.005)
    assert regression.updated(2.0, 0.06, 0.0) == regression
    assert regression.updated(math.nan, 0.001, 0.0) == regression
