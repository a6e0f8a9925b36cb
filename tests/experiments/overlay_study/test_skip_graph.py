from random import Random

from hypothesis import given
from hypothesis import strategies as st

from experiments.overlay_study.baselines import SkipGraph, vector_prefix
from gateway_daemon.overlay.keys import (
    VECTOR_BITS,
    common_prefix_bits,
    membership_vector,
)


def random_vectors(seed: int) -> list[int]:
    chance = Random(seed)
    return [chance.getrandbits(VECTOR_BITS) for _ in range(60)]


unique_vectors = st.lists(
    st.integers(0, 2**VECTOR_BITS - 1), min_size=1, max_size=40, unique=True
)
vectors = unique_vectors | st.integers(0, 2**32).map(random_vectors)


@given(vectors)
def test_neighbours_are_the_nearest_on_each_level(made: list[int]) -> None:
    """A brute-force search over all nodes finds the same neighbours."""
    graph = SkipGraph(made)
    for rank, vector in enumerate(made):
        for level, right in enumerate(graph.right[rank]):
            to_the_right = [
                r
                for r in range(rank + 1, len(made))
                if common_prefix_bits(vector, made[r]) >= level
            ]
            assert right == (to_the_right[0] if to_the_right else None)
            if right is not None:
                assert graph.left[right][level] == rank


@given(vectors)
def test_ranks_by_common_bits_contain_every_other_node_once(made: list[int]) -> None:
    """The nodes of each group share exactly that number of bits."""
    graph = SkipGraph(made)
    for rank, vector in enumerate(made):
        found = []
        for level, ranks in enumerate(graph.ranks_by_common_bits(rank)):
            assert all(common_prefix_bits(vector, made[r]) == level for r in ranks)
            found += ranks
        assert sorted(found) == [r for r in range(len(made)) if r != rank]


@given(vectors, st.data())
def test_search_reaches_its_target(made: list[int], data: st.DataObject) -> None:
    """At most as many hops as the distance in rank; none to the start itself."""
    graph = SkipGraph(made)
    target = data.draw(st.integers(0, len(made) - 1))
    start = data.draw(st.integers(0, target))

    hops = graph.hops_to(target, start)

    assert (hops == 0) == (start == target)
    assert hops <= target - start


def test_search_takes_logarithmic_steps() -> None:
    """In a thousand nodes a search takes about nine hops."""
    chance = Random(1)
    graph = SkipGraph([chance.getrandbits(VECTOR_BITS) for _ in range(1000)])

    hops = [graph.hops_to(999, start) for start in range(0, 999, 7)]

    assert 6 < sum(hops) / len(hops) < 12


def test_membership_vector_depends_only_on_the_name() -> None:
    """All gateways compute the same vector, also after a restart."""
    assert (
        membership_vector("gw-otani")
        == membership_vector("gw-otani")
        == 0x9FB3330FB958A38
    )
    assert vector_prefix(membership_vector("gw-otani"), 8) == 0x09
