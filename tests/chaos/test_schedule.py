"""A plan is its seed's, and fits its time."""

from collections import Counter
from itertools import pairwise

from chaos.schedule import SETTLE_S, Act, Fault, plan
from hypothesis import given
from hypothesis import strategies as st

PARTS = {"node": (Fault.KILL, Fault.STOP), "link": (Fault.CUT,), "clock": (Fault.JUMP,)}


def test_a_seed_is_a_plan() -> None:
    """What it prints can be repeated, and another seed does something else."""
    assert plan(7, 100, PARTS) == plan(7, 100, PARTS)
    assert plan(7, 100, PARTS) != plan(8, 100, PARTS)


@given(st.integers(0, 2**32), st.floats(0, 600))
def test_all_is_undone_in_time_and_each_part_gets_a_rest(
    seed: int, lasts_s: float
) -> None:
    """Faults lie in the stretch, in order, and of one part far apart."""
    acts = plan(seed, lasts_s, PARTS)

    assert acts == sorted(acts)
    assert all(0 <= act.from_s <= act.until_s <= lasts_s for act in acts)
    for part in PARTS:
        own = [act for act in acts if act.part == part]
        assert all(b.from_s - a.until_s >= SETTLE_S - 1e-6 for a, b in pairwise(own))


@given(st.integers(0, 2**32))
def test_every_fault_has_its_turn(seed: int) -> None:
    """No part is spared for long."""
    counts = Counter((act.part, act.fault) for act in plan(seed, 900, PARTS))

    assert counts.keys() == {(part, f) for part, ways in PARTS.items() for f in ways}
    assert max(counts.values()) - min(counts.values()) <= 1


@given(st.integers(0, 2**32))
def test_a_short_run_has_every_kind(seed: int) -> None:
    """What is not rare in the field is not rare in a test."""
    acts = plan(seed, 60, PARTS | {"far": (Fault.LONG, Fault.SLOW)})

    assert {act.fault for act in acts} == {*Fault} - {Fault.FULL, Fault.WORKER}


def test_only_clocks_and_slow_links_have_a_size() -> None:
    """Other faults are whole; those are never nothing."""
    acts: list[Act] = plan(3, 300, PARTS | {"slow": (Fault.SLOW,)})

    sized = {Fault.JUMP, Fault.SLOW}
    assert all((act.size != 0) == (act.fault in sized) for act in acts)


def test_nothing_can_happen_to_nobody() -> None:
    """Without parts there is no plan."""
    assert plan(1, 60, {}) == []
