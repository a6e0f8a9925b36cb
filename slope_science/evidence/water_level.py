"""Rule of one water level: a sudden step, by a surge or a debris dam upstream.

Dangerous heights depend on the place and are set as ``[[triage.limit]]``.
"""

from collections.abc import Iterable

from slope_science.evidence.detections import Detection, EvidenceKind, RuleContext
from slope_science.evidence.samples import (
    FoundStep,
    Json,
    MinuteBins,
    SensorSample,
    is_finite_number,
    largest_agreed_step,
    largest_last_step,
)
from slope_science.evidence.settings import WaterLevelRuleSettings
from slope_science.findings import LOWEST
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_WINDOW_S = 630.0  # ten minutes, and the jitter of the sampling
_LONGEST_S = 3900.0  # an hour, and the jitter of hourly readings
_READINGS = 4  # two before a step, and two after it
_RAINS_MM = 1.0


class WaterLevelRule:
    """Rule for the water level of one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "water_level"

    def __init__(
        self, sensor: str, rules: WaterLevelRuleSettings, alone_notice_level: int
    ) -> None:
        self.sensor = sensor
        self._rules = rules
        self._alone_notice_level = alone_notice_level
        self._recent = MinuteBins(3 * _WINDOW_S, least=_READINGS)

    def on_sample(self, sample: SensorSample) -> None:
        """Store the last minutes."""
        value = sample.value
        if is_finite_number(value):
            metres = float(value)  # type: ignore[arg-type]
            is_doubtful = sample.is_value_doubtful(metres, self._recent.last_good)
            self._recent.add(sample.at_s, [metres], is_doubtful=is_doubtful)

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """A step that two readings agree on; else one of the last reading alone.

        Of readings more than ten minutes apart, one that may be a flood.
        """
        bins = self._recent.bins()
        if not bins or context.now_s - bins[-1].at_s > _WINDOW_S:
            return
        good = self._recent.bins(with_doubtful=False)
        sure = largest_agreed_step(good, _WINDOW_S).size
        if abs(sure) >= self._rules.step_m:
            since_s = bins[0].at_s  # the step is within the window
            yield self._claim(sure, self._alone(sure, context), since_s)
            return
        lone = largest_last_step(bins, _WINDOW_S).size
        if abs(lone) >= self._rules.step_m:
            yield self._claim(lone, LOWEST)
            return
        last = good[-_READINGS:]
        slow = largest_agreed_step(last, _LONGEST_S)
        is_near = slow.size and last[-1].at_s - last[-2].at_s <= _LONGEST_S
        if is_near and abs(slow.size) >= self._rules.step_m:
            yield self._flood(slow, context)

    def diagnostics(self) -> Iterable[Reason]:
        """None."""
        return ()

    def to_snapshot(self) -> Json:
        """None: the window refills with four readings."""
        return None

    def restore(self, entry: Json) -> None:
        """Nothing to restore."""

    def to_state(self) -> Json:
        """The whole state."""
        return self._recent.to_state()

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        self._recent.restore_state(state)

    def _alone(self, step_m: float, scene: RuleContext) -> int:
        rules = self._rules
        alone = rules.alone_level
        if step_m < 0:
            alone = rules.drop_alone_level if scene.r60_mm >= _RAINS_MM else LOWEST
        return min(alone, rules.level)

    def _flood(self, step: FoundStep, scene: RuleContext) -> Detection:
        """A change that may be as slow as a flood: a sign of water, not of movement."""
        since_s, until_s = step.times_s
        level = min(self._alone(step.size, scene), self._rules.alone_level)
        return Detection(
            self.rule,
            self.sensor,
            level,
            self._reason(step.size, (until_s - since_s) / 60),
            evidence=(EvidenceKind.WATER,) if level > LOWEST else (),
            since_s=since_s,
            alone_notice_level=self._alone_notice_level,
        )

    def _reason(self, step_m: float, minutes: float | None = None) -> Reason:
        return Reason(
            ReasonCode.WATER_LEVEL_STEP,
            sensor=self.sensor,
            step_m=step_m,
            limit_m=self._rules.step_m,
            minutes=minutes,
        )

    def _claim(
        self, step_m: float, alone: int, since_s: float | None = None
    ) -> Detection:
        return Detection(
            self.rule,
            self.sensor,
            self._rules.level,
            self._reason(step_m),
            unconfirmed_level=alone,
            evidence=(EvidenceKind.MOVEMENT, EvidenceKind.WATER)
            if alone > LOWEST
            else (),
            since_s=since_s,
            alone_notice_level=self._alone_notice_level,
        )
