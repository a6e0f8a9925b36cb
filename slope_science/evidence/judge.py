"""Judge of evidence: findings of all rules, with confirmation and hold times.

Also: the rules of one sensor of movement or water, by the name of their family, and how
long a finding counts after its detection is over.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from slope_science.evidence.detections import (
    Corroboration,
    Detection,
    RuleContext,
    SensorRule,
    StatefulRule,
    StepTimes,
)
from slope_science.evidence.displacement import DisplacementRule
from slope_science.evidence.samples import Json, optional_time
from slope_science.evidence.settings import EvidenceSettings
from slope_science.evidence.soil_and_water_level import (
    PoreRule,
    SaturationRule,
    WaterLevelRule,
)
from slope_science.evidence.thermal import DailyRange
from slope_science.evidence.tilt import TiltRule
from slope_science.evidence.vibration_and_trip_wire import VibrationRule, WireRule
from slope_science.levels import WARNING, Finding
from slope_science.reason_codes import ReasonCode
from slope_science.reason_compat import parse_or_text
from slope_science.reasons import Reason, decode_reason, encode_reason, render_english

_LEVELS = range(1, 6)


@dataclass
class _Held:
    reason: Reason
    false_since_s: float | None = None
    notice_level: int | None = None


Key = tuple[str, int] | tuple[str, str, float]
"""Rule and level of a finding, or a confirmed event."""


class Beginnings:
    """Time at which each finding and each confirmation began, and their sensors.

    A finding that began while a reading that went there and back was the last one
    rests on it. What began before the state was known is left out.
    """

    def __init__(self) -> None:
        self._of: dict[Key, tuple[float, frozenset[str]]] = {}

    def update(
        self, active: Mapping[Key, set[str]], before: Container[Key], now_s: float
    ) -> None:
        """Store new ones with the time, and the sensors of all.

        Args:
            active: Findings and confirmations, with the sensors that cause them now.
            before: Those before this moment.
            now_s: Now.
        """
        known = self._of
        self._of = {}
        for key, sensors in active.items():
            begun_s, causes = known.get(key, (now_s, frozenset()))
            if key in known or key not in before:
                self._of[key] = begun_s, causes | sensors

    def take_begun_by(self, sensor: str, spikes: StepTimes) -> set[Key]:
        """Forget those that began with some readings of one sensor, and no other cause.

        One that goes on without these readings begins anew.

        Args:
            sensor: The sensor.
            spikes: Times between which each of the readings was the last one.

        Returns:
            What was forgotten.
        """
        ended = {
            key
            for key, (begun_s, causes) in self._of.items()
            if causes == {sensor}
            and any(begin_s <= begun_s < end_s for begin_s, end_s in spikes)
        }
        self._of = {key: each for key, each in self._of.items() if key not in ended}
        return ended

    def to_state(self) -> Json:
        """The whole state."""
        return [[list(k), at_s, sorted(of)] for k, (at_s, of) in self._of.items()]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        self._of = {tuple(k): (at_s, frozenset(of)) for k, at_s, of in state}


class HoldTimer:
    """Findings by rule and level until their hold time is over.

    Args:
        hold_s: Function from a rule's id to its hold time.
    """

    def __init__(self, hold_s: Callable[[str], float]) -> None:
        self._hold_s = hold_s
        self._held: dict[tuple[str, int], _Held] = {}

    @property
    def keys(self) -> Iterable[tuple[str, int]]:
        """Rule and level of each finding that still counts."""
        return self._held

    def end(self, ended: Container[Key]) -> None:
        """End findings by rule and level, except those that are found again."""
        self._held = {key: h for key, h in self._held.items() if key not in ended}

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


RuleMaker = Callable[[str, EvidenceSettings], Sequence[StatefulRule]]


def _tilt(sensor: str, settings: EvidenceSettings) -> Sequence[StatefulRule]:
    past = DailyRange(sensor)
    # the range is updated before the rule that compares with it
    return past, TiltRule(
        sensor, settings.rules.tilt, settings.alone_notice_level, past
    )


FAMILIES: Mapping[str, RuleMaker] = {
    "tilt": _tilt,
    "displacement": lambda sensor, settings: [
        DisplacementRule(
            sensor, settings.rules.displacement, settings.alone_notice_level
        )
    ],
    "wire": lambda sensor, settings: [
        WireRule(sensor, settings.rules.wire, settings.alone_notice_level)
    ],
    "vibration": lambda sensor, settings: [
        VibrationRule(sensor, settings.rules.vibration, settings.alone_notice_level)
    ],
    "saturation": lambda sensor, settings: [
        SaturationRule(sensor, settings.rules.saturation)
    ],
    "pore": lambda sensor, settings: [PoreRule(sensor, settings.rules.pore)],
    "water_level": lambda sensor, settings: [
        WaterLevelRule(sensor, settings.rules.water_level, settings.alone_notice_level)
    ],
}
"""Rules of a sensor by the name of the family in the settings."""


def make_family(
    family: str, sensor: str, settings: EvidenceSettings
) -> Sequence[StatefulRule]:
    """The rules of one sensor; none if the settings do not use its family."""
    if not getattr(settings.rules, family).used:
        return ()
    return FAMILIES[family](sensor, settings)


class EvidenceJudge:
    """Findings of rules, with confirmation by other sensors and hold times.

    Attributes:
        signs: Confirmation.
        held: Findings until their hold time is over.

    Args:
        confirm_s: Maximum time between two confirming pieces of evidence.
        hold_s: Function from a rule's id to its hold time.
        names_rule: Whether reasons begin with the name of their rule.
    """

    def __init__(
        self,
        confirm_s: float,
        hold_s: Callable[[str], float],
        *,
        names_rule: bool = True,
    ) -> None:
        self.signs = Corroboration(confirm_s, names_rule=names_rule)
        self.held = HoldTimer(hold_s)
        self.begun = Beginnings()

    def judge(self, rules: Sequence[SensorRule], context: RuleContext) -> list[Finding]:
        """Findings of some rules at a moment, and earlier ones that still count."""
        now_s = context.now_s
        claims: list[Detection] = list(
            chain.from_iterable(rule.detect(context) for rule in rules)
        )
        for claim in claims:
            if claim.spikes:
                ended = self.begun.take_begun_by(claim.sensor, claim.spikes)
                self.signs.withdraw(claim.sensor, claim.spikes, ended)
                self.held.end(ended)
        before: set[Key] = {*self.held.keys, *self.signs.confirmed}
        self.signs.observe(claims, now_s)
        found = [(c, self.signs.to_finding(c, now_s)) for c in claims]
        fired = [(c.rule_id, finding) for c, finding in found if finding]
        held = list(self.held.update(fired, now_s))
        active: dict[Key, set[str]] = {key: set() for key in self.held.keys}
        for claim, finding in found:
            if finding:
                active[claim.rule_id, finding.level].add(claim.sensor)
        active |= {event: {by} for event, by in self.signs.confirmed.items()}
        self.begun.update(active, before, now_s)
        return [*(finding for _, finding in fired), *held]

    def to_state(self) -> Json:
        """The whole state."""
        return [self.signs.to_state(), self.held.to_state()]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        signs, held = state
        self.signs.restore_state(signs)
        self.held.restore_state(held)
