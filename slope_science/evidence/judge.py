"""Judge of evidence: findings of all rules, with confirmation and hold times.

Also: the rules of one sensor of movement or water, by the name of their family.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from slope_science.evidence.detections import (
    Corroboration,
    Detection,
    RuleContext,
    SensorRule,
    StatefulRule,
)
from slope_science.evidence.displacement import DisplacementRule
from slope_science.evidence.holding import HoldTimer
from slope_science.evidence.settings import EvidenceSettings
from slope_science.evidence.soil import PoreRule, SaturationRule
from slope_science.evidence.stored_values import Json
from slope_science.evidence.thermal import DailyRange
from slope_science.evidence.tilt import TiltRule
from slope_science.evidence.trip_wire import WireRule
from slope_science.evidence.vibration import VibrationRule
from slope_science.evidence.water_level import WaterLevelRule
from slope_science.findings import Finding

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

    def judge(self, rules: Sequence[SensorRule], context: RuleContext) -> list[Finding]:
        """Findings of some rules at a moment, and earlier ones that still count."""
        now_s = context.now_s
        claims: list[Detection] = list(
            chain.from_iterable(rule.detect(context) for rule in rules)
        )
        self.signs.observe(claims, now_s)
        found = [(c.rule_id, self.signs.to_finding(c, now_s)) for c in claims]
        fired = [(rule, finding) for rule, finding in found if finding]
        held = self.held.update(fired, now_s)
        return [*(finding for _, finding in fired), *held]

    def to_state(self) -> Json:
        """The whole state."""
        return [self.signs.to_state(), self.held.to_state()]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        signs, held = state
        self.signs.restore_state(signs)
        self.held.restore_state(held)
