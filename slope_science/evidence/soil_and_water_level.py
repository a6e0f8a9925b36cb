"""Rules of water: soil moisture and pore pressure, and sudden steps of a water level.

Soil is supporting evidence, no trigger. Moisture: above the 95th percentile of the
sensor's own past and rising during rain, so no calibration is needed. Pore pressure:
turned from suction to positive and rising, or high. Without surveyed strength and depth
neither gives a factor of safety, so each contributes level 2 at most. See
docs/reference/triage.md.

`SaturationRule` and `PoreRule` judge the readings of one node as they come,
`judge_moisture` and `judge_pore_pressure` the past of a sensor at a moment.

A water level steps by a surge or a debris dam upstream. Dangerous heights depend on the
place and are set as ``[[triage.limit]]``.

Source: shallow slides near Seattle come at 60 to 80 % of saturation (Baum 2005,
Godt 2009); a threshold of rain and antecedent wetness beats one of rain alone (Mirus
et al. 2018). The percentile, the rises and the hold are our proposals.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slope_science.evidence.detections import Detection, EvidenceKind, RuleContext
from slope_science.evidence.samples import (
    FoundStep,
    Json,
    MinuteBin,
    MinuteBins,
    SensorSample,
    finite_number,
    is_finite_number,
    largest_agreed_step,
    largest_last_step,
    optional_time,
)
from slope_science.evidence.settings import (
    PoreRuleSettings,
    SaturationRuleSettings,
    WaterLevelRuleSettings,
)
from slope_science.levels import ADVISORY, LOWEST, Finding
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

WET_PERCENTILE = 95.0
"""Percentile of the sensor's own past."""

MIN_MOISTURE_RISE = 0.005
"""Water content; a rise in an hour above a probe's noise."""

MIN_PORE_RISE_HPA = 2.0
MIN_RAIN_MM = 1.0
"""Minimum rain within `RAIN_H` that counts as rain."""

RISE_WITHIN_S = 3900.0
"""An hour, and the jitter of hourly readings; beyond it two readings show no rise."""

HOLD_H = 1.0
RAIN_H = 1.0 + HOLD_H
"""An hour and the hold: rain and rise may have ended shortly before."""

SUCTION_H = 24.0
"""Maximum time since suction for a pressure that has turned positive."""

_HOUR_S = 3600.0
_BIN = 0.005
_SHARE = 0.95
_FADED = 0.05  # of an hour
_ENOUGH_H = 14 * 24
_SEASON_H = 90 * 24
"""Length of a season; the weights of older hours decay beyond it."""

_WINDOW_S = 630.0  # ten minutes, and the jitter of the sampling
_LONGEST_S = 3900.0  # an hour, and the jitter of hourly readings
_READINGS = 4  # two before a step, and two after it
_RAINS_MM = 1.0


def _last_hour(recent: MinuteBins, now_s: float) -> Sequence[MinuteBin]:
    """Readings of the last hour; of hourly ones with the one before, despite jitter."""
    bins = recent.since(now_s - _HOUR_S, with_doubtful=True)
    if len(bins) != 1:
        return bins
    return recent.since(now_s - RISE_WITHIN_S, with_doubtful=True)[-2:]


