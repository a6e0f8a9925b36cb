"""How fast one sensor tilts, over the last hour and over the last six.

A rate counts when it stands clear of its own noise, lasts for two windows, and does
not rest on one single step, which is a foot against the pile. What another sensor
confirms need not wait. What follows the sensor's temperature is taken out before.

Source: Uchimura et al. 2015 for the rates; persistence and bound of noise are
ours, see docs/reference/triage.md.

How fast one sensor tilts over one window of time.

Source: Uchimura et al. 2015 for the rates; persistence and bound of noise are
ours, see docs/reference/triage.md.

Takes out of a sensor's tilt what its temperature explains.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from edge_agent.triage.detections import Claim, Lasting, Scene, Sign, rung
from edge_agent.triage.samples import Sample
from edge_agent.triage.settings import TiltRules
from edge_agent.triage.snapshot import Json, number_of
from edge_agent.triage.windows import Bin, Recent
from slope_science.findings import LOWEST
from slope_science.movement import (
    Thermal,
    TiltRate,
    resolution_deg_per_h,
    tilt_rate,
    without_largest_step,
)
from slope_science.reasons import Reason, ReasonCode

Clean = Callable[[list[Bin]], list[Bin]]
"""Takes out what is no movement."""


@dataclass(frozen=True)
class Span:
    """How long a window is.

    Attributes:
        whole_s: All of it.
        shortest_s: A rate over less is mostly noise.
        bin_s: Readings so close in time count as one.
        step_level: The highest level of a rate that is one single step.
        reason_h: Its length in a reason; None for the usual hour.
    """

    whole_s: float
    shortest_s: float
    bin_s: float
    step_level: int
    reason_h: int | None = None

    @property
    def enough_s(self) -> float:
        """So much of it says what its noise hides."""
        return self.whole_s * 5 / 6


@dataclass(frozen=True)
class Seen:
    """A rate in a window, and the rung it reaches.

    Attributes:
        rate: The rate.
        level: The level of the rung.
        limit_deg_per_h: Its threshold.
        alone_level: What it comes to while no other sensor confirms it.
    """

    rate: TiltRate
    level: int
    limit_deg_per_h: float
    alone_level: int


class TiltWindow:
    """The last while of one sensor's x, y, noise and temperature.

    Args:
        span: How long it is.
        rules: What a rate is compared with.
        clean: Takes out what is no movement.
    """

    def __init__(self, span: Span, rules: TiltRules, clean: Clean) -> None:
        self.span = span
        self._rules = rules
        self._clean = clean
        self._recent = Recent(span.whole_s, span.bin_s)
        self._lasting = Lasting(rules.persist_s)
        self._was = LOWEST
        self._hidden_deg_per_h: float | None = None

    def take(self, at_s: float, values: Sequence[float], *, is_doubtful: bool) -> None:
        """Remember a reading: x, y, the noise of its burst, its temperature."""
        self._recent.take(at_s, values, is_doubtful=is_doubtful)

    def seen(self, now_s: float) -> list[Seen]:
        """What good readings show, then what doubtful ones add, if more.

        A suspect reading raises nothing alone; with another's sign it does.
        """
        bins = self._bins(now_s, with_doubtful=False)
        rate = self._rate(bins)
        level, limit = self._reached(rate, bins)
        self._hidden_deg_per_h = self._finest(rate, bins, level)
        lasting = self._lasting.take(level, self._levels, now_s)
        # no hysteresis for one lucky window, which would let it persist
        self._was = lasting
        told = []
        if rate is not None and level > LOWEST:
            told.append(Seen(rate, level, limit, min(lasting, self._cap(bins))))
        if self._recent.has_doubtful:
            bins = self._bins(now_s, with_doubtful=True)
            doubted = self._rate(bins)
            high, limit = self._reached(doubted, bins)
            if doubted is not None and high > level:
                told.append(Seen(doubted, high, limit, LOWEST))
        return told

    @property
    def hidden_deg_per_h(self) -> float | None:
        """Slower rates its noise hides; None while it is not whole."""
        return self._hidden_deg_per_h

    @property
    def _levels(self) -> list[int]:
        return [level for level, _ in self._rules.rungs]

    def _bins(self, now_s: float, *, with_doubtful: bool) -> list[Bin]:
        bins = self._recent.bins(with_doubtful=with_doubtful)
        return self._clean([b for b in bins if now_s - self.span.whole_s <= b.at_s])

    def _rate(self, bins: Sequence[Bin]) -> TiltRate | None:
        """Rate of some minutes; None when they span too little."""
        if not bins or bins[-1].at_s - bins[0].at_s < self.span.shortest_s:
            return None
        times_h = [(b.at_s - bins[0].at_s) / _HOUR_S for b in bins]
        x, y = ([b.values[axis] for b in bins] for axis in (0, 1))
        return tilt_rate(times_h, x, y)

    def _reached(self, rate: TiltRate | None, bins: Sequence[Bin]) -> tuple[int, float]:
        """Level and threshold of a rate, which its noise must let us tell."""
        if rate is None:
            return LOWEST, 0.0
        finest = _resolution(bins)
        usable = [each for each in self._rules.rungs if finest <= each[1]]
        found = rung(rate.deg_per_h, usable, self._was, self._rules.clear_share)
        is_clear = rate.exceeds(0.0, self._rules.false_share)
        return found if found and is_clear else (LOWEST, 0.0)

    def _cap(self, bins: Sequence[Bin]) -> int:
        """The level that one single step may reach alone."""
        rest = without_largest_step([[b.values[axis] for b in bins] for axis in (0, 1)])
        creep = tilt_rate([b.at_s / _HOUR_S for b in bins], *rest)
        slow = creep is None or rung(creep.deg_per_h, self._rules.rungs[-1:]) is None
        return self.span.step_level if slow else max(self._levels)

    def _finest(
        self, rate: TiltRate | None, bins: Sequence[Bin], level: int
    ) -> float | None:
        if not bins or bins[-1].at_s - bins[0].at_s < self.span.enough_s:
            return None
        finest = _resolution(bins)
        if rate is not None and level == LOWEST:
            finest = max(finest, 3 * rate.sigma_deg_per_h)
        return finest


def _resolution(bins: Sequence[Bin]) -> float:
    """The slowest tilt that the noise of the bursts lets us tell."""
    sigma_deg = median(b.values[2] / b.count**0.5 for b in bins)
    return resolution_deg_per_h(sigma_deg, [b.at_s / _HOUR_S for b in bins])


_X, _Y, _TEMP = 0, 1, 3


class Warmth:
    """What one sensor's tilt does with its temperature.

    Minutes are told as bins of x, y, noise and temperature; a temperature that was
    not read is nan, and then nothing is taken out.
    """

    def __init__(self) -> None:
        self._known = Thermal()
        self._hour = 0
        self._sum = [0.0, 0.0, 0.0, 0.0]
        self._before: tuple[int, list[float]] | None = None

    def learn(self, at_s: float, values: Sequence[float]) -> None:
        """Take a reading; the hours before it are learnt from.

        Also while a level holds: a morning that looks like creep is what there is to
        learn, and some hours of creep change little of what two weeks say.
        """
        hour = int(at_s // _HOUR_S)
        if hour != self._hour:
            self._close()
            self._hour = hour
        told = (values[_X], values[_Y], values[_TEMP], 1.0)
        self._sum = [a + b for a, b in zip(self._sum, told, strict=True)]

    def taken_out(self, bins: Sequence[Bin]) -> list[Bin] | None:
        """The minutes as if the temperature had stood still; None if not known."""
        slope = self._known.deg_per_k
        if slope is None or not bins:
            return None
        first_c = bins[0].values[_TEMP]
        if any(b.values[_TEMP] != b.values[_TEMP] for b in bins):
            return None
        made = []
        for each in bins:
            warmer_k = each.values[_TEMP] - first_c
            x, y = (each.values[at] - slope[at] * warmer_k for at in (_X, _Y))
            made.append(replace(each, values=[x, y, *each.values[2:]]))
        return made

    def out(self) -> Json:
        """For the snapshot."""
        return [float(f"{each:.6g}") for each in vars(self._known).values()]

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot.

        Raises:
            TypeError, ValueError: It is something else.
        """
        self._known = Thermal(*map(number_of, entry))

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
        self._known = self._known.after(warmer_k, x, y)


