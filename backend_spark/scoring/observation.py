"""Observations: readings of a cell as scoring uses them; the grid of 10-minute steps.

A step is identified by the Unix time of its end and covers (end - 10 min, end]: rain
that a gauge reports at the full ten minutes fell before.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from backend_spark.i18n import message_reasons
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
    QuantityLimits,
)
from slope_science.reason_compat import parse_why
from slope_science.reasons import Reason
from spatial_mqtt.reading_quantities import UNJUDGED_PART

RAIN: Final = "rain"
RAIN_UNIT: Final = "mm"
TILT_UNIT: Final = "deg"
MOISTURE_UNIT: Final = "/"
PORE_UNIT: Final = "hPa"
TEMPERATURE_UNIT: Final = "Cel"
HUMIDITY_UNIT: Final = "%RH"
COUNT_UNIT: Final = "count"
WATER_LEVEL_UNIT: Final = "m"

_PARTS: Final = {
    TEMPERATURE_UNIT: TEMPERATURE_CEL,
    HUMIDITY_UNIT: HUMIDITY_PERCENT,
    PORE_UNIT: AIR_PRESSURE_HPA,
    TILT_UNIT: TILT_DEG,
    COUNT_UNIT: COUNT,
}
_WHOLES: Final = _PARTS | {
    RAIN_UNIT: DISPLACEMENT_MM,
    MOISTURE_UNIT: WATER_CONTENT,
    PORE_UNIT: PORE_PRESSURE_HPA,
}


_UNUSED: Final = frozenset(map(int, (Flag.FAIL, Flag.MISSING)))
"""As numbers: the hash of an enum is slow."""


class Observation(msgspec.Struct, frozen=True):
    """One reading of a cell as in silver.

    A Struct, because states have many: it is made and decoded in a third of the time of
    a dataclass, and its encoding is the same.

    Attributes:
        at_s: Unix time of the reading.
        node: Id of the node.
        name: Name, such as ``rain`` or ``tilt/x``.
        unit: SenML unit.
        value: Number; 1 or 0 for a boolean.
        text: ``true`` or ``false`` for a boolean.
        sum: Counter.
        received_us: Unix time of receipt, in microseconds.
        boot: Boot id of the node.
        seq: Sequence number of the message.
        synchronised: Whether the node's clock was set.
        node_flag: Flag given by the node.
        flag: QARTOD flag in silver; None if not evaluated.
        why: The reasons of the flag in English, as silver has them.
        priority: Priority of the message, which is the level of its node.
        level_why: The reasons of that level in English; None at level 1.
        level_codes: These reasons as JSON; None from nodes without codes.
        review: A person's decision about it; None without.
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
    priority: int = 1
    level_why: str | None = None
    level_codes: Sequence[str] | None = None
    review: "ReviewMark | None" = None

    @property
    def counts(self) -> bool:
        """Whether gold uses it: neither failed nor missing."""
        return self.flag not in _UNUSED

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons of the flag."""
        return flag_reasons(self.why)

    @property
    def level_reasons(self) -> tuple[Reason, ...]:
        """The reasons of the level of its node, the highest first."""
        return message_reasons(self.level_codes, self.level_why or "")

    @property
    def is_rain(self) -> bool:
        """Whether it is a report of a rain gauge."""
        return self.name == RAIN and self.unit == RAIN_UNIT


@dataclass(frozen=True, slots=True)
class ReviewMark:
    """A person's decision about a reading.

    Attributes:
        person: Account of the person.
        day: Date of the decision in Japan, ``2026-07-01``.
        rejected: Codes of the doubts that do not count; None: the reading is bad.
    """

    person: str
    day: str
    rejected: tuple[str, ...] | None = None


def flag_reasons(why: str | None) -> tuple[Reason, ...]:
    """The reasons in the column flag_why of silver."""
    return parse_why(why) if why else ()


@lru_cache(maxsize=4096)
def reading_limits(name: str, unit: str | None) -> QuantityLimits | None:
    """Limits of a reading; None if unknown.

    A name with a slash is a secondary value of a sensor, such as the air pressure
    ``air/pressure``.
    """
    if name == RAIN:
        return RAIN_MM if unit == RAIN_UNIT else None
    if name.endswith(f"/{UNJUDGED_PART}"):
        return None
    return (_PARTS if "/" in name else _WHOLES).get(unit or "")


def last_suspects(observations: Iterable[Observation]) -> dict[str, Observation]:
    """The last suspect reading of each sensor; suspect readings count."""
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


def split_by_step(from_s: float, to_s: float) -> Iterator[tuple[int, float]]:
    """Steps that overlap an interval: their ends, and the overlap in seconds."""
    end_s = step_end_s(from_s)
    while from_s < to_s:
        if end_s > from_s:
            until_s = min(to_s, end_s)
            yield end_s, until_s - from_s
            from_s = until_s
        end_s += STEP_S
