"""Rule of one tilt sensor: tilt rate over one hour and over six.

A rate counts if it exceeds the noise of its window and of the sensor, lasts for two
windows, and does not rest on a single step, such as a kick against the pile. With
confirmation by another sensor one window is enough. The part that the sensor's
temperature explains is removed first; where it is unknown, slow rates count outside the
sensor's daily range only.

Source: Uchimura et al. 2015 for the rates; persistence, noise bound and range are our
proposals, see docs/reference/triage.md.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from slope_science.evidence.detections import (
    Detection,
    EvidenceKind,
    PersistenceTimer,
    RuleContext,
    StepEnds,
    StepTimes,
    noise_detection,
    threshold_reached,
)
from slope_science.evidence.samples import (
    TILT_AXES,
    Json,
    MinuteBin,
    MinuteBins,
    SensorNoise,
    SensorSample,
)
from slope_science.evidence.settings import TiltRuleSettings
from slope_science.evidence.thermal import (
    WARMTH_DEG_PER_H,
    WARMTH_RANGE_DEG,
    DailyRange,
    ThermalCompensation,
)
from slope_science.levels import ADVISORY, LOWEST
from slope_science.movement import (
    MIN_POINTS,
    STEP_SIGMAS,
    Step,
    TiltRate,
    find_steps,
    fit_tilt_rate,
    has_reversal,
    is_steady,
    noise_sigmas,
    step_times,
    tilt_resolution_deg_per_h,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_HOUR_S = 3600.0
_STILL = 1.25
_QUANTA = 2.5
"""Least change of a rate: one step between two quanta fits 1.5 of them."""

_RESOLVED_SHARE = 2.0
"""Least rate that an hour shows by itself, as a share of its noise bound."""

_HALF_HOUR_S = 1860.0  # and the jitter of the sampling


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
        bins: Readings of the window.
        steps: The single steps on which it rests; empty if the rate goes on beside
            them.
        ends: Tilt before and after each of them.
    """

    rate: TiltRate
    level: int
    limit_deg_per_h: float
    unconfirmed_level: int
    bins: Sequence[MinuteBin]
    steps: StepTimes = ()
    ends: StepEnds = ()


AxesOfBins = Callable[[Sequence[MinuteBin]], tuple[list[float], list[float]]]
"""Gives x and y of readings without the part that is no movement."""


