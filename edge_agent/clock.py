"""The agent's clocks: wall time is data, monotonic time orders and ages.

Only the wiring makes one; everything else is given it.
"""

import time
from pathlib import Path
from typing import Protocol

SYNCHRONISED = Path("/run/systemd/timesync/synchronized")


class Clock(Protocol):
    """What a node knows of time."""

    speedup: float
    """Seconds of wall time for each monotonic second; 1 but in a simulation."""

    def wall_s(self) -> float:
        """Unix time."""

    def mono_s(self) -> float:
        """Seconds since the machine started, also those it slept."""

    def is_synchronised(self) -> bool:
        """Whether the wall time has been set by a time server since the start."""


class SystemClock:
    """The machine's clocks."""

    speedup = 1.0

    def wall_s(self) -> float:
        return time.time()

    def mono_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def is_synchronised(self) -> bool:
        """See `Clock`. A Pi without RTC starts in the past."""
        return SYNCHRONISED.exists()


class SimulatedClock:
    """Wall time that runs faster, the same for all processes of a simulation.

    Args:
        start_s: Unix time at which the simulated world begins.
        epoch_s: Real Unix time of that moment.
        speedup: Simulated seconds for each real one.
    """

    def __init__(self, start_s: float, epoch_s: float, speedup: float) -> None:
        self.speedup = speedup
        self._start_s = start_s
        self._epoch_s = epoch_s

    def wall_s(self) -> float:
        return self._start_s + (time.time() - self._epoch_s) * self.speedup

    def mono_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def is_synchronised(self) -> bool:
        return True
