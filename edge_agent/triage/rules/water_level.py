"""A sudden step of a water level: a surge, or a dam of debris upstream.

Only the step is judged here. What height is dangerous belongs to the place: see
``[[triage.limit]]``.
"""

from collections.abc import Iterable

from edge_agent.triage.detections import Claim, Scene, Sign
from edge_agent.triage.samples import Sample
from edge_agent.triage.settings import WaterLevelRules
from edge_agent.triage.snapshot import Json, is_number
from edge_agent.triage.windows import Recent, agreed_step, lone_step
from slope_science.findings import LOWEST
from slope_science.reasons import Reason, ReasonCode

_WINDOW_S = 630.0  # ten minutes, and the jitter of the sampling
_RAINS_MM = 1.0


class WaterLevelWatch:
    """The level that one sensor measures.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "water_level"

    def __init__(self, sensor: str, rules: WaterLevelRules) -> None:
        self.sensor = sensor
        self._rules = rules
        self._recent = Recent(3 * _WINDOW_S)  # two readings, a step, two readings

    def take(self, sample: Sample) -> None:
        """Remember the last minutes."""
        value = sample.value
        if is_number(value):
            metres = float(value)  # type: ignore[arg-type]
            self._recent.take(sample.at_s, [metres], is_doubtful=sample.is_suspect)

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """The step that two readings agree on; else what one says."""
        bins = self._recent.bins()
        if not bins or scene.now_s - bins[-1].at_s > _WINDOW_S:
            return
        sure = agreed_step(self._recent.bins(with_doubtful=False), _WINDOW_S)
        if abs(sure) >= self._rules.step_m:
            yield self._claim(sure, self._alone(sure, scene))
            return
        lone = lone_step(bins, _WINDOW_S)
        if abs(lone) >= self._rules.step_m:
            yield self._claim(lone, LOWEST)

    def notes(self) -> Iterable[Reason]:
        """Nothing."""
        return ()

    def out(self) -> Json:
        """Nothing: ten minutes come back."""
        return None

    def restore(self, entry: Json) -> None:
        """Go on with nothing."""

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
            alone_level=alone,
            signs=(Sign.MOVEMENT, Sign.WATER) if alone > LOWEST else (),
        )
