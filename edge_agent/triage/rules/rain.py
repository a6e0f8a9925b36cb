"""Rule of one rain gauge: soil water index against the cell's criteria.

Plausible rain counts. Implausible rain may still be the storm, so the index is computed
with and without it; with it the level is capped until another sensor confirms that much
water. Failed readings are not counted, and a note reports them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edge_agent.triage.settings import RainRuleSettings
from slope_science.evidence.detections import Detection, EvidenceKind, RuleContext
from slope_science.evidence.samples import SensorSample
from slope_science.evidence.stored import (
    Json,
    finite_number,
    non_negative_number,
    optional_time,
)
from slope_science.findings import LOWEST, Finding, judge_rain
from slope_science.rain import SoilWater
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_MINUTE_S, _STEP_S, _HOUR_S = 60.0, 600.0, 3600.0
_FORGOTTEN_S = 60 * 86400.0  # after this time the tanks count as empty


@dataclass
class RainAccumulator:
    """Soil water of one gauge, and its last hour by minute.

    Attributes:
        tanks: Tanks at the last full 10 minutes.
        open_mm: Rain since then.
        last_s: Time of the last reading; None before the first.
        minutes: Rain of the last hour, by the minute it fell in.
    """

    tanks: SoilWater = field(default_factory=SoilWater)
    open_mm: float = 0.0
    last_s: float | None = None
    minutes: dict[int, float] = field(default_factory=dict)

    @property
    def r60_mm(self) -> float:
        """Rain of the last 60 minutes."""
        return sum(self.minutes.values())

    @property
    def r10_mm(self) -> float:
        """Rain of the last 10 minutes."""
        since = (self.last_s or 0.0) / _MINUTE_S - 10
        return sum(mm for minute, mm in self.minutes.items() if minute >= since)

    @property
    def index_mm(self) -> float:
        """Soil water index now, also within a step."""
        open_s = (self.last_s or 0.0) % _STEP_S
        if not open_s:
            return self.tanks.index_mm + self.open_mm
        return self.tanks.step(self.open_mm, open_s / _HOUR_S).index_mm

    def copy(self) -> "RainAccumulator":
        """An independent copy."""
        return replace(self, minutes=dict(self.minutes))

    def add_rain(self, depth_mm: float, at_s: float) -> None:
        """Add rain, spread over the time since the last reading, at most an hour."""
        if self.last_s is None:
            self.last_s = at_s
        end_s = max(at_s, self.last_s)
        begin_s = max(self.last_s, end_s - _HOUR_S)
        self.advance_dry(begin_s)
        if end_s > begin_s:
            self._spread(depth_mm, begin_s, end_s)
        else:
            self._drop(depth_mm, end_s)
        self._forget()

    def advance_dry(self, until_s: float) -> None:
        """Advance the time without rain."""
        if self.last_s is None or until_s <= self.last_s:
            return
        if until_s - self.last_s > _FORGOTTEN_S:
            self.tanks, self.open_mm, self.last_s = SoilWater(), 0.0, until_s
        while (edge_s := _next(self.last_s, _STEP_S)) <= until_s:
            self._close_step(edge_s)
        self.last_s = until_s
        self._forget()

    def to_snapshot(self) -> dict[str, Any]:
        """State for the snapshot."""
        tanks = self.tanks
        last = int((self.last_s or 0.0) // _MINUTE_S)
        return {
            "tanks": [round(mm, 4) for mm in (tanks.s1_mm, tanks.s2_mm, tanks.s3_mm)],
            "open": round(self.open_mm, 4),
            "last": self.last_s,
            "ago": [
                [last - minute, round(mm, 4)] for minute, mm in self.minutes.items()
            ],
        }

    def _spread(self, depth_mm: float, begin_s: float, end_s: float) -> None:
        mm_per_s = depth_mm / (end_s - begin_s)
        at_s = begin_s
        while at_s < end_s:
            edge_s = min(_next(at_s, _MINUTE_S), end_s)
            self._drop(mm_per_s * (edge_s - at_s), at_s)
            if edge_s % _STEP_S == 0:
                self._close_step(edge_s)
            at_s = edge_s
        self.last_s = end_s

    def _drop(self, depth_mm: float, at_s: float) -> None:
        self.open_mm += depth_mm
        if depth_mm:
            minute = int(at_s // _MINUTE_S)
            self.minutes[minute] = self.minutes.get(minute, 0.0) + depth_mm

    def _close_step(self, edge_s: float) -> None:
        self.tanks = self.tanks.step(self.open_mm)
        self.open_mm, self.last_s = 0.0, edge_s

    def _forget(self) -> None:
        now = (self.last_s or 0.0) / _MINUTE_S
        self.minutes = {m: mm for m, mm in self.minutes.items() if now - 60 <= m <= now}


def restore_rain_accumulator(entry: Mapping[str, Any]) -> RainAccumulator:
    """Restore from `RainAccumulator.to_snapshot`, or its older form.

    Raises:
        LookupError, TypeError, ValueError: The entry has another form.
    """
    s1_mm, s2_mm, s3_mm = (non_negative_number(mm) for mm in entry["tanks"])
    last_s = optional_time(entry["last"])
    last = int((last_s or 0.0) // _MINUTE_S)
    if "ago" in entry:
        by_minute = [(last - int(finite_number(ago)), mm) for ago, mm in entry["ago"]]
    else:
        by_minute = [
            (int(finite_number(minute)), mm) for minute, mm in entry["minutes"]
        ]
    minutes = {minute: non_negative_number(mm) for minute, mm in by_minute}
    tanks = SoilWater(s1_mm, s2_mm, s3_mm)
    return RainAccumulator(tanks, non_negative_number(entry["open"]), last_s, minutes)


def _next(at_s: float, step_s: float) -> float:
    """The first full step after a time."""
    return (at_s // step_s + 1) * step_s


_SAME_MM = 0.5


class RainRule:
    """Rule for one rain gauge.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the gauge.
    """

    rule = "rain"

    def __init__(self, sensor: str, rules: RainRuleSettings, soil: SoilWater) -> None:
        self.sensor = sensor
        self._rules = rules
        self._sure = RainAccumulator(soil)
        self._high: RainAccumulator | None = None
        self._sum_mm: float | None = None
        self._was = {False: LOWEST, True: LOWEST}
        self._failed_mm: float | None = None

    @property
    def index_mm(self) -> float:
        """Soil water index without doubtful rain."""
        return self._sure.index_mm

    @property
    def r60_mm(self) -> float:
        """Rain of the last 60 minutes, with doubtful rain."""
        return (self._high or self._sure).r60_mm

    def on_sample(self, sample: SensorSample) -> None:
        """Add the rain since the gauge's last reading."""
        if sample.value is None and sample.sum is None and not sample.is_failed:
            return
        depth_mm = self._depth(sample)
        self._failed_mm = None
        if sample.is_failed:
            self._failed_mm, depth_mm = depth_mm, 0.0
        sure = self._sure.copy()
        sure.add_rain(depth_mm, sample.at_s)
        is_implausible = (
            sure.r10_mm > self._rules.most_mm_10min
            or sure.r60_mm > self._rules.most_mm_60min
        )
        if depth_mm and (sample.is_suspect or is_implausible):
            self._high = self._high or self._sure.copy()
            self._sure.add_rain(0.0, sample.at_s)
        else:
            self._sure = sure
        if self._high is not None:
            self._high.add_rain(depth_mm, sample.at_s)

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """Level without doubtful rain; then with it, if that is higher."""
        # a gauge without readings for an hour is broken: the soil drains on
        for memory in filter(None, (self._sure, self._high)):
            memory.advance_dry(context.now_s - _HOUR_S)
        self._agree()
        sure = self._found(self._sure, context, is_doubtful=False)
        sure_level = sure.level if sure else LOWEST
        confirms = self._sure.r60_mm >= self._rules.confirm_mm
        signs = (EvidenceKind.WATER,) if confirms else ()
        reason = sure.reason if sure else None
        yield Detection(self.rule, self.sensor, sure_level, reason, evidence=signs)
        if self._high is None:
            return
        high = self._found(self._high, context, is_doubtful=True)
        if high and high.level > sure_level:
            yield Detection(
                self.rule,
                self.sensor,
                high.level,
                Reason(ReasonCode.DOUBTFUL_RAIN, because=high.reason),
                unconfirmed_level=max(
                    sure_level, min(high.level, self._rules.alone_level)
                ),
                needed_evidence=EvidenceKind.WATER,
            )

    def diagnostics(self) -> Iterable[Reason]:
        """Failed rain that is not counted."""
        if self._failed_mm is not None:
            yield Reason(ReasonCode.RAIN_NOT_COUNTED, rain_mm=self._failed_mm)

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        high = None if self._high is None else self._high.to_snapshot()
        return {"sure": self._sure.to_snapshot(), "high": high, "sum": self._sum_mm}

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        sure, high = restore_rain_accumulator(entry["sure"]), entry["high"]
        sum_mm = optional_time(entry["sum"])
        self._high = None if high is None else restore_rain_accumulator(high)
        self._sure, self._sum_mm = sure, sum_mm

    def _depth(self, sample: SensorSample) -> float:
        value = sample.value if isinstance(sample.value, float | int) else 0.0
        # a restarted counter gives no rain since the last reading
        if sample.sum is not None:
            if self._sum_mm is not None and sample.sum >= self._sum_mm:
                value = sample.sum - self._sum_mm
            self._sum_mm = sample.sum
        return max(float(value), 0.0)

    def _found(
        self, memory: RainAccumulator, scene: RuleContext, *, is_doubtful: bool
    ) -> Finding | None:
        found = judge_rain(
            memory.r60_mm,
            memory.index_mm,
            scene.criteria,
            self._was[is_doubtful],
            self._rules.clear_share,
            sensor=self.sensor,
        )
        self._was[is_doubtful] = found.level if found else LOWEST
        return found

    def _agree(self) -> None:
        """Drop the doubtful state once it makes no difference."""
        high, sure = self._high, self._sure
        if high is None or abs(high.index_mm - sure.index_mm) >= _SAME_MM:
            return
        if abs(high.r60_mm - sure.r60_mm) < _SAME_MM:
            self._high = None
