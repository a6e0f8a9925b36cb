"""A look at every sensor of a node, for the installer; no queue is opened."""

from collections.abc import Iterator
from dataclasses import dataclass

from edge_agent import wiring
from edge_agent.config import NodeSettings
from edge_agent.sensors.base import Sensor
from edge_agent.sensors.errors import SensorError
from spatial_mqtt.envelope import Reading


@dataclass(frozen=True)
class Look:
    """What one sensor said.

    Attributes:
        name: Of the sensor.
        is_well: Whether it gave a reading.
        words: Its readings with units, or its problem.
    """

    name: str
    is_well: bool
    words: str


def look_at(node: NodeSettings) -> Iterator[Look]:
    """Read each sensor once."""
    bench = wiring.bench(node)
    for sensor in wiring.sensors(node, bench):
        yield _look(sensor, bench.clock.wall_s())
        sensor.close()


def _look(sensor: Sensor, now_s: float) -> Look:
    where = ", ".join(sensor.claims)
    try:
        readings = sensor.read(now_s)
    except SensorError as error:
        return Look(sensor.name, False, f"{error}  [{where}]")
    return Look(sensor.name, True, f"{', '.join(map(_words, readings))}  [{where}]")


def _words(reading: Reading) -> str:
    value = reading.value
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    unit = f" {reading.unit}" if reading.unit else ""
    return f"{reading.name} {shown}{unit}"
