"""Rule of one tilt sensor: tilt rate over one hour and over six.

A rate counts if it exceeds its own noise, lasts for two windows, and does not rest on a
single step, such as a kick against the pile. With confirmation by another sensor one
window is enough. The part that the sensor's temperature explains is removed first.

Source: Uchimura et al. 2015 for the rates; persistence and noise bound are our
proposals, see docs/reference/triage.md.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from edge_agent.triage.detections import (
    Detection,
    EvidenceKind,
    PersistenceTimer,
    RuleContext,
    threshold_reached,
)
from edge_agent.triage.samples import SensorSample
from edge_agent.triage.settings import TiltRuleSettings
from edge_agent.triage.snapshot import Json, finite_number
from edge_agent.triage.windows import MinuteBin, MinuteBins
from slope_science.findings import LOWEST
from slope_science.movement import (
    ThermalRegression,
    TiltRate,
    fit_tilt_rate,
    remove_largest_step,
    tilt_resolution_deg_per_h,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

BinFilter = Callable[[list[MinuteBin]], list[MinuteBin]]
"""Removes the part of the readings that is no movement."""


@dataclass(frozen=True)
class TiltWindowSpec:
    """Length and limits of a window.

    Attributes:
        length_s: Length of the window.
        min_span_s: Minimum time span of a rate.
        bin_s: Length of a bin.
        step_level: Maximum level of a rate that rests on a single step.
        reason_h: Length shown in reasons; None for the usual hour.
    """

    length_s: float
    min_span_s: float
    bin_s: float
    step_level: int
    reason_h: int | None = None

    @property
    def min_noise_span_s(self) -> float:
        """Minimum time span for the noise floor."""
        return self.length_s * 5 / 6


@dataclass(frozen=True)
class TiltExceedance:
    """Rate in a window with the threshold that it reaches.

    Attributes:
        rate: The rate.
        level: Level of the threshold.
        limit_deg_per_h: The threshold.
        unconfirmed_level: Level without confirmation.
    """

    rate: TiltRate
    level: int
    limit_deg_per_h: float
    unconfirmed_level: int


class TiltWindow:
    """Window of one sensor's x, y, noise and temperature.

    Args:
        span: Length and limits.
        rules: Settings of the rule.
        clean: Removes the part that is no movement.
    """

    def __init__(
        self, span: TiltWindowSpec, rules: TiltRuleSettings, clean: BinFilter
    ) -> None:
        self.span = span
        self._rules = rules
        self._clean = clean
        self._recent = MinuteBins(span.length_s, span.bin_s)
        self._lasting = PersistenceTimer(rules.persist_s)
        self._was = LOWEST
        self._hidden_deg_per_h: float | None = None

    def add(self, at_s: float, values: Sequence[float], *, is_doubtful: bool) -> None:
        """Add a reading: x, y, noise of its burst, temperature."""
        self._recent.add(at_s, values, is_doubtful=is_doubtful)

    def detect(self, now_s: float) -> list[TiltExceedance]:
        """Rates of good readings, then of all readings if that is higher.

        Suspect readings raise a level only with another sensor's evidence.
        """
        bins = self._bins(now_s, with_doubtful=False)
        rate = self._rate(bins)
        level, limit = self._reached(rate, bins)
        self._hidden_deg_per_h = self._finest(rate, bins, level)
        lasting = self._lasting.update(level, self._levels, now_s)
        # no hysteresis for a single window, which would make it persist
        self._was = lasting
        found = []
        if rate is not None and level > LOWEST:
            found.append(
                TiltExceedance(rate, level, limit, min(lasting, self._cap(bins)))
            )
        if self._recent.has_doubtful:
            bins = self._bins(now_s, with_doubtful=True)
            doubted = self._rate(bins)
            high, limit = self._reached(doubted, bins)
            if doubted is not None and high > level:
                found.append(TiltExceedance(doubted, high, limit, LOWEST))
        return found

    @property
    def noise_floor_deg_per_h(self) -> float | None:
        """Noise floor: slower rates are hidden; None while the window is too short."""
        return self._hidden_deg_per_h

    @property
    def _levels(self) -> list[int]:
        return [level for level, _ in self._rules.thresholds]

    def _bins(self, now_s: float, *, with_doubtful: bool) -> list[MinuteBin]:
        bins = self._recent.bins(with_doubtful=with_doubtful)
        return self._clean([b for b in bins if now_s - self.span.length_s <= b.at_s])

    def _rate(self, bins: Sequence[MinuteBin]) -> TiltRate | None:
        """Rate over some minutes; None if they span too little time."""
        if not bins or bins[-1].at_s - bins[0].at_s < self.span.min_span_s:
            return None
        times_h = [(b.at_s - bins[0].at_s) / _HOUR_S for b in bins]
        x, y = ([b.values[axis] for b in bins] for axis in (0, 1))
        return fit_tilt_rate(times_h, x, y)

    def _reached(
        self, rate: TiltRate | None, bins: Sequence[MinuteBin]
    ) -> tuple[int, float]:
        """Level and threshold of a rate, among thresholds above the noise floor."""
        if rate is None:
            return LOWEST, 0.0
        finest = _resolution(bins)
        usable = [each for each in self._rules.thresholds if finest <= each[1]]
        found = threshold_reached(
            rate.deg_per_h, usable, self._was, self._rules.clear_share
        )
        is_clear = rate.exceeds(0.0, self._rules.false_share)
        return found if found and is_clear else (LOWEST, 0.0)

    def _cap(self, bins: Sequence[MinuteBin]) -> int:
        """Maximum level without confirmation if a single step explains the rate."""
        rest = remove_largest_step([[b.values[axis] for b in bins] for axis in (0, 1)])
        creep = fit_tilt_rate([b.at_s / _HOUR_S for b in bins], *rest)
        slow = (
            creep is None
            or threshold_reached(creep.deg_per_h, self._rules.thresholds[-1:]) is None
        )
        return self.span.step_level if slow else max(self._levels)

    def _finest(
        self, rate: TiltRate | None, bins: Sequence[MinuteBin], level: int
    ) -> float | None:
        if not bins or bins[-1].at_s - bins[0].at_s < self.span.min_noise_span_s:
            return None
        finest = _resolution(bins)
        if rate is not None and level == LOWEST:
            finest = max(finest, 3 * rate.sigma_deg_per_h)
        return finest


def _resolution(bins: Sequence[MinuteBin]) -> float:
    """Smallest tilt rate above the noise of the bursts."""
    sigma_deg = median(b.values[2] / b.count**0.5 for b in bins)
    return tilt_resolution_deg_per_h(sigma_deg, [b.at_s / _HOUR_S for b in bins])


_X, _Y, _TEMP = 0, 1, 3


class ThermalCompensation:
    """Learns and removes the thermal part of one sensor's tilt.

    Bins hold x, y, noise and temperature. With a missing temperature (nan) nothing is
    removed.
    """

    def __init__(self) -> None:
        self._known = ThermalRegression()
        self._hour = 0
        self._sum = [0.0, 0.0, 0.0, 0.0]
        self._before: tuple[int, list[float]] | None = None

    def add(self, at_s: float, values: Sequence[float]) -> None:
        """Add a reading; completed hours enter the regression.

        Also during a level: thermal drift that resembles creep must be learnt, and some
        hours of real creep change little in two weeks of data.
        """
        hour = int(at_s // _HOUR_S)
        if hour != self._hour:
            self._close()
            self._hour = hour
        terms = (values[_X], values[_Y], values[_TEMP], 1.0)
        self._sum = [a + b for a, b in zip(self._sum, terms, strict=True)]

    def compensate(self, bins: Sequence[MinuteBin]) -> list[MinuteBin] | None:
        """The bins at constant temperature; None while the slope is unknown."""
        slope = self._known.deg_per_k
        if slope is None or not bins:
            return None
        first_c = bins[0].values[_TEMP]
        if any(b.values[_TEMP] != b.values[_TEMP] for b in bins):
            return None
        compensated = []
        for each in bins:
            warmer_k = each.values[_TEMP] - first_c
            x, y = (each.values[at] - slope[at] * warmer_k for at in (_X, _Y))
            compensated.append(replace(each, values=[x, y, *each.values[2:]]))
        return compensated

    def to_snapshot(self) -> Json:
        """State for the snapshot."""
        return [float(f"{each:.6g}") for each in vars(self._known).values()]

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot.

        Raises:
            TypeError, ValueError: The entry has another form.
        """
        self._known = ThermalRegression(*map(finite_number, entry))

    def _close(self) -> None:
        *sums, count = self._sum
        self._sum = [0.0, 0.0, 0.0, 0.0]
        if not count:
            return
        means = [each / count for each in sums]
        before, self._before = self._before, (self._hour, means)
        if before is None or before[0] != self._hour - 1:
            return
        x, y, warmer_k = (a - b for a, b in zip(means, before[1], strict=True))
        self._known = self._known.updated(warmer_k, x, y)


