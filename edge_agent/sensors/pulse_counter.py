"""Pulse counting on a pin: pulse sources, a persistent counter and pulse filters.

`KernelPulseSource` reads the kernel's queue of edges, which keeps counting while the
process is stopped (see `edge_agent.sensors.linux`). `PinPulseSource` uses gpiozero, for
the simulation and for machines without kernel edge events; it loses pulses that come
while the process is stopped.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpiozero import DigitalInputDevice

from edge_agent.sensors.base import Hardware, notify_safely
from edge_agent.sensors.buses import EdgeLine
from edge_agent.sensors.errors import SensorBusError, pin_error_types

_log = logging.getLogger(__name__)
_MAX_TIMES = 10_000
_SEQUENCE_END = 2**32


@dataclass(frozen=True)
class PulseInput:
    """The pin of a pulse source.

    Attributes:
        pin: BCM number.
        debounce_s: Minimum length of a pulse; 0 counts every one.
        active_high: Whether a pulse raises the pin; otherwise it pulls it to ground.
    """

    pin: int
    debounce_s: float = 0.0
    active_high: bool = False


@dataclass(frozen=True)
class PulseBatch:
    """The pulses since the previous call.

    Attributes:
        times_s: Time of each pulse, on a monotonic clock.
        untimed_count: Number of further pulses whose times are unknown.
    """

    times_s: tuple[float, ...]
    untimed_count: int = 0


class PulseSource(Protocol):
    """Source of the pulses of a counter."""

    def drain(self) -> PulseBatch:
        """The pulses since the last call.

        Raises:
            OSError: The pin is gone.
        """

    def is_active(self) -> bool:
        """Whether the switch is closed right now.

        Raises:
            OSError: The pin is gone.
        """

    def resume_token(self) -> str:
        """Position of the last pulse taken, for a restart; empty if not supported."""

    def close(self) -> None:
        """Give the pin back."""


def open_pulse_source(
    pulse_input: PulseInput, name: str, hardware: Hardware, resume_token: str
) -> PulseSource:
    """Open the kernel's edge events of a pin if available, else gpiozero's.

    Args:
        pulse_input: The pin.
        name: Of the sensor, for `Hardware.on_event`.
        hardware: What the sensor is opened with.
        resume_token: `PulseSource.resume_token` stored before the restart.
    """
    if hardware.edge_lines is not None:
        line = hardware.edge_lines.open(
            pulse_input.pin, pulse_input.debounce_s, pulse_input.active_high
        )
        return KernelPulseSource(line, resume_token)
    return PinPulseSource(pulse_input, name, hardware)


def drain_pulses(sensor: str, pulses: PulseSource) -> tuple[bool, PulseBatch]:
    """Whether the switch is closed now, and the pulses since the last call.

    Raises:
        SensorBusError: The pin cannot be read.
    """
    try:
        return pulses.is_active(), pulses.drain()
    except pin_error_types() as error:
        raise SensorBusError(
            sensor, f"cannot be read: {error}", "check the pin and its cable"
        ) from error


class PinPulseSource:
    """Pulses from gpiozero's callbacks, in the pin thread; lost while stopped."""

    def __init__(self, pulse_input: PulseInput, name: str, hardware: Hardware) -> None:
        self._name = name
        self._on_event = hardware.on_event
        self._ticks: Callable[[], float] = hardware.pin_factory.ticks
        self._ticks_diff: Callable[[float, float], float]
        self._ticks_diff = hardware.pin_factory.ticks_diff
        self._last_ticks, self._clock_s = self._ticks(), 0.0
        self._lock = threading.Lock()
        self._times: list[float] = []
        self._untimed = 0
        self._device = DigitalInputDevice(
            pulse_input.pin,
            pull_up=not pulse_input.active_high,
            bounce_time=pulse_input.debounce_s or None,
            pin_factory=hardware.pin_factory,
        )
        self._device.when_activated = self._pulse

    def drain(self) -> PulseBatch:
        with self._lock:
            taken = PulseBatch(tuple(self._times), self._untimed)
            self._times, self._untimed = [], 0
        return taken

    def is_active(self) -> bool:
        return bool(self._device.is_active)

    def resume_token(self) -> str:
        return ""

    def close(self) -> None:
        self._device.close()

    def _pulse(self) -> None:
        with self._lock:
            now = self._ticks()  # may wrap: only differences are valid
            self._clock_s += self._ticks_diff(now, self._last_ticks)
            self._last_ticks = now
            if len(self._times) < _MAX_TIMES:
                self._times.append(self._clock_s)
            else:
                self._untimed += 1
        notify_safely(self._on_event, self._name)


