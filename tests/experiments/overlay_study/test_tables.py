from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.overlay_study.baselines import (
    SkipGraph,
    TableEntry,
    fill_table,
    table_merit,
)
from gateway_daemon.overlay.keys import common_prefix_bits

entries = st.builds(
    lambda rank, level, own: TableEntry(rank, level, abs(rank - 50), own),
    st.integers(0, 100),
    st.integers(0, 8),
    st.booleans(),
)
tables = st.lists(entries, max_size=8, unique_by=lambda e: e.rank)
links = st.sets(st.integers(0, 100), max_size=4)


@given(tables, tables, links)
def test_order_of_tables_is_total(
    one: list[TableEntry], other: list[TableEntry], kept: set[int]
) -> None:
    """In the order of the thesis, E <= F and F <= E could both hold."""
    first, second = table_merit(one, kept), table_merit(other, kept)

    assert (first < second) + (second < first) + (first == second) == 1
    if {e.rank for e in one} != {e.rank for e in other}:
        assert first != second


@given(tables, links, st.data())
def test_level_0_link_is_never_evicted(
    table: list[TableEntry], kept: set[int], data: st.DataObject
) -> None:
    """Dropping a link that must be kept is worse than dropping any other."""
    held = [e for e in table if e.rank in kept]
    loose = [e for e in table if e.rank not in kept]
    if not held or not loose:
        return
    link, other = data.draw(st.sampled_from(held)), data.draw(st.sampled_from(loose))

    without_link = [e for e in table if e is not link]
    without_other = [e for e in table if e is not other]

    assert table_merit(without_link, kept) < table_merit(without_other, kept)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 7), st.booleans())
def test_fill_finds_the_best_table(
    seed: int, publishers: int, subscribers: int, keeps_all: bool
) -> None:
    """Compared with all other choices of subscribers."""
    chance = Random(seed)
    members = publishers + subscribers
    graph = SkipGraph([chance.getrandbits(64) for _ in range(members)])
    own = chance.randrange(members)
    kept = (
        {*graph.right_neighbours(own), *graph.left_neighbours(own)}
        if keeps_all
        else {r for r in (own - 1, own + 1) if 0 <= r < members}
    )
    capacity = chance.randint(len(kept), members)
    candidates = [r for r in range(publishers, members) if r != own and r not in kept]
    number = min(capacity - len(kept), len(candidates))

    found = fill_table(graph, own, range(publishers, members), kept, capacity)

    def merit_of(ranks: set[int]) -> object:
        return table_merit(
            [
                TableEntry(
                    r,
                    common_prefix_bits(graph.vectors[r], graph.vectors[own]),
                    abs(r - own),
                    r >= publishers,
                )
                for r in ranks
            ],
            kept,
        )[3:7]  # levels above the topic's are covered by outside links

    best = max(merit_of(kept | set(c)) for c in combinations(candidates, number))
    assert merit_of(set(found)) == best
    assert kept <= set(found)
    assert len(found) <= capacity
