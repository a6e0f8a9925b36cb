import pytest

from edge_agent.simulator.slope import air_at, count_shocks, stream_depth_m
from slope_science.rain_and_soil_water import SoilWater

DRY, WET = SoilWater(0.0, 10.0, 10.0), SoilWater(90.0, 60.0, 80.0)


def test_stream_rises_with_the_runoff() -> None:
    """Tanks below their outlets give no flow; in a storm the depth is 0.3 to 1.5 m."""
    assert stream_depth_m(DRY) == 0
    assert 0.3 < stream_depth_m(WET) < 1.5


def test_stream_follows_manning() -> None:
    """3.6 mm/h from the lowest outlet are 0.1667 m2/s, 0.138 m deep."""
    assert stream_depth_m(SoilWater(0, 0, 375.0)) == pytest.approx(0.138, abs=0.001)


def test_shocks_increase_with_time_and_movement() -> None:
    """One in five quiet hours; three for each millimetre."""
    assert count_shocks(5 * 3600, 0.0) == 1
    assert count_shocks(0, 10.0) == 30


def test_storm_cools_and_moistens_the_air() -> None:
    """Rain brings the air near saturation, cooler, under a lower pressure."""
    calm, storm = air_at(0.0, DRY), air_at(0.0, WET)
    assert calm.humidity_pct == pytest.approx(72.2, abs=0.5)
    assert 97 < storm.humidity_pct <= 100
    assert storm.temp_c < calm.temp_c
    assert storm.pressure_hpa == pytest.approx(949, abs=0.1)


@pytest.mark.parametrize("hour", range(0, 24, 3))
def test_air_stays_in_a_realistic_range(hour: int) -> None:
    """No hour of a dry day is saturated or unrealistically dry."""
    air = air_at(hour * 3600.0, DRY)
    assert 30 < air.humidity_pct <= 100
    assert 5 < air.temp_c < 25
    assert 940 < air.pressure_hpa < 960
