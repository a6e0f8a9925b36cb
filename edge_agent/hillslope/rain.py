"""Rain on the simulated slope: depths in equal steps, invented or recorded."""

import bisect
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

STORMS = ("quiet", "uniform", "peaked")

_PEAK_AT = 0.6  # of the duration, as in the usual design hyetographs
_STORM_STEP_S = 600.0
_ROUGHNESS = 0.3


@dataclass(frozen=True)
class RainSeries:
    """Rain depths one after another.

    Attributes:
        start_s: Unix time at which the first step begins.
        step_s: Length of a step.
        depths_mm: Rain in each step, zero or more.
        gaps: Steps that a record lacks; they count as no rain.
    """

    start_s: float
    step_s: float
    depths_mm: tuple[float, ...]
    gaps: int = 0

    @property
    def end_s(self) -> float:
        """Unix time at which the last step ends."""
        return self.start_s + self.step_s * len(self.depths_mm)

    @property
    def total_mm(self) -> float:
        """Rain of the whole series."""
        return self._sums[-1]

    def cumulative_mm(self, t_s: float) -> float:
        """Rain from the start of the series until a time, linear inside a step."""
        steps = (t_s - self.start_s) / self.step_s
        if steps <= 0:
            return 0.0
        whole = int(min(steps, len(self.depths_mm)))
        if whole == len(self.depths_mm):
            return self.total_mm
        return self._sums[whole] + (steps - whole) * self.depths_mm[whole]

    def beginning(self, start_s: float) -> "RainSeries":
        """The same rain at another time."""
        return replace(self, start_s=start_s)

    @cached_property
    def _sums(self) -> tuple[float, ...]:
        return tuple(itertools.accumulate(self.depths_mm, initial=0.0))


def storm(
    kind: str, start_s: float, duration_h: float, total_mm: float, seed: int = 0
) -> RainSeries:
    """Invent a storm in 10-minute steps.

    Args:
        kind: ``peaked`` rises to 60 % of its duration and falls faster, roughened
            by chance; ``uniform`` is constant; ``quiet`` has no rain.
        start_s: Unix time at which it begins.
        duration_h: How long it lasts.
        total_mm: Rain of the whole storm.
        seed: The same seed gives the same storm.

    Raises:
        ValueError: There is no such kind, or no such storm.
    """
    if kind not in STORMS:
        raise ValueError(f"kind must be one of {STORMS}, got {kind!r}")
    if not (duration_h > 0 and total_mm >= 0 and math.isfinite(total_mm)):
        rule = "duration_h must be more than 0 and total_mm 0 or more"
        raise ValueError(f"{rule}, got {duration_h!r} and {total_mm!r}")
    steps = max(1, round(duration_h * 3600 / _STORM_STEP_S))
    if kind == "quiet":
        return RainSeries(start_s, _STORM_STEP_S, (0.0,) * steps)
    rng = random.Random(seed)  # noqa: S311 - weather, no secret
    weights = [1.0] * steps
    if kind == "peaked":
        weights = [_swell((at + 0.5) / steps, rng) for at in range(steps)]
    scale = total_mm / sum(weights)
    return RainSeries(start_s, _STORM_STEP_S, tuple(w * scale for w in weights))


def wettest_window(series: RainSeries, hours: float) -> RainSeries:
    """The stretch of a series with the most rain; the first one when they tie."""
    width = round(hours * 3600 / series.step_s)
    if not 1 <= width <= len(series.depths_mm):
        longest = len(series.depths_mm) * series.step_s / 3600
        rule = f"between one step and the series' {longest:g} h"
        raise ValueError(f"hours must be {rule}, got {hours!r}")
    sums = list(itertools.accumulate(series.depths_mm, initial=0.0))
    begins = range(len(sums) - width)
    best = max(begins, key=lambda at: sums[at + width] - sums[at])
    return cut(series, best, best + width)


def between(series: RainSeries, first_s: float, end_s: float) -> RainSeries:
    """The steps that begin at or after a time and before another."""
    begins = [
        series.start_s + at * series.step_s for at in range(len(series.depths_mm))
    ]
    return cut(
        series, bisect.bisect_left(begins, first_s), bisect.bisect_left(begins, end_s)
    )


def cut(series: RainSeries, begin: int, end: int) -> RainSeries:
    """Steps of a series by number; how many of them were gaps is not known."""
    depths = series.depths_mm[begin:end]
    return RainSeries(series.start_s + begin * series.step_s, series.step_s, depths)


def filled(depths_mm: Sequence[float | None]) -> tuple[tuple[float, ...], int]:
    """Depths with gaps as no rain, and how many gaps there were."""
    return tuple(d or 0.0 for d in depths_mm), sum(d is None for d in depths_mm)


def _swell(at: float, rng: random.Random) -> float:
    """Intensity at a share of the duration, about 1 at the peak."""
    side = at / _PEAK_AT if at <= _PEAK_AT else (1 - at) / (1 - _PEAK_AT)
    rough: float = 1 + _ROUGHNESS * rng.uniform(-1, 1)
    return math.pow(side, 2.5) * rough + 0.02
