"""Rain gauge and vibration counter: they count the pulses of a switch on a pin.

A tipping-bucket rain gauge closes a reed switch once per tip. A vibration counter is a
piezo or reed element whose comparator gives pulses: it counts how often the ground was
shaken, for comparison with its own background, and does not measure strength. One shock
makes a train of pulses, which counts once.

`KernelPulseSource` reads the kernel's queue of edges, which keeps counting while the
process is stopped (see `edge_agent.sensors.linux`). `PinPulseSource` uses gpiozero, for
the simulation and for machines without kernel edge events; it loses pulses that come
while the process is stopped.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from gpiozero import DigitalInputDevice

from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    Health,
    SensorBusError,
    SensorConfig,
    SensorRangeError,
    SensorSettings,
    notify_safely,
    pin_error_types,
)
from edge_agent.sensors.buses import EdgeLine
from service_runtime.settings import KeyRule, key
from slope_science.quality import FLAG_LABEL, RAIN_MM, Flag
from spatial_mqtt.senml import Reading

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

    @property
    def is_resumed(self) -> bool:
        """Whether the pulses since the stored resume token are counted, too."""

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


class PinPulseSource:
    """Pulses from gpiozero's callbacks, in the pin thread; lost while stopped."""

    is_resumed = False

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
        self.is_resumed = line.is_kept and self._number is not None

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
        is_new: Whether no count was stored.
    """

    def __init__(self, sensor: str, quantity: str, hardware: Hardware) -> None:
        self._key = f"sensor.{sensor}.{quantity}"
        self.is_new = hardware.get_state(self._key) is None
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


class _PulseSensor(BaseSensor):
    """Counts the pulses of a pin; the count survives a restart."""

    def __init__(
        self,
        settings: SensorConfig,
        pulse_input: PulseInput,
        counted: str,
        hardware: Hardware,
    ) -> None:
        super().__init__(settings)
        self._counter = PersistentCounter(self.name, counted, hardware)
        self._was_active = False
        self._pulses = open_pulse_source(
            pulse_input, self.name, hardware, self._counter.resume_token
        )

    def state(self) -> dict[str, str]:
        """Count in the last reading."""
        return self._counter.state(self._pulses.resume_token())

    def close(self) -> None:
        self._pulses.close()

    def _drain(self) -> tuple[PulseBatch, bool]:
        """The pulses since the last reading, and whether the pin is stuck.

        Raises:
            SensorBusError: The pin cannot be read.
        """
        try:
            is_active, batch = self._pulses.is_active(), self._pulses.drain()
        except pin_error_types() as error:
            raise SensorBusError(
                self.name, f"cannot be read: {error}", "check the pin and its cable"
            ) from error
        is_stuck = is_active and self._was_active and not batch.times_s
        self._was_active = is_active
        return batch, is_stuck


@dataclass(frozen=True)
class RainGaugeSettings(SensorSettings):
    """Keys of kind ``rain-gauge``."""

    quantity: ClassVar[str] = "rain"
    senml_unit: ClassVar[str | None] = "mm"
    # a report may hold the rain of many hours; triage limits it by their number
    range: ClassVar[tuple[float, float]] = (RAIN_MM.fail.low, RAIN_MM.fail.high)
    largest_step: ClassVar[float | None] = None

    pin: int = key(
        KeyRule("BCM number of the pin; the switch closes to ground.", low=0, high=27)
    )
    mm_per_tip: float = key(
        KeyRule(
            "Rain in one tip, from the gauge's plate.", unit="mm", low=0.05, high=2
        ),
        0.5,
    )
    debounce_ms: float = key(
        KeyRule(
            "Shortest closure that counts; less than half of the switch's own.",
            unit="ms", low=1, high=99,
        ),
        20.0,
    )  # fmt: skip
    most_mm_per_min: float = key(
        KeyRule(
            "Heaviest rain there is; beyond it the switch flaps, and does not count.",
            unit="mm", low=2, high=50,
        ),
        10.0,
    )  # fmt: skip

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"GPIO{self.pin}",)

    @property
    def max_tips_per_min(self) -> int:
        """Tips per minute in the heaviest rain."""
        return math.ceil(self.most_mm_per_min / self.mm_per_tip)


class RainGauge(_PulseSensor):
    """Counts every tip; readings carry the rain since the last one and the total.

    Closures faster than any rain are counted separately, and reported as the
    sensor's health. The report of an interval with no others is missing. So is that of
    a switch that stays closed, and the first one after it or after the pin was given
    back: else the next rise of the total would count as all rain since the last report.
    """

    def __init__(self, settings: RainGaugeSettings, hardware: Hardware) -> None:
        what = PulseInput(settings.pin, settings.debounce_ms / 1000)
        super().__init__(settings, what, "tips", hardware)
        self._mm_per_tip = settings.mm_per_tip
        self._rest_key = f"sensor.{self.name}.tips.mm"
        self._rest_mm = self._restored_rest_mm(hardware.get_state(self._rest_key))
        self._limit = PulseRateLimit(settings.max_tips_per_min)
        self._health: str = Health.OK
        # Closed at the first reading after a restart, without a closure: stuck.
        self._was_active = not self._counter.is_new
        # Whether tips since the last report may have been missed.
        self._is_incomplete = not (self._counter.is_new or self._pulses.is_resumed)

    def read(self, now_s: float) -> list[Reading]:
        """Rain since the previous reading, and in total.

        Raises:
            SensorBusError: The pin cannot be read.
            SensorRangeError: The switch stays closed, so no tip is detected.
        """
        batch, stays_closed = self._drain()
        tips, refused = self._classify(batch)
        self._counter.count += tips
        if stays_closed:
            self._is_incomplete = True
            raise SensorRangeError(
                self.name,
                "stays closed: no tip can be seen",
                "look for a bucket that hangs, and for a short in the cable",
                Health.STUCK,
                [self._report(None)],
            )
        # A switch that flaps shows no tips: 0 mm would count as dry weather.
        is_missing = self._is_incomplete or (refused and not tips)
        self._is_incomplete = False
        return [self._report(None if is_missing else tips), *self._flaps(refused)]

    def state(self) -> dict[str, str]:
        """Count in the last reading, and the rain of its tips."""
        rest = f"{self._counter.count} {self._mm_per_tip!r} {self._rest_mm!r}"
        return {**super().state(), self._rest_key: rest}

    def _restored_rest_mm(self, stored: str | None) -> float:
        """Rain in the total besides that of the count, less than a tip.

        After a correction of `mm_per_tip` the count becomes that of the same total: the
        old tips with the new rain would be a rise of it, which counts as rain. Earlier
        programs read the count alone, so the rest is kept small.
        """
        try:
            count, mm_per_tip, rest_mm = map(float, (stored or "").split())
        except ValueError:
            return 0.0
        total_mm = count * mm_per_tip + rest_mm
        is_known = mm_per_tip > 0 and math.isfinite(total_mm)
        # an earlier program that counted since does not write it
        if not is_known or count != self._counter.count:
            return 0.0
        if mm_per_tip == self._mm_per_tip:
            return rest_mm
        _log.info("sensor %s: the total goes on at %g mm", self.name, total_mm)
        self._counter.count = int(total_mm // self._mm_per_tip)
        return round(total_mm - self._counter.count * self._mm_per_tip, 6)

    def _classify(self, batch: PulseBatch) -> tuple[int, int]:
        """Number of tips, and of refused closures."""
        tips = sum(self._limit.accept(time_s) for time_s in batch.times_s)
        refused = len(batch.times_s) - tips
        if refused:  # closures without a time are classified like those around them
            return tips, refused + batch.untimed_count
        return tips + batch.untimed_count, 0

    def _report(self, tips: int | None) -> Reading:
        """Rain of some tips, and in total; None if tips may have been missed."""
        counted_mm = self._counter.count * self._mm_per_tip
        total_mm = round(counted_mm + self._rest_mm, 6)
        if tips is None:
            missing = int(Flag.MISSING)
            return Reading(self.name, "mm", sum=total_mm, extra={FLAG_LABEL: missing})
        return Reading(self.name, "mm", round(tips * self._mm_per_tip, 6), total_mm)

    def _flaps(self, refused: int) -> list[Reading]:
        """Reading of the refused closures, and the health if it changed."""
        readings = [Reading(f"{self.name}/refused", "count", refused)] * bool(refused)
        max_per_min = self._limit.max_per_min
        flaps = f"{Health.FLAPS}: more than {max_per_min} closures a minute"
        health = flaps if refused else Health.OK.value
        if health != self._health:
            self._health = health
            readings.append(Reading(f"{self.name}/health", None, health))
        return readings


@dataclass(frozen=True)
class VibrationSettings(SensorSettings):
    """Keys of kind ``vibration``."""

    quantity: ClassVar[str] = "shocks"
    senml_unit: ClassVar[str | None] = "count"
    range: ClassVar[tuple[float, float]] = (0.0, 72_000.0)  # an hour of 50 ms each
    largest_step: ClassVar[float | None] = None  # a debris flow begins at once

    pin: int = key(KeyRule("BCM number of the pin.", low=0, high=27))
    active_high: bool = key(
        KeyRule("Whether a pulse lifts the pin; else it pulls it to ground."), False
    )
    hold_ms: float = key(
        KeyRule(
            "Pulses within this time of a shock belong to it.",
            unit="ms", low=50, high=10_000,
        ),
        500.0,
    )  # fmt: skip

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"GPIO{self.pin}",)


class Vibration(_PulseSensor):
    """Shocks since the last reading, and in total."""

    def __init__(self, settings: VibrationSettings, hardware: Hardware) -> None:
        # no debounce: the pulses are shorter than a contact's bounce
        what = PulseInput(settings.pin, active_high=settings.active_high)
        super().__init__(settings, what, "shocks", hardware)
        self._hold = DeadTime(settings.hold_ms / 1000)

    def read(self, now_s: float) -> list[Reading]:
        """Shocks since the previous reading.

        Raises:
            SensorBusError: The pin cannot be read.
            SensorRangeError: The output stays active.
        """
        batch, stays_active = self._drain()
        shocks = sum(self._hold.accept(time_s) for time_s in batch.times_s)
        self._counter.count += shocks
        if stays_active:
            raise SensorRangeError(
                self.name,
                "stays active: no shock can be seen",
                "turn the threshold back, or look for a short in the cable",
                Health.STUCK,
            )
        return [Reading(self.name, "count", shocks, float(self._counter.count))]
