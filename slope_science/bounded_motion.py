"""Motion that does not end in a failure: models that a time of failure must beat.

Each model has a steady part, c0 + c1 t, and two or more further parameters, as
Voight's law has: a cubic parabola, exponential growth, an S-curve, cycles, one or two
changes of speed, a beginning acceleration, and a step during an even acceleration.
Where one of them fits about as well as Voight's law, the readings do not show that
the slope will fail. The list and the grids are ours.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from operator import mul
from typing import Final

from slope_science.statistics import dot

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
