"""The soil water index, against worked examples and its invariants."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science import ScienceError
from slope_science.rain_and_soil_water import (
    ONE_HOUR_H,
    TEN_MINUTES_H,
    SoilWater,
    soil_water_series,
)

STORM_MM = [0, 5, 10, 20, 30, 50, 60, 40, 20, 10, 5, 0, 0, 0, 0, 0, 0, 0]
# hour: (tank 1, tank 2, tank 3, index) in steps of 1 hour, then of 10 minutes
WORKED = {
    2: ((5.000, 0.000, 0.000, 5.000), (4.757, 0.241, 0.003, 5.000)),
    3: ((14.400, 0.600, 0.000, 15.000), (13.727, 1.242, 0.031, 15.000)),
    4: ((32.672, 2.298, 0.030, 35.000), (30.576, 3.663, 0.135, 34.374)),
    5: ((56.984, 6.104, 0.145, 63.233), (53.186, 8.243, 0.401, 61.831)),
    6: ((95.948, 12.637, 0.448, 109.033), (88.081, 15.934, 0.952, 104.967)),
    7: ((130.947, 23.519, 1.076, 155.541), (120.605, 26.971, 1.953, 149.530)),
    8: ((132.997, 37.630, 2.241, 172.868), (125.647, 39.251, 3.534, 168.432)),
    9: ((114.288, 50.577, 4.100, 168.965), (111.929, 49.948, 5.687, 167.564)),
    10: ((92.501, 59.984, 6.588, 159.073), (93.986, 57.819, 8.293, 160.099)),
    12: ((56.979, 68.855, 12.718, 138.552), (61.873, 65.722, 14.296, 141.891)),
    18: ((18.114, 59.302, 31.181, 108.597), (21.152, 58.708, 31.723, 111.583)),
}
STEPS = st.sampled_from([TEN_MINUTES_H, ONE_HOUR_H, 1 / 60, 0.5])
DEPTHS = st.floats(0, 200)
RAIN = st.lists(DEPTHS, min_size=1, max_size=60)
TANKS = st.builds(SoilWater, DEPTHS, DEPTHS, DEPTHS)


def ten_minute_depths(hourly_mm: list[float]) -> list[float]:
    """Hourly rain as six equal parts per hour."""
    return [depth_mm / 6 for depth_mm in hourly_mm for _ in range(6)]


def tank_values(tanks: SoilWater) -> tuple[float, float, float, float]:
    """Water of the three tanks and the index, in mm."""
    return tanks.s1_mm, tanks.s2_mm, tanks.s3_mm, tanks.index_mm


@pytest.mark.parametrize("hour", WORKED)
def test_storm_in_hourly_steps_gives_the_worked_values(hour: int) -> None:
    """Every tank of the worked example, by the explicit scheme."""
    tanks = list(soil_water_series(STORM_MM, ONE_HOUR_H))[hour - 1]

    assert tank_values(tanks) == pytest.approx(WORKED[hour][0], abs=1e-3)


@pytest.mark.parametrize("hour", WORKED)
def test_storm_in_ten_minute_steps_gives_the_worked_values(hour: int) -> None:
    """The same storm in JMA's step, each hour in six equal parts."""
    tanks = list(soil_water_series(ten_minute_depths(STORM_MM)))[6 * hour - 1]

    assert tank_values(tanks) == pytest.approx(WORKED[hour][1], abs=1e-3)


@pytest.mark.parametrize(
    ("step_h", "rain_mm", "peak_mm", "last_mm"),
    [
        (ONE_HOUR_H, [30.0] * 3 + [0.0] * 3, 84.510, 68.420),
        (TEN_MINUTES_H, [5.0] * 18 + [0.0] * 18, 82.699, 69.751),
    ],
)
def test_three_hours_of_steady_rain_give_the_worked_peak(
    step_h: float, rain_mm: list[float], peak_mm: float, last_mm: float
) -> None:
    """The second check case: 30 mm/h for 3 h on dry soil, then 3 h without rain."""
    index_mm = [tanks.index_mm for tanks in soil_water_series(rain_mm, step_h)]

    assert max(index_mm) == pytest.approx(peak_mm, abs=1e-3)
    assert index_mm[-1] == pytest.approx(last_mm, abs=1e-3)


def test_hour_four_follows_the_hand_check() -> None:
    """Below the first outlet only the bottoms drain."""
    tanks = SoilWater(14.4, 0.6, 0.0).step(20, ONE_HOUR_H)

    assert tank_values(tanks) == pytest.approx((32.672, 2.298, 0.03, 35.0), abs=1e-9)


