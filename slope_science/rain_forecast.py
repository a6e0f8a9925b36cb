"""Selection of the official rain forecast that is valid at a moment.

A forecast counts from its arrival here, not from its issue, so that scoring the same
moment again uses the same forecast. A stale one is not used.

Source: levels 4 to 2 look two hours ahead (Saitama, Ishikawa, Iwate); the maximum age
is our proposal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slope_science.rain_and_soil_water import LOOK_AHEAD_STEPS
from slope_science.reason_codes import ReasonCode
from slope_science.reason_text import render_english_list
from slope_science.reasons import Reason

STEP_S = 600.0
MAX_AGE_S = 2 * 3600.0
"""Maximum age of a usable forecast: after it, the two hours have passed."""


@dataclass(frozen=True)
class ForecastInterval:
    """Rain in one interval of a forecast.

    Attributes:
        from_s: Start, Unix time.
        to_s: End.
        depth_mm: Depth, evenly spread over the interval; None where it failed.
        reasons: Why it failed or is doubtful; empty for a good one.
    """

    from_s: float
    to_s: float
    depth_mm: float | None
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class ForecastIssue:
    """One issue of a forecast, for one place.

    Attributes:
        source: Issuer.
        issued_s: Unix time of issue.
        available_s: Unix time of its arrival here.
        intervals: Intervals without overlap.
    """

    source: str
    issued_s: float
    available_s: float
    intervals: Sequence[ForecastInterval]


@dataclass(frozen=True)
class ForecastRain:
    """Rain of the next two hours by an official forecast.

    Attributes:
        source: Issuer; None without any forecast.
        issued_s: Unix time of issue; None likewise.
        depths_mm: Depth in each step of ten minutes, twelve or as many of the
            look-ahead as it covers; None if not usable.
        reasons: Why it is not usable, or what is doubtful in it.
    """

    source: str | None = None
    issued_s: float | None = None
    depths_mm: tuple[float, ...] | None = None
    reasons: tuple[Reason, ...] = ()

    @property
    def why(self) -> str | None:
        """The reasons in English, joined; None without any."""
        return render_english_list(self.reasons) or None


NO_FORECAST = ForecastRain()
_FAILED = (Reason(ReasonCode.FORECAST_FAILED),)


def select_forecast(
    issues: Iterable[ForecastIssue],
    at_s: float,
    max_age_s: float = MAX_AGE_S,
    steps: int = LOOK_AHEAD_STEPS,
) -> ForecastRain:
    """Select the newest usable forecast that was known at a moment.

    Args:
        issues: Issues for one place; of several with the same time the first counts.
        at_s: The moment, Unix time.
        max_age_s: Maximum age of a usable one.
        steps: Steps of ten minutes of the look-ahead. A forecast that ends between two
            hours and that counts as far as it goes, with a reason.

    Returns:
        The selected one; if none is usable, the newest known one with the reasons.
    """
    known = [run for run in issues if max(run.available_s, run.issued_s) <= at_s]
    checked = [
        _judged(run, at_s, max_age_s, steps)
        for run in sorted(known, key=lambda run: run.issued_s, reverse=True)
    ]
    used = next((each for each in checked if each.depths_mm is not None), None)
    return used or (checked[0] if checked else NO_FORECAST)


def _judged(
    run: ForecastIssue, at_s: float, max_age_s: float, steps: int
) -> ForecastRain:
    age_h = (at_s - run.issued_s) / 3600
    if age_h * 3600 > max_age_s:
        max_h = max_age_s / 3600
        why = Reason(ReasonCode.FORECAST_STALE, age_h=age_h, max_h=max_h)
        return ForecastRain(run.source, run.issued_s, None, (why,))
    depths: list[float] = []
    doubts: list[tuple[Reason, ...]] = []
    for step in range(steps):
        parts = list(_within(run.intervals, at_s + step * STEP_S))
        why_not = _why_not(parts, step, steps)
        if why_not:
            is_usable = step >= LOOK_AHEAD_STEPS
            known = tuple(depths) if is_usable else None
            return ForecastRain(run.source, run.issued_s, known, why_not)
        doubts += [piece.reasons for piece, _ in parts if piece.reasons]
        depths.append(sum(_share_mm(piece, seconds) for piece, seconds in parts))
    return ForecastRain(
        run.source, run.issued_s, tuple(depths), doubts[0] if doubts else ()
    )


def _why_not(
    parts: Sequence[tuple[ForecastInterval, float]], step: int, steps: int
) -> tuple[Reason, ...]:
    """Why the rain of a step is not known; empty if it is."""
    failed = next((piece for piece, _ in parts if piece.depth_mm is None), None)
    if failed is not None:
        return failed.reasons or _FAILED
    if sum(seconds for _, seconds in parts) >= STEP_S * 0.999:
        return ()
    minutes = {"minutes": step * 10, "of_minutes": steps * 10}
    return (Reason(ReasonCode.FORECAST_SHORT, **minutes),)


def _within(
    pieces: Iterable[ForecastInterval], from_s: float
) -> Iterator[tuple[ForecastInterval, float]]:
    """Intervals that overlap a step, with the overlap in seconds."""
    for piece in pieces:
        seconds = min(piece.to_s, from_s + STEP_S) - max(piece.from_s, from_s)
        if seconds > 0:
            yield piece, seconds


def _share_mm(piece: ForecastInterval, seconds: float) -> float:
    return (piece.depth_mm or 0.0) * seconds / (piece.to_s - piece.from_s)
