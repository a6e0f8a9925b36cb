"""Rule of one trip wire: a cut means that a flow or a slide has probably occurred.

Animals and falling rock cut wires too (a deer, Hiroshima 2015), so the level depends on
confirmation by another sensor within two minutes. A flapping contact may be a wire in
moving debris: the level stays, and the reason contains the number of cuts.
"""

from collections import deque
from collections.abc import Iterable

from edge_agent.triage.detections import Detection, EvidenceKind, RuleContext
from edge_agent.triage.samples import SensorSample
from edge_agent.triage.settings import WireRuleSettings
from edge_agent.triage.snapshot import Json, optional_time
from slope_science.findings import EMERGENCY
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_HOUR_S = 3600.0


class WireRule:
    """Rule for one trip wire.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the wire.
    """

    rule = "wire"

    def __init__(self, sensor: str, rules: WireRuleSettings) -> None:
        self.sensor = sensor
        self._rules = rules
        self._cut_s: float | None = None
        self._cuts: deque[float] = deque(maxlen=60)

    def on_sample(self, sample: SensorSample) -> None:
        """Store the time of the cut."""
        if sample.is_suspect or not isinstance(sample.value, bool):
            return
        if not sample.value:
            self._cut_s = None
        elif self._cut_s is None:
            self._cut_s = sample.at_s
            self._cuts.append(sample.at_s)

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """That the wire is cut."""
        if self._cut_s is None:
            return
        cuts = sum(context.now_s - at_s <= _HOUR_S for at_s in self._cuts)
        flaps = cuts if cuts > self._rules.flaps_per_h else None
        yield Detection(
            self.rule,
            self.sensor,
            EMERGENCY,
            Reason(ReasonCode.WIRE_CUT, sensor=self.sensor, cuts_per_h=flaps),
            unconfirmed_level=self._rules.alone_level,
            at_s=self._cut_s,
            evidence=(EvidenceKind.MOVEMENT,),
            confirm_s=self._rules.confirm_s,
        )

    def diagnostics(self) -> Iterable[Reason]:
        """None: the driver reports unplugged and shorted wires."""
        return ()

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        return self._cut_s

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        self._cut_s = optional_time(entry)
