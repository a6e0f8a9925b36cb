"""Hold: how long a finding counts after its detection is over."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slope_science.evidence.stored_values import Json, optional_time
from slope_science.findings import WARNING, Finding
from slope_science.reason_codes import ReasonCode
from slope_science.reason_compat import parse_or_text
from slope_science.reason_text import render_english
from slope_science.reasons import Reason, decode_reason, encode_reason

_LEVELS = range(1, 6)


@dataclass
class _Held:
    reason: Reason
    false_since_s: float | None = None
    notice_level: int | None = None


class HoldTimer:
    """Findings by rule and level until their hold time is over.

    Args:
        hold_s: Function from a rule's id to its hold time.
    """

    def __init__(self, hold_s: Callable[[str], float]) -> None:
        self._hold_s = hold_s
        self._held: dict[tuple[str, int], _Held] = {}

    def update(
        self, fired: Sequence[tuple[str, Finding]], now_s: float
    ) -> Iterable[Finding]:
        """Store current findings; yield earlier ones that still count."""
        true_now = set()
        for rule, finding in fired:
            key, notice_level = (rule, finding.level), finding.notice_level
            if key in true_now:  # of several sensors the highest notice counts
                before = self._held[key].notice_level
                is_whole = None in {before, notice_level}
                notice_level = None if is_whole else max(before, notice_level)  # type: ignore[type-var]
            self._held[key] = _Held(finding.reason, notice_level=notice_level)
            true_now.add(key)
        for (rule, level), held in list(self._held.items()):
            if (rule, level) in true_now:
                continue
            if held.false_since_s is None:
                held.false_since_s = now_s
            if now_s - held.false_since_s >= self._hold_s(rule):
                del self._held[rule, level]
            elif all(level > now for name, now in true_now if name == rule):
                reason = Reason(ReasonCode.HELD, because=held.reason)
                yield Finding(level, reason, held.notice_level)

    def to_snapshot(self) -> list[list[Any]]:
        """For the snapshot: English sentences, because earlier programs read them."""
        return [
            [rule, level, render_english(held.reason), held.false_since_s]
            for (rule, level), held in self._held.items()
        ]

    def restore(self, entries: Iterable[Any]) -> None:
        """Restore from `to_snapshot`.

        Raises:
            LookupError, TypeError, ValueError: The entries have another form.
        """
        held = {}
        for rule, level, reason, since in entries:
            if level not in _LEVELS or not isinstance(rule, str):
                raise ValueError(f"a level must be 1 to 5, got {level!r}")
            try:
                self._hold_s(rule)
            except LookupError:
                continue  # the limit was removed from the settings
            # lists are the form of the next version
            known = decode_reason(reason) if isinstance(reason, list) else None
            known = known or parse_or_text(str(reason))
            is_alone = _is_unconfirmed(known)
            notice_level = min(int(level), WARNING) if is_alone else None
            held[rule, int(level)] = _Held(known, optional_time(since), notice_level)
        self._held = held

    def to_state(self) -> Json:
        """The whole state."""
        return [
            [*key, encode_reason(h.reason), h.false_since_s, h.notice_level]
            for key, h in self._held.items()
        ]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        self._held = {
            (rule, level): _Held(decode_reason(reason), since_s, notice_level)
            for rule, level, reason, since_s, notice_level in state
        }


def _is_unconfirmed(reason: Reason) -> bool:
    """Whether a reason, or the one that it contains, is unconfirmed."""
    if reason.code in {ReasonCode.UNCONFIRMED, ReasonCode.UNCONFIRMED_LONG}:
        return True
    inner = reason.params.get("because")
    return isinstance(inner, Reason) and _is_unconfirmed(inner)
