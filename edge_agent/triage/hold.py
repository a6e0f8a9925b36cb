"""What fired a while ago still counts, for its hold time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edge_agent.triage.stored import time_of
from slope_science.levels import Finding

_LEVELS = range(1, 6)


@dataclass
class _Held:
    reason: str
    false_since_s: float | None = None


class Hold:
    """Findings by rule and level, from when they fired until their hold is over.

    Args:
        hold_s: Hold time of a rule.
    """

    def __init__(self, hold_s: Callable[[str], float]) -> None:
        self._hold_s = hold_s
        self._held: dict[tuple[str, int], _Held] = {}

    def take(
        self, fired: Sequence[tuple[str, Finding]], now_s: float
    ) -> Iterable[Finding]:
        """Remember what fired; yield what did before and still counts."""
        for rule, finding in fired:
            self._held[rule, finding.level] = _Held(finding.reason)
        true_now = {(rule, finding.level) for rule, finding in fired}
        for (rule, level), held in list(self._held.items()):
            if (rule, level) in true_now:
                continue
            if held.false_since_s is None:
                held.false_since_s = now_s
            if now_s - held.false_since_s >= self._hold_s(rule):
                del self._held[rule, level]
            elif all(level > now for name, now in true_now if name == rule):
                yield Finding(level, f"{held.reason} (a while ago)")

    def out(self) -> list[list[Any]]:
        """For the snapshot."""
        return [
            [rule, level, held.reason, held.false_since_s]
            for (rule, level), held in self._held.items()
        ]

    def restore(self, entries: Iterable[Any]) -> None:
        """Go on from a snapshot.

        Raises:
            LookupError, TypeError, ValueError: It is something else.
        """
        held = {}
        for rule, level, reason, since in entries:
            if level not in _LEVELS or not isinstance(rule, str):
                raise ValueError(f"a level must be 1 to 5, got {level!r}")
            try:
                self._hold_s(rule)
            except LookupError:
                continue  # its limit is gone from the settings
            held[rule, int(level)] = _Held(str(reason), time_of(since))
        self._held = held
