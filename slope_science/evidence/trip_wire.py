"""Rule of one trip wire: a cut means that a flow or a slide has probably occurred.

Animals and falling rock cut wires too (a deer, Hiroshima 2015), so the level depends on
confirmation by another sensor within two minutes. A flapping contact may be a wire in
moving debris: the level stays, and the reason contains the number of cuts. A cut that
nothing confirms stays shown, but causes sirens for a limited time only.
"""

from collections import deque
from collections.abc import Iterable

from slope_science.evidence.detections import Detection, EvidenceKind, RuleContext
from slope_science.evidence.samples import Json, SensorSample, optional_time
from slope_science.evidence.settings import WireRuleSettings
from slope_science.findings import EMERGENCY
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_HOUR_S = 3600.0
_MAX_CUTS = 60
_WHOLE_S = 24 * _HOUR_S
"""A wire that was whole for less continues the same event, such as a loose plug."""


class WireRule:
    """Rule for one trip wire.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the wire.
    """

    rule = "wire"

    def __init__(
        self, sensor: str, rules: WireRuleSettings, alone_notice_level: int
    ) -> None:
        self.sensor = sensor
        self._rules = rules
        self._alone_notice_level = alone_notice_level
        self._cut_s: float | None = None
        self._since_s: float | None = None  # first cut after a whole day
        self._mended_s = 0.0
        self._cuts: deque[float] = deque(maxlen=_MAX_CUTS)

    def on_sample(self, sample: SensorSample) -> None:
        """Store the time of the cut."""
        if sample.is_suspect or not isinstance(sample.value, bool):
            return
        if not sample.value:
            if self._cut_s is not None:
                self._mended_s = sample.at_s
            self._cut_s = None
        elif self._cut_s is None:
            self._cut_s = sample.at_s
            self._cuts.append(sample.at_s)
            if self._since_s is None or sample.at_s - self._mended_s > _WHOLE_S:
                self._since_s = sample.at_s

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """That the wire is cut."""
        if self._cut_s is None:
            return
        cuts = sum(context.now_s - at_s <= _HOUR_S for at_s in self._cuts)
        flaps = cuts if cuts > self._rules.flaps_per_h else None
        alone = self._rules.alone_level
        lasted_s = context.now_s - (self._since_s or self._cut_s)
        is_long = lasted_s > self._rules.alone_for_s
        yield Detection(
            self.rule,
            self.sensor,
            EMERGENCY,
            Reason(ReasonCode.WIRE_CUT, sensor=self.sensor, cuts_per_h=flaps),
            unconfirmed_level=alone,
            at_s=self._cut_s,
            evidence=(EvidenceKind.MOVEMENT,),
            confirm_s=self._rules.confirm_s,
            alone_notice_level=self._alone_notice_level if is_long else alone,
            alone_for_h=round(lasted_s / _HOUR_S) if is_long else None,
        )

    def diagnostics(self) -> Iterable[Reason]:
        """None: the driver reports unplugged and shorted wires."""
        return ()

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        return self._cut_s

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        self._cut_s = self._since_s = optional_time(entry)

    def to_state(self) -> Json:
        """The whole state."""
        return [self._cut_s, self._since_s, self._mended_s, list(self._cuts)]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        self._cut_s, self._since_s, self._mended_s, cuts = state
        self._cuts = deque(cuts, maxlen=_MAX_CUTS)
