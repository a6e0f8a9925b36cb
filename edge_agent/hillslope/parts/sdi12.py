"""An SDI-12 probe on the slope: values that follow it in the installer's unit."""

from edge_agent.hillslope.chips.sdi12_sensor import Sdi12Sensor
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.line import LinePart
from edge_agent.sensors.sdi12_probe import Sdi12Settings

_BROKEN_ELEMENT = -9999.0


class Sdi12Part(LinePart[Sdi12Sensor]):
    """One value of a probe."""

    def __init__(self, settings: Sdi12Settings, bench: Bench) -> None:
        place = (settings.port, settings.address)
        super().__init__(settings, bench, place, lambda: Sdi12Sensor(place[1]))
        self._command, self._value = settings.command, settings.value

    @property
    def saturated(self) -> float:
        """What many probes say of a broken element."""
        return _BROKEN_ELEMENT

    def hold(self, number: float) -> None:
        """Give a number for the command's value."""
        values = list(self._device.values.get(self._command, ()))
        values += [0.0] * (self._value - len(values))
        values[self._value - 1] = number
        self._device.values[self._command] = tuple(values)
