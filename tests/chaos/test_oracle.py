"""The oracle reports each broken promise and excuses only the documented losses."""

import pytest
from chaos.oracle import (
    WITNESS_LATE_S,
    Hop,
    Judgement,
    Observations,
    Outage,
    Sent,
    judge,
)

PATH = {"n": frozenset({"n", "link"})}
BOUND_S = 10.0


def verdict(
    sent: list[Sent],
    arrivals: list[tuple[str, float]],
    *away: Outage,
    scored: list[str] | None = None,
    lost_at_most: int = 9,
) -> Judgement:
    return judge(
        Observations(sent, arrivals, scored, away, PATH, lost_at_most), BOUND_S
    )


def sent(id_: str, priority: int, at_s: float = 100.0) -> Sent:
    return Sent(id_, "n", priority, at_s)


def test_message_archived_and_scored_once_breaks_no_promise() -> None:
    """The oracle reports nothing for it."""
    found = verdict([sent("a", 5)], [("a", 101.0)], scored=["a"])

    assert found.broken == []
    assert (found.judged, found.waits_s) == (1, {"a": 1.0})


@pytest.mark.parametrize(
    ("priority", "killed_s", "is_excused"),
    [(3, 101.0, True), (3, 99.5, True), (3, 104.0, False), (4, 101.0, False)],
)
def test_only_a_kill_within_the_window_excuses_a_routine_message(
    priority: int, killed_s: float, is_excused: bool
) -> None:
    """The loss is counted in any case."""
    kill = Outage("n", killed_s, killed_s + 1, killed=True)
    found = verdict([sent("a", priority)], [], kill)

    assert found.lost == {priority: 1}
    assert found.unexcused == ([] if is_excused else ["a"])


def test_kill_of_another_part_excuses_nothing() -> None:
    """Only the node held the message in memory."""
    found = verdict([sent("a", 1)], [], Outage("link", 101.0, 102.0, killed=True))

    assert found.unexcused == ["a"]


def test_time_while_a_node_is_stopped_extends_its_window() -> None:
    """A stopped node commits nothing."""
    stop, kill = Outage("n", 100.5, 110.0), Outage("n", 110.5, 111.0, killed=True)

    assert verdict([sent("a", 1)], [], stop, kill).unexcused == []
    assert verdict([sent("a", 1)], [], kill).unexcused == ["a"]


def test_more_lost_than_the_queues_report_is_a_broken_promise() -> None:
    kill = Outage("n", 101.0, 102.0, killed=True)
    found = verdict([sent("a", 1), sent("b", 2)], [], kill, lost_at_most=1)

    assert found.broken == ["lost uncounted: 1, ['1']"]


def test_duplicates_in_archive_or_table_are_found() -> None:
    messages = [sent("a", 1), sent("b", 1)]
    arrivals = [("a", 101.0), ("b", 101.0), ("a", 102.0)]

    assert verdict(messages, arrivals, scored=["a", "b", "b"]).twice == ["a", "b"]


def test_archived_and_not_scored_is_found() -> None:
    """An empty table is not the same as one that was not read."""
    assert verdict([sent("a", 1)], [("a", 101.0)], scored=[]).unscored == ["a"]
    assert verdict([sent("a", 1)], [("a", 101.0)], scored=None).unscored == []


def test_later_and_less_urgent_message_must_not_arrive_first() -> None:
    """For messages of one node on an intact path."""
    messages = [sent("late", 5, 100.0), sent("fast", 2, 100.5)]
    found = verdict(messages, [("fast", 101.0), ("late", 101.0)])

    assert [*found.overtaken] == ["late"]
    assert verdict(messages, [("late", 101.0), ("fast", 101.0)]).overtaken == {}


def test_message_put_earlier_may_arrive_first() -> None:
    """It was sent before the urgent one was put."""
    messages = [sent("old", 2, 99.0), sent("alarm", 5, 100.0)]

    assert verdict(messages, [("old", 101.0), ("alarm", 101.0)]).overtaken == {}


def test_message_interrupted_in_flight_is_not_checked_for_order() -> None:
    """It is sent again after the link is restored, behind other messages."""
    messages = [sent("late", 5, 100.0), sent("fast", 2, 100.5)]
    arrivals = [("fast", 104.0), ("late", 105.0)]

    in_flight = verdict(messages, arrivals, Outage("link", 100.2, 103.0))
    in_queue = verdict(messages, arrivals, Outage("link", 99.0, 103.0))
    assert (in_flight.overtaken, in_flight.judged) == ({}, 0)
    assert [*in_queue.overtaken] == ["late"]


def test_urgent_message_delay_is_bounded_while_its_path_is_intact() -> None:
    """The delay counts from the end of the last outage on the path."""
    cut = Outage("link", 99.0, 120.0)
    messages = [sent("a", 5)]

    assert verdict(messages, [("a", 125.0)], cut).waits_s == {"a": 5.0}
    assert verdict(messages, [("a", 131.0)], cut).late == ["a"]
    assert verdict(messages, [("a", 119.0)], cut).waits_s == {}
    assert verdict(messages, [("a", 111.0)]).late == ["a"]


def test_outage_outside_the_path_is_no_excuse() -> None:
    """An outage of a Manager delays no message."""
    assert verdict([sent("a", 5)], [("a", 111.0)], Outage("manager", 99, 111)).late == [
        "a"
    ]


def at_hop(*away: Outage) -> tuple[list[str], int]:
    """Overtaken ids and number checked for messages that a hop reordered."""
    entered = [Sent("alarm", "gw", 5, 100.0), Sent("routine", "gw", 1, 100.1)]
    left = [("routine", 101.0), ("alarm", 101.5)]
    hop = Hop(entered, left, frozenset({"gw"}))
    found = judge(Observations([], [], None, away, PATH, 0, hops=[hop]), BOUND_S)
    return [*found.overtaken_at], found.judged_at


def test_order_is_checked_on_each_hop() -> None:
    """Also between nodes, which the nodes' own ledgers do not show."""
    assert at_hop() == (["alarm"], 1)
    assert at_hop(Outage("elsewhere", 100.5, 102.0)) == (["alarm"], 1)


@pytest.mark.parametrize("from_s", [101.2, 100.5, 100.0 - WITNESS_LATE_S / 2])
def test_outage_on_a_hop_excuses_its_order(from_s: float) -> None:
    """Also an outage shortly before, because recorders receive messages late."""
    assert at_hop(Outage("gw", from_s, from_s + 1)) == ([], 0)
