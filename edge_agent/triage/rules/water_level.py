"""Rule of one water level: a sudden step, by a surge or a debris dam upstream.

Dangerous heights depend on the place and are set as ``[[triage.limit]]``.
"""

from collections.abc import Iterable

from edge_agent.triage.detections import Claim, Scene, Sign
from edge_agent.triage.samples import Sample
from edge_agent.triage.settings import WaterLevelRules
from edge_agent.triage.snapshot import Json, is_number
from edge_agent.triage.windows import Recent, agreed_step, lone_step
from slope_science.findings import LOWEST
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_WINDOW_S = 630.0  # ten minutes, and the jitter of the sampling
_RAINS_MM = 1.0


class WaterLevelWatch:
    """Rule for the water level of one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "water_level"

    def __init__(self, sensor: str, rules: WaterLevelRules) -> None:
        self.sensor = sensor
        self._rules = rules
        self._recent = Recent(3 * _WINDOW_S)  # two readings, a step, two readings

    def on_sample(self, sample: Sample) -> None:
        """Store the last minutes."""
        value = sample.value
        if is_number(value):
            metres = float(value)  # type: ignore[arg-type]
            self._recent.add(sample.at_s, [metres], is_doubtful=sample.is_suspect)

    def detect(self, context: Scene) -> Iterable[Claim]:
        """A step that two readings agree on; else one of the last reading alone."""
        bins = self._recent.bins()
        if not bins or context.now_s - bins[-1].at_s > _WINDOW_S:
            return
        sure = agreed_step(self._recent.bins(with_doubtful=False), _WINDOW_S)
        if abs(sure) >= self._rules.step_m:
            yield self._claim(sure, self._alone(sure, context))
            return
        lone = lone_step(bins, _WINDOW_S)
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

    def _alone(self, step_m: float, scene: Scene) -> int:
        rules = self._rules
        alone = rules.alone_level
        if step_m < 0:
            alone = rules.drop_alone_level if scene.r60_mm >= _RAINS_MM else LOWEST
        return min(alone, rules.level)

    def _claim(self, step_m: float, alone: int) -> Claim:
        limit = self._rules.step_m
        return Claim(
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
            evidence=(Sign.MOVEMENT, Sign.WATER) if alone > LOWEST else (),
        )
