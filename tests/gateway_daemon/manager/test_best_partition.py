"""Choice of the sub-area that is split off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_daemon.manager.scaling_policy import best_partition
from spatial_mqtt.topics import covers

topics = st.lists(st.sampled_from("0123"), min_size=1, max_size=5).map(
    lambda digits: "/3/" + "/".join(digits)
)


def test_hot_valley_is_split_from_the_others() -> None:
    """The partition halves the load, not the map."""
    cells = {"/3/1/0/2": 50.0, "/3/1/0/3": 40.0, "/3/2/0/0": 5.0, "/3/3/0/0": 5.0}

    assert best_partition(cells, "/", ()) == ("/3/1/0/2", 0.5)


def test_largest_of_equally_good_areas_is_split_off() -> None:
    """Future nodes in the same valley belong to it."""
    cells = {"/3/1/0/2": 30.0, "/3/1/0/3": 20.0, "/3/2/0/0": 50.0}

    assert best_partition(cells, "/", ()) == ("/3/1", 0.5)


def test_one_cell_cannot_be_split() -> None:
    """More brokers would not help it."""
    assert best_partition({"/3/1/0": 90.0}, "/", ()) is None
    assert best_partition({"/3/1/0": 99.0, "/3/2": 1.0}, "/", ()) is None
    assert best_partition({}, "/", ()) is None


def test_load_of_rare_messages_is_not_split() -> None:
    """Rates are rounded, so a topic may have a rate of zero."""
    assert best_partition({"/3/1/0": 0.0, "/3/2": 0.0}, "/", ()) is None


def test_area_with_its_own_broker_is_not_split_off_again() -> None:
    """The load of /3/1 does not count for /3."""
    cells = {"/3/1": 50.0, "/3/2": 50.0}

    assert best_partition(cells, "/3", ("/3/1",)) == ("/3/2", 0.5)


@given(
    st.dictionaries(topics, st.floats(0.1, 100.0)), st.sampled_from(["/", "/3", "/3/1"])
)
def test_partition_is_inside_the_area_and_has_its_share(
    cells: dict[str, float], area: str
) -> None:
    """For any load."""
    cut = best_partition(cells, area, ())
    inside = {t: rate for t, rate in cells.items() if covers(area, t)}
    if cut is None:
        return
    sub, share = cut

    assert covers(area, sub)
    assert sub != area
    cut_off = sum(rate for topic, rate in inside.items() if covers(sub, topic))
    assert share == pytest.approx(cut_off / sum(inside.values()))
