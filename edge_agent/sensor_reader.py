"""Sensor reader: concurrent reads with deadline, retry and back-off, and quality flags.

A sensor that hangs or fails does not affect the others. Probes on one serial line are
read one after the other, and so are two readings of one sensor at once, as after an
event: those that wait do not hang as long as the others end.
The health of a sensor is reported when it changes. A doubtful reading gets the label
``qc``; none is dropped here, because a high value that fails a plausibility test may be
the landslide.

Source: QARTOD flags as in ioos_qc (gross range, rate of change, flat line).
"""

import logging
import math
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from edge_agent.sensors.base import (
    Health,
    Sensor,
    SensorBusError,
    SensorDriverError,
    SensorError,
    SensorRangeError,
    SensorTimeoutError,
)
from slope_science.quality import FLAG_LABEL, Flag, ValueRange, check_range, check_step
from spatial_mqtt.senml import Reading

FLAT_LINE_S = 3600.0
FLAT_LINE_COUNT = 60
"""Equal readings of a sensor with noise that are suspect: as many in a row, over as
long. Fast sampling reads more of them within minutes."""

GOES_ON_SHARE = 0.5
"""Share of the largest plausible step that the change before a jump must exceed, in the
same direction, so that the jump is no doubt: a slide or a flood goes on."""


@dataclass(frozen=True)
class PlausibleRange:
    """Limits of plausible readings of a sensor.

    Attributes:
        unit: Unit of the readings that are checked; others of the sensor are not.
        low: Least possible value.
        high: Greatest possible value.
        largest_step: Largest plausible change between two readings; None for any.
        is_noisy: Whether equal readings above `low` are suspect, by `FLAT_LINE_S`.
    """

    unit: str | None
    low: float
    high: float
    largest_step: float | None
    is_noisy: bool = False


def _is_noise(reading: Reading) -> bool:
    """Whether it is the noise of a burst: 0 if a coarse chip gives one value only."""
    return reading.name.endswith("/sigma")


@dataclass
class _LastValue:
    value: float
    since_s: float
    change: float = 0.0
    equal: int = 1


class QualityFlagger:
    """Flags the readings of one sensor.

    Args:
        limits: Limits of its readings.
    """

    def __init__(self, limits: PlausibleRange) -> None:
        self._plausible = limits
        self._last: dict[str, _LastValue] = {}

    def flag(self, readings: Sequence[Reading], at_s: float) -> list[Reading]:
        """The readings; those that are not good with their flag.

        Args:
            readings: Readings of one instant.
            at_s: Its time in seconds since any start.
        """
        return [self._flagged(reading, at_s) for reading in readings]

    def _flagged(self, reading: Reading, at_s: float) -> Reading:
        value = reading.value
        is_checked = reading.unit == self._plausible.unit and not _is_noise(reading)
        is_number = isinstance(value, float | int) and not isinstance(value, bool)
        if not is_checked or not is_number:
            return reading
        flag = self._flag(reading.name, float(value), at_s)  # type: ignore[arg-type]
        if flag is Flag.GOOD:
            return reading
        return replace(reading, extra={**reading.extra, FLAG_LABEL: int(flag)})

    def _flag(self, name: str, value: float, at_s: float) -> Flag:
        limits = self._plausible
        if check_range(value, ValueRange(limits.low, limits.high)).flag is Flag.FAIL:
            return Flag.FAIL
        last = self._last.get(name)
        if last is not None and value == last.value:
            last.equal += 1
            last.change = 0.0
            is_flat = (
                limits.is_noisy
                and value > limits.low  # soil drier than its calibration reads 0
                and last.equal >= FLAT_LINE_COUNT
                and at_s - last.since_s >= FLAT_LINE_S
            )
            return Flag.SUSPECT if is_flat else Flag.GOOD
        change = 0.0 if last is None else value - last.value
        self._last[name] = _LastValue(value, at_s, change)
        if last is None or limits.largest_step is None:
            return Flag.GOOD
        before = math.copysign(1.0, change) * last.change
        if before > GOES_ON_SHARE * limits.largest_step:
            return Flag.GOOD
        return check_step(last.value, value, limits.largest_step).flag


