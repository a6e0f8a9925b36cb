"""Fault plans: repeatable by seed, and within the given time."""

from collections import Counter
from itertools import pairwise

from chaos.schedule import SETTLE_S, Fault, PlannedFault, plan
from hypothesis import given
from hypothesis import strategies as st

PARTS = {"node": (Fault.KILL, Fault.STOP), "link": (Fault.CUT,), "clock": (Fault.JUMP,)}


def test_same_seed_gives_same_plan() -> None:
    """A failed run can be repeated by its seed."""
    assert plan(7, 100, PARTS) == plan(7, 100, PARTS)
    assert plan(7, 100, PARTS) != plan(8, 100, PARTS)


@given(st.integers(0, 2**32), st.floats(0, 600))
def test_faults_end_in_time_and_each_part_has_time_to_settle(
    seed: int, lasts_s: float
) -> None:

    events = plan(seed, lasts_s, PARTS)

    assert events == sorted(events)
    assert all(0 <= event.from_s <= event.until_s <= lasts_s for event in events)
    for part in PARTS:
        own = [event for event in events if event.part == part]
        assert all(b.from_s - a.until_s >= SETTLE_S - 1e-6 for a, b in pairwise(own))


@given(st.integers(0, 2**32))
def test_every_fault_occurs_equally_often(seed: int) -> None:
    counts = Counter((event.part, event.fault) for event in plan(seed, 900, PARTS))

    assert counts.keys() == {(part, f) for part, kinds in PARTS.items() for f in kinds}
    assert max(counts.values()) - min(counts.values()) <= 1


@given(st.integers(0, 2**32))
def test_short_run_has_every_kind(seed: int) -> None:
    events = plan(seed, 60, PARTS | {"far": (Fault.LONG, Fault.SLOW)})

    assert {event.fault for event in events} == {*Fault} - {Fault.FULL, Fault.WORKER}


def test_only_clock_jumps_and_slow_links_have_a_size() -> None:
    events: list[PlannedFault] = plan(3, 300, PARTS | {"slow": (Fault.SLOW,)})

    sized = {Fault.JUMP, Fault.SLOW}
    assert all((event.size != 0) == (event.fault in sized) for event in events)


def test_plan_without_parts_is_empty() -> None:
    assert plan(1, 60, {}) == []