class KernelPulseSource:
    """Pulses from the kernel's queue, numbered without a gap.

    The resume token holds the number of the last stored pulse. Events that were read
    but not stored before a crash, or that overflowed the kernel's queue, appear as a
    gap in the numbers before the next event, and are counted from it. Without a token
    of the line, as with another queue file, an earlier process may have counted all
    that it read: then the first event starts the count.
    """

    def __init__(self, line: EdgeLine, resume_token: str) -> None:
        self._line = line
        self._number = _number_in(resume_token, line)

    def drain(self) -> PulseBatch:
        events = self._line.read()
        if not events:
            return PulseBatch(())
        if self._number is None:
            self._number = events[0].line_number - 1
        passed = (events[-1].line_number - self._number) % _SEQUENCE_END
        self._number = events[-1].line_number
        times_s = tuple(event.time_ns / 1e9 for event in events)
        untimed = max(passed - len(events), 0)
        if untimed:
            _log.warning("%d pulses of %s have no time", untimed, self._line.token)
        return PulseBatch(times_s, untimed)

    def is_active(self) -> bool:
        return self._line.is_active()

    def resume_token(self) -> str:
        return "" if self._number is None else f"{self._line.token} {self._number}"

    def close(self) -> None:
        self._line.close()


def _number_in(mark: str, line: EdgeLine) -> int | None:
    """Number of the last stored pulse of a line; None if it is not known."""
    token, _, number = mark.rpartition(" ")
    if token == line.token and number.isascii() and number.isdigit():
        return int(number)
    return None if line.is_kept else 0


class PersistentCounter:
    """Counter that continues from the last stored reading.

    Attributes:
        count: Total number.
        resume_token: Resume token of the pulse source, stored with the count.
    """

    def __init__(self, sensor: str, quantity: str, hardware: Hardware) -> None:
        self._key = f"sensor.{sensor}.{quantity}"
        self.count = self._restored(hardware)
        self.resume_token = hardware.get_state(f"{self._key}.mark") or ""

    def state(self, resume_token: str) -> dict[str, str]:
        """State to store: the count, and the resume token if there is one."""
        state = {self._key: str(self.count)}
        return state | {f"{self._key}.mark": resume_token} if resume_token else state

    def _restored(self, hardware: Hardware) -> int:
        stored = hardware.get_state(self._key)
        if stored is None:
            return 0
        if not (stored.isascii() and stored.isdigit()):
            _log.warning(
                "%s must be a count, got %r; counting from 0", self._key, stored
            )
            return 0
        return int(stored)


WINDOW_S = 60.0


class PulseRateLimit:
    """Limits the pulses per minute.

    A pulse is refused if the minute before it holds the maximum number of pulses,
    including refused ones, so a contact that keeps flapping stays refused.
    """

    def __init__(self, max_per_min: int) -> None:
        self.max_per_min = max_per_min
        self._times: deque[float] = deque(maxlen=max_per_min)

    def accept(self, time_s: float) -> bool:
        """Whether a pulse is within the limit."""
        if self._times and time_s < self._times[-1]:
            self._times.clear()  # the clock was restarted
        is_full = len(self._times) == self.max_per_min
        is_true = not (is_full and time_s - self._times[0] < WINDOW_S)
        self._times.append(time_s)
        return is_true


class DeadTime:
    """Merges the pulses within a time after the first into one."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._last_s: float | None = None

    def accept(self, time_s: float) -> bool:
        """Whether a pulse starts a new group."""
        last_s = self._last_s
        if last_s is not None and 0 <= time_s - last_s < self._hold_s:
            return False
        self._last_s = time_s
        return True
