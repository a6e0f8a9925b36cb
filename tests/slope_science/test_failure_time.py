"""Time of failure: coverage for every exponent, and none for motion without failure.

A short form of the grid that ``python -m experiments.failure_time`` prints.
"""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.failure_time import (
    CONDITIONS,
    FAILURE_H,
    HARMLESS,
    CoverageCell,
    FalseCell,
    count_false,
    measure_coverage,
    sample,
    tertiary_creep,
)
from slope_science.failure_time import (
    FailureForecast,
    best_bounded_fit,
    forecast_failure,
)
from slope_science.movement import fukuzono_displacement_mm

A_PER_MM = 0.05
CREEP = FailureForecast(
    *(6.0, 5.0, 8.0, 1.8, 20.0, 0.98, 20), is_above_noise=True, advantage=30.0
)


@pytest.mark.parametrize("exponent", [1.5, 1.7, 1.85, 2.0, 2.2])
def test_interval_covers_the_failure_for_each_exponent(exponent: float) -> None:
    """Of all bounded intervals, and of the usable ones, 12 to 2 h ahead."""
    cell = CoverageCell("white noise", 1 / 6, 0.1, exponent, 2, (36, 40, 43, 46))
    found = measure_coverage(cell)
    assert found.bounded >= found.usable
    assert found.usable >= 3
    assert found.hits >= found.usable - 1


@pytest.mark.parametrize("condition", sorted(set(CONDITIONS) - {"white noise"}))
def test_interval_covers_the_failure_in_each_condition(condition: str) -> None:
    """Disturbances widen the interval or prevent a usable forecast."""
    found = measure_coverage(CoverageCell(condition, 1 / 6, 0.1, 1.75, 3, (43, 46)))
    assert found.made == 6
    # the weakest conditions by the grid: a step hidden in the curve, a random walk
    weak = {"step": 3, "walk": 2}
    missed = weak.get(condition.split(maxsplit=1)[0], 1)
    assert found.usable - found.hits <= missed


@pytest.mark.parametrize("motion", HARMLESS)
def test_motion_without_failure_gives_no_usable_forecast(motion: str) -> None:
    """At each sampling, over three days."""
    cells = [
        FalseCell(motion, 1 / 6, 0.02, 1, every_h=5.0),
        FalseCell(motion, 1.0, 0.1, 3, every_h=5.0),
    ]
    found = [count_false(cell) for cell in cells]
    assert sum(calls for _, calls in found) > 50
    assert sum(usable for usable, _ in found) == 0


@pytest.mark.long
@pytest.mark.parametrize("motion", HARMLESS)
def test_motion_without_failure_long(motion: str) -> None:
    """At most one in a thousand, at each sampling.

    Exponential growth is nearest to the law: at most one in two hundred.
    """
    share = 0.005 if motion == "exponential growth" else 0.001
    for cadence_h, sigma_mm in ((1.0, 0.1), (1 / 6, 0.02), (1 / 6, 0.5)):
        usable, calls = count_false(FalseCell(motion, cadence_h, sigma_mm, 15))
        assert usable <= share * calls


@pytest.mark.parametrize("exponent", [1.5, 1.65, 2.0, 2.2])
def test_exact_creep_gives_the_exact_failure(exponent: float) -> None:
    """Without noise: time, exponent and speed."""
    series = sample(tertiary_creep(exponent), 1 / 6, 21.0, 45.0)
    found = forecast_failure(*series)
    assert found is not None
    assert found.is_usable(45.0)
    assert found.failure_h == pytest.approx(FAILURE_H, abs=0.15)
    assert found.earliest_h <= FAILURE_H <= found.latest_h
    assert found.exponent == pytest.approx(exponent, abs=0.05)
    near = sample(tertiary_creep(exponent), 0.001, 46.999, 47.001)[1]
    speed = (near[-1] - near[0]) / 0.002
    assert found.speed_mm_per_h(1.0) == pytest.approx(speed, rel=0.2)


