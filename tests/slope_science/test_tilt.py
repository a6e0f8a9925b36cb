"""Tilt rates and their uncertainty."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.movement import (
    FALSE_SHARE,
    TiltRate,
    find_steps,
    fit_tilt_rate,
    noise_sigmas,
    tilt_resolution_deg_per_h,
)

HOUR = [n / 6 for n in range(7)]
RATES = st.floats(-5, 5)
OFFSETS = st.floats(-90, 90)
NOISE = st.lists(st.floats(-0.1, 0.1), min_size=7, max_size=7)


def line(rate_deg_per_h: float, start_deg: float = 0.0) -> list[float]:
    """Seven readings on a straight line."""
    return [start_deg + rate_deg_per_h * t for t in HOUR]


@given(x_rate=RATES, y_rate=RATES, x_deg=OFFSETS, y_deg=OFFSETS)
def test_straight_line_gives_its_rate_without_noise(
    x_rate: float, y_rate: float, x_deg: float, y_deg: float
) -> None:
    """The rate is the length of the vector of both slopes."""
    rate = fit_tilt_rate(HOUR, line(x_rate, x_deg), line(y_rate, y_deg))

    assert rate is not None
    assert rate.deg_per_h == pytest.approx(math.hypot(x_rate, y_rate), abs=1e-9)
    assert rate.sigma_deg_per_h == pytest.approx(0, abs=1e-9)


def test_each_change_of_a_sensor_between_two_values_is_a_step() -> None:
    """Of a loose contact; three of them in an hour are no rate."""
    rng = random.Random(7)
    jumps = [0, 0, 0, 1, 0, 0, 1, 1, 1]
    noisy = [0.3 * each + rng.gauss(0.0, 0.002) for each in jumps]
    times_s = [450.0 * n for n in range(len(jumps))]

    assert find_steps(times_s, [noisy], 0.002) == [(2, 3), (3, 4), (5, 6)]
    assert find_steps(times_s, [noisy], 0.05) == [(2, 3), (3, 4), (5, 6)]
    assert find_steps(times_s[4:], [noisy[4:]], 0.06) == [(1, 2)]


def test_creep_is_not_between_two_values() -> None:
    times_s = [3600.0 * at_h for at_h in HOUR]

    assert find_steps(times_s, [line(0.2), [0.0] * 7], 0.002) is None


@given(x=NOISE, y=NOISE, x_deg=OFFSETS, y_deg=OFFSETS, origin_h=st.floats(-1000, 1000))
def test_rate_does_not_depend_on_the_offsets(
    x: list[float], y: list[float], x_deg: float, y_deg: float, origin_h: float
) -> None:
    """Neither of the sensor nor of the clock."""
    here = fit_tilt_rate(HOUR, x, y)
    there = fit_tilt_rate(
        [t + origin_h for t in HOUR], [v + x_deg for v in x], [v + y_deg for v in y]
    )

    assert here is not None
    assert there is not None
    assert there.deg_per_h == pytest.approx(here.deg_per_h, abs=1e-9)
    assert there.sigma_deg_per_h == pytest.approx(here.sigma_deg_per_h, abs=1e-9)


@given(x=NOISE, y=NOISE, turn_rad=st.floats(0, math.tau))
def test_rate_does_not_depend_on_the_orientation(
    x: list[float], y: list[float], turn_rad: float
) -> None:
    """A sensor may be mounted in any direction."""
    cosine, sine = math.cos(turn_rad), math.sin(turn_rad)
    turned_x = [cosine * a - sine * b for a, b in zip(x, y, strict=True)]
    turned_y = [sine * a + cosine * b for a, b in zip(x, y, strict=True)]
    here, there = fit_tilt_rate(HOUR, x, y), fit_tilt_rate(HOUR, turned_x, turned_y)

    assert here is not None
    assert there is not None
    assert there.deg_per_h == pytest.approx(here.deg_per_h, abs=1e-9)
    assert there.sigma_deg_per_h == pytest.approx(here.sigma_deg_per_h, abs=1e-9)


@given(x=NOISE, y=NOISE, order=st.permutations(range(7)))
def test_rate_does_not_depend_on_the_order_of_arrival(
    x: list[float], y: list[float], order: list[int]
) -> None:
    """Late readings count like timely ones."""
    here = fit_tilt_rate(HOUR, x, y)
    there = fit_tilt_rate(*([values[n] for n in order] for values in (HOUR, x, y)))

    assert here is not None
    assert there is not None
    assert there.deg_per_h == pytest.approx(here.deg_per_h, abs=1e-9)


def test_sigma_is_the_noise_over_the_spread_of_time() -> None:
    """Seven readings in an hour: the error of the slope is a reading's over 0.882 h."""
    rng = random.Random(1)
    sigmas = []
    for _ in range(2000):
        x, y = ([rng.gauss(0, 0.01) for _ in HOUR] for _ in range(2))
        rate = fit_tilt_rate(HOUR, x, y)
        assert rate is not None
        sigmas.append(rate.sigma_deg_per_h**2)

    assert math.sqrt(statistics.mean(sigmas)) == pytest.approx(0.01 / 0.882, rel=0.03)