@pytest.mark.parametrize(
    ("hours", "index_mm"),
    [
        (1, 165.7),
        (3, 148.9),
        (6, 132.7),
        (12, 113.4),
        (24, 89.4),
        (48, 62.4),
        (72, 43.1),
    ],
)
def test_wet_soil_drains_as_worked(hours: int, index_mm: float) -> None:
    """From (100, 50, 30) mm without rain, in 10-minute steps."""
    *_, last = soil_water_series([0.0] * 6 * hours, start=SoilWater(100, 50, 30))

    assert last.index_mm == pytest.approx(index_mm, abs=0.05)


def test_rain_is_added_before_the_outflow() -> None:
    """The explicit form: a single step of 10 mm leaves (10, 0, 0)."""
    assert SoilWater().step(10) == SoilWater(10, 0, 0)


def test_dry_soil_without_rain_stays_dry() -> None:
    """An empty tank has no outflow."""
    assert list(soil_water_series([0.0] * 3)) == [SoilWater()] * 3
    assert list(soil_water_series([])) == []


@given(tanks=TANKS, rain_mm=DEPTHS, more_mm=DEPTHS, step_h=STEPS)
def test_more_rain_raises_the_index(
    tanks: SoilWater, rain_mm: float, more_mm: float, step_h: float
) -> None:
    """By the same amount within a step."""
    less, more = tanks.step(rain_mm, step_h), tanks.step(rain_mm + more_mm, step_h)

    assert more.index_mm - less.index_mm == pytest.approx(more_mm, abs=1e-9)


@given(rain=st.lists(st.tuples(DEPTHS, DEPTHS), min_size=1, max_size=60), step_h=STEPS)
def test_wetter_storm_leaves_every_tank_fuller(
    rain: list[tuple[float, float]], step_h: float
) -> None:
    """At no later time does a tank hold less for more rain."""
    light = soil_water_series([a for a, _ in rain], step_h)
    heavy = soil_water_series([a + b for a, b in rain], step_h)

    for less, more in zip(light, heavy, strict=True):
        pairs = zip(tank_values(less), tank_values(more), strict=True)
        assert all(a <= b + 1e-9 for a, b in pairs)


@given(rain_mm=RAIN, step_h=STEPS, start=TANKS)
def test_tanks_are_never_negative(
    rain_mm: list[float], step_h: float, start: SoilWater
) -> None:
    """No step removes more water from a tank than it holds."""
    for tanks in soil_water_series(rain_mm, step_h, start):
        assert min(tank_values(tanks)) >= 0


@given(rain_mm=RAIN, step_h=STEPS, start=TANKS)
def test_mass_is_conserved(
    rain_mm: list[float], step_h: float, start: SoilWater
) -> None:
    """The loss equals the flow through the outlets and the lowest bottom."""
    before = start
    for depth_mm, after in zip(
        rain_mm, soil_water_series(rain_mm, step_h, start), strict=True
    ):
        sides = 0.10 * max(before.s1_mm - 15, 0) + 0.15 * max(before.s1_mm - 60, 0)
        sides += 0.05 * max(before.s2_mm - 15, 0) + 0.01 * max(before.s3_mm - 15, 0)
        out_mm = (sides + 0.01 * before.s3_mm) * step_h
        assert after.index_mm == pytest.approx(before.index_mm + depth_mm - out_mm)
        before = after


@given(rain_mm=RAIN, step_h=STEPS)
def test_index_never_exceeds_the_rain_that_fell(
    rain_mm: list[float], step_h: float
) -> None:
    """Starting from dry soil."""
    fallen_mm = 0.0
    for depth_mm, tanks in zip(
        rain_mm, soil_water_series(rain_mm, step_h), strict=True
    ):
        fallen_mm += depth_mm
        assert tanks.index_mm <= fallen_mm + 1e-9


@given(rain_mm=RAIN, start=TANKS, data=st.data())
def test_series_may_be_stopped_and_continued(
    rain_mm: list[float], start: SoilWater, data: st.DataObject
) -> None:
    """The tanks are the whole state, so a restart needs nothing else."""
    cut = data.draw(st.integers(1, len(rain_mm)))
    whole = list(soil_water_series(rain_mm, start=start))
    rest = soil_water_series(rain_mm[cut:], start=whole[cut - 1])

    assert whole[cut:] == list(rest)


@pytest.mark.parametrize("rain_mm", [-0.1, math.nan, math.inf, -math.inf])
def test_invalid_rain_is_refused(rain_mm: float) -> None:
    """A missing value is never counted as zero."""
    with pytest.raises(ScienceError, match="rain_mm must be zero or more, got"):
        SoilWater().step(rain_mm)
    with pytest.raises(ScienceError, match="rain_mm must be zero or more, got"):
        list(soil_water_series([1.0, rain_mm]))


@pytest.mark.parametrize("step_h", [0.0, -1.0, 1.001, math.nan, math.inf])
def test_step_beyond_an_hour_is_refused(step_h: float) -> None:
    """The explicit scheme is stable for short steps only."""
    with pytest.raises(ScienceError, match="step_h must be more than 0 and at most 1"):
        SoilWater().step(1.0, step_h)