class TiltWindow:
    """Window of one sensor's x, y, noise and temperature.

    Attributes:
        span: Length and limits.
        rate: Last rate of good readings; None where unknown.

    Args:
        span: Length and limits.
        rules: Settings of the rule.
        noise: Noise of the sensor.
        axes: Gives x and y without the part that is no movement.
    """

    def __init__(
        self,
        span: TiltWindowSpec,
        rules: TiltRuleSettings,
        noise: SensorNoise,
        axes: AxesOfBins,
    ) -> None:
        self.span = span
        self._rules = rules
        self._noise = noise
        self._axes = axes
        self._thresholds = rules.thresholds
        self._levels = [level for level, _ in self._thresholds]
        # a reading at the window's beginning is compared with the one before it
        least = MIN_POINTS + 1
        self._recent = MinuteBins(span.length_s, span.bin_s, least=least, before=1)
        self._lasting = PersistenceTimer(rules.persist_s)
        self._was = LOWEST
        self._hidden_deg_per_h: float | None = None
        self.rate: TiltRate | None = None

    def add(self, at_s: float, values: Sequence[float], *, is_doubtful: bool) -> None:
        """Add a reading: x, y, noise of its burst, temperature."""
        self._recent.add(at_s, values, is_doubtful=is_doubtful)

    def detect(self, now_s: float) -> list[TiltExceedance]:
        """Rates of good readings, then of all readings if that is higher.

        Suspect readings raise a level only with another sensor's evidence.
        """
        bins = self._bins(now_s, with_doubtful=False)
        rate = self.rate = self._rate(bins)
        finest = _resolution(bins)
        level, limit = self._reached(rate, bins, finest)
        self._hidden_deg_per_h = self._finest(rate, bins, level, finest)
        lasting = self._lasting.update(level, self._levels, now_s)
        fast = self._latest(rate, bins, level)
        # no hysteresis for a single window, which would make it persist
        self._was = lasting
        found = []
        if fast is not None:
            rate, level, limit = fast
        if rate is not None and level > LOWEST:
            alone, steps = self._alone(bins, level)
            alone = alone if lasting > LOWEST else LOWEST
            ends = self._ends(bins, steps)
            found.append(TiltExceedance(rate, level, limit, alone, bins, steps, ends))
        if self._recent.has_doubtful:
            bins = self._bins(now_s, with_doubtful=True)
            doubted = self._rate(bins)
            high, limit = self._reached(doubted, bins, _resolution(bins))
            if doubted is not None and high > level:
                _, steps = self._alone(bins, high)
                ends = self._ends(bins, steps)
                found.append(
                    TiltExceedance(doubted, high, limit, LOWEST, bins, steps, ends)
                )
        return found

    @property
    def noise_floor_deg_per_h(self) -> float | None:
        """Noise floor: slower rates are hidden; None while the window is too short."""
        return self._hidden_deg_per_h

    def is_noisy(self, now_s: float) -> bool:
        """Whether readings go forth and back by more than the sensor's noise."""
        begin_s = now_s - self.span.length_s
        bins = self._recent.since_or_last(begin_s, MIN_POINTS, with_doubtful=True)
        if not bins or not self._noise.is_known:
            return False
        return has_reversal(self._axes(bins), self._noise.sigma)

    @property
    def spikes(self) -> dict[float, tuple[float, float]]:
        """Readings that went there and back, as `MinuteBins.spikes`."""
        return self._recent.spikes(len(TILT_AXES), self._noise)

    def resolved_deg_per_h(self, now_s: float) -> float:
        """Rate that the sensor's own noise hides no longer; infinite while unknown."""
        bins = self._bins(now_s, with_doubtful=False)
        is_short = not bins or bins[-1].at_s - bins[0].at_s < self.span.min_span_s
        if is_short or not self._noise.is_known:
            return math.inf
        return self._noise_deg_per_h([b.at_s / _HOUR_S for b in bins])

    def to_state(self) -> Json:
        """The whole state."""
        return [self._recent.to_state(), self._lasting.to_state(), self._was]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        recent, lasting, self._was = state
        self._recent.restore_state(recent)
        self._lasting.restore_state(lasting)

    def _bins(self, now_s: float, *, with_doubtful: bool) -> Sequence[MinuteBin]:
        """Readings of the window; the last four of a sensor that is seldom read.

        Without single ones that went there and back.
        """
        begin_s = now_s - self.span.length_s
        return self._recent.since_or_last(
            begin_s, MIN_POINTS, with_doubtful=with_doubtful, spikes=self.spikes
        )

    def _rate(self, bins: Sequence[MinuteBin]) -> TiltRate | None:
        """Rate over some minutes; None if they span too little time."""
        if not bins or bins[-1].at_s - bins[0].at_s < self.span.min_span_s:
            return None
        first_s = bins[0].at_s
        times_h = [(b.at_s - first_s) / _HOUR_S for b in bins]
        return fit_tilt_rate(times_h, *self._axes(bins))

    def _reached(
        self, rate: TiltRate | None, bins: Sequence[MinuteBin], finest: float
    ) -> tuple[int, float]:
        """Level and threshold of a rate, among thresholds above the noise floor."""
        if rate is None:
            return LOWEST, 0.0
        usable = [each for each in self._thresholds if finest <= each[1]]
        found = threshold_reached(
            rate.deg_per_h, usable, self._was, self._rules.clear_share
        )
        is_clear = found is not None and (
            rate.exceeds(0.0, self._rules.false_share) or self._is_clear(rate, bins)
        )
        moved_deg = rate.deg_per_h * (bins[-1].at_s - bins[0].at_s) / _HOUR_S
        is_resolved = moved_deg >= _QUANTA * self._noise.quantum
        return found if found and is_clear and is_resolved else (LOWEST, 0.0)

    def _is_clear(self, rate: TiltRate, bins: Sequence[MinuteBin]) -> bool:
        """Whether a rate exceeds the sensor's own noise.

        The beginning of creep bends the line, which its residuals take for noise. If
        the readings go forth and back by more than the sensor's noise, they have become
        noisier, and only their residuals measure by how much.
        """
        sigma = self._noise.sigma
        times_h = [b.at_s / _HOUR_S for b in bins]
        floor = self._noise_deg_per_h(times_h)
        is_above = self._noise.is_known and rate.deg_per_h >= floor
        axes = self._axes(bins)
        return is_above and is_steady(axes, sigma) and not has_reversal(axes, sigma)

    def _noise_deg_per_h(
        self, times_h: Sequence[float], steps: Sequence[Step] = ()
    ) -> float:
        """Rate that the sensor's own noise exceeds only in a few windows."""
        sigmas = noise_sigmas(self._noise.freedom, self._rules.false_share)
        return sigmas / 3 * tilt_resolution_deg_per_h(self._noise.sigma, times_h, steps)

    def _latest(
        self, rate: TiltRate | None, bins: Sequence[MinuteBin], level: int
    ) -> tuple[TiltRate, int, float] | None:
        """The rate of the last half hour, if it is faster and of a higher level.

        The rate over an hour reaches that of creep only an hour after its beginning.
        """
        if rate is None or level == LOWEST or self.span.length_s > _HOUR_S:
            return None
        half = [b for b in bins if b.at_s >= bins[-1].at_s - _HALF_HOUR_S]
        if half[-1].at_s - half[0].at_s < self.span.min_span_s:
            return None
        latest = self._rate(half)
        if latest is None or not self._is_clear(latest, half):
            return None
        higher, limit = self._reached(latest, half, _resolution(half))
        return (latest, higher, limit) if higher > level else None

    def _alone(self, bins: Sequence[MinuteBin], level: int) -> tuple[int, StepTimes]:
        """Level without confirmation: that of the rate without single steps.

        Returns:
            The level, and the times of the steps where nothing goes on beside them.
        """
        axes, sigma = self._axes(bins), self._noise.sigma
        times_s = [b.at_s for b in bins]
        steps = find_steps(times_s, axes, sigma)
        if steps is None:
            return level, ()
        only_steps = self.span.step_level, step_times(times_s, steps)
        times_h = [at_s / _HOUR_S for at_s in times_s]
        rest = fit_tilt_rate(times_h, *axes, steps)
        if rest is None or rest.deg_per_h < self._noise_deg_per_h(times_h, steps):
            return only_steps
        if not self._noise.is_known and not rest.exceeds(0.0, self._rules.false_share):
            return only_steps
        found = threshold_reached(rest.deg_per_h, self._thresholds)
        if found is None:
            return only_steps
        return max(self.span.step_level, min(found[0], level)), ()

    def _ends(self, bins: Sequence[MinuteBin], steps: StepTimes) -> StepEnds:
        """Tilt as read before and after each step."""
        values = {b.at_s: tuple(b.values[:2]) for b in bins}
        error = STEP_SIGMAS * self._noise.sigma
        return tuple((values[begin], values[end], error) for begin, end in steps)

    def _finest(
        self,
        rate: TiltRate | None,
        bins: Sequence[MinuteBin],
        level: int,
        finest: float,
    ) -> float | None:
        if not bins or bins[-1].at_s - bins[0].at_s < self.span.min_noise_span_s:
            return None
        span_h = (bins[-1].at_s - bins[0].at_s) / _HOUR_S
        finest = max(finest, _QUANTA * self._noise.quantum / span_h)
        if rate is not None and level == LOWEST:
            finest = max(finest, 3 * rate.sigma_deg_per_h)
        return finest


