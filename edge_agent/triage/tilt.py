"""How fast one sensor tilts, over the last hour.

A rate counts when it stands clear of its own noise, lasts for two windows, and does
not rest on one single step, which is a foot against the pile. What another sensor
confirms need not wait. What follows the sensor's temperature is taken out before.

Source: Uchimura et al. 2015 for the rates; persistence and bound of noise are
ours, see docs/reference/triage.md.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median

from edge_agent.triage.claim import Claim, Sign, rung
from edge_agent.triage.recent import Bin, Recent
from edge_agent.triage.sample import Sample
from edge_agent.triage.settings import TiltRules
from edge_agent.triage.stored import Json
from edge_agent.triage.warmth import Warmth
from edge_agent.triage.watch import Lasting, Scene
from slope_science.levels import LOWEST
from slope_science.steps import without_largest_step
from slope_science.tilt import TiltRate, resolution_deg_per_h, tilt_rate

_HOUR_S = 3600.0
_SHORTEST_SPAN_S = 900.0  # a rate over less is mostly noise
_WHOLE_SPAN_S = 3000.0
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
        self._recent = Recent(_HOUR_S)
        self._lasting = Lasting(rules.persist_s)
        self._warmth = Warmth()
        self._was = LOWEST
        self._notes: tuple[str, ...] = ()

    def take(self, sample: Sample) -> None:
        """Remember both angles, and the noise of the burst they come from."""
        parts = sample.parts
        if {"x", "y"} <= parts.keys():
            temp_c = parts.get("temp", math.nan)
            values = [parts["x"], parts["y"], parts.get("sigma", 0.0), temp_c]
            if not sample.is_suspect:
                self._warmth.learn(sample.at_s, values)
            self._recent.take(sample.at_s, values, is_doubtful=sample.is_suspect)

    def claims(self, scene: Scene) -> Iterable[Claim]:
        """The rate that good readings show, then what doubtful ones add."""
        bins = self._window(scene.now_s, with_doubtful=False)
        rate = _rate(bins)
        level, limit = self._reached(rate, bins)
        self._note(rate, bins, level)
        lasting = self._lasting.take(level, self._levels, scene.now_s)
        # no hysteresis for one lucky window, which would let it persist
        self._was = lasting
        if rate is not None and level > LOWEST:
            alone = min(lasting, self._cap(bins))
            yield self._claim(rate, level, limit, alone)
        if self._recent.has_doubtful:
            yield from self._doubted(scene.now_s, level)

    def notes(self) -> Iterable[str]:
        """Rates that are below the noise."""
        return self._notes

    def out(self) -> Json:
        """For the snapshot: not the hour, which would wear the card and comes back."""
        return self._warmth.out()

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot."""
        self._warmth.restore(entry)

    @property
    def _levels(self) -> list[int]:
        return [level for level, _ in self._rules.rungs]

    def _window(self, now_s: float, *, with_doubtful: bool) -> list[Bin]:
        bins = self._recent.bins(with_doubtful=with_doubtful)
        recent = [b for b in bins if now_s - _HOUR_S <= b.at_s]
        if not self._rules.without_warmth:
            return recent
        return self._warmth.taken_out(recent) or recent

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
        times_h = [b.at_s / _HOUR_S for b in bins]
        creep = tilt_rate(times_h, *rest)
        slow = creep is None or rung(creep.deg_per_h, self._rules.rungs[-1:]) is None
        return self._rules.alone_level if slow else max(self._levels)

    def _doubted(self, now_s: float, sure_level: int) -> Iterable[Claim]:
        """A suspect reading raises nothing alone; with another's sign it does."""
        bins = self._window(now_s, with_doubtful=True)
        rate = _rate(bins)
        level, limit = self._reached(rate, bins)
        if rate is not None and level > sure_level:
            yield self._claim(rate, level, limit, LOWEST)

    def _claim(self, rate: TiltRate, level: int, limit: float, alone: int) -> Claim:
        how = ">=" if rate.deg_per_h >= limit else "still near"
        noise = rate.sigma_deg_per_h
        reason = (
            f"{self.sensor} {rate.deg_per_h:.3f}±{noise:.3f} deg/h {how} {limit:g}"
            f" ({rate.points} points)"
        )
        signs = (Sign.MOVEMENT,)
        alone_level = None if alone >= level else alone
        return Claim(self.rule, self.sensor, level, reason, alone_level, signs=signs)

    def _note(self, rate: TiltRate | None, bins: Sequence[Bin], level: int) -> None:
        """Say once a window is whole which rates it cannot tell."""
        if not bins or bins[-1].at_s - bins[0].at_s < _WHOLE_SPAN_S:
            return
        finest = _resolution(bins)
        if rate is not None and level == LOWEST:
            finest = max(finest, 3 * rate.sigma_deg_per_h)
        # told once, not with every reading near the edge
        hidden = [
            (at, limit)
            for at, limit in self._rules.rungs
            if limit < finest * (_STILL if self._notes else 1.0)
        ]
        self._notes = tuple(
            f"cannot be used for level {at}: noise hides {limit:g} deg/h"
            for at, limit in hidden
        )


def _rate(bins: Sequence[Bin]) -> TiltRate | None:
    """Rate of some minutes; None when they span too little."""
    if not bins or bins[-1].at_s - bins[0].at_s < _SHORTEST_SPAN_S:
        return None
    times_h = [(b.at_s - bins[0].at_s) / _HOUR_S for b in bins]
    return tilt_rate(times_h, [b.values[0] for b in bins], [b.values[1] for b in bins])


def _resolution(bins: Sequence[Bin]) -> float:
    """The slowest tilt that the noise of the bursts lets us tell."""
    sigma_deg = median(b.values[2] / b.count**0.5 for b in bins)
    return resolution_deg_per_h(sigma_deg, [b.at_s / _HOUR_S for b in bins])