_HOUR_S = 3600.0
_STILL = 1.25


class TiltRule:
    """Rule for one tilt sensor with ``x`` and ``y``.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "tilt"

    def __init__(self, sensor: str, rules: TiltRuleSettings) -> None:
        self.sensor = sensor
        self._rules = rules
        self._warmth = ThermalCompensation()
        hour = TiltWindowSpec(_HOUR_S, 900.0, 60.0, rules.alone_level)
        # the hour already detects a single step; here it would last six hours
        long = TiltWindowSpec(6 * _HOUR_S, 3 * _HOUR_S, 600.0, LOWEST, 6)
        spans = [hour, long] if rules.six_hours else [hour]
        self._windows = [TiltWindow(span, rules, self._clean) for span in spans]
        self._notes: tuple[Reason, ...] = ()

    def on_sample(self, sample: SensorSample) -> None:
        """Store both angles, the noise of their burst, and the temperature."""
        parts, doubtful = sample.parts, sample.is_suspect
        if {"x", "y"} <= parts.keys():
            temp_c = parts.get("temp", math.nan)
            values = [parts["x"], parts["y"], parts.get("sigma", 0.0), temp_c]
            if not doubtful:
                self._warmth.add(sample.at_s, values)
            for window in self._windows:
                window.add(sample.at_s, values, is_doubtful=doubtful)

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """Rates of all windows."""
        found = [
            self._claim(seen, window.span.reason_h)
            for window in self._windows
            for seen in window.detect(context.now_s)
        ]
        self._note()
        return found

    def diagnostics(self) -> Iterable[Reason]:
        """Thresholds below the noise floor."""
        return self._notes

    def to_snapshot(self) -> Json:
        """State for the snapshot; without the windows, which refill within hours."""
        return self._warmth.to_snapshot()

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        self._warmth.restore(entry)

    def _clean(self, bins: list[MinuteBin]) -> list[MinuteBin]:
        if not self._rules.without_warmth:
            return bins
        return self._warmth.compensate(bins) or bins

    def _claim(self, seen: TiltExceedance, window_h: int | None) -> Detection:
        rate, limit = seen.rate, seen.limit_deg_per_h
        reason = Reason(
            ReasonCode.TILT,
            sensor=self.sensor,
            deg_per_h=rate.deg_per_h,
            limit_deg_per_h=limit,
            sigma_deg_per_h=rate.sigma_deg_per_h,
            points=rate.points,
            how="reached" if rate.deg_per_h >= limit else "near",
            window_h=window_h,
        )
        alone = None if seen.unconfirmed_level >= seen.level else seen.unconfirmed_level
        signs = (EvidenceKind.MOVEMENT,)
        return Detection(
            self.rule, self.sensor, seen.level, reason, alone, evidence=signs
        )

    def _note(self) -> None:
        """Note thresholds below the noise floor of all windows, once they are full."""
        hidden = [window.noise_floor_deg_per_h for window in self._windows]
        known = [each for each in hidden if each is not None]
        if len(known) < len(hidden):
            return
        # hysteresis, so that a value near the edge is reported once
        finest = min(known) * (_STILL if self._notes else 1.0)
        self._notes = tuple(
            Reason(
                ReasonCode.RULE_IN_NOISE,
                rule=self.rule,
                level=level,
                limit_deg_per_h=limit,
            )
            for level, limit in self._rules.thresholds
            if limit < finest
        )