def test_rod_that_shortens_gives_the_same_failure() -> None:
    """The sign depends on how the rod is mounted."""
    times_h, moved_mm = sample(tertiary_creep(1.8), 0.25, 20.0, 44.0)
    backwards = [7.0 - mm for mm in moved_mm]
    assert forecast_failure(times_h, backwards) == forecast_failure(
        times_h, [mm - 7.0 for mm in moved_mm]
    )


def test_acceleration_within_a_day_is_found_in_the_shorter_span() -> None:
    """Steady up to 34 h, then tertiary creep; the day does not follow the law."""
    start = fukuzono_displacement_mm(34.0, FAILURE_H, A_PER_MM)
    speed = 1 / (A_PER_MM * 14)
    rng = random.Random(1)
    times_h = [h / 6 for h in range(23 * 6, 47 * 6 + 1)]
    moved_mm = [
        fukuzono_displacement_mm(t, FAILURE_H, A_PER_MM)
        if t > 34
        else start + speed * (t - 34)
        for t in times_h
    ]
    found = forecast_failure(times_h, [mm + rng.gauss(0, 0.05) for mm in moved_mm])
    assert found is not None
    assert found.is_usable(47.0)
    assert found.earliest_h <= FAILURE_H <= found.latest_h


def test_decelerating_steady_or_missing_movement_gives_no_failure() -> None:
    """The speed does not grow; or there is none."""
    hours = [float(h) for h in range(25)]
    slowing = [10 * (1 - math.exp(-h / 8)) for h in hours]
    assert forecast_failure(hours, slowing) is None
    steady = forecast_failure(hours, [2.0 * h for h in hours])
    assert steady is None or not steady.is_usable(24.0)
    assert forecast_failure([], []) is None
    assert forecast_failure([1.0], [2.0]) is None


def test_noise_alone_gives_no_usable_forecast() -> None:
    """No usable forecast in 300 series of a day."""
    rng, hours = random.Random(3), [float(h) for h in range(25)]
    for _ in range(300):
        found = forecast_failure(hours, [rng.gauss(0, 0.1) for _ in hours])
        assert found is None or not found.is_usable(24.0)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"points": 7}, "few_speeds"),
        ({"is_above_noise": False}, "speed_in_noise"),
        ({"r2": 0.89}, "low_r2"),
        ({"failure_h": -0.1}, "failure_passed"),
        ({"failure_h": 36.1}, "failure_far"),
        ({"latest_h": math.inf}, "failure_far"),
        ({"advantage": 19.0}, "no_tertiary_creep"),
    ],
)
def test_each_gate_is_named(change: dict[str, float], code: str) -> None:
    """The first failed gate of a forecast, or none."""
    assert CREEP.is_usable(0.0)
    gate = FailureForecast(**(vars(CREEP) | change)).failed_gate(0.0)
    assert gate is not None
    assert gate.code == code


def test_half_width_contains_the_interval() -> None:
    """It is symmetric, the interval is not."""
    assert CREEP.half_width_h == 2.0


@given(st.lists(st.tuples(st.floats(0.01, 2), st.floats(-5, 5)), max_size=60))
@settings(max_examples=40)
def test_forecast_of_any_series_is_finite_or_none(
    steps: list[tuple[float, float]],
) -> None:
    """With gaps and jumps of any kind."""
    at_h, mm, hours, moved_mm = 0.0, 0.0, [], []
    for dt_h, step_mm in steps:
        at_h, mm = at_h + dt_h, mm + step_mm
        hours.append(at_h)
        moved_mm.append(mm)
    found = forecast_failure(hours, moved_mm)
    assert found is None or math.isfinite(found.failure_h)
    assert found is None or found.earliest_h <= found.failure_h <= found.latest_h


def test_bounded_motion_fits_what_it_describes_and_not_a_failure() -> None:
    """Left over: nothing of a cubic and an exponential, much of tertiary creep."""
    times = [n / 10 for n in range(-240, 1, 4)]
    weights = [1.0] * len(times)
    for motion in (lambda t: 1 + t + t**3 / 99, lambda t: math.exp(t * 0.025) - t):
        values = [motion(t) for t in times]
        assert best_bounded_fit(times, values, weights) == pytest.approx(0, abs=1e-3)
    failing = [-20 * math.log(2 - t) for t in times]
    assert best_bounded_fit(times, failing, weights) > 0.1
