"""Skill scores against hand-made tables and a brute-force definition."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.errors import ScienceError
from slope_science.skill import (
    Contingency,
    area_under_roc,
    best_threshold,
    bootstrap_interval,
    safe_threshold,
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


def test_bootstrap_interval_holds_the_true_value_and_narrows_with_cases() -> None:
    """A share of 30 %, from 45 and from 1000 cases."""
    events = [at % 10 < 3 for at in range(1000)]

    def share(_scores: object, drawn: object) -> float:
        return sum(drawn) / len(drawn)  # type: ignore[call-overload, arg-type]

    few = bootstrap_interval(share, [0.0] * 45, events[:45], Random(1).randrange)
    many = bootstrap_interval(share, [0.0] * 1000, events, Random(1).randrange)
    assert few is not None
    assert many is not None
    assert many[0] <= 0.3 <= many[1]
    assert few[1] - few[0] >= many[1] - many[0]


def test_bootstrap_interval_is_reproducible_by_its_seed() -> None:
    """The same seed draws the same cases."""
    scores = [math.sin(at) for at in range(200)]
    events = [at % 7 == 0 for at in range(200)]
    first = bootstrap_interval(area_under_roc, scores, events, Random(5).randrange)
    assert first == bootstrap_interval(
        area_under_roc, scores, events, Random(5).randrange
    )
    assert first != bootstrap_interval(
        area_under_roc, scores, events, Random(6).randrange
    )


def test_bootstrap_refuses_scores_without_events() -> None:
    """A missing case would shift all later ones."""
    with pytest.raises(ScienceError, match="events must be one for each of 3 scores"):
        bootstrap_interval(
            area_under_roc, [1.0, 2.0, 3.0], [True, False], Random(1).randrange
        )
