"""Clocks of the agent: wall time is data, monotonic time orders and ages.

Only `edge_agent.app` and the commands make one.
"""

import time
from pathlib import Path
from typing import Protocol

from service_runtime.machine_check import is_clock_synchronised

SET_CLOCK_STATE = "clock"
"""State of the queue: the last Unix time, in seconds, of a clock that was set."""

SYNCHRONISED = Path("/run/systemd/timesync/synchronized")


class Clock(Protocol):
    """Wall time and monotonic time of a node."""

    speedup: float
    """Seconds of wall time for each monotonic second; 1 except in a simulation."""

    def wall_s(self) -> float:
        """Unix time."""

    def mono_s(self) -> float:
        """Seconds since the machine started, including those in suspend."""

    def is_synchronised(self) -> bool:
        """Whether a time server has set the wall time since the start."""


class SystemClock:
    """The machine's clocks."""

    speedup = 1.0
    _was_set = False

    def wall_s(self) -> float:
        return time.time()

    def mono_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def is_synchronised(self) -> bool:
        # A Pi without a real-time clock starts with a time in the past. Only timesyncd
        # makes the file; the kernel forgets nine hours after a server's last answer.
        if not self._was_set:
            self._was_set = SYNCHRONISED.exists() or is_clock_synchronised()
        return self._was_set


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
