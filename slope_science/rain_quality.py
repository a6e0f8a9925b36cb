"""Tests for tipping buckets: what a gauge's own series tells of it.

A high value is only ever suspected: it may be the storm. A gauge that reads low
cannot be told from dry weather by itself; a neighbour that fills tells it.

Source: specials of tipping buckets (clogs and their release, counters, frost);
the numbers are proposals of ours.
"""

from collections.abc import Sequence

from slope_science.limits import RAIN_MM, RAIN_WITHIN
from slope_science.quality import (
    GOOD,
    NOT_EVALUATED,
    Flag,
    Verdict,
    gross_range,
)

DRY_S = 3600.0
RELEASED_MM = 5.0
"""So much at once, between two dry hours: a clog that let go, or a hand."""

CLOGGED_S = 3 * 3600.0
CLOGGED_MM = 10.0
"""What a neighbour sees while a clogged gauge reads zero."""

ALONE_MM = 20.0
ALONE_TIMES = 5.0
"""Within `CLOGGED_S`; gauges of one cell are about a kilometre apart at most."""

FROST_CEL = 0.0


def plausible_depth(depth_mm: float, seconds: float) -> Verdict:
    """Fail what no gauge reports, suspect more than fell anywhere in that time.

    Args:
        depth_mm: Rain of one interval.
        seconds: Its length; 0 when it is not known, which counts as ten minutes.
    """
    verdict = gross_range(depth_mm, RAIN_MM.fail)
    if verdict.flag is Flag.FAIL:
        return verdict
    length_s = seconds or RAIN_WITHIN[1][0]
    within = [each for each in RAIN_WITHIN if length_s <= each[0]]
    if not within:
        return GOOD
    limit_s, limit_mm = within[0]
    if depth_mm > limit_mm:
        why = f"range: {depth_mm:g} mm within {limit_s / 60:g} min > {limit_mm:g} mm"
        return Verdict(Flag.SUSPECT, why)
    return GOOD


def counter(before_mm: float | None, sum_mm: float | None) -> Verdict:
    """Suspect a counter that went down: it was replaced, or read wrongly."""
    if before_mm is None or sum_mm is None:
        return NOT_EVALUATED
    if sum_mm < before_mm:
        why = f"counter: went back from {before_mm:g} to {sum_mm:g} mm"
        return Verdict(Flag.SUSPECT, why)
    return GOOD


def released(times_s: Sequence[float], depths_mm: Sequence[float], at: int) -> Verdict:
    """Suspect one large depth between two dry hours.

    Args:
        times_s: Times of the gauge's reports, ascending.
        depths_mm: Depth that each reports.
        at: Place of the report that is judged.
    """
    if depths_mm[at] < RELEASED_MM:
        return GOOD
    now_s = times_s[at]
    if times_s[0] > now_s - DRY_S or times_s[-1] < now_s + DRY_S:
        return NOT_EVALUATED
    others_mm = sum(
        depth_mm
        for place, (at_s, depth_mm) in enumerate(zip(times_s, depths_mm, strict=True))
        if place != at and abs(at_s - now_s) <= DRY_S
    )
    if others_mm > 0:
        return GOOD
    why = f"released: {depths_mm[at]:g} mm at once between two dry hours"
    return Verdict(Flag.SUSPECT, why)


def clogged(own_mm: float, most_near_mm: float | None) -> Verdict:
    """Suspect a gauge that stays dry while a neighbour fills.

    Args:
        own_mm: Rain of the gauge within `CLOGGED_S`.
        most_near_mm: The most that a neighbour saw then; None without one.
    """
    if most_near_mm is None:
        return NOT_EVALUATED
    if own_mm <= 0 and most_near_mm >= CLOGGED_MM:
        hours = CLOGGED_S / 3600
        why = f"clogged: dry for {hours:g} h while another saw {most_near_mm:g} mm"
        return Verdict(Flag.SUSPECT, why)
    return GOOD


def alone(own_mm: float, most_near_mm: float | None) -> Verdict:
    """Suspect a gauge that sees many times what every neighbour sees.

    Neighbours that see nothing at all may be clogged themselves, and accuse nobody.

    Args:
        own_mm: Rain of the gauge within `CLOGGED_S`.
        most_near_mm: The most that a neighbour saw then; None without one.

    Source:
        High influx of pypwsqc's neighbour checks; the numbers are proposals of ours.
    """
    if not most_near_mm:
        return NOT_EVALUATED
    if own_mm >= ALONE_MM and own_mm >= ALONE_TIMES * most_near_mm:
        hours = CLOGGED_S / 3600
        why = f"alone: {own_mm:g} mm in {hours:g} h, another saw {most_near_mm:g} mm"
        return Verdict(Flag.SUSPECT, why)
    return GOOD


def frost(air_cel: float | None) -> Verdict:
    """Suspect a gauge in frost: it reads low, and melts later."""
    if air_cel is None:
        return NOT_EVALUATED
    if air_cel < FROST_CEL:
        return Verdict(Flag.SUSPECT, f"frost: air at {air_cel:g} Cel")
    return GOOD
