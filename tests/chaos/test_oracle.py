"""The oracle finds each broken promise, and excuses only what is stated."""

import pytest
from chaos.oracle import WITNESS_LATE_S, Away, Hop, Judgement, Seen, Sent, judge

PATH = {"n": frozenset({"n", "link"})}
BOUND_S = 10.0


def verdict(
    sent: list[Sent],
    arrivals: list[tuple[str, float]],
    *away: Away,
    scored: list[str] | None = None,
    lost_at_most: int = 9,
) -> Judgement:
    return judge(Seen(sent, arrivals, scored, away, PATH, lost_at_most), BOUND_S)


def sent(id_: str, priority: int, at_s: float = 100.0) -> Sent:
    return Sent(id_, "n", priority, at_s)


def test_all_is_well() -> None:
    """What arrived once and was scored once breaks no promise."""
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
    """It is counted in any case."""
    kill = Away("n", killed_s, killed_s + 1, killed=True)
    found = verdict([sent("a", priority)], [], kill)

    assert found.lost == {priority: 1}
    assert found.unexcused == ([] if is_excused else ["a"])


def test_another_parts_kill_excuses_nothing() -> None:
    """Only the node held it in memory."""
    found = verdict([sent("a", 1)], [], Away("link", 101.0, 102.0, killed=True))

    assert found.unexcused == ["a"]


def test_a_stopped_node_commits_nothing() -> None:
    """Its window is as much longer as it was stopped."""
    stop, kill = Away("n", 100.5, 110.0), Away("n", 110.5, 111.0, killed=True)

    assert verdict([sent("a", 1)], [], stop, kill).unexcused == []
    assert verdict([sent("a", 1)], [], kill).unexcused == ["a"]


def test_more_lost_than_the_queues_say_is_a_broken_promise() -> None:
    """A loss is counted by who lost it."""
    kill = Away("n", 101.0, 102.0, killed=True)
    found = verdict([sent("a", 1), sent("b", 2)], [], kill, lost_at_most=1)

    assert found.broken == ["lost uncounted: 1, ['1']"]


def test_twice_in_archive_or_table_is_found() -> None:
    """Once for each place."""
    messages = [sent("a", 1), sent("b", 1)]
    arrivals = [("a", 101.0), ("b", 101.0), ("a", 102.0)]

    assert verdict(messages, arrivals, scored=["a", "b", "b"]).twice == ["a", "b"]


def test_archived_and_not_scored_is_found() -> None:
    """An empty table is not the same as one that was not asked."""
    assert verdict([sent("a", 1)], [("a", 101.0)], scored=[]).unscored == ["a"]
    assert verdict([sent("a", 1)], [("a", 101.0)], scored=None).unscored == []


def test_a_later_and_less_urgent_message_must_not_come_first() -> None:
    """Of one node, on a standing path."""
    messages = [sent("late", 5, 100.0), sent("fast", 2, 100.5)]
    found = verdict(messages, [("fast", 101.0), ("late", 101.0)])

    assert [*found.overtaken] == ["late"]
    assert verdict(messages, [("late", 101.0), ("fast", 101.0)]).overtaken == {}


def test_an_earlier_message_may_come_first() -> None:
    """It was gone before the urgent one was put."""
    messages = [sent("old", 2, 99.0), sent("alarm", 5, 100.0)]

    assert verdict(messages, [("old", 101.0), ("alarm", 101.0)]).overtaken == {}


def test_what_breaks_in_flight_is_not_judged_for_order() -> None:
    """Order begins anew when the link is there; what it cut off goes behind."""
    messages = [sent("late", 5, 100.0), sent("fast", 2, 100.5)]
    arrivals = [("fast", 104.0), ("late", 105.0)]

    in_flight = verdict(messages, arrivals, Away("link", 100.2, 103.0))
    in_queue = verdict(messages, arrivals, Away("link", 99.0, 103.0))
    assert (in_flight.overtaken, in_flight.judged) == ({}, 0)
    assert [*in_queue.overtaken] == ["late"]


def test_an_urgent_message_has_a_bound_while_there_is_a_path() -> None:
    """Its time begins when the last part of its path is there again."""
    cut = Away("link", 99.0, 120.0)
    messages = [sent("a", 5)]

    assert verdict(messages, [("a", 125.0)], cut).waits_s == {"a": 5.0}
    assert verdict(messages, [("a", 131.0)], cut).late == ["a"]
    assert verdict(messages, [("a", 119.0)], cut).waits_s == {}
    assert verdict(messages, [("a", 111.0)]).late == ["a"]


def test_a_part_beside_the_path_is_no_excuse() -> None:
    """A Manager that is away delays nothing."""
    assert verdict([sent("a", 5)], [("a", 111.0)], Away("manager", 99, 111)).late == [
        "a"
    ]


def at_hop(*away: Away) -> tuple[list[str], int]:
    """What came in the right order left in the wrong one."""
    entered = [Sent("alarm", "gw", 5, 100.0), Sent("routine", "gw", 1, 100.1)]
    left = [("routine", 101.0), ("alarm", 101.5)]
    hop = Hop(entered, left, frozenset({"gw"}))
    found = judge(Seen([], [], None, away, PATH, 0, hops=[hop]), BOUND_S)
    return [*found.overtaken_at], found.judged_at


def test_each_step_of_the_way_is_judged_by_itself() -> None:
    """Order between nodes, too, which their own ledgers cannot tell."""
    assert at_hop() == (["alarm"], 1)
    assert at_hop(Away("elsewhere", 100.5, 102.0)) == (["alarm"], 1)


@pytest.mark.parametrize("from_s", [101.2, 100.5, 100.0 - WITNESS_LATE_S / 2])
def test_a_break_on_a_step_excuses_it(from_s: float) -> None:
    """Also one shortly before: who listens hears late."""
    assert at_hop(Away("gw", from_s, from_s + 1)) == ([], 0)
