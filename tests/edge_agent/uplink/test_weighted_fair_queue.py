"""Strict for the urgent, fair below, and nobody starves."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.uplink.scheduler import STRICT_FROM, WEIGHTS, WeightedFairQueue


@given(st.sets(st.integers(1, 5), min_size=1))
def test_urgent_always_goes_first(waiting: set[int]) -> None:
    """5 before 4 before all others, whatever has been spent."""
    shares = WeightedFairQueue()
    chosen = shares.choose(waiting)

    if max(waiting) >= STRICT_FROM:
        assert chosen == max(waiting)
    assert chosen in waiting


def test_nothing_waiting_means_nothing_to_send() -> None:
    """An idle uplink has no turn to give."""
    assert WeightedFairQueue().choose(()) is None


@given(sizes=st.fixed_dictionaries({p: st.integers(60, 1500) for p in WEIGHTS}))
def test_bytes_follow_the_weights_whatever_the_sizes(sizes: dict[int, int]) -> None:
    """A priority of large messages gets no more bytes than its share."""
    shares = WeightedFairQueue()
    sent: Counter[int] = Counter()
    for _ in range(4000):
        priority = shares.choose(WEIGHTS)
        assert priority is not None
        shares.charge(priority, sizes[priority])
        sent[priority] += sizes[priority]

    total = sum(sent.values())
    for priority, weight in WEIGHTS.items():
        assert sent[priority] / total == pytest.approx(
            weight / sum(WEIGHTS.values()), abs=0.05
        )


@given(st.lists(st.tuples(st.booleans(), st.integers(60, 1500)), max_size=300))
def test_lowest_is_never_starved(storm: list[tuple[bool, int]]) -> None:
    """While 1 waits, at most the weights' worth of bytes goes before its next turn."""
    shares = WeightedFairQueue()
    waited_bytes = 0
    for with_two, size in storm:
        waiting = {3, 2, 1} if with_two else {3, 1}
        priority = shares.choose(waiting)
        assert priority is not None
        shares.charge(priority, size)
        waited_bytes = 0 if priority == 1 else waited_bytes + size

        assert waited_bytes <= sum(WEIGHTS.values()) * 1500 + 3 * 1500


def test_who_was_idle_has_saved_nothing_up() -> None:
    """A priority that had nothing to send for an hour does not take the link over."""
    shares = WeightedFairQueue()
    for _ in range(1000):
        assert shares.choose({3}) == 3
        shares.charge(3, 1000)
    turns = []
    for _ in range(14):
        priority = shares.choose({3, 1})
        assert priority is not None
        turns.append(priority)
        shares.charge(priority, 1000)

    assert turns.count(1) <= 3
