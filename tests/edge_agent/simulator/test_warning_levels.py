import random

import pytest

from edge_agent.sensors.base import Hardware
from edge_agent.sensors.registry import open_sensors, parse_sensors
from edge_agent.simulator.board import Board
from edge_agent.simulator.rain import make_storm
from edge_agent.simulator.slope import Slope, SlopeSite
from edge_agent.triage import Triage

START_S = 1_700_000_000.0
HOUR_S = 3600.0
FAILURE_S = START_S + 60 * HOUR_S
TABLES = (
    {"kind": "rain-gauge", "name": "rain", "pin": 17},
    {"kind": "soil-moisture", "name": "soil", "channel": 2, "dry_v": 2.6, "wet_v": 1.2},
    {"kind": "tilt", "name": "tilt", "device": 1},
    {"kind": "wire", "name": "wire", "pin": 27},
)


def levels(site: SlopeSite, total_mm: float, hours: int) -> list[tuple[float, int]]:
    """Hours since the start, and what the node says of every 10 minutes."""
    settings = parse_sensors(TABLES)
    rng = random.Random(4)
    board = Board(
        Slope(make_storm("peaked", START_S, 36, total_mm), site), settings, rng
    )
    sensors = open_sensors(settings, Hardware(board.pin_factory, lambda _: None))
    triage = Triage(settings, soil=site.soil)
    told = []
    for step in range(hours * 6):
        now_s = START_S + step * 600
        board.advance(now_s)
        readings = [reading for sensor in sensors for reading in sensor.read(now_s)]
        told.append((step / 6, triage.assess(readings, now_s).level))
    return told


def test_a_failing_slope_is_warned_of_before_it_fails() -> None:
    """Tilt says 3 a day or more ahead, 4 hours ahead; the wire says 5 at failure."""
    told = levels(SlopeSite(START_S, failure_time_s=FAILURE_S), total_mm=60, hours=61)
    first = {at: next(hour for hour, level in told if level >= at) for at in (3, 4, 5)}
    assert 12 < first[3] < 50
    assert 50 < first[4] < 60
    assert first[5] == pytest.approx(60, abs=0.01)


def test_a_storm_without_a_failure_is_told_by_its_rain() -> None:
    """300 mm in a day and a half pass the criteria, and the tilt stays silent."""
    told = levels(SlopeSite(START_S), total_mm=300, hours=40)
    assert max(level for _, level in told) in {3, 4}


def test_a_quiet_slope_stays_at_level_one() -> None:
    """Two days without rain: noise alone raises nothing."""
    told = levels(SlopeSite(START_S), total_mm=0, hours=48)
    assert {level for _, level in told} == {1}
