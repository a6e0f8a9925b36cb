"""Time of failure of an accelerating slope, with an interval that covers its exponent.

Voight's law d2x/dt2 = A (dx/dt)^alpha makes v^(1-alpha) linear in time. With
p = 1/(alpha-1) the displacement is x0 + B g(t), where v = B (tf-t)^-p and g is the
integral of (tf-t)^-p: for a given tf and alpha a straight line, whose least squares
have a closed form. The profile of the sum of squares over tf, at the best alpha of
each tf, gives the interval by an F test. The displacement is fitted and not its
speeds, because speeds of overlapping spans share their noise and are too high where
the speed rises within a span.

`best_bounded_fit` has the motions that do not end in a failure, which a time of failure
must beat. Each model has a steady part, c0 + c1 t, and two or more further parameters,
as Voight's law has: a cubic parabola, exponential growth, an S-curve, cycles, one or
two changes of speed, a beginning acceleration, and a step during an even acceleration.
Where one of them fits about as well, the readings do not show that the slope will fail.

Source: Voight 1988, Fukuzono 1985 (alpha 1.5 to 2.2 in flume tests); profile
likelihood region: Bates and Watts 1988, chapter 6. The gates, the models of other
motions and their grids are ours; the rates of the gates are printed by
``python -m experiments.failure_time``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from operator import mul
from typing import Final

from slope_science.movement import VELOCITY_SPAN_H, Velocity, fit_velocities, thin_out
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason
from slope_science.statistics import dot, fit_line, student_t_quantile

FIT_SPAN_H = 48.0
"""Longest span of past readings that the law is fitted to."""

FIT_SPANS_H: Final = (FIT_SPAN_H, 24.0, 12.0)
"""The shorter ones are for an acceleration that began within the longer."""

FORECAST_WINDOW_H = 12.0
MIN_R2 = 0.9
MIN_VELOCITIES = 8
MIN_SIGMAS = 3.0
MAX_WINDOWS_AHEAD = 3.0
MIN_ADVANTAGE = 20.0
"""Variances by which the law must fit better than any motion without a failure."""

DAILY_CYCLE_MM = 0.3
"""Standard deviation of the sine and of the cosine of an unknown daily cycle: warmth
lengthens the rod or wire by 12e-6 of its 10 m for each kelvin if it is of steel."""

INTERVAL_SHARE = 0.001
"""Share of intervals without the failure if all noise is white. It is small because of
unknown steps and walks in the readings: with these the share is up to 13 %."""

_FAR_H = 1e15  # a nearly flat line can give more than a whole number holds
_MIN_HALF_WIDTH_H = 0.1
_LEAST_SIZE = 1e-9
_NOISE_FLOOR_MM = 0.01  # resolution of an extensometer
_POWERS: Final = (0.8, 1.25, 1.7, 2.1)  # p of alpha 2.25 to 1.48
_LEFT_RATIO: Final = 1.55
_LEFTS_H: Final = tuple(0.05 * _LEFT_RATIO**k for k in range(19))  # to 133 h
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_SEARCH_STEPS: Final = 9
_PARABOLAS: Final = 4
_POWER_STEP: Final = 1e-3
_BINS_H: Final = (
    *((1.0, 1 / 12), (4.0, 0.25), (12.0, 0.5), (24.0, 1.0)),
    (math.inf, 2.0),
)
"""Width of a mean up to an age."""


@dataclass(frozen=True)
class FailureForecast:
    """Time of failure, with the quality of its fit.

    Attributes:
        failure_h: Time of the best fit, on the time axis of the readings.
        earliest_h: Start of the interval.
        latest_h: End of the interval; infinite if no failure is not excluded, or if
            another gate fails before.
        exponent: Voight's alpha of the best fit.
        last_hour_mm_per_h: Speed of the best fit one hour before the failure.
        r2: R2 of the straight line through v^(1-alpha).
        points: Number of speeds.
        is_above_noise: Whether each speed exceeds `MIN_SIGMAS` of its own noise.
        advantage: Variances by which the law fits better than the best motion
            without a failure.
        window_h: Length of the window of the speeds.
    """

    failure_h: float
    earliest_h: float
    latest_h: float
    exponent: float
    last_hour_mm_per_h: float
    r2: float
    points: int
    is_above_noise: bool
    advantage: float
    window_h: float = FORECAST_WINDOW_H

    @property
    def half_width_h(self) -> float:
        """Half width about `failure_h` of an interval that contains the whole one."""
        return max(self.latest_h - self.failure_h, self.failure_h - self.earliest_h)

    def speed_mm_per_h(self, left_h: float) -> float:
        """Speed of the best fit at a time before the failure, more than 0."""
        return self.last_hour_mm_per_h * math.pow(left_h, -1 / (self.exponent - 1))

    def is_usable(self, now_h: float) -> bool:
        """Whether it passes all gates; typically in the last quarter of the creep."""
        return self.failed_gate(now_h) is None

    def failed_gate(self, now_h: float) -> Reason | None:
        """The first gate that it fails; None if it passes all.

        Source:
            Our gates: 8 speeds or more, v > 3 sigma, R2 >= 0.9, at most 3 windows
            ahead, and `MIN_ADVANTAGE`.
        """
        left_h, farthest_h = self.failure_h - now_h, MAX_WINDOWS_AHEAD * self.window_h
        gate: Reason | None = None
        if self.points < MIN_VELOCITIES:
            gate = Reason(ReasonCode.FEW_SPEEDS, points=self.points)
        elif not self.is_above_noise:
            gate = Reason(ReasonCode.SPEED_IN_NOISE)
        elif not self.r2 >= MIN_R2:
            gate = Reason(ReasonCode.LOW_R2, r2=self.r2)
        elif not left_h >= 0:
            gate = Reason(ReasonCode.FAILURE_PASSED)
        elif not self.advantage >= MIN_ADVANTAGE:
            gate = Reason(ReasonCode.NO_TERTIARY_CREEP)
        elif not max(left_h, self.latest_h - now_h) < farthest_h:
            far_h = max(left_h, self.latest_h - now_h)
            gate = Reason(
                ReasonCode.FAILURE_FAR, left_h=min(far_h, _FAR_H), max_h=farthest_h
            )
        return gate


def forecast_failure(
    times_h: Sequence[float], moved_mm: Sequence[float]
) -> FailureForecast | None:
    """Time at which Voight's law reaches an infinite speed.

    Args:
        times_h: Times of the readings, ascending.
        moved_mm: Displacements at these times.

    Returns:
        None if the speed does not clearly grow, with too few readings, or if the
        movement of the last `FORECAST_WINDOW_H` changes its direction.
    """
    if not times_h:
        return None
    found, known_h = None, times_h[-1] - times_h[0]
    for span_h, next_h in pairwise((*FIT_SPANS_H, 0.0)):
        if known_h <= next_h:
            continue
        shorter = _forecast(times_h, moved_mm, span_h)
        found = found or shorter
        if shorter is not None and shorter.is_usable(times_h[-1]):
            return shorter
    return found


def _forecast(
    times_h: Sequence[float], moved_mm: Sequence[float], span_h: float
) -> FailureForecast | None:
    """Forecast from the readings of a span."""
    now_h, means = times_h[-1], _condensed(times_h, moved_mm, span_h)
    speeds = thin_out(fit_velocities(means.times_h, means.moved_mm))
    recent = [s for s in speeds if s.at_h > now_h - span_h / 2 - VELOCITY_SPAN_H]
    line = fit_line([s.at_h for s in speeds], [s.mm_per_h for s in speeds])
    if line is None or line.slope <= MIN_SIGMAS * line.sigma_slope:
        return None
    if any(s.mm_per_h <= 0 for s in recent):
        return None
    plain = _VoightFit(means)
    found = FailureForecast(
        *(plain.last_h + plain.left_h, now_h, math.inf),
        exponent=1 + 1 / plain.power,
        last_hour_mm_per_h=plain.last_hour_mm_per_h(),
        r2=_straightness(recent, 1 / plain.power),
        points=len(speeds),
        is_above_noise=all(s.mm_per_h > MIN_SIGMAS * s.sigma_mm_per_h for s in recent),
        advantage=math.inf,
    )
    # the next two cost the most
    if not replace(found, latest_h=found.failure_h).is_usable(now_h):
        return replace(found, advantage=0.0)
    variance, freedom = plain.noise()
    found = replace(found, advantage=_advantage(means, plain.rss, variance))
    if found.advantage < MIN_ADVANTAGE:
        return found
    fit = _VoightFit(means, math.sqrt(variance))
    limit = fit.rss + student_t_quantile(INTERVAL_SHARE, freedom) ** 2 * variance
    earliest_h, latest_h = fit.interval_h(limit)
    return replace(
        found,
        failure_h=fit.last_h + fit.left_h,
        earliest_h=fit.last_h + earliest_h,
        latest_h=fit.last_h + latest_h,
        exponent=1 + 1 / fit.power,
        last_hour_mm_per_h=fit.last_hour_mm_per_h(),
    )


def _advantage(means: "_Means", rss: float, variance: float) -> float:
    """Variances by which a sum of squares is below those of bounded motions."""
    enough = rss + MIN_ADVANTAGE * variance
    bounded = best_bounded_fit(means.times_h, means.moved_mm, means.weights, enough)
    return (bounded - rss) / variance


def _straightness(speeds: Sequence[Velocity], power: float) -> float:
    """R2 of the straight line through v^-power."""
    line = fit_line([s.at_h for s in speeds], [s.mm_per_h**-power for s in speeds])
    return line.r2 if line else 0.0


_Times = list[tuple[float, float]]


@dataclass(frozen=True)
class _Means:
    """Means of readings.

    Attributes:
        times_h: Mean time of each.
        moved_mm: Mean displacement.
        weights: Root of the number of readings, by that of an average mean.
        spreads_h2: Variance of the times of the readings.
    """

    times_h: list[float]
    moved_mm: list[float]
    weights: list[float]
    spreads_h2: list[float]


def _condensed(
    times_h: Sequence[float], moved_mm: Sequence[float], span_h: float
) -> _Means:
    """Means of the readings of a span, finer for the last hours; growing."""
    sums: dict[tuple[float, int], list[float]] = {}
    for at_h, mm in zip(times_h, moved_mm, strict=True):
        age_h = times_h[-1] - at_h
        if age_h <= span_h * 1.001:
            width_h = next(width for age, width in _BINS_H if age_h < age)
            place = (width_h, int(age_h // width_h))
            total = sums.setdefault(place, [0.0, 0.0, 0.0, 0.0])
            for at, value in enumerate((1.0, age_h, age_h * age_h, mm)):
                total[at] += value
    totals = list(sums.values())
    moved = [mm / n for n, _, _, mm in totals]
    sign = -1.0 if moved[-1] < moved[0] else 1.0
    share = len(totals) / sum(total[0] for total in totals)
    return _Means(
        [times_h[-1] - age_h / n for n, age_h, _, _ in totals],
        [sign * mm for mm in moved],
        [math.sqrt(n * share) for n, _, _, _ in totals],
        [max(square / n - (age_h / n) ** 2, 0.0) for n, age_h, square, _ in totals],
    )


class _VoightFit:
    """Least squares of Voight's law through displacements.

    Args:
        means: The displacements.
        noise_mm: Standard deviation of a mean, where a daily cycle is expected; None
            for none.

    Attributes:
        last_h: Time of the last mean.
        left_h: Time from there to the failure, of the best fit.
        power: p of the best fit.
        rss: Its sum of squares, mm2.
    """

    def __init__(self, means: _Means, noise_mm: float | None = None) -> None:
        self.last_h = means.times_h[-1]
        self._ages_h = [self.last_h - at_h for at_h in means.times_h]
        self._weights, self._spreads_h2 = means.weights, means.spreads_h2
        self._mm = list(map(mul, means.moved_mm, self._weights))
        # weight matrix I - sum of c z z', c of each z
        self._lost = _lost_directions(self._ages_h, self._weights, noise_mm)
        self._weighted = _without(self._mm, self._lost)
        self._whole = dot(self._weighted, self._mm)
        self._known: dict[float, tuple[float, float]] = {}
        self.left_h = self._best_left_h()
        self.rss, self.power = self._profile(self.left_h)

    def noise(self) -> tuple[float, int]:
        """Variance of one independent reading, mm2, and the degrees of freedom.

        Residuals that resemble their neighbours count as fewer readings.
        """
        shape = self._shape(self._times(self.left_h), self.power)
        scale = self._scale(shape)
        rest = [mm - scale * g for mm, g in zip(self._mm, shape, strict=True)]
        zero = dot(rest, self._weights) / dot(self._weights, self._weights)
        rest = [mm - zero * w for mm, w in zip(rest, self._weights, strict=True)]
        whole = dot(rest, rest)
        count = len(rest)
        # below the resolution of the sensor, neighbours resemble by the model's error
        floor = count * _NOISE_FLOOR_MM**2
        alike = max(sum(a * b for a, b in pairwise(rest)), 0.0) / (whole + floor)
        share = (1 - alike) / (1 + alike)
        variance = max(whole / max(count - 4, 1), _NOISE_FLOOR_MM**2)
        return variance / share, max(int(count * share) - 4, 1)

    def last_hour_mm_per_h(self) -> float:
        """Speed of the best fit one hour before the failure."""
        shape = self._shape(self._times(self.left_h), self.power)
        middle_h = self._middle_h(self.left_h)
        return self._scale(shape) * math.pow(middle_h, self.power - 1)

    def interval_h(self, limit: float) -> tuple[float, float]:
        """Earliest and latest time to a failure whose sum of squares is at a limit.

        The latest is infinite if no failure is possible, too.
        """
        outside = [left for left in _LEFTS_H if self._profile(left)[0] > limit]
        before = [left for left in outside if left < self.left_h]
        after = [left for left in outside if left > self.left_h]
        earliest = self._edge(max(before), limit) if before else 0.0
        latest = self._edge(min(after), limit) if after else math.inf
        return (
            max(min(earliest, self.left_h - _MIN_HALF_WIDTH_H), 0.0),
            max(latest, self.left_h + _MIN_HALF_WIDTH_H),
        )

    def _edge(self, outside_h: float, limit: float) -> float:
        """Time to failure, between the best and one outside, at the limit."""
        inside, outside = math.log(self.left_h), math.log(outside_h)
        for _ in range(_SEARCH_STEPS):
            middle = (inside + outside) / 2
            if self._profile(math.exp(middle))[0] <= limit:
                inside = middle
            else:
                outside = middle
        return math.exp(outside)

    def _best_left_h(self) -> float:
        """Time to failure of the best fit: the best of a grid, then golden section."""
        rough = [self._rough(left_h) for left_h in _LEFTS_H]
        best = rough.index(min(rough))
        low = math.log(_LEFTS_H[max(best - 1, 0)])
        high = math.log(_LEFTS_H[best] * _LEFT_RATIO)
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        for _ in range(_SEARCH_STEPS):
            # exp is repeated exactly, so that one value of each pair is known
            if self._profile(math.exp(left))[0] < self._profile(math.exp(right))[0]:
                high, right = right, left
                left = high - _GOLDEN * (high - low)
            else:
                low, left = left, right
                right = low + _GOLDEN * (high - low)
        return min(self._known, key=lambda left_h: self._known[left_h][0])

    def _rough(self, left_h: float) -> float:
        """Sum of squares at a time to failure, at the best of a few powers."""
        times = self._times(left_h)
        return min(self._rss(times, power) for power in _POWERS)

    def _profile(self, left_h: float) -> tuple[float, float]:
        """Sum of squares at a time to failure, and the p of the best alpha."""
        if left_h not in self._known:
            times = self._times(left_h)
            self._known[left_h] = _minimum(lambda power: self._rss(times, power))
        return self._known[left_h]

    def _rss(self, times: _Times, power: float) -> float:
        shape = self._shape(times, power)
        return self._whole - self._scale(shape) * max(dot(shape, self._weighted), 0.0)

    def _scale(self, shape: Sequence[float]) -> float:
        """B of the best fit with a shape; zero for a movement backwards."""
        spread = dot(shape, shape)
        spread -= sum(c * dot(z, shape) ** 2 for z, c in self._lost)
        return max(dot(shape, self._weighted) / spread, 0.0) if spread > 0 else 0.0

    def _shape(self, times: _Times, power: float) -> list[float]:
        """Weighted displacement, averaged over the readings of each mean.

        With u = left + age, the mean of g is g + u^-2 var / 2 times p u^(1-p), by the
        second derivative.
        """
        rest, expm1 = 1 - power, math.expm1
        if abs(rest) < _LEAST_SIZE:
            return [
                w * (bend - log)
                for w, (log, bend) in zip(self._weights, times, strict=True)
            ]
        shape = []
        for weight, (log, bend) in zip(self._weights, times, strict=True):
            grown = expm1(rest * log)
            shape.append(weight * (power * bend * (1 + grown) - grown / rest))
        return shape

    def _middle_h(self, left_h: float) -> float:
        return left_h + self._ages_h[0] / 2

    def _times(self, left_h: float) -> _Times:
        """Logarithm of each u = left + age by the middle one, and var / 2 u^2."""
        middle_h = self._middle_h(left_h)
        return [
            (
                math.log((left_h + age_h) / middle_h),
                spread_h2 / 2 / (left_h + age_h) ** 2,
            )
            for age_h, spread_h2 in zip(self._ages_h, self._spreads_h2, strict=True)
        ]


def _lost_directions(
    ages_h: Sequence[float], weights: Sequence[float], noise_mm: float | None
) -> list[tuple[list[float], float]]:
    """Unit vectors that carry less than a full weight, and the share that is lost.

    With the covariance s^2 I + d^2 (sin sin' + cos cos') of noise s and a daily cycle
    d, the inverse loses d^2 |q|^2 / (s^2 + d^2 |q|^2) of each of its directions q. The
    unknown zero point then loses all of its own direction.
    """
    lost: list[tuple[list[float], float]] = []
    if noise_mm is not None:
        for wave in (math.sin, math.cos):
            column = [
                w * wave(2 * math.pi * age_h / 24)
                for w, age_h in zip(weights, ages_h, strict=True)
            ]
            rest = _without(column, [(unit, 1.0) for unit, _ in lost])
            size = math.sqrt(dot(rest, rest))
            if size > _LEAST_SIZE:
                cycle = DAILY_CYCLE_MM**2 * dot(column, column)
                share = cycle / (noise_mm**2 + cycle)
                lost.append(([v / size for v in rest], share))
    level = _without(weights, lost)
    return [*lost, (level, 1 / dot(level, weights))]


def _without(
    values: Sequence[float], lost: Iterable[tuple[Sequence[float], float]]
) -> list[float]:
    """Values less a share of their part in each direction."""
    rest = list(values)
    for unit, share in lost:
        part = share * dot(unit, values)
        rest = [v - part * u for v, u in zip(rest, unit, strict=True)]
    return rest


def _minimum(rss: Callable[[float], float]) -> tuple[float, float]:
    """Least value over the powers, and its place: parabolas through three points."""
    known = {power: rss(power) for power in _POWERS}
    for _ in range(_PARABOLAS):
        places = sorted(known)
        at = places.index(min(known, key=known.__getitem__))
        at = min(max(at, 1), len(places) - 2)
        a, b, c = places[at - 1 : at + 2]
        left, right = (b - a) * (known[b] - known[c]), (b - c) * (known[b] - known[a])
        if left == right:
            break
        vertex = b - ((b - a) * left - (b - c) * right) / (2 * (left - right))
        vertex = min(max(vertex, _POWERS[0]), _POWERS[-1])
        if min(abs(vertex - power) for power in places) < _POWER_STEP:
            vertex = (a + b) / 2 if vertex < b else (b + c) / 2
            if c - a < 4 * _POWER_STEP:
                break
        known[vertex] = rss(vertex)
    best = min(known, key=known.__getitem__)
    return known[best], best


_GROWTHS: Final = tuple(0.3 * 1.25**k for k in range(22))  # to 33
_CENTRES: Final = (-0.5, 0.0, 0.3, 0.55, 0.75, 0.9, 1.0, 1.2)
_WIDTHS: Final = (0.04, 0.09, 0.18, 0.35, 0.7)
_CYCLES: Final = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
_KNOTS: Final = tuple(k / 8 for k in range(-7, 8))
_PAIR_KNOTS: Final = (-0.6, -0.25, 0.0, 0.25, 0.45, 0.6, 0.75, 0.86, 0.94)

_LEAST: Final = 1e-12

Column = list[float]


def best_bounded_fit(
    times: Sequence[float],
    values: Sequence[float],
    weights: Sequence[float],
    enough: float = 0.0,
) -> float:
    """Least sum of squares of the models through a series.

    Args:
        times: Ascending, with a spread.
        values: One for each time.
        weights: Of each value, by the inverse of its standard deviation.
        enough: A sum of squares that ends the search.
    """
    middle, half = (times[0] + times[-1]) / 2, (times[-1] - times[0]) / 2
    scaled = [(t - middle) / half for t in times]
    steady = _Steady(scaled, weights)
    rest = steady.residual(values)
    whole = best = dot(rest, rest)
    for columns in _models(scaled, steady.residual):
        if best <= enough:
            break
        best = min(best, whole - _explained(rest, *columns))
    return best


class _Steady:
    """The steady part of all models, at a constant speed."""

    def __init__(self, scaled: Column, weights: Sequence[float]) -> None:
        self._weights = weights
        self._units: list[Column] = []
        for column in ([1.0] * len(scaled), scaled):
            rest = self.residual(column)
            size = math.sqrt(dot(rest, rest))
            self._units.append([v / size for v in rest])

    def residual(self, values: Sequence[float]) -> Column:
        """What is left of values, weighted, without their steady part."""
        rest = list(map(mul, self._weights, values))
        for unit in self._units:
            part = dot(unit, rest)
            rest = [v - part * u for u, v in zip(unit, rest, strict=True)]
        return rest


def _explained(rest: Column, first: Column, second: Column | None = None) -> float:
    """Part of a sum of squares that one or two columns explain."""
    a, b = dot(first, first), dot(first, rest)
    alone = b * b / a if a > _LEAST else 0.0
    if second is None:
        return alone
    c, d, e = dot(first, second), dot(second, second), dot(second, rest)
    square = a * d - c * c
    if square <= _LEAST * a * d:
        return alone
    return (b * b * d - 2 * b * c * e + e * e * a) / square


def _models(
    s: Column, residual: Callable[[Sequence[float]], Column]
) -> Iterator[tuple[Column, ...]]:
    """Columns of each model beside the steady part; s is the time from -1 to 1."""
    square = residual([v * v for v in s])
    yield square, residual([v**3 for v in s])
    for growth in _GROWTHS:
        yield (residual([math.exp(growth * (v - 1)) for v in s]),)
    for cycles in _CYCLES:
        angles = [math.pi * cycles / 2 * v for v in s]
        yield (
            residual(list(map(math.sin, angles))),
            residual(list(map(math.cos, angles))),
        )
    for knot in _KNOTS:
        ramp = [max(v - knot, 0.0) for v in s]
        yield (residual(ramp),)
        yield (residual([v * v for v in ramp]),)
    ramps = [residual([max(v - knot, 0.0) for v in s]) for knot in _PAIR_KNOTS]
    yield from combinations(ramps, 2)
    for centre in _CENTRES:
        for width in _WIDTHS:
            yield (residual([math.tanh((v - centre) / width) for v in s]),)
    for before in range(2, len(s) - 1, max(len(s) // 20, 1)):
        yield square, residual([0.0] * before + [1.0] * (len(s) - before))
