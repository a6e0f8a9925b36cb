"""Pore pressure that has passed from suction to positive, and rises.

A contribution to a level, no trigger: without surveyed strength and depth a
pressure says nothing of the factor of safety. See
docs/reference/triage.md.
"""

from collections.abc import Iterable

from edge_agent.triage.claim import Claim, Sign
from edge_agent.triage.recent import Recent
from edge_agent.triage.sample import Sample
from edge_agent.triage.settings import PoreRules
from edge_agent.triage.stored import Json, is_number, time_of
from edge_agent.triage.watch import Scene

_HOUR_S, _DAY_S = 3600.0, 86400.0


class PoreWatch:
    """The pressure that one sensor measures.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "pore"

    def __init__(self, sensor: str, rules: PoreRules) -> None:
        self.sensor = sensor
        self._rules = rules
        self._recent = Recent(_HOUR_S)
        self._suction_s: float | None = None

    def take(self, sample: Sample) -> None:
        """Remember the last hour, and the last suction."""
        if sample.is_suspect or not is_number(sample.value):
            return
        kpa = float(sample.value)  # type: ignore[arg-type]
        self._recent.take(sample.at_s, [kpa])
        if kpa < 0:
            self._suction_s = sample.at_s

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """That it is positive and rises."""
        bins = [b for b in self._recent.bins() if scene.now_s - _HOUR_S <= b.at_s]
        if not bins or self._suction_s is None:
            return
        kpa, rise = bins[-1].values[0], bins[-1].values[0] - bins[0].values[0]
        days = (scene.now_s - self._suction_s) / _DAY_S
        is_new = kpa >= 0 and days <= self._rules.suction_days
        if is_new and rise >= self._rules.rise_kpa:
            reason = f"{self.sensor} {kpa:.2f} kPa >= 0, +{rise:.2f} in 1 h"
            level = self._rules.level
            yield Claim(self.rule, self.sensor, level, reason, signs=(Sign.WATER,))

    def notes(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def out(self) -> Json:
        """For the snapshot."""
        return self._suction_s

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot."""
        self._suction_s = time_of(entry)
