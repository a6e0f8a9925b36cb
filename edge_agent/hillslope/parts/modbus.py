"""A Modbus probe on the slope: registers that follow it in the installer's unit."""

from edge_agent.hillslope.chips.modbus_slave import ModbusSlave
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.line import LinePart
from edge_agent.sensors.modbus_probe import ModbusSettings


class ModbusPart(LinePart[ModbusSlave]):
    """One number in the registers of a probe."""

    def __init__(self, settings: ModbusSettings, bench: Bench) -> None:
        place = (settings.port, settings.address)
        super().__init__(settings, bench, place, lambda: ModbusSlave(place[1]))
        self._form = (settings.register, settings.type, settings.order)

    def hold(self, number: float) -> None:
        """Put a number into the registers."""
        register, kind, order = self._form
        self._device.hold(register, number, kind, order)
