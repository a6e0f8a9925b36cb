"""The scale of priorities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spatial_mqtt.errors import PriorityError
from spatial_mqtt.priority import LADDER, Ladder


@given(value=st.integers(1, 5))
def test_valid_priority_is_returned(value: int) -> None:
    """Priorities are 1 to 5."""
    assert LADDER.check(value) == value


@given(
    value=st.one_of(
        st.integers(max_value=0),
        st.integers(min_value=6),
        st.booleans(),
        st.floats(),
        st.text(),
        st.none(),
        st.lists(st.integers()),
    )
)
def test_invalid_priority_is_refused(value: object) -> None:
    """Only an integer in range is a priority; booleans and text are not."""
    with pytest.raises(PriorityError, match="priority must be an integer between 1"):
        LADDER.check(value)


def test_descending_begins_with_the_most_urgent() -> None:
    """Messages are sent in this order."""
    assert list(LADDER.descending) == [5, 4, 3, 2, 1]


def test_default_ladder_names_the_five_alert_levels() -> None:
    """The names are those of the law since 2026, least urgent first."""
    assert [LADDER.name(n) for n in range(1, 6)] == [
        "早期注意情報",
        "注意報",
        "高齢者等避難",
        "避難指示",
        "緊急安全確保",
    ]
    assert LADDER.default == 1


def test_ladder_may_have_another_length() -> None:
    """No other module assumes five levels."""
    ladder = Ladder(("low", "mid", "high"), default=2)

    assert (ladder.top, ladder.name(3), ladder.default) == (3, "high", 2)
    assert list(ladder.descending) == [3, 2, 1]
    with pytest.raises(PriorityError, match="between 1 and 3, got 4"):
        ladder.name(4)
