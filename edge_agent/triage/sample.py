"""What one sensor said at one instant, in the unit of its rules."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from edge_agent import quantities
from edge_agent.triage.stored import is_number
from slope_science.quality import LABEL, Flag
from spatial_mqtt.envelope import Reading

_UNUSABLE = {Flag.FAIL, Flag.MISSING}


class Named(Protocol):
    """What triage has to know of a sensor."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def quantity(self) -> str:
        """What it measures."""

    @property
    def senml_unit(self) -> str | None:
        """The unit of its readings."""


@dataclass
class Sample:
    """The readings of one sensor.

    Attributes:
        at_s: When, in triage's own time.
        value: Of the sensor itself, in the unit of its quantity's rules; None when
            it has none, or one that failed.
        sum: Cumulative, in the same unit.
        raw: The value as sent.
        parts: Numbers of its companions as sent, such as ``x`` or ``sigma``; those
            that failed are not among them.
        is_suspect: Whether anything of it is doubtful.
        is_failed: Whether the sensor's own value failed, or is missing.
    """

    at_s: float
    value: float | bool | None = None
    sum: float | None = None
    raw: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    is_suspect: bool = False
    is_failed: bool = False


def flag_of(reading: Reading) -> Flag:
    """The quality that the source gave a reading; good when it says nothing."""
    told = reading.extra.get(LABEL, Flag.GOOD)
    known = isinstance(told, int) and told in set(Flag)
    return Flag(told) if known else Flag.SUSPECT


def samples(
    readings: Iterable[Reading], sensors: Mapping[str, Named], at_s: float
) -> dict[str, Sample]:
    """Readings by their sensor; those of sensors we do not know are left out.

    Args:
        readings: Of one instant, of any sensors.
        sensors: The node's, by their names.
        at_s: When, in triage's own time.
    """
    told: dict[str, Sample] = {}
    for reading in readings:
        name, _, part = reading.name.partition("/")
        if name not in sensors:
            continue
        sample = told.setdefault(name, Sample(at_s))
        if part:
            _add_part(sample, part, reading)
        else:
            _add_main(sample, reading, sensors[name])
    return told


def _add_part(sample: Sample, part: str, reading: Reading) -> None:
    flag = flag_of(reading)
    if not is_number(reading.value) or flag in _UNUSABLE:
        return
    sample.parts[part] = float(reading.value)  # type: ignore[arg-type]
    # closures that no rain can make came with this rain
    sample.is_suspect |= flag is Flag.SUSPECT or part == "refused"


def _add_main(sample: Sample, reading: Reading, sensor: Named) -> None:
    flag = flag_of(reading)
    sample.at_s += reading.time_s
    sample.is_suspect |= flag is Flag.SUSPECT
    quantity = quantities.known(sensor.quantity)
    factor = quantities.factor(quantity, reading.unit) or 1.0
    if is_number(reading.sum):
        sample.sum = reading.sum * factor  # type: ignore[operator]
    if flag in _UNUSABLE:
        sample.is_failed = True
    elif isinstance(reading.value, bool):
        sample.value = reading.value
    elif is_number(reading.value):
        sample.raw = float(reading.value)  # type: ignore[arg-type]
        sample.value = sample.raw * factor
    else:
        sample.is_failed = reading.value is not None
