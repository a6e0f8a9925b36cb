"""How fast one sensor tilts, over the last hour and over the last six.

A rate counts when it stands clear of its own noise, lasts for two windows, and does
not rest on one single step, which is a foot against the pile. What another sensor
confirms need not wait. What follows the sensor's temperature is taken out before.

Source: Uchimura et al. 2015 for the rates; persistence and bound of noise are
ours, see docs/reference/triage.md.
"""

import math
from collections.abc import Iterable

from edge_agent.triage.claim import Claim, Sign
from edge_agent.triage.recent import Bin
from edge_agent.triage.sample import Sample
from edge_agent.triage.settings import TiltRules
from edge_agent.triage.stored import Json
from edge_agent.triage.tilt_window import Seen, Span, TiltWindow
from edge_agent.triage.warmth import Warmth
from edge_agent.triage.watch import Scene
from slope_science.levels import LOWEST

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
        long = Span(6 * _HOUR_S, 3 * _HOUR_S, 600.0, LOWEST, ", 6 h")
        spans = [hour, long] if rules.six_hours else [hour]
        self._windows = [TiltWindow(span, rules, self._clean) for span in spans]
        self._notes: tuple[str, ...] = ()

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
            self._claim(seen, window.span.words)
            for window in self._windows
            for seen in window.seen(scene.now_s)
        ]
        self._note()
        return told

    def notes(self) -> Iterable[str]:
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

    def _claim(self, seen: Seen, window: str) -> Claim:
        rate, limit = seen.rate, seen.limit_deg_per_h
        how = ">=" if rate.deg_per_h >= limit else "still near"
        reason = (
            f"{self.sensor} {rate.deg_per_h:.3f}±{rate.sigma_deg_per_h:.3f} deg/h "
            f"{how} {limit:g} ({rate.points} points{window})"
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
            f"cannot be used for level {level}: noise hides {limit:g} deg/h"
            for level, limit in self._rules.rungs
            if limit < finest
        )
