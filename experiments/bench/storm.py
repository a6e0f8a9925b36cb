"""Readings of a node in a storm, from the product's drivers on the simulated slope.

The node has the sensors of ``docs/how-to/node.md``: rain, soil moisture, tilt and a
trip wire, read each minute. The readings begin when the storm has lasted 17 hours and
the soil water index has passed the advisory criterion.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from edge_agent.app import open_hardware, open_node_sensors
from edge_agent.config import parse_node_settings, parse_time
from edge_agent.triage.engine import Triage
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import Reading

NODE = "kochi-0001"
CELL = Cell.at(33.5588, 133.5312)
INTERVAL_S = 60.0

_START = "2026-07-01T00:00:00+09:00"
_FIRST_S = 17 * 3600.0
_APPROACH_S = 600.0
_SENSORS = [
    {"kind": "rain-gauge", "name": "rain", "pin": 17, "mm_per_tip": 0.5},
    {"kind": "soil-moisture", "name": "soil", "channel": 0, "dry_v": 2.2, "wet_v": 1.0},
    {"kind": "tilt", "name": "tilt", "device": 1},
    {"kind": "wire", "name": "span", "pin": 27},
]


@dataclass(frozen=True)
class Sampling:
    """Readings of all sensors at one instant.

    Attributes:
        time_s: Unix time.
        mono_s: Seconds since the node started.
        readings: Readings of every sensor.
        why: Reason given by triage.
    """

    time_s: float
    mono_s: float
    readings: tuple[Reading, ...]
    why: str | None


def readings_each() -> int:
    """Return the number of readings of one sampling."""
    return len(next(storm()).readings)


def storm() -> Iterator[Sampling]:
    """Yield one sampling per simulated minute, without end."""
    node = parse_node_settings({
        "node": {"id": NODE, "latitude": 33.5588, "longitude": 133.5312},
        "uplink": {"gateway": "mqtt://127.0.0.1:1883"},
        "simulation": {"start": _START},
        "sensor": _SENSORS,
    })
    on = open_hardware(node)
    if on.board is None:
        raise RuntimeError("a simulated node must have a board")
    opened = open_node_sensors(node, on)
    triage = Triage(node.sensors)
    start_s = parse_time(_START).timestamp()
    passed_s = 0.0
    while True:
        # A sampling takes place some milliseconds after the full minute.
        now_s = round(start_s + passed_s + 0.217 + passed_s * 1e-6, 3)
        on.board.advance(now_s)
        readings = tuple(r for sensor in opened for r in sensor.read(now_s))
        why = triage.assess(readings, now_s).why
        if passed_s >= _FIRST_S:
            yield Sampling(now_s, round(now_s - start_s + 11.4, 3), readings, why)
        passed_s += INTERVAL_S if passed_s >= _FIRST_S - INTERVAL_S else _APPROACH_S