class SaturationRule:
    """Rule for the water content of one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "saturation"

    def __init__(self, sensor: str, rules: SaturationRuleSettings) -> None:
        self.sensor = sensor
        self._rules = rules
        self._recent = MinuteBins(RISE_WITHIN_S)
        self._hours: dict[int, float] = {}
        self._counted = 0

    def on_sample(self, sample: SensorSample) -> None:
        """Store the last hour, and one value per hour for the season."""
        if sample.is_suspect or not is_finite_number(sample.value):
            return
        vwc = float(sample.value)  # type: ignore[arg-type]
        self._recent.add(sample.at_s, [vwc])
        hour = int(sample.at_s // _HOUR_S)
        if hour > self._counted:
            self._counted = hour
            fade = min(1.0, _SEASON_H / (sum(self._hours.values()) + 1))
            kept = {at: n * fade for at, n in self._hours.items()}
            at = int(vwc / _BIN)
            self._hours = {**kept, at: kept.get(at, 0.0) + 1}

    @property
    def high_vwc(self) -> float | None:
        """Water content that counts as high here; None while unknown."""
        if self._rules.high_vwc is not None:
            return self._rules.high_vwc
        total = sum(self._hours.values())
        if total < _ENOUGH_H:
            return None
        below = 0.0
        for at in sorted(self._hours):
            below += self._hours[at]
            if below >= _SHARE * total:
                return (at + 1) * _BIN
        return None

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """High and rising during rain; a rise alone is evidence only."""
        bins = _last_hour(self._recent, context.now_s)
        if not bins:
            return
        vwc, rise = bins[-1].values[0], bins[-1].values[0] - bins[0].values[0]
        if rise < self._rules.rise_vwc:
            return
        high = self.high_vwc
        is_wet = high is not None and vwc >= high
        rains = context.r60_mm >= self._rules.rain_mm
        reason = Reason(
            ReasonCode.SOIL_WET,
            sensor=self.sensor,
            water_content=vwc,
            rise=rise,
            rain_mm=context.r60_mm,
            high=high or 0.0,
        )
        yield Detection(
            self.rule,
            self.sensor,
            self._rules.level if is_wet and rains else 1,
            reason,
            evidence=(EvidenceKind.WATER,),
        )

    def diagnostics(self) -> Iterable[Reason]:
        """That the past is too short."""
        if self.high_vwc is None and self._counted:
            yield Reason(ReasonCode.SOIL_NEEDS_PAST)

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        hours = {str(at): round(n, 1) for at, n in self._hours.items() if n >= _FADED}
        return {"hours": hours, "counted": self._counted}

    def to_state(self) -> Json:
        """The whole state."""
        hours = [list(item) for item in self._hours.items()]
        return [self._recent.to_state(), hours, self._counted]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        recent, hours, self._counted = state
        self._recent.restore_state(recent)
        self._hours = {at: count for at, count in hours}  # noqa: C416 - lists of JSON

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        hours = {int(at): finite_number(n) for at, n in entry["hours"].items()}
        self._hours, self._counted = hours, int(finite_number(entry["counted"]))


_DAY_S = 86400.0


class PoreRule:
    """Rule for the pore pressure of one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "pore"

    def __init__(self, sensor: str, rules: PoreRuleSettings) -> None:
        self.sensor = sensor
        self._rules = rules
        self._recent = MinuteBins(RISE_WITHIN_S)
        self._suction_s: float | None = None

    def on_sample(self, sample: SensorSample) -> None:
        """Store the last hour, and the time of the last suction."""
        if sample.is_suspect or not is_finite_number(sample.value):
            return
        kpa = float(sample.value)  # type: ignore[arg-type]
        self._recent.add(sample.at_s, [kpa])
        if kpa < 0:
            self._suction_s = sample.at_s

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """Positive after suction, and rising."""
        bins = _last_hour(self._recent, context.now_s)
        if not bins or self._suction_s is None:
            return
        kpa, rise = bins[-1].values[0], bins[-1].values[0] - bins[0].values[0]
        days = (context.now_s - self._suction_s) / _DAY_S
        is_new = kpa >= 0 and days <= self._rules.suction_days
        if is_new and rise >= self._rules.rise_kpa:
            reason = Reason(
                ReasonCode.PORE_POSITIVE,
                sensor=self.sensor,
                pressure_kpa=kpa,
                rise_kpa=rise,
            )
            level = self._rules.level
            yield Detection(
                self.rule, self.sensor, level, reason, evidence=(EvidenceKind.WATER,)
            )

    def diagnostics(self) -> Iterable[Reason]:
        """None."""
        return ()

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        return self._suction_s

    def to_state(self) -> Json:
        """The whole state."""
        return [self._recent.to_state(), self._suction_s]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        recent, self._suction_s = state
        self._recent.restore_state(recent)

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        self._suction_s = optional_time(entry)


