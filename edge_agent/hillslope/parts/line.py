"""A probe on a serial line, whatever it speaks there."""

from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.parts.following import followed, number_for
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.probe import ScaledSettings

_FOR_EVER = 1_000_000_000
_NOISE = 1e-4  # of the range
_BEYOND = 0.1  # of the range


class Device(Protocol):
    """What a probe is on its line."""

    mute: int
    noisy: int

    def answer(self, request: bytes) -> bytes:
        """What it sends."""


AnyDevice = TypeVar("AnyDevice", bound=Device)


class LinePart(BreakablePart, Generic[AnyDevice]):
    """One number of a probe, which sensors with other numbers of it share."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.GARBLED,
        Fault.SATURATED,
        Fault.DISCONNECTED,
    })

    def __init__(
        self,
        settings: ScaledSettings,
        bench: Bench,
        place: tuple[str, object],
        make: Callable[[], AnyDevice],
    ) -> None:
        super().__init__()
        self._settings = settings
        self._rng = bench.rng
        self._line = bench.buses.line(place[0])
        devices: dict[object, Any] = bench.chips
        if place not in devices:
            devices[place] = make()
            self._line.devices.append(devices[place].answer)
        self._device: AnyDevice = devices[place]

    def hold(self, number: float) -> None:
        """Answer with a number from now on."""
        raise NotImplementedError

    @property
    def saturated(self) -> float:
        """The number of a probe whose element is broken."""
        s = self._settings
        return number_for(s, s.high + _BEYOND * (s.high - s.low))

    def move(self, state: SlopeState) -> None:
        """Measure what the slope is."""
        if self.fault is None:
            s = self._settings
            noise = self._rng.gauss(0, _NOISE) * (s.high - s.low)
            value = min(max(followed(s, state) + noise, s.low), s.high)
            self.hold(number_for(s, value))

    def fail(self, fault: Fault) -> None:
        """Break the probe, its element, its cable, or the adapter."""
        super().fail(fault)
        self._device.mute = _FOR_EVER * (fault is Fault.DEAD)
        self._device.noisy = _FOR_EVER * (fault is Fault.GARBLED)
        self._line.is_plugged = fault is not Fault.DISCONNECTED
        if fault is Fault.SATURATED:
            self.hold(self.saturated)

    def mend(self) -> None:
        """Replace what is broken."""
        super().mend()
        self._device.mute = self._device.noisy = 0
        self._line.is_plugged = True
