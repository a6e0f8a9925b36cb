"""Rule of one water level: a sudden step, by a surge or a debris dam upstream.

Dangerous heights depend on the place and are set as ``[[triage.limit]]``.
"""

from collections.abc import Iterable

from edge_agent.triage.detections import Detection, EvidenceKind, RuleContext
from edge_agent.triage.samples import SensorSample
from edge_agent.triage.settings import WaterLevelRuleSettings
from edge_agent.triage.snapshot import Json, is_finite_number
from edge_agent.triage.windows import MinuteBins, largest_agreed_step, largest_last_step
from slope_science.findings import LOWEST
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_WINDOW_S = 630.0  # ten minutes, and the jitter of the sampling
_RAINS_MM = 1.0


class WaterLevelRule:
    """Rule for the water level of one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "water_level"

    def __init__(self, sensor: str, rules: WaterLevelRuleSettings) -> None:
        self.sensor = sensor
        self._rules = rules
        self._recent = MinuteBins(3 * _WINDOW_S)  # two readings, a step, two readings

    def on_sample(self, sample: SensorSample) -> None:
        """Store the last minutes."""
        value = sample.value
        if is_finite_number(value):
            metres = float(value)  # type: ignore[arg-type]
            self._recent.add(sample.at_s, [metres], is_doubtful=sample.is_suspect)

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """A step that two readings agree on; else one of the last reading alone."""
        bins = self._recent.bins()
        if not bins or context.now_s - bins[-1].at_s > _WINDOW_S:
            return
        sure = largest_agreed_step(self._recent.bins(with_doubtful=False), _WINDOW_S)
        if abs(sure) >= self._rules.step_m:
            yield self._claim(sure, self._alone(sure, context))
            return
        lone = largest_last_step(bins, _WINDOW_S)
        if abs(lone) >= self._rules.step_m:
            yield self._claim(lone, LOWEST)

    def diagnostics(self) -> Iterable[Reason]:
        """None."""
        return ()

    def to_snapshot(self) -> Json:
        """None: the window refills in ten minutes."""
        return None

    def restore(self, entry: Json) -> None:
        """Nothing to restore."""

    def _alone(self, step_m: float, scene: RuleContext) -> int:
        rules = self._rules
        alone = rules.alone_level
        if step_m < 0:
            alone = rules.drop_alone_level if scene.r60_mm >= _RAINS_MM else LOWEST
        return min(alone, rules.level)

    def _claim(self, step_m: float, alone: int) -> Detection:
        limit = self._rules.step_m
        return Detection(
            self.rule,
            self.sensor,
            self._rules.level,
            Reason(
                ReasonCode.WATER_LEVEL_STEP,
                sensor=self.sensor,
                step_m=step_m,
                limit_m=limit,
            ),
            unconfirmed_level=alone,
            evidence=(EvidenceKind.MOVEMENT, EvidenceKind.WATER)
            if alone > LOWEST
            else (),
        )
