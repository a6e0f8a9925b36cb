"""Readings and reasons in the names and units by which the backend chooses its rules.

The backend does not know the settings of a node: rain in mm is a reading ``rain``,
other readings in mm are displacement, and a node has one gauge. A reading that would be
judged as another quantity is sent as a secondary value, which the backend only stores.
The node's own rules, the state of its sensors and ``[[triage.limit]]`` use the names
and units of the settings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from edge_agent import quantities
from slope_science.reasons import Reason
from spatial_mqtt.reading_quantities import UNJUDGED_PART
from spatial_mqtt.senml import Reading

GAUGE: Final = "rain"
"""Name of a gauge's readings in the backend."""

_SENSOR_PARAMS: Final = ("sensor", "by")
"""Parameters of reasons that name a sensor."""


class _Measuring(Protocol):
    @property
    def name(self) -> str:
        """Name of the sensor."""

    @property
    def quantity(self) -> str:
        """Measured quantity."""


def find_sent_names(sensors: Iterable[_Measuring]) -> dict[str, str]:
    """Names under which the values of rain gauges are sent, where they differ.

    The first gauge is ``rain`` if no sensor has that name. Any other one is a secondary
    value such as ``north/rain``, which the backend stores and does not judge.
    """
    sensors = tuple(sensors)
    names = {sensor.name for sensor in sensors}
    # A gauge under another word for rain comes after those that were always one.
    gauges = [
        sensor.name
        for quantity_of in (quantities.canonical_quantity, quantities.judged_quantity)
        for sensor in sensors
        if quantity_of(sensor.quantity) == quantities.RAIN
    ]
    sent = {name: f"{name}/{GAUGE}" for name in gauges if name != GAUGE}
    if gauges and GAUGE not in names:
        sent[gauges[0]] = GAUGE
    return sent


class SentReadings:
    """Converts the readings of a node for the backend.

    Args:
        sensors: All sensors of the node.
    """

    def __init__(self, sensors: Iterable[_Measuring]) -> None:
        sensors = tuple(sensors)
        self._names: Mapping[str, str] = find_sent_names(sensors)
        self._quantities = {
            sensor.name: quantities.judged_quantity(sensor.quantity)
            for sensor in sensors
        }

    def convert(self, readings: Iterable[Reading]) -> list[Reading]:
        """The readings as they are sent."""
        return [self._convert(reading) for reading in readings]

    def convert_reason(self, reason: Reason) -> Reason:
        """A reason with the gauge named as its readings are, at any depth.

        The backend lowers a level by the flags of the readings that its reason names.
        Secondary values are those of the sensor before the slash.
        """
        changed: dict[str, object] = {}
        for name, value in reason.params.items():
            if isinstance(value, Reason):
                changed[name] = self.convert_reason(value)
            elif name in _SENSOR_PARAMS and isinstance(value, str):
                sensor, slash, part = value.partition("/")
                if self._names.get(sensor) == GAUGE:
                    changed[name] = f"{GAUGE}{slash}{part}"
        return reason.changed(**changed)

    def _convert(self, reading: Reading) -> Reading:
        sensor, slash, part = reading.name.partition("/")
        name = self._names.get(sensor, sensor)
        quantity = self._quantities.get(sensor, "")
        if isinstance(reading.value, bool) and (slash or quantity != quantities.WIRE):
            # the backend takes a truth value of any name for a trip wire
            reading = replace(reading, unit="/", value=float(reading.value))
        if slash:
            return replace(reading, name=f"{name}/{part}") if name == GAUGE else reading
        unit, factor = quantities.backend_unit(quantity, reading.unit)
        if quantities.unit_factor(quantity, reading.unit) is None:
            quantity = ""
        if quantities.backend_quantity(name, unit) not in {None, quantity}:
            name = f"{name}/{UNJUDGED_PART}"
        value = reading.value
        if factor == 1:
            return replace(reading, name=name)
        if isinstance(value, int | float):
            value = _without_noise(value * factor)
        total = None if reading.sum is None else _without_noise(reading.sum * factor)
        return replace(reading, name=name, unit=unit, value=value, sum=total)


def _without_noise(value: float) -> float:
    """Remove the rounding error of a conversion."""
    return float(f"{value:.12g}")