def test_sigma_of_known_residuals_is_exact() -> None:
    """Residuals of +1, -1, -1, +1 millidegree on one axis, four points in an hour."""
    times_h = [0.0, 1 / 3, 2 / 3, 1.0]
    rate = fit_tilt_rate(times_h, [0.001, -0.001, -0.001, 0.001], [0.0] * 4)

    assert rate is not None
    assert rate.deg_per_h == pytest.approx(0, abs=1e-12)
    # variance 4e-6 over 2 * (4 - 2), spread 5/9
    assert rate.sigma_deg_per_h == pytest.approx(math.sqrt(1e-6 / (5 / 9)))


@pytest.mark.parametrize("count", [4, 7, 13])
def test_noise_alone_exceeds_at_the_stated_error_rate(count: int) -> None:
    """One window in a thousand, for few and for many readings."""
    rng = random.Random(2)
    times_h = [n / (count - 1) for n in range(count)]
    false_alarms = 0
    for _ in range(20_000):
        axes = ([rng.gauss(0, 0.05) for _ in times_h] for _ in range(2))
        rate = fit_tilt_rate(times_h, *axes)
        false_alarms += rate is not None and rate.exceeds(0.0)

    assert false_alarms / 20_000 == pytest.approx(FALSE_SHARE, rel=0.7)


def test_real_movement_is_significant() -> None:
    """Ten times the threshold is detected with the noise of a good sensor."""
    rng = random.Random(3)
    for _ in range(200):
        x = [value + rng.gauss(0, 0.0029) for value in line(0.1)]
        rate = fit_tilt_rate(HOUR, x, [rng.gauss(0, 0.0029) for _ in HOUR])
        assert rate is not None
        assert rate.exceeds(0.01)


@pytest.mark.parametrize(
    ("rate", "sigma", "exceeds"),
    [
        (0.1, 0.0, True),
        (0.0999, 0.0, False),
        (0.2, 0.05, True),
        (0.2, 0.07, False),
        (0.0, 0.0, False),
        (math.nan, 0.0, False),
    ],
)
def test_rate_exceeds_when_reached_and_significant(
    rate: float, sigma: float, *, exceeds: bool
) -> None:
    """The threshold is inclusive; three sigmas must lie below the rate."""
    assert TiltRate(rate, sigma, 1000).exceeds(0.1) is exceeds


@pytest.mark.parametrize("count", range(4))
def test_too_few_readings_give_no_rate(count: int) -> None:
    """At least four readings are needed."""
    assert fit_tilt_rate(HOUR[:count], [0.0] * count, [0.0] * count) is None


def test_readings_of_one_instant_give_no_rate() -> None:
    """A rate needs at least two times."""
    assert fit_tilt_rate([1.0] * 5, [0, 1, 2, 3, 4], [0] * 5) is None


def test_axes_of_unequal_length_are_refused() -> None:
    """A reading without one axis is the caller's error."""
    with pytest.raises(ValueError, match="shorter"):
        fit_tilt_rate(HOUR, [0.0] * 7, [0.0] * 6)


def test_rate_between_steps_is_that_of_the_parts() -> None:
    """A kick that a reading falls into, and a second one; the creep is 0.2 deg/h."""
    kicks = [0.0, 0.0, 0.7, 1.0, 1.0, 1.4, 1.4]
    x = [0.2 * t + kick for t, kick in zip(HOUR, kicks, strict=True)]
    rate = fit_tilt_rate(HOUR, x, [0.0] * 7, [(1, 3), (4, 5)])

    assert rate is not None
    assert rate.deg_per_h == pytest.approx(0.2)
    assert rate.points == 6
    assert fit_tilt_rate(HOUR, x, x, [(0, 2), (2, 5), (5, 6)]) is None


@pytest.mark.parametrize("parts", [1, 2])
def test_kick_in_noise_leaves_no_rate_beyond_the_share(parts: int) -> None:
    """The step is unknown by the noise of the readings at its sides."""
    rng, false_rates = random.Random(7), 0
    step = (2, 2 + parts)
    for _ in range(5000):
        x, y = ([rng.gauss(0, 0.01) for _ in HOUR] for _ in range(2))
        x = [v + (at > 2) * (0.6 if parts == 2 and at == 3 else 1.0)
             for at, v in enumerate(x)]  # fmt: skip
        rate = fit_tilt_rate(HOUR, x, y, [step])
        least = noise_sigmas(1e9) / 3 * tilt_resolution_deg_per_h(0.01, HOUR, [step])
        false_rates += rate is not None and rate.deg_per_h > least

    assert false_rates / 5000 <= 2 * FALSE_SHARE


@pytest.mark.parametrize("noisy_from", [0, 19, 34])
def test_uneven_noise_seldom_exceeds_its_bound(noisy_from: int) -> None:
    """Noise of one axis, that of half of the window, or of its last readings."""
    rng, false_rates = random.Random(8), 0
    times_h = [at / 6 for at in range(37)]
    for _ in range(3000):
        x = [rng.gauss(0, 0.1 if at >= noisy_from else 0.002) for at in range(37)]
        rate = fit_tilt_rate(times_h, x, [rng.gauss(0, 0.002) for _ in times_h])
        false_rates += rate is not None and rate.exceeds(0.0)

    assert false_rates / 3000 <= 0.005
