"""A contact on a pin that something moves: it closes, and opens again."""

from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart

_FLAPS_PER_S = 5.0
_MOST_FLAPS = 500


class ContactPart(BreakablePart):
    """Closes so many times, evenly over the time since the last call.

    Dead or stuck it stays open, shorted it stays closed, and flapping it closes by
    itself; what moved it meanwhile is not made up for.
    """

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.SHORTED,
        Fault.FLAPPING,
    })

    def __init__(self, pin: int, bench: Bench, *, active_high: bool = False) -> None:
        super().__init__()
        self._pin = bench.pin(pin)
        self._factory = bench.pin_factory
        self._active_high = active_high
        self._last_s: float | None = None

    def close_times(self, times: int, now_s: float) -> None:
        """Close so many times until now."""
        last_s = now_s if self._last_s is None else min(self._last_s, now_s)
        self._last_s = now_s
        if self.fault is Fault.FLAPPING:
            times = min(int(_FLAPS_PER_S * (now_s - last_s)), _MOST_FLAPS)
        elif self.fault is not None:
            times = 0
        for number in range(1, times + 1):
            self._factory.now_s = last_s + (now_s - last_s) * number / times
            self.pulse()
        self._factory.now_s = now_s

    def pulse(self) -> None:
        """Close once."""
        self._pin.hold(level=self._active_high)
        self._pin.let_go()

    def fail(self, fault: Fault) -> None:
        """Break the contact or its cable."""
        super().fail(fault)
        if fault is Fault.SHORTED:
            self._pin.hold(level=self._active_high)

    def mend(self) -> None:
        """Let it hang free again."""
        super().mend()
        self._pin.let_go()
