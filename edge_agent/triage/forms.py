"""What the tables of rules have in common."""

from itertools import pairwise

from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

LEVELS = range(2, 6)


def used_key() -> bool:
    """Whether a rule is used at all."""
    used: bool = key(Rule("False switches the rule off."), True)
    return used


def hold_key(default_s: float) -> float:
    """How long what was found counts after it is over."""
    doc = "How long it counts after it is over [P]."
    hold_s: float = key(Rule(doc, "s", low=0, high=604_800), default_s)
    return hold_s


def share_key(default: float) -> float:
    """The hysteresis of a rule."""
    doc = "What has reached a threshold is over below this share of it [P]."
    share: float = key(Rule(doc, low=0.1, high=1), default)
    return share


def alone_key(what: str, default: int) -> int:
    """The cap of what one sensor says alone."""
    doc = f"{what} while no second sensor confirms it [P]."
    level: int = key(Rule(doc, low=1, high=5), default)
    return level


def persist_key(what: str, default_s: float) -> float:
    """How long something must last, unless it is confirmed."""
    doc = (
        f"How long {what} must be exceeded: two windows, 10 minutes apart; not when "
        "another sensor confirms it [P]."
    )
    persist_s: float = key(Rule(doc, "s", low=0, high=7200), default_s)
    return persist_s


def rungs_of(settings: object, unit: str) -> tuple[tuple[int, float], ...]:
    """Levels and thresholds of a table's keys ``level_<n>_<unit>``, highest first."""
    rungs = [
        (level, getattr(settings, f"level_{level}_{unit}", None)) for level in LEVELS
    ]
    return tuple(
        (level, limit) for level, limit in reversed(rungs) if limit is not None
    )


def check_order(settings: object, unit: str) -> None:
    """Refuse a level whose threshold is no higher than a lower level's.

    Raises:
        FieldError: Names the higher one.
    """
    rungs = rungs_of(settings, unit)
    for (level, limit), (lower, below) in pairwise(rungs):
        if limit <= below:
            rule = f"more than level_{lower}_{unit} ({below:g})"
            remedy = "raise it, or lower the other"
            raise FieldError(f"level_{level}_{unit}", rule, limit, remedy)
