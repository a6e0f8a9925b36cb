"""Skill scores against hand-made tables and a brute-force definition."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.skill import (
    Contingency,
    area_under_roc,
    best_threshold,
    safe_threshold,
    share_interval,
)

CASES = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=40)


def test_scores_of_a_table_are_those_of_the_textbook() -> None:
    """Finley's tornado forecasts of 1884 (Wilks, table 9.1)."""
    finley = Contingency(hits=28, false_alarms=72, misses=23, quiet=2680)
    assert finley.pod == pytest.approx(0.549, abs=5e-4)
    assert finley.far == pytest.approx(0.720, abs=5e-4)
    assert finley.pofd == pytest.approx(0.0262, abs=5e-5)
    assert finley.tss == pytest.approx(0.523, abs=5e-4)
    assert finley.csi == pytest.approx(0.228, abs=5e-4)
    assert finley.hss == pytest.approx(0.355, abs=5e-4)


def test_score_without_cases_is_none() -> None:
    """Without events POD is undefined, without warnings FAR."""
    quiet = Contingency(0, 0, 0, 10)
    assert quiet.pod is None
    assert quiet.far is None
    assert quiet.tss is None
    assert quiet.pofd == 0


@given(CASES)
def test_roc_area_is_the_share_of_correctly_ordered_pairs(
    cases: list[tuple[int, bool]],
) -> None:
    """The rank formula equals counting all pairs of an event and a quiet case."""
    scores, events = [float(s) for s, _ in cases], [e for _, e in cases]
    with_event = [s for s, e in cases if e]
    quiet = [s for s, e in cases if not e]
    if not with_event or not quiet:
        assert area_under_roc(scores, events) is None
        return
    pairs = [(a > b) + 0.5 * (a == b) for a in with_event for b in quiet]
    assert area_under_roc(scores, events) == pytest.approx(sum(pairs) / len(pairs))


@given(CASES)
def test_best_threshold_has_the_greatest_tss(cases: list[tuple[int, bool]]) -> None:
    """No other score as threshold has a greater TSS; the safe one has no misses."""
    scores, events = [float(s) for s, _ in cases], [e for _, e in cases]
    best = best_threshold(scores, events)
    if best is None:
        assert len(set(events)) == 1
        return
    reached = Contingency.from_threshold(scores, events, best).tss
    assert reached is not None
    for score in scores:
        other = Contingency.from_threshold(scores, events, score).tss
        assert other is not None
        assert other <= reached + 1e-12
    safe = safe_threshold(scores, events)
    assert safe is not None
    assert Contingency.from_threshold(scores, events, safe).misses == 0
    assert Contingency.from_threshold(scores, events, safe + 1e-9).misses > 0


@given(st.integers(0, 40), st.integers(0, 40))
def test_share_interval_has_the_stated_tails(hits: int, more: int) -> None:
    """At each end the outcome, or one beyond it, has a probability of 2.5 %."""
    cases = hits + more
    low, high = share_interval(hits, cases)

    def at_least(least: int, share: float) -> float:
        return sum(
            math.comb(cases, n) * share**n * (1 - share) ** (cases - n)
            for n in range(least, cases + 1)
        )

    assert 0 <= low <= high <= 1
    assert low == 0 if not hits else at_least(hits, low) == pytest.approx(0.025)
    assert (
        high == 1 if not more else 1 - at_least(hits + 1, high) == pytest.approx(0.025)
    )
