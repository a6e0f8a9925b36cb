"""Velocity fits and tertiary creep: a worked example, and the effect of noise."""

import random
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slope_science import ScienceError
from slope_science.movement import (
    fit_velocities,
    fit_velocity,
    fukuzono_displacement_mm,
    fukuzono_speed_mm_per_h,
    tangent_angle_deg,
    thin_out,
)

FAILURE_H, A_PER_MM = 48.0, 0.05
TABLE = {
    0: (0.4167, 0.0), 12: (0.5556, 5.754), 24: (0.8333, 13.863), 36: (1.6667, 27.726),
    42: (3.3333, 41.589), 46: (10.0, 63.561), 47: (20.0, 77.424),
}  # fmt: skip
"""Hour: speed mm/h and displacement mm; alpha 2, A 0.05 /mm, failure at 48 h."""


@pytest.mark.parametrize(("t_h", "values"), TABLE.items())
def test_fukuzono_formulas_give_the_worked_values(
    t_h: float, values: tuple[float, float]
) -> None:
    """The table of the worked example, to its last digit."""
    speed, displacement_mm = values
    assert fukuzono_speed_mm_per_h(FAILURE_H - t_h, A_PER_MM) == pytest.approx(
        speed, abs=1e-4
    )
    assert fukuzono_displacement_mm(t_h, FAILURE_H, A_PER_MM) == pytest.approx(
        displacement_mm, abs=1e-3
    )


def test_formulas_are_refused_at_the_time_of_failure() -> None:
    """The formula is infinite there."""
    with pytest.raises(ScienceError, match="left_h must be more than 0"):
        fukuzono_speed_mm_per_h(0, A_PER_MM)
    with pytest.raises(ScienceError, match=r"t_h must be less than failure_h \(48\)"):
        fukuzono_displacement_mm(48.0, FAILURE_H, A_PER_MM)


@given(
    speed=st.floats(-50, 50),
    times_h=st.lists(st.floats(0, 24), min_size=4, max_size=30, unique=True),
)
def test_steady_movement_gives_its_velocity(speed: float, times_h: list[float]) -> None:
    """For any spacing of readings."""
    assume(max(times_h) - min(times_h) > 0.01)
    found = fit_velocity(times_h, [7 + speed * t for t in times_h])
    assert found is not None
    assert found.mm_per_h == pytest.approx(speed, abs=1e-6)


def test_too_few_readings_give_no_velocity() -> None:
    """Three points, or four at one time."""
    assert fit_velocity([0, 1, 2], [0, 1, 2]) is None
    assert fit_velocity([1, 1, 1, 1], [0, 1, 2, 3]) is None


def test_noise_is_significant_in_one_window_of_a_thousand() -> None:
    """The error rate of the significance test, within sampling error."""
    rng = random.Random(1)
    times_h, windows = [at / 6 for at in range(7)], 20_000
    found = [
        fit_velocity(times_h, [rng.gauss(0, 0.1) for _ in times_h])
        for _ in range(windows)
    ]
    false = sum(each.exceeds(0.0) for each in found if each)
    assert 5 < false < 40


def test_overlapping_velocities_are_thinned_out() -> None:
    """Fits over three hours at every quarter of an hour are thinned to one an hour."""
    hours = [at / 4 for at in range(60)]
    kept = thin_out(fit_velocities(hours, [2.0 * h for h in hours]))
    gaps = [b.at_h - a.at_h for a, b in pairwise(kept)]
    assert len(kept) == 13
    assert gaps[1:] == pytest.approx([1.0] * 11)
    assert kept[-1] == fit_velocities(hours, [2.0 * h for h in hours])[-1]
    assert thin_out([]) == []


@pytest.mark.parametrize(
    ("speed", "angle"), [(0.0, 0.0), (0.5, 45.0), (2.836, 80.0), (5.715, 85.0)]
)
def test_tangent_angle_is_45_degrees_in_steady_creep(
    speed: float, angle: float
) -> None:
    """The angles of the stages, for a steady speed of 0.5 mm/h."""
    assert tangent_angle_deg(speed, 0.5) == pytest.approx(angle, abs=0.01)


def test_tangent_angle_needs_a_steady_speed() -> None:
    """Without secondary creep there is no unit of displacement."""
    with pytest.raises(ScienceError, match="steady_mm_per_h"):
        tangent_angle_deg(1.0, 0.0)
