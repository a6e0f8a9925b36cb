"""An ultrasonic ranger over the stream: each trigger gives an echo of its length."""

from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.ultrasonic import UltrasonicSettings, sound_m_per_s

_NOISE_M, _SPRAY_M = 0.003, 1.0
_DELAY_S = 0.0005
_NEAREST_M = 0.02


class UltrasonicPart(BreakablePart):
    """Hears the water, through air of its own temperature."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.NOISY,
        Fault.SHORTED,
    })

    def __init__(self, settings: UltrasonicSettings, bench: Bench) -> None:
        super().__init__()
        self._mount_m = self._distance_m = settings.mount_m
        self._air_c = settings.air_c
        self._rng = bench.rng
        self._factory = bench.pin_factory
        self._echo = bench.pin(settings.echo_pin)
        self._echo.hold(level=False)
        bench.pin(settings.trigger_pin).on_drive = self._driven

    def move(self, state: SlopeState) -> None:
        """Let the water rise, and the air change."""
        if self.fault in {None, Fault.NOISY}:
            self._distance_m = self._mount_m - state.stream_m
            self._air_c = state.air.temp_c

    def fail(self, fault: Fault) -> None:
        """Break the module or its cable."""
        super().fail(fault)
        self._echo.hold(level=fault is Fault.SHORTED)

    def mend(self) -> None:
        """Take a new one."""
        super().mend()
        self._echo.hold(level=False)

    def _driven(self, level: bool) -> None:
        """The end of a trigger: the echo rises, and falls after the flight."""
        if level or self.fault in {Fault.DEAD, Fault.SHORTED}:
            return
        sigma_m = _SPRAY_M if self.fault is Fault.NOISY else _NOISE_M
        distance_m = max(self._distance_m + self._rng.gauss(0, sigma_m), _NEAREST_M)
        begin_s = self._factory.now_s + _DELAY_S
        self._echo.hold(level=True, at_s=begin_s)
        end_s = begin_s + 2 * distance_m / sound_m_per_s(self._air_c)
        self._echo.hold(level=False, at_s=end_s)