log = logging.getLogger(__name__)

DEADLINE_S = 30.0
"""A tilt burst takes 16 s after at most 2 s of warm-up; a sensor that needs longer
hangs. The time counts from the last reading of the sensor, or on its line, that ended
meanwhile."""

FAILURES_BEFORE_BACKOFF = 3
MIN_BACKOFF_S = 30.0
MAX_BACKOFF_S = 600.0

DOUBTFUL_S = 3600.0
"""Time for which the readings of a sensor have flags, after which it is a problem."""


@dataclass
class _Health:
    """Errors and back-off of one sensor.

    `note` is the health that its driver reports beside readings, if that is not OK.
    """

    error: SensorError | None = None
    had_failed: bool = False
    note: str = ""
    doubtful_since_s: float | None = None
    is_doubtful: bool = False
    failures: int = 0
    backoff_s: float = MIN_BACKOFF_S
    retry_at_s: float = 0.0
    busy: threading.Lock = field(default_factory=threading.Lock)
    is_hanging: bool = False


def _problem(name: str, health: _Health) -> str:
    """What is wrong with a sensor; empty if it works."""
    if health.error is not None:
        return str(health.error)
    if health.note:
        return f"sensor {name} {health.note}"
    if health.is_doubtful:
        return f"sensor {name} gives {Health.DOUBTFUL} readings for an hour; check it"
    return ""


def _health_text(health: _Health) -> str:
    """The health of a sensor as it is reported."""
    error = health.error  # another thread may clear it meanwhile
    if error is not None:
        return f"{error.health}: {error}"
    return health.note or Health.OK.value


def _is_sendable(reading: Reading) -> bool:
    """Whether its numbers are finite: a gateway refuses a pack with any other."""
    numbers = (n for n in (reading.value, reading.sum) if isinstance(n, int | float))
    return all(map(math.isfinite, numbers))


def _queue_name(sensor: Sensor) -> str:
    """What is read one after the other: the sensors of a line, or one sensor."""
    return sensor.line or sensor.name


def health_name(sensor: str) -> str:
    """Name of the reading of a sensor's health."""
    return f"{sensor}/health"


def plausible_range(sensor: Sensor) -> PlausibleRange:
    """The plausible readings of a sensor, at its usual interval."""
    step, is_noisy = sensor.largest_step, sensor.is_noisy
    return PlausibleRange(sensor.unit, *sensor.range, step, is_noisy)


@dataclass(frozen=True)
class ReadPolicy:
    """How sensors are read.

    Attributes:
        deadline_s: Longest time of a reading.
        min_backoff_s: First pause of a sensor that keeps failing; it doubles.
        plausible_range: Gives the limits of a sensor's readings.
    """

    deadline_s: float = DEADLINE_S
    min_backoff_s: float = MIN_BACKOFF_S
    plausible_range: Callable[[Sensor], PlausibleRange] = plausible_range


