"""Moving-block bootstrap over days: 95 % intervals of scores.

A resample is kept as the number of times that each day is in it, so that a statistic
of sorted or counted days costs one pass of numpy.

Source: Künsch 1989 (moving blocks); Mason and Graham 2002 (area under the ROC curve).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt

RESAMPLES: Final = 1000
BLOCK_DAYS: Final = 30
"""Length of a block: neighbouring days share their weather."""

_TAIL: Final = 0.025

_AT_ONCE: Final = 100
"""Resamples in one pass: bounds the memory of many years of days."""

Interval = tuple[float, float] | None
Weights = npt.NDArray[np.int16]
"""Number of times that each day (column) is in each resample (row)."""

Statistic = Callable[[Weights], npt.NDArray[np.float64]]
"""Value for each resample; NaN where it is undefined."""


@dataclass(frozen=True)
class DayBootstrap:
    """Resamples of some days.

    Attributes:
        count: Number of days.
        seed: Of the random numbers; the same seed gives the same resamples.
    """

    count: int
    seed: int

    def interval(self, statistic: Statistic) -> Interval:
        """95 % interval of a statistic; None if most resamples do not define it."""
        if not self.count:
            return None
        parts = np.split(self.resamples, range(_AT_ONCE, RESAMPLES, _AT_ONCE))
        values = np.concatenate([statistic(part) for part in parts])
        found = np.sort(values[~np.isnan(values)])
        if len(found) < RESAMPLES / 2:
            return None
        last = len(found) - 1
        return float(found[round(_TAIL * last)]), float(
            found[round((1 - _TAIL) * last)]
        )

    @cached_property
    def resamples(self) -> Weights:
        """All resamples; one set serves all predictors."""
        draw = Random(self.seed).randrange  # noqa: S311 - statistics, no secret
        return np.stack([self._resample(draw) for _ in range(RESAMPLES)])

    def _resample(self, draw: Callable[[int], int]) -> Weights:
        length = min(BLOCK_DAYS, self.count)
        blocks = -(-self.count // length)
        starts = np.array([draw(self.count - length + 1) for _ in range(blocks)])
        days = (starts[:, None] + np.arange(length)).ravel()[: self.count]
        return np.bincount(days, minlength=self.count).astype(np.int16)


def roc_statistic(scores: Sequence[float], events: Sequence[bool]) -> Statistic:
    """Area under the ROC curve of a resample; ties count half."""
    order = np.argsort(scores, kind="stable")
    ranked = np.asarray(scores)[order]
    struck = np.asarray(events, dtype=bool)[order]
    ties = np.flatnonzero(np.diff(ranked, prepend=-np.inf))

    def area(weights: Weights) -> npt.NDArray[np.float64]:
        drawn = weights[:, order].astype(np.int64)
        hit = np.add.reduceat(drawn * struck, ties, axis=1)
        quiet = np.add.reduceat(drawn * ~struck, ties, axis=1)
        below = np.cumsum(quiet, axis=1) - quiet
        pairs = hit.sum(axis=1) * quiet.sum(axis=1)
        return _ratio((hit * (below + quiet / 2)).sum(axis=1), pairs)

    return area


def tss_statistic(
    scores: Sequence[float], events: Sequence[bool], threshold: float
) -> Statistic:
    """True skill statistic of a resample at a threshold."""
    warned = np.asarray(scores) >= threshold
    struck = np.asarray(events, dtype=bool)

    def tss(weights: Weights) -> npt.NDArray[np.float64]:
        def count(days: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
            found: npt.NDArray[np.int64] = weights[:, days].sum(axis=1, dtype=np.int64)
            return found

        hits = _ratio(count(struck & warned), count(struck))
        return hits - _ratio(count(~struck & warned), count(~struck))

    return tss


def _ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Quotients; NaN where the divisor is zero."""
    divisor = np.where(np.equal(whole, 0), np.nan, whole)
    return np.divide(part, divisor, dtype=float)
