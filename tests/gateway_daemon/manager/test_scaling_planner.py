"""When a hot area is split or a calm one joined, and the stated reasons."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway_daemon.manager.scaling_policy import (
    AreaLoad,
    ScalingDecision,
    ScalingLimits,
    ScalingPlanner,
    ScalingSituation,
)
from spatial_mqtt.directory import BrokerInfo

B1, B2, B3 = (BrokerInfo("b", n) for n in (1, 2, 3))
LIMITS = ScalingLimits(
    max_age_s=5.0, hold_s=30.0, cooldown_s=60.0, calm_s=600.0, calm_ratio=0.3
)
CELLS = {"/3/1/0": 90.0, "/3/2/0": 10.0, "/3/1/2": 80.0}
WORLD = AreaLoad("broker", "/", B1, per_s=180.0, age_s=8.0, cells=CELLS)
COOL = replace(WORLD, age_s=0.1)


def one_area(
    server: AreaLoad, *free: BrokerInfo, may_start: bool = False
) -> ScalingSituation:
    startable = frozenset({"broker"}) if may_start else frozenset()
    return ScalingSituation((server,), {"broker": free}, may_start=startable)


def decide_each_second(
    planner: ScalingPlanner, situation: ScalingSituation, start_s: int, end_s: int
) -> list[tuple[int, ScalingDecision]]:
    decisions = [(at, planner.decide(situation, at)) for at in range(start_s, end_s)]
    return [(at, decision) for at, decision in decisions if decision is not None]


def test_area_that_stays_hot_is_split_and_the_reason_is_stated() -> None:
    """Overload must last for `hold_s`, here 30 s."""
    planner = ScalingPlanner(LIMITS)

    ((at, decision),) = decide_each_second(planner, one_area(WORLD, B2), 0, 60)
    assert at == 30
    assert (decision.action, decision.area, decision.server) == ("split", "/3/1/0", B2)
    assert str(decision) == (
        "split broker b:2 /3/1/0: b:1 waits 8.0 s for 30 s; /3/1/0 is 50% of /"
    )


def test_intermittent_load_splits_nothing() -> None:
    """The hold time restarts only below 80 % of the limit."""
    planner = ScalingPlanner(LIMITS)
    for start_s in range(0, 200, 20):
        assert (
            decide_each_second(planner, one_area(WORLD, B2), start_s, start_s + 10)
            == []
        )
        assert (
            decide_each_second(planner, one_area(COOL, B2), start_s + 10, start_s + 20)
            == []
        )

    almost = replace(WORLD, age_s=4.5)  # over 80 % of the limit
    decide_each_second(planner, one_area(WORLD, B2), 200, 201)
    assert decide_each_second(planner, one_area(almost, B2), 201, 229) == []
    assert len(decide_each_second(planner, one_area(WORLD, B2), 229, 240)) == 1


def test_cooldown_follows_a_decision() -> None:
    """Its effect must show before the next decision."""
    planner = ScalingPlanner(LIMITS)

    assert [
        at for at, _ in decide_each_second(planner, one_area(WORLD, B2), 0, 160)
    ] == [30, 90, 150]


def test_without_standby_a_start_is_requested_or_the_lack_reported_once() -> None:
    """Every missing standby is reported, but not every second."""
    ((_, start),) = decide_each_second(
        ScalingPlanner(LIMITS), one_area(WORLD, may_start=True), 0, 60
    )
    found = decide_each_second(ScalingPlanner(LIMITS), one_area(WORLD), 0, 600)

    assert (start.action, start.server) == ("start", None)
    assert [d.action for _, d in found] == ["nothing"]
    assert "but no standby is free" in found[0][1].reason


def test_free_standbys_out_of_reach_are_named() -> None:
    """The remedy is the link or the standby, not another standby."""
    situation = one_area(WORLD, B2, B3)
    cut_off = replace(situation, unreachable=frozenset({B2, B3}))
    found = decide_each_second(ScalingPlanner(LIMITS), cut_off, 0, 600)

    assert [d.action for _, d in found] == ["nothing"]
    assert found[0][1].reason.endswith(
        ", but the free standby servers are out of reach: b:2, b:3"
    )


def test_load_in_one_cell_is_reported_and_not_split() -> None:
    """Another broker would not help; an operator must decide."""
    lone = replace(WORLD, cells={"/3/1/0": 100.0})
    ((_, decision),) = decide_each_second(
        ScalingPlanner(LIMITS), one_area(lone, B2), 0, 600
    )

    assert decision.action == "nothing"
    assert "all of it is in one cell" in decision.reason


def test_area_that_cannot_be_split_delays_no_other() -> None:
    """Each that cannot is reported once, after what can be done."""
    stuck = replace(WORLD, area="/2", server=B3, age_s=600.0, cells={"/2/1": 1.0})
    also_stuck = replace(stuck, area="/1", age_s=500.0, cells={"/1/1": 1.0})
    situation = ScalingSituation((also_stuck, stuck, WORLD), {"broker": (B2,)})
    calm = ScalingSituation((also_stuck, stuck, COOL))
    planner = ScalingPlanner(LIMITS)
    found = decide_each_second(planner, situation, 0, 31)
    later = decide_each_second(planner, calm, 31, 200)

    assert [(at, d.action, d.server) for at, d in found] == [(30, "split", B2)]
    assert [(d.action, d.area) for _, d in later] == [
        ("nothing", "/2"), ("nothing", "/1"),
    ]  # fmt: skip


def test_calm_area_is_joined_while_another_lacks_a_standby() -> None:
    """Its broker is then free for the hot area."""
    planner = ScalingPlanner(LIMITS)
    spare = AreaLoad("broker", "/3/1", B2, per_s=100.0, is_spare=True)
    calm = replace(spare, per_s=1.0)
    hot = replace(WORLD, area="/2", server=B3, cells={"/2/1": 1.0, "/2/2": 1.0})
    decide_each_second(planner, ScalingSituation((COOL, spare, hot)), 0, 10)
    found = decide_each_second(planner, ScalingSituation((COOL, calm, hot)), 10, 611)

    assert [(at, d.action, d.area) for at, d in found] == [
        (30, "nothing", "/2/1"), (610, "join", "/3/1"),
    ]  # fmt: skip


def test_calm_spare_area_is_joined_after_calm_s() -> None:
    """Areas that an administrator split are not joined."""
    busy = AreaLoad("broker", "/3/1", B2, per_s=100.0, is_spare=True)
    calm = replace(busy, per_s=20.0)
    theirs = AreaLoad("broker", "/3/2", B3, per_s=0.0)
    planner = ScalingPlanner(LIMITS)
    world = replace(COOL, per_s=10.0)

    assert (
        decide_each_second(planner, ScalingSituation((world, busy, theirs)), 0, 10)
        == []
    )
    found = decide_each_second(
        planner, ScalingSituation((world, calm, theirs)), 10, 700
    )
    assert [(at, d.action, d.server) for at, d in found][:1] == [(610, "join", B2)]
    assert found[0][1].reason == "20.0 of 100.0 messages/s for 600 s"
    assert {d.server for _, d in found} == {B2}


def test_standby_broker_that_is_down_gets_no_area() -> None:
    """The next one does."""
    planner = ScalingPlanner(LIMITS)
    situation = replace(one_area(WORLD, B2, B3), unreachable=frozenset({B2}))

    ((_, decision),) = decide_each_second(planner, situation, 0, 60)
    assert (decision.action, decision.server) == ("split", B3)


def test_area_of_a_spare_that_is_lost_is_joined_at_once() -> None:
    """It is hot, because nothing leaves the gateways; not if all brokers are lost."""
    planner, spare = ScalingPlanner(LIMITS), replace(WORLD, area="/3/1", server=B2)
    lost = replace(spare, is_spare=True, is_reachable=False, age_s=100.0)
    none = ScalingSituation((replace(COOL, is_reachable=False), lost))
    both = ScalingSituation((COOL, lost), {"broker": (B3,)})

    assert not [d for _, d in decide_each_second(planner, none, 0, 60) if d.server]
    ((at, decision),) = decide_each_second(planner, both, 60, 90)
    assert (at, decision.action, decision.area) == (60, "join", "/3/1")
    assert str(decision).endswith("b:2 is out of reach for 30 s")


def test_area_is_not_joined_to_one_without_capacity() -> None:
    """It would be split again."""
    limits = replace(LIMITS, max_per_s=100.0)
    calm = AreaLoad("broker", "/3/1", B2, per_s=20.0, is_spare=True)
    peak = replace(calm, per_s=90.0)
    for world in (replace(COOL, per_s=70.0), replace(WORLD, per_s=1.0, age_s=4.5)):
        planner = ScalingPlanner(limits)
        decide_each_second(planner, ScalingSituation((world, peak)), 0, 2)

        assert (
            decide_each_second(planner, ScalingSituation((world, calm)), 2, 2000) == []
        )


def test_started_standby_is_stopped_after_long_idleness() -> None:
    """Only standbys that the start command created are stopped."""
    situation = ScalingSituation((COOL,), {"broker": (B2, B3)}, frozenset({B3}))
    found = decide_each_second(ScalingPlanner(LIMITS), situation, 0, 601)

    assert [(d.action, d.server) for _, d in found] == [("stop", B3)]


def test_busy_gateway_hands_over_part_of_its_area() -> None:
    """Its clients find the closer gateway by themselves."""
    gateway = AreaLoad("gateway", "/3", B1, cpu=0.97, cells=CELLS)
    situation = ScalingSituation((gateway,), {"gateway": (B2,)})
    ((_, decision),) = decide_each_second(ScalingPlanner(LIMITS), situation, 0, 60)

    assert (decision.action, decision.kind, decision.server) == ("split", "gateway", B2)
    assert "CPU 97% busy for 30 s" in decision.reason


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 200)), max_size=300))
def test_planner_never_acts_twice_within_the_cooldown(
    loads: list[tuple[float, float]],
) -> None:
    """For any load."""
    planner = ScalingPlanner(replace(LIMITS, hold_s=3.0, calm_s=5.0))
    acted: list[int] = []
    for at_s, (age_s, per_s) in enumerate(loads):
        servers = (
            replace(WORLD, age_s=age_s),
            AreaLoad("broker", "/3/3", B2, per_s=per_s, is_spare=True),
        )
        decision = planner.decide(ScalingSituation(servers, {"broker": (B3,)}), at_s)
        if decision is not None and decision.action != "nothing":
            acted.append(at_s)

    assert all(b - a >= 60 for a, b in pairwise(acted))