_HOUR_S = 3600.0
_STILL = 1.25


class TiltWatch:
    """The tilt of one sensor that gives ``x`` and ``y``.

    Attributes:
        rule: Name of the rule.
        sensor: Name of the sensor.
    """

    rule = "tilt"

    def __init__(self, sensor: str, rules: TiltRules) -> None:
        self.sensor = sensor
        self._rules = rules
        self._warmth = Warmth()
        hour = Span(_HOUR_S, 900.0, 60.0, rules.alone_level)
        # the hour tells a single step; here it would do so for six
        long = Span(6 * _HOUR_S, 3 * _HOUR_S, 600.0, LOWEST, 6)
        spans = [hour, long] if rules.six_hours else [hour]
        self._windows = [TiltWindow(span, rules, self._clean) for span in spans]
        self._notes: tuple[Reason, ...] = ()

    def take(self, sample: Sample) -> None:
        """Remember both angles, and the noise of the burst they come from."""
        parts, doubtful = sample.parts, sample.is_suspect
        if {"x", "y"} <= parts.keys():
            temp_c = parts.get("temp", math.nan)
            values = [parts["x"], parts["y"], parts.get("sigma", 0.0), temp_c]
            if not doubtful:
                self._warmth.learn(sample.at_s, values)
            for window in self._windows:
                window.take(sample.at_s, values, is_doubtful=doubtful)

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """The rates that the windows show."""
        told = [
            self._claim(seen, window.span.reason_h)
            for window in self._windows
            for seen in window.seen(scene.now_s)
        ]
        self._note()
        return told

    def notes(self) -> Iterable[Reason]:
        """Rates that are below the noise."""
        return self._notes

    def out(self) -> Json:
        """For the snapshot: no window, which would wear the card and comes back."""
        return self._warmth.out()

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot."""
        self._warmth.restore(entry)

    def _clean(self, bins: list[Bin]) -> list[Bin]:
        if not self._rules.without_warmth:
            return bins
        return self._warmth.taken_out(bins) or bins

    def _claim(self, seen: Seen, window_h: int | None) -> Claim:
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
        alone = None if seen.alone_level >= seen.level else seen.alone_level
        signs = (Sign.MOVEMENT,)
        return Claim(self.rule, self.sensor, seen.level, reason, alone, signs=signs)

    def _note(self) -> None:
        """Say once the windows are whole which rates none of them can tell."""
        hidden = [window.hidden_deg_per_h for window in self._windows]
        known = [each for each in hidden if each is not None]
        if len(known) < len(hidden):
            return
        # told once, not with every reading near the edge
        finest = min(known) * (_STILL if self._notes else 1.0)
        self._notes = tuple(
            Reason(
                ReasonCode.RULE_IN_NOISE,
                rule=self.rule,
                level=level,
                limit_deg_per_h=limit,
            )
            for level, limit in self._rules.rungs
            if limit < finest
        )
