"""A reading of a cell as scoring takes it, and what it is a reading of.

The 10-minute grid that everything is judged on.

A step is known by the Unix time of its end and holds the moments in (end - 10 min,
end]: what a gauge reports at the full ten minutes fell before it.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from slope_science.quality import (
    AIR_PRESSURE_HPA,
    COUNT,
    DISPLACEMENT_MM,
    HUMIDITY_PERCENT,
    PORE_PRESSURE_HPA,
    RAIN_MM,
    TEMPERATURE_CEL,
    TILT_DEG,
    WATER_CONTENT,
    Flag,
    Limits,
)
from slope_science.reason_compat import parse_why
from slope_science.reasons import Reason

RAIN: Final = "rain"
RAIN_UNIT: Final = "mm"
TILT_UNIT: Final = "deg"
MOISTURE_UNIT: Final = "/"
PORE_UNIT: Final = "hPa"
TEMPERATURE_UNIT: Final = "Cel"
COUNT_UNIT: Final = "count"
LEVEL_UNIT: Final = "m"

_PARTS: Final = {
    TEMPERATURE_UNIT: TEMPERATURE_CEL,
    "%RH": HUMIDITY_PERCENT,
    PORE_UNIT: AIR_PRESSURE_HPA,
    TILT_UNIT: TILT_DEG,
}
_WHOLES: Final = _PARTS | {
    RAIN_UNIT: DISPLACEMENT_MM,
    MOISTURE_UNIT: WATER_CONTENT,
    PORE_UNIT: PORE_PRESSURE_HPA,
    COUNT_UNIT: COUNT,
}


@dataclass(frozen=True)
class Observation:
    """One reading of a cell, as silver holds it.

    Attributes:
        at_s: Unix time of the reading.
        node: Who read it.
        name: What, such as ``rain`` or ``tilt/x``.
        unit: SenML unit.
        value: Number; 1 or 0 for a truth.
        text: ``true`` or ``false`` for a truth.
        sum: Of a counter.
        received_us: Unix time of receipt, in microseconds.
        boot: Of the node, and with `seq` the id of the message.
        seq: Number of the message.
        synchronised: Whether the node's clock was set.
        node_flag: What the node says of its reading.
        flag: QARTOD's, as silver has it; None when nobody judged.
        why: The reasons of the flag in English, as silver has them.
    """

    at_s: float
    node: str
    name: str
    unit: str | None = None
    value: float | None = None
    text: str | None = None
    sum: float | None = None
    received_us: int = 0
    boot: str = ""
    seq: int = 0
    synchronised: bool = True
    node_flag: int | None = None
    flag: int | None = None
    why: str | None = None

    @property
    def counts(self) -> bool:
        """Whether gold may use it: it did not fail, and is not missing."""
        return self.flag not in {Flag.FAIL, Flag.MISSING}

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons of the flag."""
        return parse_why(self.why) if self.why else ()

    @property
    def is_rain(self) -> bool:
        """Whether a rain gauge reports here."""
        return self.name == RAIN and self.unit == RAIN_UNIT


@lru_cache(maxsize=4096)
def limits_of(name: str, unit: str | None) -> Limits | None:
    """What such a reading can be; None when we do not know.

    A name with a slash is one of several numbers of a sensor, such as the air
    pressure of ``air/pressure``; one without is what the sensor is there for.
    """
    if name == RAIN:
        return RAIN_MM if unit == RAIN_UNIT else None
    return (_PARTS if "/" in name else _WHOLES).get(unit or "")


def suspects(observations: Iterable[Observation]) -> dict[str, Observation]:
    """The last doubtful reading of each sensor that counts nevertheless."""
    return {
        f"{o.node} {o.name}": o
        for o in sorted(observations, key=lambda o: o.at_s)
        if o.flag == Flag.SUSPECT
    }


STEP_S: Final = 600


def step_end_s(at_s: float) -> int:
    """End of the step that holds a moment, in Unix seconds."""
    return math.ceil(at_s / STEP_S) * STEP_S


def step_ends(first_s: int, last_s: int) -> range:
    """Ends of all steps from one to another, both included."""
    return range(first_s, last_s + STEP_S, STEP_S)


def shares(from_s: float, to_s: float) -> Iterator[tuple[int, float]]:
    """The steps an interval touches: their ends, and the seconds in each."""
    end_s = step_end_s(from_s)
    while from_s < to_s:
        if end_s > from_s:
            until_s = min(to_s, end_s)
            yield end_s, until_s - from_s
            from_s = until_s
        end_s += STEP_S
