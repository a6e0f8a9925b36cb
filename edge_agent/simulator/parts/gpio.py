"""Simulated sensors on pins: contacts, the trip wire and the ultrasonic ranger."""

from collections.abc import Mapping
from typing import ClassVar

from edge_agent.sensors.rain_gauge_and_vibration import (
    RainGaugeSettings,
    VibrationSettings,
)
from edge_agent.sensors.trip_wire import TripWireSettings
from edge_agent.sensors.ultrasonic import UltrasonicSettings, speed_of_sound
from edge_agent.simulator.parts.base import (
    BreakablePart,
    ConnectPart,
    Fault,
    SimulatedBench,
)
from edge_agent.simulator.slope import SlopeState

_FLAPS_PER_S = 5.0
_MAX_FLAPS = 500


class ContactPart(BreakablePart):
    """A contact that closes evenly over the time since the last call.

    Dead or stuck it stays open, shorted it stays closed, flapping it closes by itself;
    closures during a fault are not made up for.
    """

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.SHORTED,
        Fault.FLAPPING,
    })

    def __init__(
        self, pin: int, bench: SimulatedBench, *, active_high: bool = False
    ) -> None:
        super().__init__()
        self._pin = bench.pin(pin)
        self._factory = bench.pin_factory
        self._active_high = active_high
        self._last_s: float | None = None
        self._total: int | None = None

    def close_up_to(self, total: int, now_s: float) -> None:
        """Close as often as a total count has grown since the last call.

        The first call closes nothing, nor does a total that shrinks.
        """
        before = total if self._total is None else self._total
        self._total = max(total, before)
        self.close_times(self._total - before, now_s)

    def close_times(self, times: int, now_s: float) -> None:
        """Close a number of times until now."""
        last_s = now_s if self._last_s is None else min(self._last_s, now_s)
        self._last_s = now_s
        if self.fault is Fault.FLAPPING:
            times = min(int(_FLAPS_PER_S * (now_s - last_s)), _MAX_FLAPS)
        elif self.fault is not None:
            times = 0
        for number in range(1, times + 1):
            self._factory.now_s = last_s + (now_s - last_s) * number / times
            self.pulse()
        self._factory.now_s = now_s

    def pulse(self) -> None:
        """Close once."""
        self._pin.hold(level=self._active_high)
        self._pin.release()

    def inject_fault(self, fault: Fault) -> None:
        """Break the contact or its cable."""
        super().inject_fault(fault)
        if fault is Fault.SHORTED:
            self._pin.hold(level=self._active_high)

    def clear_fault(self) -> None:
        super().clear_fault()
        self._pin.release()


class RainGaugePart(ContactPart):
    """Tips as the rain fills it."""

    def __init__(self, settings: RainGaugeSettings, bench: SimulatedBench) -> None:
        super().__init__(settings.pin, bench)
        self._mm_per_tip = settings.mm_per_tip

    def follow(self, state: SlopeState) -> None:
        self.close_up_to(int(state.rain_mm / self._mm_per_tip + 1e-9), state.time_s)


_PULSES, _GAP_S = 4, 0.01


class VibrationPart(ContactPart):
    """Shakes with the slope."""

    def __init__(self, settings: VibrationSettings, bench: SimulatedBench) -> None:
        super().__init__(settings.pin, bench, active_high=settings.active_high)

    def follow(self, state: SlopeState) -> None:
        self.close_up_to(state.vibration_pulses, state.time_s)

    def pulse(self) -> None:
        """A train of pulses."""
        for _ in range(_PULSES):
            super().pulse()
            self._factory.now_s += _GAP_S


class WirePart(BreakablePart):
    """Holds the pin low while it is whole; a broken part stays as it is."""

    def __init__(self, settings: TripWireSettings, bench: SimulatedBench) -> None:
        super().__init__()
        self._pin = bench.pin(settings.pin)
        self._pin.hold(level=False)

    def follow(self, state: SlopeState) -> None:
        if self.fault is not None:
            return
        if state.wire_cut:
            self._pin.release()
        else:
            self._pin.hold(level=False)


_NOISE_M, _SPRAY_M = 0.003, 1.0
_DELAY_S = 0.0005
_NEAREST_M = 0.02


class UltrasonicPart(BreakablePart):
    """Measures the water level, through air of the slope's temperature."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.NOISY,
        Fault.SHORTED,
    })

    def __init__(self, settings: UltrasonicSettings, bench: SimulatedBench) -> None:
        super().__init__()
        self._mount_m = self._distance_m = settings.mount_m
        self._air_c = settings.air_c
        self._rng = bench.rng
        self._factory = bench.pin_factory
        self._echo = bench.pin(settings.echo_pin)
        self._echo.hold(level=False)
        bench.pin(settings.trigger_pin).on_drive = self._driven

    def follow(self, state: SlopeState) -> None:
        if self.fault in {None, Fault.NOISY}:
            self._distance_m = self._mount_m - state.stream_m
            self._air_c = state.air.temp_c

    def inject_fault(self, fault: Fault) -> None:
        """Break the module or its cable."""
        super().inject_fault(fault)
        self._echo.hold(level=fault is Fault.SHORTED)

    def clear_fault(self) -> None:
        super().clear_fault()
        self._echo.hold(level=False)

    def _driven(self, level: bool) -> None:
        """The end of a trigger: the echo rises, and falls after the flight."""
        if level or self.fault in {Fault.DEAD, Fault.SHORTED}:
            return
        sigma_m = _SPRAY_M if self.fault is Fault.NOISY else _NOISE_M
        distance_m = max(self._distance_m + self._rng.gauss(0, sigma_m), _NEAREST_M)
        begin_s = self._factory.now_s + _DELAY_S
        self._echo.hold(level=True, at_s=begin_s)
        end_s = begin_s + 2 * distance_m / speed_of_sound(self._air_c)
        self._echo.hold(level=False, at_s=end_s)


PARTS: Mapping[str, ConnectPart] = {
    "rain-gauge": RainGaugePart,
    "ultrasonic": UltrasonicPart,
    "vibration": VibrationPart,
    "wire": WirePart,
}
