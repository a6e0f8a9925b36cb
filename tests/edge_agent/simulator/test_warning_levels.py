import random

import pytest

from edge_agent.sensors.base import Hardware
from edge_agent.sensors.registry import open_sensors, parse_sensors
from edge_agent.simulator.board import Board
from edge_agent.simulator.slope import Slope, SlopeSite, make_storm
from edge_agent.triage.engine import Triage

START_S = 1_700_000_000.0
HOUR_S = 3600.0
FAILURE_S = START_S + 60 * HOUR_S
TABLES = (
    {"kind": "rain-gauge", "name": "rain", "pin": 17},
    {"kind": "soil-moisture", "name": "soil", "channel": 2, "dry_v": 2.6, "wet_v": 1.2},
    {"kind": "tilt", "name": "tilt", "device": 1},
    {"kind": "wire", "name": "wire", "pin": 27},
)


def simulate_levels(
    site: SlopeSite, total_mm: float, hours: int
) -> list[tuple[float, int]]:
    """Hours since the start and the node's level every 10 minutes."""
    settings = parse_sensors(TABLES)
    rng = random.Random(4)
    board = Board(
        Slope(make_storm("peaked", START_S, 36, total_mm), site), settings, rng
    )
    sensors = open_sensors(settings, Hardware(board.pin_factory, lambda _: None))
    triage = Triage(settings, soil=site.soil)
    levels_by_hour = []
    for step in range(hours * 6):
        now_s = START_S + step * 600
        board.advance(now_s)
        readings = [reading for sensor in sensors for reading in sensor.read(now_s)]
        levels_by_hour.append((step / 6, triage.assess(readings, now_s).level))
    return levels_by_hour


def test_levels_rise_before_a_failure() -> None:
    """Tilt: level 3 at least 10 h ahead, then 4; the cut wire: level 5 at failure."""
    levels_by_hour = simulate_levels(
        SlopeSite(START_S, failure_time_s=FAILURE_S), total_mm=60, hours=61
    )
    first = {
        at: next(hour for hour, level in levels_by_hour if level >= at)
        for at in (3, 4, 5)
    }
    assert 12 < first[3] < 50
    assert 50 < first[4] < 60
    assert first[5] == pytest.approx(60, abs=0.01)


@pytest.mark.long
def test_storm_without_failure_gives_rain_levels() -> None:
    """300 mm in a day and a half exceed the criteria; tilt raises nothing."""
    levels_by_hour = simulate_levels(SlopeSite(START_S), total_mm=300, hours=40)
    assert max(level for _, level in levels_by_hour) in {3, 4}


@pytest.mark.long
def test_quiet_slope_stays_at_level_one() -> None:
    """Two days without rain: noise alone raises nothing."""
    levels_by_hour = simulate_levels(SlopeSite(START_S), total_mm=0, hours=48)
    assert {level for _, level in levels_by_hour} == {1}
