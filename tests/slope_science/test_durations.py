"""Hours per level, and lead times, on series small enough to count by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.skill import (
    EVENT_CLASSES,
    Slide,
    duration_matrix,
    event_class,
    lead_time,
    merge_slides,
)

HOUR_S = 3600.0
ENDS_S = [HOUR_S * at for at in range(1, 11)]
LEVELS = [1, 2, 2, 3, 4, 4, 3, 1, 1, 1]


def test_slides_of_one_night_are_one_event() -> None:
    """Slides less than half a day apart are merged and their numbers added."""
    night = [Slide(0, 0), Slide(6 * HOUR_S, 6 * HOUR_S, 2)]
    later = Slide(40 * HOUR_S, 40 * HOUR_S)
    assert merge_slides([later, *night]) == [Slide(0, 6 * HOUR_S, 3), later]


def test_classes_grow_with_the_number_of_slides() -> None:
    """None, one, a few, many."""
    assert [EVENT_CLASSES[event_class(n)] for n in (0, 1, 2, 4, 5)] == [
        "none", "small", "intermediate", "intermediate", "large",
    ]  # fmt: skip


def test_matrix_counts_hours_of_levels_inside_and_outside_an_event() -> None:
    """Two hours of level 4, one of them during two slides."""
    event = Slide(6 * HOUR_S, 7 * HOUR_S, 2)
    matrix = duration_matrix(ENDS_S, LEVELS, [event], HOUR_S)
    assert [sum(row) for row in matrix] == [4, 2, 2, 2, 0]
    assert matrix[3][EVENT_CLASSES.index("intermediate")] == 1
    assert matrix[2][EVENT_CLASSES.index("intermediate")] == 1


@given(st.lists(st.integers(1, 5), min_size=2, max_size=50), st.data())
def test_every_hour_is_counted_once(levels: list[int], data: st.DataObject) -> None:
    """For any events the matrix covers the whole season."""
    ends_s = [HOUR_S * at for at in range(len(levels))]
    moments = st.floats(-5 * HOUR_S, 60 * HOUR_S)
    starts = data.draw(st.lists(moments, max_size=4))
    events = [Slide(s, s + data.draw(st.floats(0, 1e5))) for s in starts]
    matrix = duration_matrix(ends_s, levels, events, HOUR_S)
    assert sum(map(sum, matrix)) == pytest.approx(len(levels))
    assert [sum(row) for row in matrix] == [levels.count(n) for n in range(1, 6)]


def test_lead_time_starts_with_the_first_hour_of_the_level_in_force() -> None:
    """Level 2 in force from hour 2, level 4 from hour 5; failure at hour 6."""
    event = Slide(6 * HOUR_S, 6 * HOUR_S)
    leads = [lead_time(ENDS_S, LEVELS, event, level) for level in (2, 3, 4, 5)]
    found = [each and each.least_s / HOUR_S for each in leads]
    assert found == [4, 2, 1, None]


def test_lead_time_of_an_event_with_uncertain_time_is_a_range() -> None:
    """As wide as the uncertainty of the event's time."""
    lead = lead_time(ENDS_S, LEVELS, Slide(4 * HOUR_S, 6 * HOUR_S), 3)
    assert lead is not None
    assert (lead.least_s, lead.most_s) == (0, 2 * HOUR_S)


def test_level_that_had_ended_gives_no_lead_time() -> None:
    """A warning lifted before the event did not warn of it."""
    assert lead_time(ENDS_S, LEVELS, Slide(10 * HOUR_S, 10 * HOUR_S), 2) is None
