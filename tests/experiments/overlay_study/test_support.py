import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.overlay_study.baselines import (
    choose_supports,
    max_level,
    support_count,
    support_grid,
)
from gateway_daemon.overlay.keys import OverlayError


def test_example_of_the_thesis() -> None:
    """Section 5.3.2: from 11100, priority 5, eight positions in the printed order."""
    assert support_grid(28, 32, 5) == [28, 0, 4, 8, 12, 16, 20, 24]


@given(st.integers(1, 17), st.integers(1, 5))
def test_support_count_is_at_least_one_and_matches_the_grid(
    levels: int, priority: int
) -> None:
    """Also for N = 2, and for priority 4, whose interval never returns to the start."""
    space = 1 << levels
    positions = support_grid(0, space, priority)

    assert len(positions) == support_count(space, priority) >= 1
    assert len(set(positions)) == len(positions) <= max(1, space // 4)


@given(st.integers(1, 17))
def test_higher_priority_never_has_fewer_supports(levels: int) -> None:
    """The thesis' rule as printed gives priority 4 more than priority 5."""
    counts = [len(support_grid(0, 1 << levels, p)) for p in (1, 2, 3, 4, 5)]

    assert counts == sorted(counts)
    assert counts[0] == 1


def test_only_other_publishers_on_the_grid_support() -> None:
    """Neither a subscriber on the grid nor the publisher itself."""
    positions = [v << 59 for v in (0b11100, 0b00100, 0b00101, 0b01000)]

    assert choose_supports(0, positions, range(3), 5, 5) == [1]
    assert choose_supports(0, positions, range(3), 5, 1) == []


def test_max_level_is_estimated_from_the_number_of_nodes() -> None:
    """It cannot be observed in a running system."""
    assert [max_level(n) for n in (1, 2, 1000, 100_000)] == [1, 1, 10, 17]


def test_space_that_is_no_power_of_two_is_refused() -> None:
    """The number of membership vectors is a power of two."""
    with pytest.raises(OverlayError, match="space must be a power of two, got 12"):
        support_count(12, 5)
