"""Rule of one extensometer: speed, steps, two-day movement, and time of failure.

Source: management values of 道路土工 (2009) and 現場に役立つ地すべり工学; time of
failure by Fukuzono 1985 and Voight 1988, with the gates that
docs/reference/triage.md gives.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

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
    Json,
    MinuteBin,
    MinuteBins,
    QuarterHourMeans,
    SensorNoise,
    SensorSample,
    is_finite_number,
    largest_agreed_step,
    largest_last_step,
)
from slope_science.evidence.settings import DisplacementRuleSettings
from slope_science.failure_time import (
    FIT_SPAN_H,
    MIN_SIGMAS,
    FailureForecast,
    forecast_failure,
)
from slope_science.levels import ADVISORY, DANGER, LOWEST, WARNING
from slope_science.movement import (
    MIN_READINGS,
    STEP_SIGMAS,
    VELOCITY_SPAN_H,
    Velocity,
    find_steps,
    fit_velocity,
    has_reversal,
    step_times,
    uneven_sigma,
    without_step,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_HOUR_S = 3600.0
_SHORTEST_SPAN_S = 900.0
_DAY_S = 86400.0
_FORECAST_EVERY_S = 600.0  # the most expensive part of the rule, on a Raspberry Pi
_STEP_WITHIN_S = 3900.0  # an hour, and the jitter of hourly readings
_LEAST_LEFT_H = 0.1  # the speed of the law is infinite at the failure
_STEP_ERROR_SIGMAS = 6.4
"""Three standard errors of a step between two readings, as a slope: 3 * 1.5 * 2**0.5"""


class DisplacementRule:
    """Rule for the displacement of one sensor.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
        forecast: Time of failure in hours after the last detection of another ten
            minutes; None if the slope does not clearly speed up.
    """

    rule = "displacement"

    def __init__(
        self, sensor: str, rules: DisplacementRuleSettings, alone_notice_level: int
    ) -> None:
        self.sensor = sensor
        self.forecast: FailureForecast | None = None
        self._slot = -1
        self._rules = rules
        self._alone_notice_level = alone_notice_level
        self._thresholds = rules.thresholds
        self._levels = [level for level, _ in self._thresholds]
        self._noise = SensorNoise()
        # a reading at the window's beginning is compared with the one before it
        self._recent = MinuteBins(2 * _HOUR_S, least=MIN_READINGS + 1)
        self._past = QuarterHourMeans()
        self._brief = PersistenceTimer(rules.persist_s)
        self._long = PersistenceTimer(rules.level_3_after_h * _HOUR_S)
        self._was = LOWEST

    def on_sample(self, sample: SensorSample) -> None:
        """Store the displacement."""
        value = sample.value
        if not is_finite_number(value):
            return
        mm = float(value)  # type: ignore[arg-type]
        is_doubtful = sample.is_value_doubtful(mm, self._recent.last_good)
        self._recent.add(sample.at_s, [mm], is_doubtful=is_doubtful)
        if not is_doubtful:
            self._past.add(sample.at_s, mm)
            self._noise.add(sample.at_s, [mm])

    def detect(self, context: RuleContext) -> Iterable[Detection]:
        """Speed of the last hour, a step, two days, and a time of failure."""
        now_s = context.now_s
        bins = self._window(now_s, with_doubtful=False)
        speed = _velocity(bins)
        level, limit = self._reached(speed, self._was)
        brief = self._brief.update(level, self._levels, now_s)
        # no hysteresis for a single window, which would make it persist
        self._was = brief
        # nor for the duration, which the source counts at the speed itself
        plain, _ = self._reached(speed, LOWEST)
        long = self._long.update(plain, self._levels, now_s)
        if speed is not None and level > LOWEST:
            most, steps = self._alone(bins, level)
            alone = min(brief, most, DANGER)
            reason = self._speed(speed, limit)
            yield replace(
                self._claim(reason, level, alone, steps, bins[0].at_s),
                ends=self._ends(bins, steps),
            )
            if long > LOWEST:
                lasted = self._speed(speed, limit, self._rules.level_3_after_h)
                yield self._claim(lasted, WARNING)
        yield from self._there_and_back(now_s)
        yield from self._doubtful(now_s, level)
        yield from self._step(now_s)
        yield from self._days(now_s)
        yield from self._ahead(now_s)

    def _there_and_back(self, now_s: float) -> Iterable[Detection]:
        """Noise of the last hour, and single readings that went there and back."""
        if self._is_noisy(now_s):
            yield noise_detection(self.rule, self.sensor)
        spikes = tuple(self._spikes.values())
        if spikes:
            yield Detection(self.rule, self.sensor, LOWEST, None, spikes=spikes)

    def _doubtful(self, now_s: float, level: int) -> Iterable[Detection]:
        """The speed with suspect readings, if that is of a higher level."""
        if not self._recent.has_doubtful:
            return
        bins = self._window(now_s, with_doubtful=True)
        speed = _velocity(bins)
        high, limit = self._reached(speed, self._was)
        if speed is not None and high > level:
            _, steps = self._alone(bins, high)
            claim = self._claim(self._speed(speed, limit), high, LOWEST, steps)
            yield replace(claim, ends=self._ends(bins, steps))

    def diagnostics(self) -> Iterable[Reason]:
        """None: each speed is compared with its own noise."""
        return ()

    def to_snapshot(self) -> Json:
        """State for the snapshot: two days, by the hour."""
        return self._past.to_snapshot()

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`."""
        self._past.restore(entry)

    def to_state(self) -> Json:
        """The whole state."""
        parts = (self._recent, self._past, self._noise, self._brief, self._long)
        return [*(part.to_state() for part in parts), self._was]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        *states, self._was = state
        recent, past, noise, brief, long = states
        self._recent.restore_state(recent)
        self._past.restore_state(past)
        self._noise.restore_state(noise)
        self._brief.restore_state(brief)
        self._long.restore_state(long)

    def _window(self, now_s: float, *, with_doubtful: bool) -> list[MinuteBin]:
        """Readings of an hour; the last four where they are up to two hours apart.

        Without single ones that went there and back.
        """
        begin_s, spikes = now_s - _HOUR_S, self._spikes
        return self._recent.since_or_last(
            begin_s, MIN_READINGS, with_doubtful=with_doubtful, spikes=spikes
        )

    @property
    def _spikes(self) -> dict[float, tuple[float, float]]:
        """Readings that went there and back, as `MinuteBins.spikes`."""
        return self._recent.spikes(1, self._noise)

    def _reached(self, speed: Velocity | None, was: int) -> tuple[int, float]:
        if speed is None or not speed.exceeds(0.0):
            return LOWEST, 0.0
        how_fast, share = abs(speed.mm_per_h), self._rules.clear_share
        return threshold_reached(how_fast, self._thresholds, was, share) or (
            LOWEST,
            0.0,
        )

    def _alone(self, bins: Sequence[MinuteBin], level: int) -> tuple[int, StepTimes]:
        """Level without confirmation: that of the speed without single steps.

        Returns:
            The level, and the times of the steps where nothing goes on beside them.
        """
        axes, sigma = [[b.values[0] for b in bins]], self._noise.sigma
        times_s = [b.at_s for b in bins]
        steps = find_steps(times_s, axes, sigma)
        if steps is None:
            return level, ()
        for step in steps:
            axes = without_step(axes, step)
        times_h = [at_s / _HOUR_S for at_s in times_s]
        rest = fit_velocity(times_h, axes[0])
        alone, floor = self._rules.alone_level, _STEP_ERROR_SIGMAS * sigma
        if rest is None or abs(rest.mm_per_h) * (times_h[-1] - times_h[0]) < floor:
            return alone, step_times(times_s, steps)
        found = threshold_reached(abs(rest.mm_per_h), self._thresholds)
        if found is None:
            return alone, step_times(times_s, steps)
        return max(alone, min(found[0], level)), ()

    def _claim(
        self,
        reason: Reason,
        level: int,
        alone: int | None = None,
        steps: StepTimes = (),
        from_s: float | None = None,
    ) -> Detection:
        alone_level = None if alone is None or alone >= level else alone
        signs = (EvidenceKind.MOVEMENT,)
        return Detection(
            self.rule,
            self.sensor,
            level,
            reason,
            alone_level,
            evidence=signs,
            alone_notice_level=self._alone_notice_level,
            steps=steps,
            from_s=from_s,
        )

    def _speed(
        self, speed: Velocity, limit: float, lasted_h: float | None = None
    ) -> Reason:
        return Reason(
            ReasonCode.SPEED,
            sensor=self.sensor,
            mm_per_h=speed.mm_per_h,
            limit_mm_per_h=limit,
            sigma_mm_per_h=speed.sigma_mm_per_h,
            how="reached" if abs(speed.mm_per_h) >= limit else "near",
            lasted_h=lasted_h,
        )

    def _step(self, now_s: float) -> Iterable[Detection]:
        """A single jump, which a regression over the hour attributes to noise."""
        spikes = self._spikes
        bins = [b for b in self._recent.bins() if b.at_s not in spikes]
        if not bins or now_s - bins[-1].at_s > _STEP_WITHIN_S:
            return
        noise_mm = STEP_SIGMAS * self._noise.sigma
        good = [b for b in bins if not b.is_doubtful]
        agreed = largest_agreed_step(good, _STEP_WITHIN_S)
        lone = largest_last_step(bins, _STEP_WITHIN_S)
        least_mm = self._rules.step_mm
        for step, alone in ((agreed, self._rules.alone_level), (lone, LOWEST)):
            found = threshold_reached(abs(step.size), self._thresholds)
            if found is not None and abs(step.size) >= max(least_mm, noise_mm):
                reason = Reason(
                    ReasonCode.DISPLACEMENT_STEP,
                    sensor=self.sensor,
                    step_mm=step.size,
                    limit_mm=least_mm,
                )
                _, steps = self._alone(bins, found[0])
                # behind a gap it may be motion that had begun in it, and goes on
                if not steps and not _has_gap(bins):
                    steps = (step.times_s,)
                claim = self._claim(reason, found[0], alone, steps)
                yield replace(claim, ends=self._ends(bins, steps))
                return

    def _ends(self, bins: Sequence[MinuteBin], steps: StepTimes) -> StepEnds:
        """Displacement before and after each step."""
        values = {b.at_s: (b.values[0],) for b in bins}
        error = STEP_SIGMAS * self._noise.sigma
        return tuple((values[begin], values[end], error) for begin, end in steps)

    def _is_noisy(self, now_s: float) -> bool:
        """Whether readings go forth and back by more than the sensor's noise."""
        begin_s = now_s - _HOUR_S
        bins = self._recent.since_or_last(begin_s, MIN_READINGS, with_doubtful=True)
        if not bins or not self._noise.is_known:
            return False
        return has_reversal([[b.values[0] for b in bins]], self._noise.sigma)

    def _days(self, now_s: float) -> Iterable[Detection]:
        today = self._past.change_between(now_s - _DAY_S, now_s)
        before = self._past.change_between(now_s - 2 * _DAY_S, now_s - _DAY_S)
        if today is None or before is None:
            return
        limit = self._rules.level_2_mm_per_day
        if min(abs(today), abs(before)) >= limit and today * before > 0:
            reason = Reason(
                ReasonCode.DISPLACEMENT_DAYS,
                sensor=self.sensor,
                before_mm=before,
                today_mm=today,
                limit_mm=limit,
            )
            yield self._claim(reason, ADVISORY)

    def _ahead(self, now_s: float) -> Iterable[Detection]:
        """Time of failure by Voight's law, if it passes its gates."""
        slot = int(now_s // _FORECAST_EVERY_S)
        if slot != self._slot:
            self._slot, self.forecast = slot, self._forecast(now_s)
        found = self.forecast
        if found is None or not found.is_usable(0.0):
            return
        rungs = (
            (DANGER, self._rules.level_4_ahead_h),
            (WARNING, self._rules.level_3_ahead_h),
        )
        level = next((at for at, ahead in rungs if found.failure_h <= ahead), LOWEST)
        if level > LOWEST:
            reason = Reason(
                ReasonCode.FAILURE_TIME,
                sensor=self.sensor,
                left_h=found.failure_h,
                half_width_h=found.half_width_h,
                earliest_h=max(found.earliest_h, 0.0),
                latest_h=found.latest_h,
                r2=found.r2,
                mm_per_h=found.speed_mm_per_h(max(found.failure_h, _LEAST_LEFT_H)),
            )
            yield self._claim(reason, level)

    def _forecast(self, now_s: float) -> FailureForecast | None:
        past = self._past.since(now_s - FIT_SPAN_H * _HOUR_S)
        times_h = [(at_s - now_s) / _HOUR_S for at_s, _ in past]
        moved_mm = [mm for _, mm in past]
        return (
            forecast_failure(times_h, moved_mm)
            if _is_moving(times_h, moved_mm)
            else None
        )


def _is_moving(times_h: Sequence[float], moved_mm: Sequence[float]) -> bool:
    """Whether the last speed is above its noise, as a forecast requires of each."""
    begin = bisect_left(times_h, -VELOCITY_SPAN_H * 1.001)
    last = fit_velocity(times_h[begin:], moved_mm[begin:])
    return last is not None and abs(last.mm_per_h) > MIN_SIGMAS * last.sigma_mm_per_h


def _has_gap(bins: Sequence[MinuteBin]) -> bool:
    return any(b.at_s - a.at_s > _STEP_WITHIN_S for a, b in pairwise(bins))


def _velocity(bins: Sequence[MinuteBin]) -> Velocity | None:
    """Speed over some minutes; None if they span too little time."""
    if not bins or bins[-1].at_s - bins[0].at_s < _SHORTEST_SPAN_S:
        return None
    times_h = [(b.at_s - bins[0].at_s) / _HOUR_S for b in bins]
    moved_mm = [b.values[0] for b in bins]
    speed = fit_velocity(times_h, moved_mm)
    if speed is None:
        return None
    # the last readings may be noisier than the ones before
    sigma = max(speed.sigma_mm_per_h, uneven_sigma(times_h, moved_mm))
    return replace(speed, sigma_mm_per_h=sigma)