def _axes_as_read(bins: Sequence[MinuteBin]) -> tuple[list[float], list[float]]:
    return [b.values[0] for b in bins], [b.values[1] for b in bins]


def _resolution(bins: Sequence[MinuteBin]) -> float:
    """Smallest tilt rate above the noise of the bursts."""
    if not any([b.values[2] for b in bins]):  # noqa: C419 - faster if none
        return 0.0
    sigmas = sorted(b.values[2] / b.count**0.5 for b in bins)
    sigma_deg = (sigmas[len(sigmas) // 2] + sigmas[(len(sigmas) - 1) // 2]) / 2
    return tilt_resolution_deg_per_h(sigma_deg, [b.at_s / _HOUR_S for b in bins])


class TiltRule:
    """Rule for one tilt sensor with ``x`` and ``y``.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.

    Args:
        sensor: Name of the sensor.
        rules: Settings of the rule.
        alone_notice_level: Maximum level of notices by this sensor alone.
        past: Its daily range, which is updated by the owner of both.
    """

    rule = "tilt"

    def __init__(
        self,
        sensor: str,
        rules: TiltRuleSettings,
        alone_notice_level: int,
        past: DailyRange,
    ) -> None:
        self.sensor = sensor
        self._rules = rules
        self._alone_notice_level = alone_notice_level
        self._past = past
        self._thresholds = rules.thresholds
        self._warmth = ThermalCompensation()
        self._noise = SensorNoise()
        hour = TiltWindowSpec(_HOUR_S, 900.0, 60.0, rules.alone_level)
        # the hour already detects a single step; here it would last six hours
        long = TiltWindowSpec(6 * _HOUR_S, 3 * _HOUR_S, 600.0, LOWEST, 6)
        spans = [hour, long] if rules.six_hours else [hour]
        axes = self._warmth.axes if rules.without_warmth else _axes_as_read
        self._windows = [TiltWindow(span, rules, self._noise, axes) for span in spans]
        self._notes: tuple[Reason, ...] = ()

    def on_sample(self, sample: SensorSample) -> None:
        """Store both angles, the noise of their burst, and the temperature."""
        parts, doubtful = sample.parts, sample.is_doubtful(self._noise.before)
        if {"x", "y"} <= parts.keys():
            temp_c = parts.get("temp", math.nan)
            values = [parts["x"], parts["y"], parts.get("sigma", 0.0), temp_c]
            if not doubtful:
                self._noise.add(sample.at_s, values[:2])
            if not doubtful and not math.isnan(temp_c):
                self._warmth.add(sample.at_s, values)
            for window in self._windows:
                window.add(sample.at_s, values, is_doubtful=doubtful)

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """Rates of all windows."""
        now_s = context.now_s
        hour, *longer = self._windows
        seen = hour.detect(now_s)
        # six hours hide the step of the last hour, or blur its time and its ends
        last = next((each for each in seen if each.steps), None)
        found = [claim for each in seen for claim in self._claims(each, None, now_s)]
        if hour.is_noisy(now_s):
            found.append(noise_detection(self.rule, self.sensor))
        spikes = {each for window in self._windows for each in window.spikes.values()}
        if spikes:
            times = tuple(sorted(spikes))
            found.append(Detection(self.rule, self.sensor, LOWEST, None, spikes=times))
        for window in longer:
            for each in window.detect(now_s):
                hidden = self._hidden(each, hour.resolved_deg_per_h(now_s))
                if hidden is not None and last is not None:
                    hidden = replace(hidden, steps=last.steps, ends=last.ends)
                if hidden is not None:
                    found += self._claims(hidden, window.span.reason_h, now_s)
        self._note()
        return found

    def diagnostics(self) -> Iterable[Reason]:
        """Thresholds below the noise floor."""
        return self._notes

    @property
    def rates(self) -> tuple[TiltRate | None, TiltRate | None]:
        """Rates of good readings over an hour and over six; None where unknown."""
        found = [window.rate for window in self._windows]
        return found[0], found[1] if len(found) > 1 else None

    @property
    def deg_per_k(self) -> tuple[float, float] | None:
        """Tilt of x and y per kelvin; None while unknown."""
        return self._warmth.deg_per_k

    def to_snapshot(self) -> Json:
        """State for the snapshot; without the windows, which refill within hours."""
        return self._warmth.to_snapshot()

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        self._warmth.restore(entry)

    def to_state(self) -> Json:
        """The whole state, without the daily range."""
        windows = [window.to_state() for window in self._windows]
        return [self._warmth.to_state(), self._noise.to_state(), windows]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        warmth, noise, windows = state
        self._warmth.restore_state(warmth)
        self._noise.restore_state(noise)
        for window, each in zip(self._windows, windows, strict=False):
            window.restore_state(each)

    def _claims(
        self, seen: TiltExceedance, window_h: int | None, now_s: float
    ) -> Iterable[Detection]:
        """The detection of a rate; none for one within the daily range."""
        rate, limit, level = seen.rate, seen.limit_deg_per_h, seen.level
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
        signs: tuple[EvidenceKind, ...] = (EvidenceKind.MOVEMENT,)
        if self._may_be_warmth(seen, now_s):
            if self._past.known_range(now_s) is not None:
                return
            code, signs, level = ReasonCode.MAYBE_WARMTH, (), min(level, ADVISORY)
            reason = Reason(code, because=reason, range_deg=WARMTH_RANGE_DEG)
        alone = min(seen.unconfirmed_level, level)
        yield Detection(
            self.rule,
            self.sensor,
            level,
            reason,
            None if alone >= level else alone,
            evidence=signs,
            alone_notice_level=self._alone_notice_level,
            steps=seen.steps,
            ends=seen.ends,
            from_s=seen.bins[0].at_s if window_h is None else None,
        )

    def _hidden(self, seen: TiltExceedance, resolved: float) -> TiltExceedance | None:
        """The part of a rate over six hours that the noise of one hour hides.

        A faster one is none in any hour, but several kicks in six of them.
        """
        if seen.limit_deg_per_h < _RESOLVED_SHARE * resolved:
            return seen
        found = next(
            (each for each in self._thresholds if each[1] < _RESOLVED_SHARE * resolved),
            None,
        )
        if found is None:
            return None
        level, limit = found
        alone = min(seen.unconfirmed_level, level)
        return replace(
            seen, level=level, limit_deg_per_h=limit, unconfirmed_level=alone
        )

    def _may_be_warmth(self, seen: TiltExceedance, now_s: float) -> bool:
        """Whether the warmth of the day may explain a rate."""
        is_fast = max(seen.rate.deg_per_h, seen.limit_deg_per_h) >= WARMTH_DEG_PER_H
        if is_fast or not self._rules.daily_range or self._warmth.is_known(seen.bins):
            return False
        last = seen.bins[-3:]
        x, y = (sum(b.values[axis] for b in last) / len(last) for axis in (0, 1))
        return not self._past.is_outside(now_s, x, y)

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
            for level, limit in self._thresholds
            if limit < finest
        )
