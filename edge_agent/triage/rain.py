"""Rain of one gauge against the cell's criteria and its critical line.

What is plausible counts. What is not may still be the storm that the gauge is
there for, so it is judged with and without: with it, up to a cap, until another
sensor shows that much water. What failed
outright is no rain, and is said.
"""

from collections.abc import Iterable

from edge_agent.triage.claim import Claim, Sign
from edge_agent.triage.rain_memory import RainMemory, rain_memory
from edge_agent.triage.sample import Sample
from edge_agent.triage.settings import RainRules
from edge_agent.triage.stored import Json, time_of
from edge_agent.triage.watch import Scene
from slope_science.levels import LOWEST, Finding, rain_finding
from slope_science.soil_water import SoilWater

_HOUR_S = 3600.0
_SAME_MM = 0.5


class RainWatch:
    """The soil under one gauge.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the gauge.
    """

    rule = "rain"

    def __init__(self, sensor: str, rules: RainRules, soil: SoilWater) -> None:
        self.sensor = sensor
        self._rules = rules
        self._sure = RainMemory(soil)
        self._high: RainMemory | None = None
        self._sum_mm: float | None = None
        self._was = {False: LOWEST, True: LOWEST}
        self._failed_mm: float | None = None

    @property
    def index_mm(self) -> float:
        """Soil water index of the rain that is beyond doubt."""
        return self._sure.index_mm

    @property
    def r60_mm(self) -> float:
        """Rain of the last 60 minutes, with what is doubtful."""
        return (self._high or self._sure).r60_mm

    def take(self, sample: Sample) -> None:
        """Add the rain since the gauge's last reading."""
        if sample.value is None and sample.sum is None and not sample.is_failed:
            return
        depth_mm = self._depth(sample)
        self._failed_mm = None
        if sample.is_failed:
            self._failed_mm, depth_mm = depth_mm, 0.0
        sure = self._sure.copy()
        sure.pour(depth_mm, sample.at_s)
        too_much = (
            sure.r10_mm > self._rules.most_mm_10min
            or sure.r60_mm > self._rules.most_mm_60min
        )
        if depth_mm and (sample.is_suspect or too_much):
            self._high = self._high or self._sure.copy()
            self._sure.pour(0.0, sample.at_s)
        else:
            self._sure = sure
        if self._high is not None:
            self._high.pour(depth_mm, sample.at_s)

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """Rain without what is doubtful; then with it, where that is more."""
        # a gauge that says nothing for an hour is broken, and time goes on
        for memory in filter(None, (self._sure, self._high)):
            memory.pass_dry(scene.now_s - _HOUR_S)
        self._agree()
        sure = self._found(self._sure, scene, is_doubtful=False)
        sure_level = sure.level if sure else LOWEST
        is_much = self._sure.r60_mm >= self._rules.confirm_mm
        signs = (Sign.WATER,) if is_much else ()
        reason = f"{self.sensor} {sure.reason}" if sure else ""
        yield Claim(self.rule, self.sensor, sure_level, reason, signs=signs)
        if self._high is None:
            return
        high = self._found(self._high, scene, is_doubtful=True)
        if high and high.level > sure_level:
            yield Claim(
                self.rule,
                self.sensor,
                high.level,
                f"{self.sensor} {high.reason}, with doubtful rain",
                alone_level=max(sure_level, min(high.level, self._rules.alone_level)),
                needs=Sign.WATER,
            )

    def notes(self) -> Iterable[str]:
        """Rain that is not counted."""
        if self._failed_mm is not None:
            yield f"{self._failed_mm:g} mm failed its range and are not counted"

    def out(self) -> Json:
        """For the snapshot."""
        high = None if self._high is None else self._high.out()
        return {"sure": self._sure.out(), "high": high, "sum": self._sum_mm}

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot."""
        sure, high = rain_memory(entry["sure"]), entry["high"]
        sum_mm = time_of(entry["sum"])
        self._high = None if high is None else rain_memory(high)
        self._sure, self._sum_mm = sure, sum_mm

    def _depth(self, sample: Sample) -> float:
        value = sample.value if isinstance(sample.value, float | int) else 0.0
        # a counter that started anew says nothing about the rain between
        if sample.sum is not None:
            if self._sum_mm is not None and sample.sum >= self._sum_mm:
                value = sample.sum - self._sum_mm
            self._sum_mm = sample.sum
        return max(float(value), 0.0)

    def _found(
        self, memory: RainMemory, scene: Scene, *, is_doubtful: bool
    ) -> Finding | None:
        found = rain_finding(
            memory.r60_mm,
            memory.index_mm,
            scene.criteria,
            self._was[is_doubtful],
            self._rules.clear_share,
        )
        self._was[is_doubtful] = found.level if found else LOWEST
        return found

    def _agree(self) -> None:
        """Forget what is doubtful once it no longer makes a difference."""
        high, sure = self._high, self._sure
        if high is None or abs(high.index_mm - sure.index_mm) >= _SAME_MM:
            return
        if abs(high.r60_mm - sure.r60_mm) < _SAME_MM:
            self._high = None
