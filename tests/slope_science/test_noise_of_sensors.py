"""Noise of a sensor, and what noise confirms."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from slope_science.evidence.detections import (
    Corroboration,
    Detection,
    EvidenceKind,
    noise_detection,
)
from slope_science.evidence.samples import SensorNoise
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

SIGMA_MM = 0.05


def noise_of(times_h: Sequence[float], mm_per_h: float) -> SensorNoise:
    """Noise of a sensor that is still for 20 hours, then moves steadily."""
    rng = random.Random(5)
    noise = SensorNoise()
    for at_h in times_h:
        moved_mm = mm_per_h * max(0.0, at_h - 20)
        noise.add(at_h * 3600, [moved_mm + rng.gauss(0.0, SIGMA_MM)])
    return noise


@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.35])
def test_noise_is_that_of_readings_however_they_are_spaced(jitter: float) -> None:
    """Creep of 9 mm/h between readings at uneven times is no noise."""
    rng = random.Random(3)
    times_h = [n + jitter * rng.uniform(-1, 1) for n in range(60)]

    assert noise_of(times_h, 9.0).sigma == pytest.approx(SIGMA_MM, rel=0.5)


def test_state_of_an_earlier_program_keeps_its_noise() -> None:
    """It has second differences, and no times."""
    noise = SensorNoise()
    noise.restore_state([[1.0], [0.1], [6**0.5 * SIGMA_MM / 1.4826] * 30, [0.01] * 30])

    assert noise.sigma == pytest.approx(SIGMA_MM)
    assert noise.before == ()

    again = SensorNoise()
    noise.add(60.0, [1.0])
    again.restore_state(noise.to_state())

    assert again.to_state() == noise.to_state()


def rate(sensor: str, level: int = 4) -> Detection:
    """A rate of tilt, which lasts."""
    reason = Reason(ReasonCode.SHOCKS, sensor=sensor, count=1, limit=1)
    evidence = (EvidenceKind.MOVEMENT,)
    return Detection("tilt", sensor, level, reason, 3, evidence=evidence)


@pytest.mark.parametrize("noisy", ["n1 tilt", "n2 tilt"])
def test_movement_of_a_noisy_sensor_neither_confirms_nor_is_confirmed(
    noisy: str,
) -> None:
    """Wind makes poles of several nodes noisy; creep goes on for an hour."""
    signs = Corroboration(600.0)
    claims = [rate("n1 tilt"), rate("n2 tilt"), noise_detection("tilt", noisy)]
    signs.observe(claims, 0.0)

    assert signs.find_confirmation(claims[0], 0.0) is None

    for minute in range(0, 70, 10):
        signs.observe(claims, minute * 60.0)
    assert signs.find_confirmation(claims[0], 3600.0) == "n2 tilt"


def test_rate_that_rests_on_readings_of_the_noise_is_noise_after_it() -> None:
    """At readings every half hour the last four hold those of wind that has ended."""
    signs = Corroboration(600.0)
    signs.observe([noise_detection("tilt", "n1 tilt")], 0.0)
    at_s, claims = 2400.0, [rate("n1 tilt"), rate("n2 tilt")]
    signs.observe(claims, at_s)

    held, free = (replace(claims[0], from_s=from_s) for from_s in (-1800.0, 600.0))
    step = replace(held, steps=((1800.0, at_s),))
    assert signs.find_confirmation(held, at_s) is None
    assert signs.find_confirmation(free, at_s) == "n2 tilt"
    assert signs.find_confirmation(step, at_s) == "n2 tilt"


def test_noise_of_another_sensor_of_another_node_matters_not() -> None:
    signs = Corroboration(600.0)
    claims = [rate("n1 tilt"), rate("n2 tilt"), noise_detection("tilt", "n2 rod")]
    signs.observe(claims, 0.0)

    assert signs.find_confirmation(claims[0], 0.0) == "n2 tilt"
