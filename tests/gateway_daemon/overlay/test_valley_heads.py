from hypothesis import given
from hypothesis import strategies as st

from gateway_daemon.overlay.partition import (
    MAX_UPLINK_COPIES,
    RangeHead,
    choose_valley_heads,
)

VALLEYS = [v for v in "abcdefgh" for _ in range(3)]

sorted_valleys = st.lists(st.sampled_from("abcdefgh"), max_size=40).map(sorted)


@given(sorted_valleys, st.sampled_from("abcdefgh"), st.booleans(), st.integers(0, 1))
def test_few_copies_leave_a_valley_and_every_range_is_served(
    valleys: list[str], own: str, is_narrow: bool, tree: int
) -> None:
    """At most four copies, one over a narrow uplink; the first range starts at 0."""
    chosen = choose_valley_heads(own, valleys, is_uplink_narrow=is_narrow, tree=tree)
    out = [head for head in chosen if valleys[head.head_index] != own]

    assert len(out) <= (1 if is_narrow else MAX_UPLINK_COPIES)
    assert [head.first_index for head in chosen][:1] == ([0] if valleys else [])
    assert all(valleys[head.head_index] == valleys[head.first_index] for head in chosen)
    assert {i for i, v in enumerate(valleys) if v == own} <= {
        h.head_index for h in chosen
    }


def test_ranges_outside_the_valley_are_whole_valleys() -> None:
    """So no link carries a message twice."""
    chosen = choose_valley_heads("c", VALLEYS, is_uplink_narrow=False)

    assert all(
        head.first_index % 3 == 0 for head in chosen if VALLEYS[head.head_index] != "c"
    )


def test_second_tree_has_other_heads_for_the_same_ranges() -> None:
    """A crashed head of one tree is not a head of the other."""
    first = choose_valley_heads("a", VALLEYS, is_uplink_narrow=True)
    second = choose_valley_heads("a", VALLEYS, is_uplink_narrow=True, tree=1)

    assert [head.first_index for head in first] == [head.first_index for head in second]
    assert (first[-1], second[-1]) == (RangeHead(3, 3), RangeHead(4, 3))
