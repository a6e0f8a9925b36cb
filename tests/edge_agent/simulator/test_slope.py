from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.simulator.slope import DRY_VWC, WET_VWC, Slope, SlopeSite, make_storm

START_S = 1_700_000_000.0
HOUR_S = 3600.0
FAILURE_S = START_S + 60 * HOUR_S


def slope(**site: float) -> Slope:
    """A slope in a storm of two days."""
    rain = make_storm("peaked", START_S, 48, 300)
    return Slope(rain, SlopeSite(start_s=START_S, **site))  # type: ignore[arg-type]


@given(st.lists(st.floats(-1e4, 80 * HOUR_S), min_size=1, max_size=6))
def test_state_depends_only_on_the_time(times: list[float]) -> None:
    """Earlier calls do not change the state at a time."""
    reused = slope(failure_time_s=FAILURE_S)
    for t in times:
        seen = reused.state_at(START_S + t)
    assert seen == slope(failure_time_s=FAILURE_S).state_at(START_S + times[-1])


def test_rain_raises_soil_moisture_and_pore_pressure() -> None:
    """Moisture stays in its range; pressure turns from suction to positive."""
    model = slope()
    before, after = model.state_at(START_S), model.state_at(START_S + 40 * HOUR_S)
    assert DRY_VWC < before.vwc < after.vwc < WET_VWC
    assert before.pore_kpa < 0 < after.pore_kpa
    assert before.rain_mm == 0
    assert after.rain_mm > 200


def test_quiet_slope_hardly_moves() -> None:
    """Without a failure, a week of creep stays far below 0.01 deg/h."""
    model = Slope(make_storm("quiet", START_S, 1, 0), SlopeSite(start_s=START_S))
    moved = model.state_at(START_S + 168 * HOUR_S).tilt_x_deg - 1.2
    assert 0 <= moved < 0.05


@pytest.mark.parametrize("hours_left", [40, 20, 10, 2, 0.5])
def test_inverse_velocity_falls_linearly_to_the_failure(hours_left: float) -> None:
    """1/v = A (tf - t) by Fukuzono; the worked example has 2 mm/h 10 h before."""
    model = slope(failure_time_s=FAILURE_S)
    velocity = model.state_at(FAILURE_S - hours_left * HOUR_S).velocity_mm_per_h
    assert velocity == pytest.approx(1 / (0.05 * hours_left), abs=0.21)


def test_displacement_is_the_sum_of_the_velocity() -> None:
    """Between 12 h and 6 h before, x = ln 2 / A."""
    model = slope(failure_time_s=FAILURE_S)
    before_12_h, before_6_h = (model.state_at(FAILURE_S - h * HOUR_S) for h in (12, 6))
    assert before_6_h.displacement_mm - before_12_h.displacement_mm == pytest.approx(
        13.86, abs=1.3
    )


def test_failed_slope_hardly_moves() -> None:
    """After the failure the slide rests; only background creep continues."""
    model = slope(failure_time_s=FAILURE_S)
    at_failure, later = (model.state_at(FAILURE_S + h * HOUR_S) for h in (0, 24))
    assert later.displacement_mm - at_failure.displacement_mm < 5
    assert later.velocity_mm_per_h <= 0.2


def test_wire_breaks_at_failure_or_at_the_set_time() -> None:
    """The wire is cut from that time on."""
    failing = slope(failure_time_s=FAILURE_S)
    cut_by_setting = slope(wire_break_s=START_S + 10)
    assert [failing.state_at(FAILURE_S + dt).wire_cut for dt in (-1, 0)] == [
        False,
        True,
    ]
    assert [cut_by_setting.state_at(START_S + dt).wire_cut for dt in (9, 10)] == [
        False,
        True,
    ]
    assert not slope().state_at(FAILURE_S).wire_cut


def test_a_week_is_computed_once() -> None:
    """For a node that was off for a week; a time before takes an hour's steps."""
    model = slope()
    count = Mock(wraps=model.rain)
    model.rain = count
    week_s = START_S + 168 * HOUR_S
    for at_s, most in ((week_s, 168 * 60 + 1), (week_s, 0), (week_s - HOUR_S, 61)):
        count.reset_mock()
        model.state_at(at_s)
        assert count.cumulative_mm.call_count <= most
