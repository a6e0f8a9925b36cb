"""Event time of triage: steps of the wall clock do not change durations."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triage_readings import START_S, WIRE, wire

from edge_agent.clock import Instant, Timeline
from edge_agent.triage.engine import Triage

CLOCKS = st.lists(
    st.tuples(st.floats(-100, 7200), st.floats(-1e9, 1e9), st.booleans()), max_size=20
)


@given(CLOCKS)
def test_event_time_follows_the_monotonic_clock(
    steps: list[tuple[float, float, bool]],
) -> None:
    """Independent of the wall clock, synchronised or not."""
    timeline, mono_s = Timeline(), 1000.0
    first_s = timeline.advance(Instant(START_S, mono_s))
    furthest_s = mono_s
    for dt_s, wall_s, is_synchronised in steps:
        mono_s += dt_s
        timeline.advance(Instant(START_S + wall_s, mono_s, is_synchronised))
        furthest_s = max(furthest_s, mono_s)
        assert abs(timeline.now_s - first_s - (furthest_s - 1000.0)) < 1e-3


def test_late_instant_gets_its_own_time() -> None:
    """With two concurrent samplings, the later one may be assessed first."""
    timeline = Timeline()
    first_s = timeline.advance(Instant(START_S, 100.0))
    assert timeline.advance(Instant(START_S + 60, 160.0)) == first_s + 60
    assert timeline.advance(Instant(START_S + 30, 130.0)) == first_s + 30
    assert timeline.now_s == first_s + 60


def test_restart_counts_the_time_while_off() -> None:
    """Across a restart only the wall clock is available."""
    before, after = Timeline(), Timeline()
    before.advance(Instant(START_S, 5000.0))
    after.restore(before.to_snapshot())
    after.advance(Instant(START_S + 7200, 20.0))
    assert after.now_s == START_S + 7200


def test_start_in_1970_is_corrected_once_the_clock_is_synchronised() -> None:
    """Without a clock battery the time off is known only after synchronisation."""
    before, after = Timeline(), Timeline()
    before.advance(Instant(START_S, 5000.0))
    after.restore(before.to_snapshot())
    after.advance(Instant(100.0, 20.0, is_synchronised=False))
    assert after.now_s == START_S
    after.advance(Instant(START_S + 7200, 80.0))
    assert after.now_s == START_S + 7200


@pytest.mark.parametrize("wall_s", [100.0, START_S + 86400.0])
def test_time_off_is_counted_after_two_starts_with_a_clock_that_is_not_set(
    wall_s: float,
) -> None:
    """A weak battery ends the first one before a time server has answered."""
    before, between, after = Timeline(), Timeline(), Timeline()
    before.advance(Instant(START_S, 5000.0))
    between.restore(before.to_snapshot())
    between.advance(Instant(wall_s, 20.0, is_synchronised=False))
    between.advance(Instant(wall_s + 60, 80.0, is_synchronised=False))
    after.restore(json.loads(json.dumps(between.to_snapshot())))
    after.advance(Instant(100.0, 20.0, is_synchronised=False))
    assert after.now_s == START_S + 60
    after.advance(Instant(START_S + 7200, 80.0))
    assert after.now_s == START_S + 7200


@pytest.mark.parametrize("days", [3, 400, -400])
@pytest.mark.parametrize("starts_unset", [True, False])
def test_clock_that_is_set_after_a_restart_is_no_time(
    days: int, starts_unset: bool
) -> None:
    """The clock of the snapshot was wrong as well; soil and holds do not end."""
    before, after = Timeline(), Timeline()
    before.advance(Instant(START_S, 5000.0, is_synchronised=False))
    after.restore(json.loads(json.dumps(before.to_snapshot())))
    if starts_unset:
        after.advance(Instant(START_S + 60, 20.0, is_synchronised=False))
    passed_s = 60.0 if starts_unset else 0.0
    after.advance(Instant(START_S + days * 86400.0 + passed_s, 80.0))
    assert after.now_s == START_S + passed_s


@pytest.mark.parametrize("ahead_s", [120.0, 10 * 86400.0, -10 * 86400.0])
def test_clock_that_is_not_set_after_a_restart_gives_no_time(ahead_s: float) -> None:
    """It may be ahead by days, which would dry the soil; the true time follows."""
    before, after = Timeline(), Timeline()
    before.advance(Instant(START_S, 5000.0))
    after.restore(json.loads(json.dumps(before.to_snapshot())))
    after.advance(Instant(START_S + ahead_s, 20.0, is_synchronised=False))
    assert after.now_s == START_S
    after.advance(Instant(START_S + 180, 80.0))
    assert after.now_s == START_S + 180


def test_set_clock_that_is_behind_after_a_restart_gives_no_time() -> None:
    """One of two time servers is wrong; triage goes on where it stopped."""
    before, after = Timeline(), Timeline()
    before.advance(Instant(START_S, 5000.0))
    after.restore(before.to_snapshot())
    assert after.advance(Instant(START_S - 7200, 20.0)) == START_S
    assert after.is_gap_unknown
    assert after.advance(Instant(START_S - 7140, 80.0)) == START_S + 60


def test_hold_of_a_repaired_wire_ignores_the_wall_clock() -> None:
    """A clock set forward by a year does not end the hold."""
    triage = Triage([WIRE])
    triage.assess([wire(is_cut=True)], Instant(START_S, 0.0))
    year_s = 365 * 86400.0
    for minute, level in ((1, 5), (29, 5), (31, 1)):
        instant = Instant(START_S + year_s + minute * 60, minute * 60.0)
        if minute == 1:
            triage.assess([wire(is_cut=False)], Instant(START_S + 59, 59.0))
        assert triage.assess([wire(is_cut=False)], instant).level == level
