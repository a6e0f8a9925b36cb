"""Settings and scaling of probes whose quantity and unit the installer configures.

Source: the IANA registries "SenML Units" and "Secondary Units" (RFC 8428, RFC 8798),
as far as they are useful on a slope.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from edge_agent import quantities
from edge_agent.sensors.base import SensorRangeError, SensorSettings
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

PROBE_UNITS = (
    "m", "mm", "cm", "km", "deg", "rad",
    "Cel", "K", "%RH", "/", "/100", "ppm",
    "Pa", "hPa", "V", "mV", "A", "mA", "Ohm", "S/m", "W/m2",
    "s", "ms", "Hz", "1/s", "1/min", "count", "pH",
    "m/s", "m/s2", "mm/h", "m/h", "m3", "m3/s", "kg", "kg/m3", "N", "dB",
)  # fmt: skip


@dataclass(frozen=True)
class ProbeSettings(SensorSettings):
    """Settings for the quantity of a probe."""

    unit: str = key(
        KeyRule(
            "SenML unit of the readings; a judged quantity is sent in the backend's.",
            choices=PROBE_UNITS,
        )
    )
    measures: str = key(KeyRule("What it measures, in words."))
    step: float | None = key(
        KeyRule("Largest plausible change between two readings; absent is any."), None
    )
    settle_s: float = key(
        KeyRule(
            "Time from power-on to a good reading, as a note; no reading waits for it.",
            unit="s", low=0, high=3600,
        ),
        0.0,
    )  # fmt: skip

    @property
    def quantity(self) -> str:  # type: ignore[override]  # fixed in other drivers
        return self.measures

    @property
    def senml_unit(self) -> str:  # type: ignore[override]
        return self.unit

    @property
    def largest_step(self) -> float | None:  # type: ignore[override]
        return self.step

    @property
    def warm_up_s(self) -> float:  # type: ignore[override]
        return self.settle_s


@dataclass(frozen=True)
class ScaledSettings(ProbeSettings):
    """Settings for the conversion of the probe's number to a reading.

    Attributes:
        counter: Whether the number is a total that grows.
    """

    counter: ClassVar[bool] = False

    scale: float = key(
        KeyRule("Reading for each unit of the probe's number.", low=-1e9, high=1e9), 1.0
    )
    offset: float = key(
        KeyRule("Reading where the probe's number is 0.", low=-1e9, high=1e9), 0.0
    )
    low: float = key(KeyRule("Least reading; below, the probe is faulty."))
    high: float = key(KeyRule("Greatest reading; above, the probe is faulty."))

    def __post_init__(self) -> None:
        if self.scale == 0:
            raise FieldError("scale", "other than 0", self.scale)
        if self.low >= self.high:
            raise FieldError("low", f"less than high ({self.high:g})", self.low)

    @property
    def range(self) -> tuple[float, float]:  # type: ignore[override]
        return self.low, self.high


@dataclass(frozen=True)
class CountingProbeSettings(ScaledSettings):
    """Settings of a probe whose number may be a total."""

    counter: bool = key(  # type: ignore[misc]  # fixed for other probes
        KeyRule("Whether its number is a total of rain, not the rain of a reading."),
        False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.counter and not adds_up(self.measures, self.unit):
            rule = "false for other quantities than rain in mm, cm or m"
            raise FieldError("counter", rule, self.counter)


def adds_up(measures: str, unit: str) -> bool:
    """Whether triage adds up the readings of a quantity in a unit: a depth of rain."""
    quantity = quantities.judged_quantity(measures)
    is_depth = quantities.unit_factor(quantity, unit) is not None
    return quantity == quantities.RAIN and is_depth


def make_reading(settings: ScaledSettings, number: float) -> Reading:
    """The reading for a number of the probe; of a counter, only its sum.

    Raises:
        SensorRangeError: It is not finite, or outside the configured range.
    """
    s = settings
    value = s.offset + s.scale * number
    if not math.isfinite(value) or not s.low <= value <= s.high:
        raise SensorRangeError(
            s.name,
            f"must read between {s.low:g} and {s.high:g} {s.unit}, "
            f"got {value:g} from {number:g}",
            "check the probe, then scale, offset, low and high",
        )
    value = round_significant(value)
    if s.counter:
        return Reading(s.name, s.unit, None, value)
    return Reading(s.name, s.unit, value)


class CountedTotal:
    """Readings of a probe, whose total goes on where the settings are corrected.

    The probe's number has its whole history: with another `scale` or `offset` its total
    would rise or fall, and a rise counts as rain.

    Args:
        settings: Settings of the probe; without `counter` nothing is changed.
        get_state: `Hardware.get_state`.
    """

    def __init__(
        self, settings: CountingProbeSettings, get_state: Callable[[str], str | None]
    ) -> None:
        self._settings = settings
        self._key = f"sensor.{settings.name}.counter"
        self._number: float | None = None
        self._shift = 0.0
        # number and shift before a fall, until the next other number
        self._fallen: tuple[float, float] | None = None
        self._restore(get_state(self._key) or "")

    def reading(self, number: float) -> Reading:
        """The reading for a number of the probe.

        Raises:
            SensorRangeError: It is not finite, or outside the configured range.
        """
        reading = make_reading(self._settings, number)
        if reading.sum is None:
            return reading
        own, last = self._own(number), self._number
        if last is not None and own < self._own(last) / 2 and own <= self._total(last):
            # It was reset, or is another one, and its own total is no rise.
            self._fallen, self._shift = (last, self._shift), 0.0
        elif number != last and self._fallen is not None:
            (before, shift), self._fallen = self._fallen, None
            if own >= self._own(before):
                # The low number was wrong. Without the shift, the rise from it would
                # end below the earlier total, and be sure rain.
                self._shift = shift
        self._number = number
        return replace(reading, sum=round_significant(self._total(number)))

    def state(self) -> dict[str, str]:
        """State to store: the last number, what makes its total, and a fall."""
        if self._number is None:
            return {}
        s = self._settings
        numbers = (self._number, s.scale, s.offset, self._shift, *(self._fallen or ()))
        return {self._key: " ".join([*map(repr, numbers), s.unit])}

    def _own(self, number: float) -> float:
        return self._settings.offset + self._settings.scale * number

    def _total(self, number: float) -> float:
        return self._own(number) + self._shift

    def _restore(self, stored: str) -> None:
        *parts, unit = stored.split() or [""]
        try:
            number, scale, offset, shift, *fallen = map(float, parts)
        except ValueError:
            return
        pairs = [(number, shift), *zip(fallen[::2], fallen[1::2], strict=False)]
        # the shifts that give the same totals with the present settings
        known = [
            (number, round(offset + scale * number + shift - self._own(number), 6))
            for number, shift in pairs
        ]
        # a total in another unit is converted where it is read
        if unit == self._settings.unit and all(math.isfinite(mm) for _, mm in known):
            (self._number, self._shift), *before = known
            self._fallen = before[0] if before else None


def round_significant(value: float) -> float:
    """Round a value to six significant digits."""
    return float(f"{value:.6g}")
