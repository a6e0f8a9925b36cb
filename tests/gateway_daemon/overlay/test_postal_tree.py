import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.overlay_study.methods import run_multicast
from gateway_daemon.overlay.partition import (
    RangePart,
    SplitPlan,
    SplitShape,
    assign_range,
    head_positions,
    subtree_sizes,
)
from gateway_daemon.overlay.postal_tree import HopCost, build_postal_tree


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
