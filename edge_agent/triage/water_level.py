"""A sudden step of a water level: a surge, or a dam of debris upstream.

Only the step is judged here. What height is dangerous belongs to the place: see
``[[triage.limit]]``.
"""

from collections.abc import Iterable

from edge_agent.triage.claim import Claim, Sign
from edge_agent.triage.recent import Bin, Recent
from edge_agent.triage.sample import Sample
from edge_agent.triage.settings import WaterLevelRules
from edge_agent.triage.stored import Json, is_number
from edge_agent.triage.watch import Scene

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
        self._recent = Recent(2 * _WINDOW_S)

    def take(self, sample: Sample) -> None:
        """Remember the last minutes."""
        value = sample.value
        if is_number(value):
            metres = float(value)  # type: ignore[arg-type]
            self._recent.take(sample.at_s, [metres], is_doubtful=sample.is_suspect)

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """The step that good readings show; else the one with doubtful ones."""
        sure = self._step(scene, with_doubtful=False)
        if sure is not None:
            rules, is_drop = self._rules, sure < 0
            rains = scene.r60_mm >= _RAINS_MM
            alone = rules.alone_level
            if is_drop:
                alone = rules.drop_alone_level if rains else 1
            yield self._claim(sure, min(alone, rules.level))
            return
        doubted = self._step(scene, with_doubtful=True)
        if doubted is not None:
            yield self._claim(doubted, 1)

    def notes(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def out(self) -> Json:
        """Nothing: ten minutes come back."""
        return None

    def restore(self, entry: Json) -> None:
        """Go on with nothing."""

    def _step(self, scene: Scene, *, with_doubtful: bool) -> float | None:
        bins = self._recent.bins(with_doubtful=with_doubtful)
        recent = [b for b in bins if scene.now_s - b.at_s <= _WINDOW_S]
        step_m = _largest(recent)
        return step_m if abs(step_m) >= self._rules.step_m else None

    def _claim(self, step_m: float, alone: int) -> Claim:
        limit = self._rules.step_m
        return Claim(
            self.rule,
            self.sensor,
            self._rules.level,
            f"{self.sensor} {step_m:+.2f} m in 10 min >= {limit:g}",
            alone_level=alone,
            signs=(Sign.MOVEMENT, Sign.WATER) if alone > 1 else (),
        )


def _largest(bins: list[Bin]) -> float:
    """The latest level against the one of that time that is furthest away."""
    if not bins:
        return 0.0
    steps = (bins[-1].values[0] - b.values[0] for b in bins)
    return max(steps, key=abs)
