"""Snapshot of triage: its stored form, the older form, and checks of its numbers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORMAT_VERSION = 2
_OLDER = 1


@dataclass(frozen=True)
class TriageSnapshot:
    """Contents of a snapshot; each part is the `to_snapshot` of its class.

    Attributes:
        time: Of `Timeline`.
        held: Of `HoldTimer`.
        past: Of each rule, by rule and sensor.
        criteria: Of `ActiveCriteria`.
        confirmed: Of `Corroboration`.
    """

    time: Mapping[str, float | None]
    held: Sequence[Sequence[Any]]
    past: Mapping[tuple[str, str], Any]
    criteria: Mapping[str, Any] | None = None
    confirmed: Sequence[Sequence[Any]] = ()


def encode_snapshot(remembered: TriageSnapshot) -> str:
    """Encode as JSON."""
    past: dict[str, dict[str, Any]] = {}
    for (rule, sensor), entry in remembered.past.items():
        if entry is not None:
            past.setdefault(rule, {})[sensor] = entry
    form = {
        "form": FORMAT_VERSION,
        "time": remembered.time,
        "held": remembered.held,
        "past": past,
        "criteria": remembered.criteria,
        "confirmed": remembered.confirmed,
    }
    return json.dumps(form, separators=(",", ":"), allow_nan=False)


def decode_snapshot(text: str) -> TriageSnapshot:
    """Decode from JSON; also form 1, which has rain, wires and held findings only.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: The text is damaged, or of a
            later version.
    """
    state = json.loads(text)
    if state["form"] == _OLDER:
        state = _migrated(state)
    if state["form"] != FORMAT_VERSION:
        raise ValueError(f"it has version {state['form']!r}, not {FORMAT_VERSION}")
    past = {
        (rule, sensor): entry
        for rule, entries in state["past"].items()
        for sensor, entry in entries.items()
    }
    criteria, confirmed = state["criteria"], state["confirmed"]
    return TriageSnapshot(state["time"], state["held"], past, criteria, confirmed)


def _migrated(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert form 1, whose times are Unix times."""
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
        "form": FORMAT_VERSION,
        "time": {"at": last_s or 0.0, "wall": last_s},
        "held": held,
        "past": {"rain": rain, "wire": cut},
        "criteria": None,
        "confirmed": [],
    }


class SnapshotError(ValueError):
    """A snapshot is damaged, or of another version.

    Attributes:
        reason: The fault.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"triage snapshot must be one of this version: {reason}")
