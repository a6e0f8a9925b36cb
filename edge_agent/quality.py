"""Quality of a reading, judged where it is made: QARTOD's flags. No I/O.

A pack of ours says nothing for a good reading; a doubtful one carries the label
``qc``. Nothing is dropped here: a high value that fails a test of plausibility may
be the landslide.

Source: QARTOD flags as in ioos_qc (gross range, rate of change, flat line).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slope_science.quality import LABEL, Flag, Span, gross_range, step
from spatial_mqtt.envelope import Reading

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
