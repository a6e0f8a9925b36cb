"""Reads sensors side by side: one that hangs or is broken stops no other.

Each has its time for a reading, a second try for what a noisy bus garbles, and a
rest that doubles while it stays broken. Its health is said when it changes.

Quality of a reading, judged where it is made: QARTOD's flags. No I/O.

A pack of ours says nothing for a good reading; a doubtful one carries the label
``qc``. Nothing is dropped here: a high value that fails a test of plausibility may
be the landslide.

Source: QARTOD flags as in ioos_qc (gross range, rate of change, flat line).
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from edge_agent.sensors.base import Sensor
from edge_agent.sensors.errors import (
    Health,
    SensorBusError,
    SensorError,
    SensorHangsError,
)
from slope_science.quality import LABEL, Flag, Span, gross_range, step
from spatial_mqtt.senml import Reading

FLAT_COUNT = 60
"""So many equal readings in a row, to the last digit, of a part that has noise."""


@dataclass(frozen=True)
class Plausible:
    """What readings of a sensor can be.

    Attributes:
        unit: Unit of the readings that are judged; others of the sensor are not.
        low: Least value that can be.
        high: Greatest value that can be.
        largest_step: Largest plausible change between two readings; None for any,
            and for parts without noise, whose readings may well be equal.
    """

    unit: str | None
    low: float
    high: float
    largest_step: float | None


@dataclass
class _Memory:
    value: float
    equal: int = 1


class Quality:
    """Flags the readings of one sensor.

    Args:
        plausible: What they can be.
    """

    def __init__(self, plausible: Plausible) -> None:
        self._plausible = plausible
        self._last: dict[str, _Memory] = {}

    def judged(self, readings: Sequence[Reading]) -> list[Reading]:
        """The readings, those that are not good with their flag."""
        return [self._judged(reading) for reading in readings]

    def _judged(self, reading: Reading) -> Reading:
        value = reading.value
        is_ours = reading.unit == self._plausible.unit
        is_number = isinstance(value, float | int) and not isinstance(value, bool)
        if not is_ours or not is_number:
            return reading
        flag = self._flag(reading.name, float(value))  # type: ignore[arg-type]
        if flag is Flag.GOOD:
            return reading
        return replace(reading, extra={**reading.extra, LABEL: int(flag)})

    def _flag(self, name: str, value: float) -> Flag:
        p = self._plausible
        if gross_range(value, Span(p.low, p.high)).flag is Flag.FAIL:
            return Flag.FAIL
        last = self._last.get(name)
        if last is not None and value == last.value:
            last.equal += 1
            is_flat = p.largest_step is not None and last.equal >= FLAT_COUNT
            return Flag.SUSPECT if is_flat else Flag.GOOD
        self._last[name] = _Memory(value)
        if last is None or p.largest_step is None:
            return Flag.GOOD
        return step(last.value, value, p.largest_step).flag


log = logging.getLogger(__name__)

DEADLINE_S = 30.0
"""A tilt burst takes 16 s; whoever needs longer hangs."""

FAILURES_BEFORE_REST = 3
FIRST_REST_S = 30.0
LONGEST_REST_S = 600.0


@dataclass
class _Health:
    """What is known of one sensor."""

    error: SensorError | None = None
    failures: int = 0
    rest_s: float = FIRST_REST_S
    rests_until_s: float = 0.0
    busy: threading.Lock = field(default_factory=threading.Lock)
    is_hanging: bool = False


def health_name(sensor: str) -> str:
    """What the reading of a sensor's health is called."""
    return f"{sensor}/health"


def plausible(sensor: Sensor) -> Plausible:
    """What readings of a sensor can be, at its usual pace."""
    return Plausible(sensor.unit, *sensor.range, sensor.largest_step)


@dataclass(frozen=True)
class Manner:
    """How sensors are read.

    Attributes:
        deadline_s: How long one reading may take, its warm-up apart.
        first_rest_s: Rest of a sensor that failed again and again; it doubles.
        plausible: What readings of a sensor can be.
    """

    deadline_s: float = DEADLINE_S
    first_rest_s: float = FIRST_REST_S
    plausible: Callable[[Sensor], Plausible] = plausible


