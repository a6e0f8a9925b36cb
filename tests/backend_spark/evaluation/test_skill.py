"""Bootstrap over days: reproducible, and equal to drawing the days themselves."""

import math
from random import Random

from backend_spark.evaluation.skill import (
    BLOCK_DAYS,
    RESAMPLES,
    DayBootstrap,
    roc_statistic,
    tss_statistic,
)
from slope_science.skill import Contingency, area_under_roc

SCORES = [round(10 * math.sin(at) + at % 3, 1) for at in range(200)]
EVENTS = [at % 17 == 0 for at in range(200)]


def test_statistics_of_a_resample_are_those_of_its_days() -> None:
    """Area and TSS from counts of days equal the formulas on the drawn days."""
    draw = Random(3).randrange
    roc, tss = roc_statistic(SCORES, EVENTS), tss_statistic(SCORES, EVENTS, 4.0)
    resamples = DayBootstrap(200, 3).resamples
    areas, skills = roc(resamples), tss(resamples)
    for at in range(50):
        starts = [draw(200 - BLOCK_DAYS + 1) for _ in range(-(-200 // BLOCK_DAYS))]
        days = [day for start in starts for day in range(start, start + BLOCK_DAYS)]
        scores = [SCORES[day] for day in days[:200]]
        events = [EVENTS[day] for day in days[:200]]
        area = area_under_roc(scores, events)
        skill = Contingency.from_threshold(scores, events, 4.0).tss
        assert area is not None
        assert skill is not None
        assert math.isclose(areas[at], area, rel_tol=1e-12)
        assert math.isclose(skills[at], skill, rel_tol=1e-12, abs_tol=1e-12)


def test_interval_holds_the_true_share_and_narrows_with_days() -> None:
    """A share of 30 %, from 45 and from 1000 days."""

    def width(count: int) -> float:
        struck = [at % 10 < 3 for at in range(count)]
        found = DayBootstrap(count, 1).interval(
            lambda weights: weights[:, struck].sum(axis=1) / count
        )
        assert found is not None
        assert found[0] <= 0.31
        assert found[1] >= 0.29
        return found[1] - found[0]

    assert width(45) >= width(1000)


def test_seed_makes_the_interval_reproducible() -> None:
    """The same seed draws the same days."""
    roc = roc_statistic(SCORES, EVENTS)
    first = DayBootstrap(200, 5).interval(roc)
    assert first == DayBootstrap(200, 5).interval(roc)
    assert first != DayBootstrap(200, 6).interval(roc)


def test_no_interval_without_days_or_events() -> None:
    """An undefined statistic has no interval."""
    assert DayBootstrap(0, 1).interval(lambda weights: weights.sum(axis=1)) is None
    assert DayBootstrap(200, 1).interval(roc_statistic(SCORES, [False] * 200)) is None
    assert len(DayBootstrap(7, 1).resamples) == RESAMPLES
