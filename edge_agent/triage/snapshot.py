"""The snapshot of triage: its form on the card, and the elder form.

Numbers out of a snapshot, which a damaged card may have changed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORM = 2
_ELDER = 1


@dataclass(frozen=True)
class Remembered:
    """What a snapshot holds.

    Attributes:
        time: What `Timeline.out` gave.
        held: What `Hold.out` gave.
        past: What each watch gave, by rule and sensor.
        criteria: What `InForce.out` gave.
        confirmed: What `Signs.out` gave.
    """

    time: Mapping[str, float | None]
    held: Sequence[Sequence[Any]]
    past: Mapping[tuple[str, str], Any]
    criteria: Mapping[str, Any] | None = None
    confirmed: Sequence[Sequence[Any]] = ()


def dumped(remembered: Remembered) -> str:
    """As JSON."""
    past: dict[str, dict[str, Any]] = {}
    for (rule, sensor), entry in remembered.past.items():
        if entry is not None:
            past.setdefault(rule, {})[sensor] = entry
    form = {
        "form": FORM,
        "time": remembered.time,
        "held": remembered.held,
        "past": past,
        "criteria": remembered.criteria,
        "confirmed": remembered.confirmed,
    }
    return json.dumps(form, separators=(",", ":"), allow_nan=False)


def loaded(text: str) -> Remembered:
    """From JSON; also of form 1, which knew rain, wires and what is held.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: It is damaged, or of a
            later version.
    """
    state = json.loads(text)
    if state["form"] == _ELDER:
        state = _migrated(state)
    if state["form"] != FORM:
        raise ValueError(f"it has version {state['form']!r}, not {FORM}")
    past = {
        (rule, sensor): entry
        for rule, entries in state["past"].items()
        for sensor, entry in entries.items()
    }
    criteria, confirmed = state["criteria"], state["confirmed"]
    return Remembered(state["time"], state["held"], past, criteria, confirmed)


def _migrated(state: Mapping[str, Any]) -> dict[str, Any]:
    """Form 1 told times as Unix time, which triage's own time begins with."""
    rain = {
        name: {"sure": entry, "high": None, "sum": entry["sum"]}
        for name, entry in state["rain"].items()
    }
    seen = [e["sure"]["last"] for e in rain.values() if e["sure"]["last"] is not None]
    seen += [since_s for *_, since_s in state["held"] if since_s is not None]
    last_s = max(seen, default=None)
    held = [
        [source, level, f"{source}: {reason}", since_s]
        for source, level, reason, since_s in state["held"]
    ]
    cut = {name: last_s or 0.0 for name, is_cut in state["cut"].items() if is_cut}
    return {
        "form": FORM,
        "time": {"at": last_s or 0.0, "wall": last_s},
        "held": held,
        "past": {"rain": rain, "wire": cut},
        "criteria": None,
        "confirmed": [],
    }


Json = Any
"""What `json` reads and writes."""


def number_of(value: object) -> float:
    """A finite number.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise ValueError(f"a number is needed, got {value!r}")  # noqa: TRY004 - one kind
    if not math.isfinite(value):
        raise ValueError(f"a finite number is needed, got {value!r}")
    return float(value)


def depth_of(value: object) -> float:
    """A finite number of zero or more.

    Raises:
        ValueError: It is none.
    """
    number = number_of(value)
    if number < 0:
        raise ValueError(f"a number of zero or more is needed, got {value!r}")
    return number


def time_of(value: object) -> float | None:
    """A time, or None for none.

    Raises:
        ValueError: It is neither.
    """
    return None if value is None else number_of(value)


def is_number(value: object) -> bool:
    """Whether a reading's value is a finite number; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no double holds
        return False


class SnapshotError(ValueError):
    """A snapshot does not restore: it is damaged, or of another version.

    Attributes:
        reason: What is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"triage snapshot must be one of this version: {reason}")