class Reader:
    """Reads some sensors of a node.

    Args:
        sensors: All sensors of the node.
        mono_s: Monotonic seconds.
        manner: How.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        mono_s: Callable[[], float],
        manner: Manner | None = None,
    ) -> None:
        self._mono_s = mono_s
        self._manner = manner or Manner()
        self._health = {
            sensor.name: _Health(rest_s=self._manner.first_rest_s) for sensor in sensors
        }
        self._quality = {
            sensor.name: Quality(self._manner.plausible(sensor)) for sensor in sensors
        }

    def read(self, sensors: Sequence[Sensor], now_s: float) -> list[Reading]:
        """Readings of some sensors, with the health of those where it changed.

        Args:
            sensors: Which.
            now_s: Unix time, for parts that need one.
        """
        told: dict[str, list[Reading]] = {}
        threads = []
        for sensor in sensors:
            if self._is_resting(sensor):
                continue
            thread = threading.Thread(
                target=self._tell,
                args=(sensor, now_s, told),
                name=f"read {sensor.name}",
                daemon=True,  # one that hangs must not keep us from stopping
            )
            thread.start()
            threads.append((sensor, thread))
        began_s = self._mono_s()
        for sensor, thread in threads:
            left_s = (
                began_s + self._manner.deadline_s + sensor.warm_up_s - self._mono_s()
            )
            thread.join(max(0.0, left_s))
            if thread.is_alive():
                told[sensor.name] = self._hangs(sensor)
        return [r for sensor in sensors for r in told.get(sensor.name, [])]

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong, by the name of the sensor."""
        return {name: str(error) for name, error in self.errors.items()}

    @property
    def errors(self) -> dict[str, SensorError]:
        """Why the last reading failed, by the name of the sensor."""
        return {n: h.error for n, h in self._health.items() if h.error is not None}

    def _is_resting(self, sensor: Sensor) -> bool:
        health = self._health[sensor.name]
        return health.is_hanging or self._mono_s() < health.rests_until_s

    def _tell(
        self, sensor: Sensor, now_s: float, told: dict[str, list[Reading]]
    ) -> None:
        health = self._health[sensor.name]
        with health.busy:
            try:
                readings, error = self._twice(sensor, now_s), None
            except SensorError as caught:
                readings, error = [], caught
            if health.is_hanging:
                health.is_hanging = False  # nobody waits for this any more
                return
            if error is not None:
                answer = self._failed(sensor.name, error)
            else:
                judged = self._quality[sensor.name].judged(readings)
                answer = judged + self._is_well(sensor.name)
        told.setdefault(sensor.name, answer)

    def _twice(self, sensor: Sensor, now_s: float) -> list[Reading]:
        """Read; once more where a transfer failed, as on a long bus they do."""
        try:
            return sensor.read(now_s)
        except SensorBusError:
            if self._health[sensor.name].failures:
                raise
            return sensor.read(now_s)

    def _hangs(self, sensor: Sensor) -> list[Reading]:
        health = self._health[sensor.name]
        health.is_hanging = True
        deadline_s = self._manner.deadline_s + sensor.warm_up_s
        reason = f"does not return within {deadline_s:g} s"
        return self._say(
            sensor.name,
            SensorHangsError(sensor.name, reason, "check its bus and its power"),
        )

    def _failed(self, name: str, error: SensorError) -> list[Reading]:
        health = self._health[name]
        health.failures += 1
        if health.failures >= FAILURES_BEFORE_REST:
            health.rests_until_s = self._mono_s() + health.rest_s
            health.rest_s = min(2 * health.rest_s, LONGEST_REST_S)
        return self._say(name, error)

    def _is_well(self, name: str) -> list[Reading]:
        health = self._health[name]
        health.failures, health.rests_until_s = 0, 0.0
        health.rest_s = self._manner.first_rest_s
        return self._say(name, None)

    def _say(self, name: str, error: SensorError | None) -> list[Reading]:
        """A reading of the sensor's health, when that changed."""
        health = self._health[name]
        before, health.error = health.error, error
        if str(before) == str(error):
            return []
        if error is None:
            log.info("sensor %s is well again", name)
            return [Reading(health_name(name), None, Health.OK.value)]
        log.warning("%s", error)
        return [Reading(health_name(name), None, f"{error.health}: {error}")]
