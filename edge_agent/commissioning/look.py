"""What one sensor of a node says, with everything an installer compares it with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_agent.reading import Reader, health_name
from edge_agent.sensors.base import Claiming, Sensor
from edge_agent.sensors.errors import Health, SensorError
from slope_science.quality import LABEL, Flag
from spatial_mqtt.envelope import Reading, Value

_DOUBTS = {Flag.SUSPECT: Health.DOUBTFUL, Flag.FAIL: Health.IMPLAUSIBLE}


@dataclass(frozen=True)
class Shown:
    """One reading.

    Attributes:
        name: Such as ``rain`` or ``tilt/x``.
        value: What it is; None when only a sum is given.
        unit: SenML unit; None for truth and text.
        sum: Since the counter began.
        flag: What quality control says of it.
    """

    name: str
    value: Value
    unit: str | None
    sum: float | None
    flag: Flag

    def __str__(self) -> str:
        """Name, value and unit."""
        value, unit = self.value, f" {self.unit}" if self.unit else ""
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, float | int):
            shown = f"{value:.5g}"
        else:
            shown = repr(value)
        since = "" if self.sum is None else f" (sum {self.sum:g}{unit})"
        return f"{self.name} {shown}{unit}{since}"


@dataclass(frozen=True)
class Look:
    """What one sensor said.

    Attributes:
        name: Of the sensor.
        kind: Of its driver.
        quantity: What it measures.
        unit: SenML unit; None for a truth value.
        low: Least value that can be; None for none.
        high: Greatest value that can be; None for none.
        largest_step: Largest plausible change between two readings; None for any.
        wiring: Pins and chips it needs.
        health: How it is, in a word.
        problem: What is wrong, with a remedy; None when nothing is.
        shown: Its readings.
    """

    name: str
    kind: str
    quantity: str
    unit: str | None
    low: float | None
    high: float | None
    largest_step: float | None
    wiring: tuple[str, ...]
    health: Health
    problem: str | None
    shown: tuple[Shown, ...]

    @property
    def is_well(self) -> bool:
        """Whether it may be left alone on the slope."""
        return self.health is Health.OK

    @property
    def flag(self) -> Flag:
        """The worst flag of its readings; MISSING without any."""
        return max((each.flag for each in self.shown), default=Flag.MISSING)

    def told(self) -> dict[str, Any]:
        """The same for a program, in JSON's types."""
        return {
            **{k: v for k, v in vars(self).items() if k not in {"shown", "wiring"}},
            "health": self.health.value,
            "wiring": list(self.wiring),
            "readings": [
                {**vars(each), "flag": each.flag.name.lower()} for each in self.shown
            ],
        }


def look_at(settings: Claiming, sensor: Sensor, reader: Reader, now_s: float) -> Look:
    """Read a sensor once.

    Args:
        settings: Of the sensor.
        sensor: What is read.
        reader: Reads it.
        now_s: Unix time, for parts that need one.
    """
    return look_of(settings, reader.read([sensor], now_s), reader)


def look_of(settings: Claiming, readings: Sequence[Reading], reader: Reader) -> Look:
    """What some readings tell of one sensor."""
    return _look(
        settings,
        [r for r in readings if _is_of(r, settings.name)],
        reader.errors.get(settings.name),
    )


def _is_of(reading: Reading, name: str) -> bool:
    return reading.name == name or reading.name.startswith(f"{name}/")


def _look(
    settings: Claiming, readings: Sequence[Reading], error: SensorError | None
) -> Look:
    own = health_name(settings.name)
    told = [r.value for r in readings if r.name == own]
    shown = tuple(_shown(r) for r in readings if r.name != own)
    health, problem = _judged(settings, shown, error, told)
    low, high = settings.range
    return Look(
        settings.name,
        settings.kind,
        settings.quantity,
        settings.senml_unit,
        low if math.isfinite(low) else None,
        high if math.isfinite(high) else None,
        settings.largest_step,
        tuple(settings.claims),
        health,
        problem,
        shown,
    )


def _judged(
    settings: Claiming,
    shown: Sequence[Shown],
    error: SensorError | None,
    told: Sequence[Value],
) -> tuple[Health, str | None]:
    if error is not None:
        return error.health, str(error)
    last = told[-1] if told else None
    if isinstance(last, str) and last.startswith(Health.FLAPS):
        return Health.FLAPS, f"sensor {settings.name} {last}; check its contact"
    worst = max(shown, key=lambda each: each.flag, default=None)
    if worst is not None and worst.flag in _DOUBTS:
        low, high = settings.range
        step = settings.largest_step
        within = f"{low:g} to {high:g} {settings.senml_unit or ''}".strip()
        steps = "" if step is None else f", in steps of at most {step:g}"
        problem = f"must be {within}{steps}, got {worst}; see whether it can be true"
        return _DOUBTS[worst.flag], f"sensor {settings.name} {problem}"
    return Health.OK, None


def _shown(reading: Reading) -> Shown:
    flag = Flag(int(reading.extra.get(LABEL, Flag.GOOD)))
    return Shown(reading.name, reading.value, reading.unit, reading.sum, flag)
