"""An SDI-12 probe on the slope: values that follow it in the installer's unit."""

import random
from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.parts.following import followed, number_for
from edge_agent.hillslope.parts.sdi12_sensor import Sdi12Sensor
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.sdi12_probe import Sdi12Settings

_FOR_EVER = 1_000_000_000
_NOISE = 1e-4  # of the range
_BROKEN_ELEMENT = -9999.0
_MOST_VALUES = 9


class Sdi12Part(BreakablePart):
    """One value of a probe, which other sensors may share."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.GARBLED,
        Fault.SATURATED,
        Fault.DISCONNECTED,
    })

    def __init__(self, settings: Sdi12Settings, bench: Bench) -> None:
        super().__init__()
        self._settings = settings
        self._rng: random.Random = bench.rng
        self._line = bench.buses.line(settings.port)
        key = (settings.port, settings.address)
        if key not in bench.chips:
            bench.chips[key] = Sdi12Sensor(settings.address)
            self._line.devices.append(bench.chips[key].answer)
        self._probe: Sdi12Sensor = bench.chips[key]

    def move(self, state: SlopeState) -> None:
        """Measure what the slope is."""
        if self.fault is None:
            s = self._settings
            noise = self._rng.gauss(0, _NOISE) * (s.high - s.low)
            value = min(max(followed(s, state) + noise, s.low), s.high)
            self._hold(number_for(s, value))

    def fail(self, fault: Fault) -> None:
        """Break the probe, its element, its cable, or the adapter."""
        super().fail(fault)
        self._probe.mute = _FOR_EVER * (fault is Fault.DEAD)
        self._probe.noisy = _FOR_EVER * (fault is Fault.GARBLED)
        self._line.is_plugged = fault is not Fault.DISCONNECTED
        if fault is Fault.SATURATED:
            self._hold(_BROKEN_ELEMENT)

    def mend(self) -> None:
        """Replace what is broken."""
        super().mend()
        self._probe.mute = self._probe.noisy = 0
        self._line.is_plugged = True

    def _hold(self, number: float) -> None:
        s = self._settings
        values = list(self._probe.values.get(s.command, ()))
        values += [0.0] * (s.value - len(values))
        values[s.value - 1] = number
        self._probe.values[s.command] = tuple(values[:_MOST_VALUES])
