from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.overlay_study.baselines import SkipGraph
from experiments.overlay_study.methods import run_multicast
from gateway_daemon.overlay.keys import VECTOR_BITS
from gateway_daemon.overlay.partition import (
    HopCost,
    RangePart,
    SplitPlan,
    SplitShape,
    assign_range,
    build_postal_tree,
    head_positions,
    nearest_indices,
    split_range,
    subtree_sizes,
)

plans = st.builds(
    SplitPlan, st.sampled_from(SplitShape), st.integers(1, 120), st.integers(2, 60)
)


@given(
    st.lists(st.integers(0, 100), unique=True).map(sorted),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_parts_of_a_split_are_disjoint_and_cover_the_range(
    right: list[int], low: int, width: int
) -> None:
    """No key is served twice, and none that a link can serve is left out."""
    parts = split_range(low, low + width, right)

    covered = [key for part in parts for key in range(part.low, part.high)]
    assert len(covered) == len(set(covered))
    inside = [r for r in right if low <= r < low + width]
    if right and right[0] < low:
        assert sorted(covered) == list(range(low, low + width))
    else:
        assert (
            sorted(covered)
            == list(range(min(inside, default=0), low + width))[: len(covered)]
        )
        assert set(inside) <= set(covered)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 60), st.data())
def test_every_subscriber_is_reached_once_by_links(
    seed: int, publishers: int, subscribers: int, data: st.DataObject
) -> None:
    """By Skip Graph links alone, from any publisher, at the greedy search's depth."""
    chance = Random(seed)
    members = publishers + subscribers
    graph = SkipGraph([chance.getrandbits(VECTOR_BITS) for _ in range(members)])
    start = data.draw(st.integers(0, publishers - 1))

    result = run_multicast(
        RangePart(start, publishers, members),
        lambda own, low, high: split_range(low, high, graph.right_neighbours(own)),
    )

    assert set(result.arrivals) == set(range(publishers, members))
    assert result.duplicates == 0
    for rank, arrival in result.arrivals.items():
        assert arrival.hops <= _greedy_hops(graph, start, rank)


def _greedy_hops(graph: SkipGraph, start: int, target: int) -> int:
    """Hops of the search that always takes the farthest link that does not overshoot.

    A range is never nearer, because its relay searches for the range's first node.
    """
    first, hops = start, 0
    while first != target:
        first = max(r for r in graph.right_neighbours(first) if r <= target)
        hops += 1
    return hops


@given(plans, st.integers(0, 3000), st.booleans())
def test_subtree_sizes_add_up_and_respect_the_fan_out(
    plan: SplitPlan, others: int, is_root: bool
) -> None:
    """Every subscriber belongs to exactly one head."""
    sizes = subtree_sizes(others, plan, is_root)

    assert sum(sizes) == others
    assert all(size >= 1 for size in sizes)
    if plan.shape is not SplitShape.EQUAL or is_root:
        assert len(sizes) <= (plan.root_fan_out if is_root else plan.inner_fan_out)


@given(plans, st.integers(1, 10), st.integers(1, 1500))
def test_partition_sends_exactly_one_message_a_subscriber(
    plan: SplitPlan, publishers: int, subscribers: int
) -> None:
    """With any plan n subscribers cost n messages, and each is reached once."""
    low, high = publishers, publishers + subscribers

    def forward(own: int, first: int, last: int) -> list[RangePart[int]]:
        start = max(first, own + 1)
        sizes = subtree_sizes(last - start, plan, is_root=own < low)
        return assign_range(
            start, last, [start + position for position in head_positions(sizes)]
        )

    result = run_multicast(RangePart(0, low, high), forward)

    assert set(result.arrivals) == set(range(low, high))
    assert result.messages == subscribers
    assert result.duplicates == 0


def test_first_head_covers_subscribers_that_joined_left_of_it() -> None:
    """A subscriber that no list holds yet still lies in a part."""
    assert assign_range(10, 100, [20, 60]) == [
        RangePart(20, 10, 60),
        RangePart(60, 60, 100),
    ]


@given(
    st.lists(st.integers(0, 500), min_size=1, unique=True).map(sorted),
    st.lists(st.integers(0, 500), unique=True).map(sorted),
)
def test_nearest_known_positions_are_chosen(
    known: list[int], wanted: list[int]
) -> None:
    """One for each wanted position, and no other known one is nearer."""
    chosen = [known[i] for i in nearest_indices(wanted, known)]

    assert chosen == sorted(set(chosen))
    for position in wanted:
        gap = min(abs(position - c) for c in chosen)
        assert gap == min(abs(position - k) for k in known)


def reached_by(time_ms: int, hop: int, child: int) -> int:
    """Nodes reached by a time, the root included: the postal recursion."""
    sends = range(1, (time_ms - hop) // child + 1) if time_ms >= hop else ()
    return 1 + sum(reached_by(time_ms - hop - j * child, hop, child) for j in sends)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 18))
def test_last_arrival_is_that_of_the_postal_recursion(
    hop: int, child: int, time_ms: int
) -> None:
    """Exactly the nodes that the recursion reaches by a time are reached by it."""
    cost = HopCost(node_ms=0, link_ms=hop, child_ms=child)
    reached = reached_by(time_ms, hop, child) - 1

    assert build_postal_tree(reached, cost=cost).last_ms <= time_ms
    assert build_postal_tree(reached + 1, cost=cost).last_ms > time_ms


@pytest.mark.parametrize(
    ("nodes", "mean_ms", "last_ms"),
    [(9, 11.5, 11.9), (50, 13.6, 16.0), (100, 16.1, 21.0), (500, 22.3, 24.8),
     (990, 23.9, 26.2), (1280, 24.5, 26.8), (5_000, 28.3, 31.9)],
)  # fmt: skip
def test_postal_bound_at_the_costs_of_the_thesis(
    nodes: int, mean_ms: float, last_ms: float
) -> None:
    """Expected values are from an independent computation of the postal bound."""
    tree = build_postal_tree(nodes)

    assert tree.mean_ms == pytest.approx(mean_ms, abs=0.06)
    assert tree.last_ms == pytest.approx(last_ms, abs=0.11)


@given(st.integers(1, 1500), st.integers(1, 120), st.integers(1, 60))
def test_multicast_takes_the_times_of_the_tree(
    nodes: int, root: int, inner: int
) -> None:
    """Nodes that split their ranges by the tree's shares finish when it predicts."""
    plan = SplitPlan(SplitShape.POSTAL, root, inner)

    def forward(own: int, low: int, high: int) -> list[RangePart[int]]:
        first = max(low, own + 1)
        sizes = subtree_sizes(high - first, plan, is_root=own == 0)
        return assign_range(
            first, high, [first + place for place in head_positions(sizes)]
        )

    result = run_multicast(RangePart(0, 1, nodes + 1), forward)

    tree = build_postal_tree(nodes, root, inner)
    times_ms = [arrival.at_ms for arrival in result.arrivals.values()]
    assert sum(times_ms) / nodes == pytest.approx(tree.mean_ms)
    assert max(times_ms) == pytest.approx(tree.last_ms)


@pytest.mark.parametrize("nodes", [10, 20, 50, 100, 320, 640, 990, 1280])
def test_emergency_fan_out_is_within_five_percent_of_the_bound(nodes: int) -> None:
    """Limits of 110 and 46 copies cost at most 5 % up to 1280 subscribers."""
    capped = build_postal_tree(nodes, 110, 46)

    assert capped.mean_ms <= 1.05 * build_postal_tree(nodes).mean_ms
    assert capped.last_ms <= 28.0
