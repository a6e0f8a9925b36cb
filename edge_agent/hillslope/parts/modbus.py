"""A Modbus probe on the slope: registers that follow it in the installer's unit."""

import random
from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.parts.following import followed, number_for
from edge_agent.hillslope.parts.modbus_slave import ModbusSlave
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.modbus_probe import ModbusSettings

_FOR_EVER = 1_000_000_000
_NOISE = 1e-4  # of the range


class ModbusPart(BreakablePart):
    """One number in the registers of a probe, which other sensors may share."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.GARBLED,
        Fault.SATURATED,
        Fault.DISCONNECTED,
    })

    def __init__(self, settings: ModbusSettings, bench: Bench) -> None:
        super().__init__()
        self._settings = settings
        self._rng: random.Random = bench.rng
        self._line = bench.buses.line(settings.port)
        key = (settings.port, settings.address)
        if key not in bench.chips:
            bench.chips[key] = ModbusSlave(settings.address)
            self._line.devices.append(bench.chips[key].answer)
        self._slave: ModbusSlave = bench.chips[key]

    def move(self, state: SlopeState) -> None:
        """Hold the number for what the slope is."""
        if self.fault is None:
            s = self._settings
            noise = self._rng.gauss(0, _NOISE) * (s.high - s.low)
            value = min(max(followed(s, state) + noise, s.low), s.high)
            self._slave.hold(s.register, number_for(s, value), s.type, s.order)

    def fail(self, fault: Fault) -> None:
        """Break the probe, its element, its cable, or the adapter."""
        super().fail(fault)
        s = self._settings
        self._slave.mute = _FOR_EVER * (fault is Fault.DEAD)
        self._slave.noisy = _FOR_EVER * (fault is Fault.GARBLED)
        self._line.is_plugged = fault is not Fault.DISCONNECTED
        if fault is Fault.SATURATED:
            beyond = number_for(s, s.high + (s.high - s.low))
            self._slave.hold(s.register, beyond, s.type, s.order)

    def mend(self) -> None:
        """Replace what is broken."""
        super().mend()
        self._slave.mute = self._slave.noisy = 0
        self._line.is_plugged = True
