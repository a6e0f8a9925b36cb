"""Hours per level, and lead times, on series small enough to count by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slope_science.skill import (
    EVENT_CLASSES,
    LeadTime,
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
    slides = [Slide(at * HOUR_S, at * HOUR_S) for at in (6, 7)]
    matrix = duration_matrix(ENDS_S, LEVELS, merge_slides(slides), HOUR_S)
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


DAY_2 = Slide(24 * HOUR_S, 48 * HOUR_S)
HOURLY_S = [HOUR_S * at for at in range(1, 73)]


@pytest.mark.parametrize("to_s", [DAY_2.to_s, DAY_2.to_s - 1])
def test_day_of_a_landslide_has_24_hours(to_s: float) -> None:
    """The row of 00:00 is the rain of the day before; the console ends it at 23:59."""
    levels = [2 if 25 <= at <= 48 else 1 for at in range(1, 73)]
    matrix = duration_matrix(HOURLY_S, levels, [Slide(DAY_2.from_s, to_s)], HOUR_S)
    assert [row[EVENT_CLASSES.index("small")] for row in matrix] == [0, 24, 0, 0, 0]


@pytest.mark.parametrize(("end_h", "least_h"), [(23, None), (24, 3), (25, 3)], ids=str)
def test_warning_of_the_day_before_counts_if_it_lasted(
    end_h: int, least_h: float | None
) -> None:
    """Level 3 from 21:00 to an hour: in force at 00:00 or not."""
    levels = [3 if 21 <= at <= end_h else 1 for at in range(1, 73)]
    lead = lead_time(HOURLY_S, levels, DAY_2, 3)
    assert lead == (
        None
        if least_h is None
        else LeadTime(3, least_h * HOUR_S, (least_h + 24) * HOUR_S)
    )


def test_exact_landslide_of_an_event_keeps_its_step() -> None:
    """Also when a later one makes the event longer."""
    levels = [2 if at == 24 else 1 for at in range(1, 73)]
    first = Slide(24 * HOUR_S, 24 * HOUR_S)
    for events in ([first], merge_slides([first, Slide(26 * HOUR_S, 26 * HOUR_S)])):
        matrix = duration_matrix(HOURLY_S, levels, events, HOUR_S)
        lead = lead_time(HOURLY_S, [3] * 23 + [1] * 49, events[0], 3)
        assert matrix[1][0] == 0
        assert lead is not None
        assert lead.least_s == 23 * HOUR_S


def test_level_between_steps_is_that_of_the_step_before() -> None:
    """At 00:30 the row of 00:00 is the newest."""
    levels = [3 if 21 <= at <= 24 else 1 for at in range(1, 73)]
    event = Slide(24.5 * HOUR_S, 48 * HOUR_S)
    lead = lead_time(HOURLY_S, levels, event, 3)
    assert lead is not None
    assert lead.least_s == 3.5 * HOUR_S
    assert lead_time(HOURLY_S, levels, Slide(25.5 * HOUR_S, 48 * HOUR_S), 3) is None