@dataclass(frozen=True)
class SoilWetness:
    """State of one soil sensor at a moment.

    Attributes:
        sensor: Its name, with the node's.
        value: Water content, or pore pressure in hPa.
        rise: Largest rise within an hour that ended during the hold.
        percentile: Rank in the sensor's own past, 0 to 100; None while the past is
            too short.
        lowest: Minimum within `SUCTION_H`.
    """

    sensor: str
    value: float
    rise: float
    percentile: float | None
    lowest: float


def summarize_wetness(
    sensor: str,
    times_h: Sequence[float],
    values: Sequence[float],
    percentile: float | None,
) -> SoilWetness | None:
    """Summarize the readings up to a moment; None without a recent one.

    Args:
        sensor: Name, with the node's.
        times_h: Times of the readings relative to that moment, ascending, at most 0.
        values: Readings at these times.
        percentile: Percentile of the last one.
    """
    if not times_h or times_h[-1] < -HOLD_H:
        return None
    first = bisect_left(times_h, -SUCTION_H)
    return SoilWetness(
        sensor,
        values[-1],
        _rise(times_h, values),
        percentile,
        min(values[first:]),
    )


def judge_moisture(wetness: SoilWetness, rain_mm: float) -> Finding | None:
    """Level of a water content that is high for this sensor and rose during rain.

    Args:
        wetness: State of the sensor.
        rain_mm: Rain of the last `RAIN_H`.
    """
    if not _is_wet(wetness, rain_mm, MIN_MOISTURE_RISE):
        return None
    reason = Reason(
        ReasonCode.SOIL_WET,
        sensor=wetness.sensor,
        water_content=wetness.value,
        rise=wetness.rise,
        rain_mm=rain_mm,
        percentile=wetness.percentile,
    )
    return Finding(ADVISORY, reason)


def judge_pore_pressure(wetness: SoilWetness, rain_mm: float) -> Finding | None:
    """Level of a pore pressure that turned positive, or is high and rose.

    Args:
        wetness: State of the sensor, in hPa.
        rain_mm: Rain of the last `RAIN_H`; a turn to positive needs none.
    """
    if wetness.lowest < 0 <= wetness.value and wetness.rise >= MIN_PORE_RISE_HPA:
        turned = Reason(
            ReasonCode.PORE_TURNED,
            sensor=wetness.sensor,
            pressure_hpa=wetness.value,
            rise_hpa=wetness.rise,
        )
        return Finding(ADVISORY, turned)
    if not _is_wet(wetness, rain_mm, MIN_PORE_RISE_HPA):
        return None
    reason = Reason(
        ReasonCode.PORE_HIGH,
        sensor=wetness.sensor,
        pressure_hpa=wetness.value,
        percentile=wetness.percentile,
        rise_hpa=wetness.rise,
        rain_mm=rain_mm,
    )
    return Finding(ADVISORY, reason)


def _is_wet(now: SoilWetness, rain_mm: float, min_rise: float) -> bool:
    is_high = now.percentile is not None and now.percentile >= WET_PERCENTILE
    return is_high and now.rise >= min_rise and rain_mm >= MIN_RAIN_MM


def _rise(times_h: Sequence[float], values: Sequence[float]) -> float:
    """Largest rise in an hour that ended within the hold."""
    rises = [0.0]
    within_h = RISE_WITHIN_S / 3600.0 + 1e-6
    for at in range(bisect_left(times_h, -HOLD_H), len(times_h)):
        before = bisect_left(times_h, times_h[at] - 1.0 - 1e-6)
        if before == at > 0 and times_h[at] - times_h[at - 1] <= within_h:
            before = at - 1  # hourly readings
        rises.append(values[at] - values[before])
    return max(rises)


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
