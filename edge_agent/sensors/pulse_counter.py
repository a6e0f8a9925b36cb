"""Pulse counting on a pin: pulse sources, a persistent counter and pulse filters.

`KernelPulseSource` reads the kernel's queue of edges, which keeps counting while the
process is stopped (see `edge_agent.sensors.linux.gpio`). `PinPulseSource` uses
gpiozero, for the simulation and for machines without kernel edge events; it loses
pulses that come while the process is stopped.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpiozero import DigitalInputDevice

from edge_agent.sensors.base import Hardware, tell
from edge_agent.sensors.buses import Line
from edge_agent.sensors.errors import SensorBusError, pin_errors

_log = logging.getLogger(__name__)
_MOST_TIMES = 10_000
_SEQUENCE_END = 2**32


@dataclass(frozen=True)
class Input:
    """How pulses come in.

    Attributes:
        pin: BCM number.
        debounce_s: Shortest pulse that counts; 0 lets every one through.
        active_high: Whether a pulse lifts the pin; else it pulls it to ground.
    """

    pin: int
    debounce_s: float = 0.0
    active_high: bool = False


@dataclass(frozen=True)
class Taken:
    """The pulses since they were last taken.

    Attributes:
        times_s: When each came, on a clock that never goes back.
        untimed: More pulses that are known only by their number.
    """

    times_s: tuple[float, ...]
    untimed: int = 0


class Pulses(Protocol):
    """Where a counter takes its pulses from."""

    def take(self) -> Taken:
        """The pulses since the last call.

        Raises:
            OSError: The pin is gone.
        """

    def is_active(self) -> bool:
        """Whether the switch is closed right now.

        Raises:
            OSError: The pin is gone.
        """

    def mark(self) -> str:
        """What tells a later life which pulses were taken; empty for nothing."""

    def close(self) -> None:
        """Give the pin back."""


def open_pulses(what: Input, name: str, hardware: Hardware, mark: str) -> Pulses:
    """The kernel's events of a pin where there are such, else gpiozero's.

    Args:
        what: The pin.
        name: Of the sensor, for `Hardware.on_event`.
        hardware: What the sensor is opened with.
        mark: `Pulses.mark` of an earlier life.
    """
    if hardware.lines is not None:
        line = hardware.lines.open(what.pin, what.debounce_s, what.active_high)
        return LinePulses(line, mark)
    return PinPulses(what, name, hardware)


def read_pulses(sensor: str, pulses: Pulses) -> tuple[bool, Taken]:
    """Whether the switch is closed now, and the pulses since the last call.

    Raises:
        SensorBusError: The pin cannot be read.
    """
    try:
        return pulses.is_active(), pulses.take()
    except pin_errors() as error:
        raise SensorBusError(
            sensor, f"cannot be read: {error}", "check the pin and its cable"
        ) from error


class PinPulses:
    """Pulses as gpiozero tells of them, in the thread of the pins."""

    def __init__(self, what: Input, name: str, hardware: Hardware) -> None:
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
            what.pin,
            pull_up=not what.active_high,
            bounce_time=what.debounce_s or None,
            pin_factory=hardware.pin_factory,
        )
        self._device.when_activated = self._pulse

    def take(self) -> Taken:
        with self._lock:
            taken = Taken(tuple(self._times), self._untimed)
            self._times, self._untimed = [], 0
        return taken

    def is_active(self) -> bool:
        return bool(self._device.is_active)

    def mark(self) -> str:
        return ""

    def close(self) -> None:
        self._device.close()

    def _pulse(self) -> None:
        with self._lock:
            now = self._ticks()  # may wrap: only differences mean something
            self._clock_s += self._ticks_diff(now, self._last_ticks)
            self._last_ticks = now
            if len(self._times) < _MOST_TIMES:
                self._times.append(self._clock_s)
            else:
                self._untimed += 1
        tell(self._on_event, self._name)


class LinePulses:
    """Pulses as the kernel kept them, numbered without a gap.

    The number of the last pulse that was stored is in the mark. Events that were
    read but not stored before a crash, or that overflowed the kernel's queue, show
    as a gap before the next one, and count by their number.
    """

    def __init__(self, line: Line, mark: str) -> None:
        self._line = line
        self._number = _number_in(mark, line.token)

    def take(self) -> Taken:
        events = self._line.read()
        if not events:
            return Taken(())
        passed = (events[-1].line_number - self._number) % _SEQUENCE_END
        self._number = events[-1].line_number
        times_s = tuple(event.time_ns / 1e9 for event in events)
        untimed = max(passed - len(events), 0)
        if untimed:
            _log.warning("%d pulses of %s have no time", untimed, self._line.token)
        return Taken(times_s, untimed)

    def is_active(self) -> bool:
        return self._line.is_active()

    def mark(self) -> str:
        return f"{self._line.token} {self._number}"

    def close(self) -> None:
        self._line.close()


def _number_in(mark: str, token: str) -> int:
    """Number of the last stored pulse; 0 when the mark is of another line."""
    of, _, number = mark.rpartition(" ")
    is_ours = of == token and number.isascii() and number.isdigit()
    return int(number) if is_ours else 0


class Tally:
    """Counts on from what the last stored reading told of.

    Attributes:
        count: So many by now.
        mark: Words of the pulses' own that were stored with the count.
    """

    def __init__(self, sensor: str, what: str, hardware: Hardware) -> None:
        self._key = f"sensor.{sensor}.{what}"
        self.count = self._restored(hardware)
        self.mark = hardware.recall(f"{self._key}.mark") or ""

    def state(self, mark: str) -> dict[str, str]:
        """What to store: the count, and the mark when there is one."""
        state = {self._key: str(self.count)}
        return state | {f"{self._key}.mark": mark} if mark else state

    def _restored(self, hardware: Hardware) -> int:
        stored = hardware.recall(self._key)
        if stored is None:
            return 0
        if not (stored.isascii() and stored.isdigit()):
            _log.warning(
                "%s must be a count, got %r; counting from 0", self._key, stored
            )
            return 0
        return int(stored)


WINDOW_S = 60.0


class RateLimit:
    """Lets so many pulses a minute through, and no more until it is calm again.

    A pulse is refused when as many as allowed came in the minute before it, refused
    ones too: a contact that goes on flapping gets nothing more through.
    """

    def __init__(self, most_per_min: int) -> None:
        self.most_per_min = most_per_min
        self._times: deque[float] = deque(maxlen=most_per_min)

    def accept(self, time_s: float) -> bool:
        """Whether a pulse may be true."""
        if self._times and time_s < self._times[-1]:
            self._times.clear()  # another clock
        is_full = len(self._times) == self.most_per_min
        is_true = not (is_full and time_s - self._times[0] < WINDOW_S)
        self._times.append(time_s)
        return is_true


class DeadTime:
    """Makes one of the pulses that come within a time after the first."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._last_s: float | None = None

    def accept(self, time_s: float) -> bool:
        """Whether a pulse begins something new."""
        last_s = self._last_s
        if last_s is not None and 0 <= time_s - last_s < self._hold_s:
            return False
        self._last_s = time_s
        return True
