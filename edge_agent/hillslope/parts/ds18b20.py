"""A DS18B20 in the ground, as the kernel shows it: a folder of files.

Source: kernel documentation w1_therm; DS18B20 data sheet (Maxim 19-7487), table 1.
"""

from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.ds18b20 import Ds18b20Settings

_STEPS_PER_C = 16
_POWER_ON_C, _SHORTED_C = 85.0, -127.0
_GARBLED = "ff ff ff ff ff ff ff ff ff : crc=c9 NO\nff ff ff ff ff ff ff ff ff t={}\n"


class Ds18b20Part(BreakablePart):
    """Gives the ground's temperature in sixteenths of a degree."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.UNCONVERTED,
        Fault.SHORTED,
        Fault.GARBLED,
    })

    def __init__(self, settings: Ds18b20Settings, bench: Bench) -> None:
        super().__init__()
        folder = f"/sys/bus/w1/devices/{settings.rom}"
        self._new, self._old = f"{folder}/temperature", f"{folder}/w1_slave"
        self._files = bench.buses.files
        self._celsius = 0.0
        self.mend()

    def move(self, state: SlopeState) -> None:
        """Take the ground's temperature."""
        if self.fault is None:
            self._celsius = state.temp_c

    def fail(self, fault: Fault) -> None:
        """Fall off the wire, lose power at each conversion, or answer nonsense."""
        super().fail(fault)
        celsius = {Fault.UNCONVERTED: _POWER_ON_C, Fault.SHORTED: _SHORTED_C}
        self._celsius = celsius.get(fault, self._celsius)
        if fault in {Fault.DEAD, Fault.GARBLED}:
            self._files.pop(self._new, None)
        if fault is Fault.GARBLED:
            self._files[self._old] = lambda: _GARBLED.format(self._milli())

    def mend(self) -> None:
        """Solder a new one in, with the old one's number."""
        super().mend()
        self._files.pop(self._old, None)
        self._files[self._new] = lambda: f"{self._milli()}\n"

    def _milli(self) -> int:
        return int(round(self._celsius * _STEPS_PER_C) / _STEPS_PER_C * 1000)
