"""Strict priority for urgent messages, weighted shares below."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.uplink.scheduler import STRICT_FROM, WEIGHTS, WeightedFairQueue


@given(st.sets(st.integers(1, 5), min_size=1))
def test_urgent_priority_is_always_first(waiting: set[int]) -> None:
    """5 before 4 before all others, whatever has been sent."""
    fair_queue = WeightedFairQueue()
    chosen = fair_queue.choose(waiting)

    if max(waiting) >= STRICT_FROM:
        assert chosen == max(waiting)
    assert chosen in waiting


def test_no_priority_is_chosen_when_none_waits() -> None:
    """The result is None."""
    assert WeightedFairQueue().choose(()) is None


@given(sizes=st.fixed_dictionaries({p: st.integers(60, 1500) for p in WEIGHTS}))
def test_shares_of_bytes_follow_the_weights(sizes: dict[int, int]) -> None:
    """A priority with large messages gets no more bytes than its share."""
    fair_queue = WeightedFairQueue()
    sent: Counter[int] = Counter()
    for _ in range(4000):
        priority = fair_queue.choose(WEIGHTS)
        assert priority is not None
        fair_queue.charge(priority, sizes[priority])
        sent[priority] += sizes[priority]

    total = sum(sent.values())
    for priority, weight in WEIGHTS.items():
        assert sent[priority] / total == pytest.approx(
            weight / sum(WEIGHTS.values()), abs=0.05
        )


@given(st.lists(st.tuples(st.booleans(), st.integers(60, 1500)), max_size=300))
def test_lowest_priority_is_never_starved(storm: list[tuple[bool, int]]) -> None:
    """While 1 waits, at most the bytes of all weights are sent before its next turn."""
    fair_queue = WeightedFairQueue()
    waited_bytes = 0
    for with_two, size in storm:
        waiting = {3, 2, 1} if with_two else {3, 1}
        priority = fair_queue.choose(waiting)
        assert priority is not None
        fair_queue.charge(priority, size)
        waited_bytes = 0 if priority == 1 else waited_bytes + size

        assert waited_bytes <= sum(WEIGHTS.values()) * 1500 + 3 * 1500


def test_idle_priority_accumulates_no_credit() -> None:
    """A priority that was idle for an hour does not take over the link."""
    fair_queue = WeightedFairQueue()
    for _ in range(1000):
        assert fair_queue.choose({3}) == 3
        fair_queue.charge(3, 1000)
    turns = []
    for _ in range(14):
        priority = fair_queue.choose({3, 1})
        assert priority is not None
        turns.append(priority)
        fair_queue.charge(priority, 1000)

    assert turns.count(1) <= 3