class SensorReader:
    """Reads sensors concurrently; several threads may call it.

    Args:
        sensors: All sensors of the node.
        mono_s: Monotonic seconds.
        policy: Deadline, back-off and limits; None for the defaults.
        had_failed: Sensors whose last report before a restart was not OK: this one is.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        mono_s: Callable[[], float],
        policy: ReadPolicy | None = None,
        had_failed: Collection[str] = (),
    ) -> None:
        self._mono_s = mono_s
        self._manner = policy or ReadPolicy()
        self._deciding = threading.Lock()
        self._read_s: dict[str, float] = {}
        self._health = {
            sensor.name: _Health(
                had_failed=sensor.name in had_failed,
                backoff_s=self._manner.min_backoff_s,
            )
            for sensor in sensors
        }
        self._quality = {
            sensor.name: QualityFlagger(self._manner.plausible_range(sensor))
            for sensor in sensors
        }

    def read(
        self, sensors: Sequence[Sensor], now_s: float, *, is_urgent: bool = False
    ) -> list[Reading]:
        """Read some sensors; adds the health of those where it changed.

        Args:
            sensors: The sensors to read.
            now_s: Unix time, for parts that need one.
            is_urgent: Whether those in back-off are read, too.
        """
        results: dict[str, list[Reading]] = {}
        threads = []
        for sensor in sensors:
            if self._is_paused(sensor, is_urgent=is_urgent):
                continue
            thread = threading.Thread(
                target=self._read_into,
                args=(sensor, now_s, results),
                name=f"read {sensor.name}",
                daemon=True,  # one that hangs must not delay the stop
            )
            thread.start()
            threads.append((sensor, thread))
        began_s = self._mono_s()
        for sensor, thread in threads:
            self._join(thread, sensor, began_s)
            with self._deciding:
                if sensor.name not in results:
                    results[sensor.name] = self._hangs(sensor)
        return [r for sensor in sensors for r in results.get(sensor.name, [])]

    def _join(self, thread: threading.Thread, sensor: Sensor, began_s: float) -> None:
        """Wait for a reading until its deadline, or that after the one before it."""
        from_s, last_s = began_s, -math.inf
        while thread.is_alive() and from_s > last_s:
            due_s = from_s + self._manner.deadline_s
            thread.join(max(0.0, due_s - self._mono_s()))
            last_s = from_s
            from_s = max(from_s, self._read_s.get(_queue_name(sensor), from_s))

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with each sensor, by name; only of those that do not work.

        Also of one whose readings are doubtful or failed for `DOUBTFUL_S`.
        """
        texts = {n: _problem(n, health) for n, health in self._health.items()}
        return {name: text for name, text in texts.items() if text}

    @property
    def errors(self) -> dict[str, SensorError]:
        """Error of each sensor whose last reading failed, by name."""
        return {n: h.error for n, h in self._health.items() if h.error is not None}

    def last_healths(self, sensors: Sequence[Sensor]) -> list[Reading]:
        """The health of some sensors as it was reported last, or would be."""
        return [
            Reading(health_name(s.name), None, _health_text(self._health[s.name]))
            for s in sensors
        ]

    def _is_paused(self, sensor: Sensor, *, is_urgent: bool) -> bool:
        health = self._health[sensor.name]
        is_backing_off = self._mono_s() < health.retry_at_s and not is_urgent
        return health.is_hanging or is_backing_off

    def _read_into(
        self, sensor: Sensor, now_s: float, results: dict[str, list[Reading]]
    ) -> None:
        health = self._health[sensor.name]
        with health.busy:
            try:
                readings, error = self._read_checked(sensor, now_s), None
            except SensorError as caught:
                readings, error = [], caught
            # Either this thread or the deadline decides, and the other one keeps to it.
            with self._deciding:
                self._read_s[_queue_name(sensor)] = self._mono_s()
                if sensor.name in results:
                    health.is_hanging = False  # the deadline is over: drop the result
                    self._count_failure(sensor.name)
                elif error is not None:
                    results[sensor.name] = self._failed(sensor.name, error)
                else:
                    read_s = self._read_s[_queue_name(sensor)]
                    flagged = self._quality[sensor.name].flag(readings, read_s)
                    results[sensor.name] = self._succeeded(sensor.name, flagged)

    def _read_checked(self, sensor: Sensor, now_s: float) -> list[Reading]:
        """Read; an error of any driver is one of its sensor only.

        Raises:
            SensorError: There is no reading, or one that no gateway accepts.
        """
        try:
            readings = self._read_with_retry(sensor, now_s)
        except SensorError:
            raise
        except Exception as error:
            raise SensorDriverError(sensor.name, "read", error) from error
        wrong = [each for each in readings if not _is_sendable(each)]
        if wrong:
            value = wrong[0].value if wrong[0].sum is None else wrong[0].sum
            raise SensorRangeError(
                sensor.name,
                "gives a value that is no number",
                "power-cycle it; replace it",
                readings=[each for each in readings if _is_sendable(each)],
                answer=f": {wrong[0].name} is {value!r}",
            )
        return readings

    def _read_with_retry(self, sensor: Sensor, now_s: float) -> list[Reading]:
        """Read; once more when a transfer failed, as happens on a long bus."""
        try:
            return sensor.read(now_s)
        except SensorBusError:
            if self._health[sensor.name].failures:
                raise
            return sensor.read(now_s)

    def _hangs(self, sensor: Sensor) -> list[Reading]:
        health = self._health[sensor.name]
        health.is_hanging = True
        reason = f"does not return within {self._manner.deadline_s:g} s"
        return self._health_change(
            sensor.name,
            SensorTimeoutError(sensor.name, reason, "check its bus and its power"),
        )

    def _failed(self, name: str, error: SensorError) -> list[Reading]:
        self._count_failure(name)
        return [*error.readings, *self._health_change(name, error)]

    def _count_failure(self, name: str) -> None:
        health = self._health[name]
        health.failures += 1
        now_s = self._mono_s()
        # An urgent reading during a back-off does not prolong it.
        if health.failures >= FAILURES_BEFORE_BACKOFF and now_s >= health.retry_at_s:
            health.retry_at_s = now_s + health.backoff_s
            health.backoff_s = min(2 * health.backoff_s, MAX_BACKOFF_S)

    def _succeeded(self, name: str, readings: list[Reading]) -> list[Reading]:
        """The readings of a sensor, with its health if that changed."""
        health = self._health[name]
        health.failures, health.retry_at_s = 0, 0.0
        health.backoff_s = self._manner.min_backoff_s
        had_failed, health.had_failed = health.had_failed, False
        reports = self._health_change(name, None)
        own = [str(r.value) for r in readings if r.name == health_name(name)]
        if own:
            reports = []  # an OK after it would win
            health.note = "" if own[-1] == Health.OK else own[-1]
            level = logging.WARNING if health.note else logging.INFO
            log.log(level, "sensor %s: %s", name, own[-1])
        elif reports and health.note:  # it is as before the error
            reports = [Reading(health_name(name), None, health.note)]
        elif had_failed and not reports:
            reports = [Reading(health_name(name), None, Health.OK.value)]
        self._watch_flags(name, readings)
        return readings + reports

    def _watch_flags(self, name: str, readings: Sequence[Reading]) -> None:
        """Note since when a sensor's readings have flags."""
        health, now_s = self._health[name], self._mono_s()
        if not any(reading.extra.get(FLAG_LABEL) for reading in readings):
            if health.is_doubtful:
                log.info("readings of sensor %s are good again", name)
            health.doubtful_since_s, health.is_doubtful = None, False
            return
        if health.doubtful_since_s is None:
            health.doubtful_since_s = now_s
        if not health.is_doubtful and now_s - health.doubtful_since_s >= DOUBTFUL_S:
            health.is_doubtful = True
            log.warning("%s", _problem(name, health))

    def _health_change(self, name: str, error: SensorError | None) -> list[Reading]:
        """A reading of the sensor's health, if that changed."""
        health = self._health[name]
        before, health.error = health.error, error
        if (before and before.fault) == (error and error.fault):
            return []
        if error is None:
            log.info("sensor %s is OK again", name)
            return [Reading(health_name(name), None, Health.OK.value)]
        is_defect = isinstance(error, SensorDriverError)
        log.warning("%s", error, exc_info=error.__cause__ if is_defect else None)
        return [Reading(health_name(name), None, _health_text(health))]
