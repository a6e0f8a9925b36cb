"""Causes of a level: the kinds of observation that its reasons rest on.

Only rain has the official criteria of JMA and the prefecture, so a text that names one
of them must not be shown for a level by another cause, such as a cut wire.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from slope_science.findings import ADVISORY, DANGER, EMERGENCY, WARNING
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, level_reasons


class Cause(StrEnum):
    """Kind of observation; the names are those of the rules in the settings."""

    RAIN = "rain"
    TILT = "tilt"
    DISPLACEMENT = "displacement"
    WIRE = "wire"
    VIBRATION = "vibration"
    SATURATION = "saturation"
    PORE = "pore"
    WATER_LEVEL = "water_level"
    LIMIT = "limit"
    OTHER = "other"


_CAUSES: Final[Mapping[ReasonCode | str, Cause]] = {
    ReasonCode.SOIL_WATER: Cause.RAIN,
    ReasonCode.TILT: Cause.TILT,
    ReasonCode.SPEED: Cause.DISPLACEMENT,
    ReasonCode.DISPLACEMENT_STEP: Cause.DISPLACEMENT,
    ReasonCode.DISPLACEMENT_DAYS: Cause.DISPLACEMENT,
    ReasonCode.FAILURE_TIME: Cause.DISPLACEMENT,
    ReasonCode.SHOCKS: Cause.VIBRATION,
    ReasonCode.WIRE_CUT: Cause.WIRE,
    ReasonCode.SOIL_WET: Cause.SATURATION,
    ReasonCode.PORE_TURNED: Cause.PORE,
    ReasonCode.PORE_POSITIVE: Cause.PORE,
    ReasonCode.PORE_HIGH: Cause.PORE,
    ReasonCode.WATER_LEVEL_STEP: Cause.WATER_LEVEL,
    ReasonCode.LIMIT: Cause.LIMIT,
}
CRITERIA_LEVELS: Final = {
    "special": EMERGENCY,
    "line": DANGER,
    "warning": WARNING,
    "advisory": ADVISORY,
}
"""Level of each criterion for rain."""


def find_causes(level: int, reasons: Sequence[Reason]) -> tuple[Cause, ...]:
    """Causes of a level, rain first.

    The first reason that is no note gives the level. Rain counts beside it if it
    reaches the criterion of the same level; without reasons there is no cause.
    """
    given = [_cause(reason) for reason in level_reasons(reasons)[-1:]]
    has_rain = any(
        CRITERIA_LEVELS.get(each.params.get("criterion", "")) == level
        for reason in reasons
        if reason.code != ReasonCode.NODE_LEVEL_LOWERED
        for each in iter_chain(reason)
        if each.code == ReasonCode.SOIL_WATER
    )
    found = [Cause.RAIN, *given] if has_rain else given
    return tuple(dict.fromkeys(found))


def observed_causes(reasons: Iterable[Reason]) -> frozenset[Cause]:
    """Every kind of observation that reasons name, whatever level it gives."""
    chains = (each.code for reason in reasons for each in iter_chain(reason))
    return frozenset(_CAUSES[code] for code in chains if code in _CAUSES)


def iter_chain(reason: Reason) -> Iterable[Reason]:
    """A reason and those that it contains, the outermost first."""
    inner: object = reason
    while isinstance(inner, Reason):
        yield inner
        inner = inner.params.get("because")


def _cause(reason: Reason) -> Cause:
    chain = list(iter_chain(reason))
    known = [_CAUSES[each.code] for each in chain if each.code in _CAUSES]
    if known:
        return known[0]
    held = [each for each in chain if each.code == ReasonCode.LEVEL_HELD]
    is_of_rain = any(each.params.get("sensor") is None for each in held)
    return Cause.RAIN if is_of_rain else Cause.OTHER
