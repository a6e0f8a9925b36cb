"""Rule of one rain gauge: soil water index against the cell's criteria.

Plausible rain counts. Extreme rain may still be the storm, so the index is computed
with and without it; with it the level is capped until another sensor confirms that much
water. Once a sum is extreme, by the limits of `slope_science.rain_quality`, all rain of
its last hour is doubtful. The rain of a longer gap is spread over it; that of a gap of
unknown length may have had a minute only. Failed readings are not counted, and a note
reports them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edge_agent.triage.settings import RainRuleSettings
from slope_science.evidence.detections import Detection, EvidenceKind, RuleContext
from slope_science.evidence.samples import (
    Json,
    SensorSample,
    finite_number,
    non_negative_number,
    optional_time,
)
from slope_science.levels import LOWEST, Finding, judge_rain
from slope_science.quality import restarted_depth_mm
from slope_science.rain_and_soil_water import SoilWater
from slope_science.rain_quality import (
    EXTREME_LIMITS,
    RainRecord,
    RainSum,
    find_extreme_sums,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_MINUTE_S, _STEP_S, _HOUR_S, _DAY_S = 60.0, 600.0, 3600.0, 86400.0
_MAX_SPREAD_S = 2 * _DAY_S
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
    def index_mm(self) -> float:
        """Soil water index now, also within a step."""
        open_s = (self.last_s or 0.0) % _STEP_S
        if not open_s:
            return self.tanks.index_mm + self.open_mm
        return self.tanks.step(self.open_mm, open_s / _HOUR_S).index_mm

    @property
    def first_minute(self) -> int:
        """The first minute whose rain is in `minutes`."""
        return math.ceil((self.last_s or 0.0) / _MINUTE_S - 60)

    def copy(self) -> "RainAccumulator":
        """An independent copy."""
        return replace(self, minutes=dict(self.minutes))

    def add_rain(self, depth_mm: float, at_s: float) -> None:
        """Add rain, spread over the time since the last reading, at most two days."""
        if self.last_s is None:
            self.last_s = at_s
        end_s = max(at_s, self.last_s)
        begin_s = max(self.last_s, end_s - _MAX_SPREAD_S)
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
        first, last = self.first_minute, (self.last_s or 0.0) // _MINUTE_S
        self.minutes = {m: mm for m, mm in self.minutes.items() if first <= m <= last}


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


@dataclass
class RainReport:
    """One report of the last hour.

    Attributes:
        at_s: Its time.
        depth_mm: Rain since the report before.
        is_doubtful: Whether the rain is doubtful.
    """

    at_s: float
    depth_mm: float
    is_doubtful: bool


@dataclass
class RecentRain:
    """The reports of the last hour, whose rain may still become doubtful.

    Attributes:
        base: Rain before them, without doubtful rain.
        reports: The reports, the oldest first.
        record: Rain of the last day, doubtful or not.
    """

    base: RainAccumulator
    reports: list[RainReport] = field(default_factory=list)
    record: RainRecord = field(default_factory=RainRecord)

    def is_gap_before(self, report: RainReport) -> bool:
        """Whether rain came after more than an hour without reports."""
        return report.depth_mm > 0 and _HOUR_S < report.at_s - self._last_s < math.inf

    def add(self, report: RainReport, rules: RainRuleSettings) -> bool:
        """Add a report; returns whether rain before it became doubtful by it."""
        begin_s = self._last_s
        self.record.add(report.at_s, report.depth_mm)
        self.record.drop_before(report.at_s - _DAY_S)
        self.reports.append(report)
        while self.reports[0].at_s <= report.at_s - _HOUR_S:
            self._settle(self.reports.pop(0))
        sums = find_extreme_sums(self.record, (), begin_s)
        sums += _sums_of_settings(self.record, rules)
        return bool(sums) and self._doubt(sums)

    def undoubted(self) -> RainAccumulator:
        """Soil water and rain without doubtful rain."""
        made = self.base.copy()
        for report in self.reports:
            made.add_rain(0.0 if report.is_doubtful else report.depth_mm, report.at_s)
        return made

    def to_snapshot(self, first_minute: int) -> dict[str, Any]:
        """State for the snapshot.

        Args:
            first_minute: Minute from which on the snapshot has the rain by minute; the
                rain before it is added to `base`.
        """
        base, from_s = replace(self.base, minutes={}), first_minute * _MINUTE_S
        begin_s = base.last_s
        for report in self.reports:
            begin_s = report.at_s if begin_s is None else begin_s
            if begin_s < from_s:
                end_s = min(report.at_s, from_s)
                depth_mm = 0.0 if report.is_doubtful else report.depth_mm
                is_whole = end_s == report.at_s
                share = 1.0 if is_whole else (end_s - begin_s) / (report.at_s - begin_s)
                base.add_rain(share * depth_mm, end_s)
            begin_s = report.at_s
        base.minutes.clear()
        last_s = self._last_s
        return {
            **base.to_snapshot(),
            "until": None if math.isinf(last_s) else last_s,
        }

    def restore_report(
        self, at_s: float, depth_mm: float, *, is_doubtful: bool
    ) -> None:
        """Append a report, of a snapshot, that is doubtful or not."""
        self.record.add(at_s, depth_mm)
        self.reports.append(RainReport(at_s, depth_mm, is_doubtful))

    @property
    def _last_s(self) -> float:
        return self.record.times_s[-1] if self.record.times_s else -math.inf

    def _settle(self, report: RainReport) -> None:
        depth_mm = 0.0 if report.is_doubtful else report.depth_mm
        self.base.add_rain(depth_mm, report.at_s)

    def _doubt(self, sums: Sequence[RainSum]) -> bool:
        """Mark the rain of sums as doubtful; returns whether an earlier report is."""
        begin_s, found = -math.inf, False
        for report in self.reports:
            is_hit = any(each.doubts(begin_s, report.at_s) for each in sums)
            if is_hit and report.depth_mm and not report.is_doubtful:
                report.is_doubtful = True
                found = found or report is not self.reports[-1]
            begin_s = report.at_s
        return found


def _sums_of_settings(record: RainRecord, rules: RainRuleSettings) -> list[RainSum]:
    """Sums up to now above the limits of the settings."""
    now_s = record.times_s[-1]
    limits = ((_STEP_S, rules.most_mm_10min), (_HOUR_S, rules.most_mm_60min))
    sums = (
        RainSum(now_s - seconds, now_s, record.rain_mm(now_s - seconds, now_s), limit)
        for seconds, limit in limits
    )
    return [each for each in sums if each.rain_mm > each.limit_mm]


def restore_recent_rain(
    entry: Mapping[str, Any], sure: RainAccumulator, high: RainAccumulator | None
) -> RecentRain:
    """Restore from `RecentRain.to_snapshot`.

    Args:
        entry: The entry; empty from an older program.
        sure: Rain without doubtful rain up to now.
        high: Rain with it; None if there is none.

    Raises:
        LookupError, TypeError, ValueError: The entry has another form.
    """
    if not entry:
        return RecentRain(sure.copy())
    made = RecentRain(restore_rain_accumulator(entry))
    known = sure.minutes
    whole = known if high is None else high.minutes
    begin_s, last_s = made.base.last_s, optional_time(entry["until"])
    if last_s is None:
        return made
    if begin_s is not None:
        made.record.add(begin_s, 0.0)
    for minute in sorted({*known, *whole}):
        if begin_s is not None and minute * _MINUTE_S < begin_s:
            continue
        at_s, sure_mm = min((minute + 1) * _MINUTE_S, last_s), known.get(minute, 0.0)
        if made.record.times_s:
            made.restore_report(minute * _MINUTE_S, 0.0, is_doubtful=False)
        made.restore_report(at_s, sure_mm, is_doubtful=False)
        doubtful_mm = max(0.0, whole.get(minute, 0.0) - sure_mm)
        made.restore_report(at_s, doubtful_mm, is_doubtful=True)
    # the next report's rain fell after the last one, also if that was dry
    made.restore_report(last_s, 0.0, is_doubtful=False)
    return made


def is_rain(reason: Reason) -> bool:
    """Whether a reason, or the one that it contains, is of this rule."""
    if reason.code is ReasonCode.RULE:
        return bool(reason.params["rule"] == RainRule.rule)
    inner = reason.params.get("because")
    return isinstance(inner, Reason) and is_rain(inner)


_SAME_MM = 0.5


class RainRule:
    """Rule for one rain gauge.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the gauge.
        is_gap_unknown: Whether the time since the snapshot is unknown.
    """

    rule = "rain"

    def __init__(self, sensor: str, rules: RainRuleSettings, soil: SoilWater) -> None:
        self.sensor = sensor
        self.is_gap_unknown = False
        self._is_restored = False
        self._rules = rules
        self._sure = RainAccumulator(soil)
        self._recent = RecentRain(RainAccumulator(soil))
        self._high: RainAccumulator | None = None
        self._sum_mm: float | None = None
        self._fell_from_mm: float | None = None
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
        depth_mm, is_unsure = self._depth(sample)
        self._failed_mm = None
        if sample.is_missing and not depth_mm:
            return  # a gauge that saw no tips is as one without readings, not dry
        if sample.is_failed and not sample.is_missing:
            self._failed_mm, depth_mm = depth_mm, 0.0
        is_doubtful = bool(depth_mm) and (sample.is_suspect or is_unsure)
        report = RainReport(sample.at_s, depth_mm, is_doubtful)
        report.is_doubtful |= self._may_be_at_once(sample, depth_mm)
        is_late = self._recent.is_gap_before(report)
        is_revised = self._recent.add(report, self._rules)
        if report.is_doubtful or is_revised:
            self._high = self._high or self._sure.copy()
        if is_revised or is_late:
            self._sure = self._recent.undoubted()
        else:
            self._sure.add_rain(0.0 if report.is_doubtful else depth_mm, sample.at_s)
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
        yield Detection(
            self.rule,
            self.sensor,
            sure_level,
            reason,
            evidence=signs,
            needed_evidence=None,
            alone_notice_level=self._rules.alone_notice_level,
        )
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
                alone_notice_level=self._rules.alone_notice_level,
            )

    def diagnostics(self) -> Iterable[Reason]:
        """Failed rain that is not counted."""
        if self._failed_mm is not None:
            yield Reason(ReasonCode.RAIN_NOT_COUNTED, rain_mm=self._failed_mm)

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        high = None if self._high is None else self._high.to_snapshot()
        return {
            "sure": self._sure.to_snapshot(),
            "high": high,
            "sum": self._sum_mm,
            "fell_from": self._fell_from_mm,
            "base": self._recent.to_snapshot(self._sure.first_minute),
        }

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        sure, high = restore_rain_accumulator(entry["sure"]), entry["high"]
        sum_mm = optional_time(entry["sum"])
        self._fell_from_mm = optional_time(entry.get("fell_from"))
        self._high = None if high is None else restore_rain_accumulator(high)
        self._recent = restore_recent_rain(entry.get("base") or {}, sure, self._high)
        self._sure, self._sum_mm = sure, sum_mm
        self._is_restored = True

    def take_over(self, entries: Sequence[Json]) -> None:
        """Continue with the wettest soil of gauges that were replaced or renamed.

        The rain that fell on the slope is in its soil, whatever the gauge is called.
        The counter of this gauge is another one.

        Args:
            entries: `to_snapshot` of the gauges; at least one.
        """
        wettest = max(
            entries, key=lambda each: restore_rain_accumulator(each["sure"]).index_mm
        )
        self.restore({**wettest, "sum": None, "fell_from": None})

    def _may_be_at_once(self, sample: SensorSample, depth_mm: float) -> bool:
        """Whether an outage of unknown length has the extreme rain of a minute.

        After a power cut with a clock that is not set, triage's time goes on where it
        stopped, and a counter has the rain of the whole outage.
        """
        _, limit_mm = EXTREME_LIMITS[0]
        is_of_outage = self._is_restored and self.is_gap_unknown
        if sample.value is not None or sample.sum is not None:
            self._is_restored = False
        return is_of_outage and depth_mm > limit_mm

    def _depth(self, sample: SensorSample) -> tuple[float, bool]:
        """Rain since the last reading, and whether its counter makes it doubtful."""
        value, is_unsure = sample.value or 0.0, False
        if sample.sum is not None:
            before = sample.sum if self._sum_mm is None else self._sum_mm
            if sample.sum >= before and self._sum_mm is not None:
                value = sample.sum - before
                fell_from = self._fell_from_mm
                is_unsure = fell_from is not None and before < fell_from <= sample.sum
            elif sample.sum < before and sample.value is None:
                value, is_unsure = restarted_depth_mm(sample.sum) or 0.0, True
            if sample.sum != before:
                self._fell_from_mm = before
            self._sum_mm = sample.sum
        return max(float(value), 0.0), is_unsure

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
