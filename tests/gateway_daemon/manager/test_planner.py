"""When a hot area is split and a calm one joined, and the words for it."""

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


def alone(
    server: AreaLoad, *free: BrokerInfo, may_start: bool = False
) -> ScalingSituation:
    startable = frozenset({"broker"}) if may_start else frozenset()
    return ScalingSituation((server,), {"broker": free}, may_start=startable)


def looks(
    planner: ScalingPlanner, situation: ScalingSituation, start_s: int, end_s: int
) -> list[tuple[int, ScalingDecision]]:
    told = [(at, planner.decide(situation, at)) for at in range(start_s, end_s)]
    return [(at, decision) for at, decision in told if decision is not None]


def test_area_that_stays_hot_is_split_and_the_reason_says_why() -> None:
    """One slow minute is no reason, half a minute of waiting is."""
    planner = ScalingPlanner(LIMITS)

    ((at, decision),) = looks(planner, alone(WORLD, B2), 0, 60)
    assert at == 30
    assert (decision.action, decision.area, decision.server) == ("split", "/3/1/0", B2)
    assert str(decision) == (
        "split broker b:2 /3/1/0: b:1 waits 8.0 s for 30 s; /3/1/0 is 50% of /"
    )


def test_load_that_comes_and_goes_splits_nothing() -> None:
    """Only below the relief does the time begin anew."""
    planner = ScalingPlanner(LIMITS)
    for start_s in range(0, 200, 20):
        assert looks(planner, alone(WORLD, B2), start_s, start_s + 10) == []
        assert looks(planner, alone(COOL, B2), start_s + 10, start_s + 20) == []

    almost = replace(WORLD, age_s=4.5)  # over 80 % of the limit
    looks(planner, alone(WORLD, B2), 200, 201)
    assert looks(planner, alone(almost, B2), 201, 229) == []
    assert len(looks(planner, alone(WORLD, B2), 229, 240)) == 1


def test_after_a_decision_comes_a_rest() -> None:
    """What the first one does must show before the next."""
    planner = ScalingPlanner(LIMITS)

    assert [at for at, _ in looks(planner, alone(WORLD, B2), 0, 160)] == [30, 90, 150]


def test_without_standby_the_command_is_run_or_the_lack_told_once() -> None:
    """Nothing is done in silence, and nothing is said every second."""
    ((_, start),) = looks(ScalingPlanner(LIMITS), alone(WORLD, may_start=True), 0, 60)
    told = looks(ScalingPlanner(LIMITS), alone(WORLD), 0, 600)

    assert (start.action, start.server) == ("start", None)
    assert [d.action for _, d in told] == ["nothing"]
    assert "but no standby is free" in told[0][1].reason


def test_load_in_one_cell_is_told_not_split() -> None:
    """A person must look: another broker would not help."""
    lone = replace(WORLD, cells={"/3/1/0": 100.0})
    ((_, decision),) = looks(ScalingPlanner(LIMITS), alone(lone, B2), 0, 600)

    assert decision.action == "nothing"
    assert "all of it is in one cell" in decision.reason


def test_calm_area_is_joined_after_long_and_only_what_was_standby() -> None:
    """An administrator's split is his own to undo."""
    busy = AreaLoad("broker", "/3/1", B2, per_s=100.0, is_spare=True)
    calm = replace(busy, per_s=20.0)
    theirs = AreaLoad("broker", "/3/2", B3, per_s=0.0)
    planner = ScalingPlanner(LIMITS)
    world = replace(COOL, per_s=10.0)

    assert looks(planner, ScalingSituation((world, busy, theirs)), 0, 10) == []
    told = looks(planner, ScalingSituation((world, calm, theirs)), 10, 700)
    assert [(at, d.action, d.server) for at, d in told][:1] == [(610, "join", B2)]
    assert told[0][1].reason == "20.0 of 100.0 messages/s for 600 s"
    assert {d.server for _, d in told} == {B2}


def test_area_is_not_joined_to_one_that_could_not_bear_it() -> None:
    """Else it would be split again."""
    limits = replace(LIMITS, max_per_s=100.0)
    calm = AreaLoad("broker", "/3/1", B2, per_s=20.0, is_spare=True)
    peak = replace(calm, per_s=90.0)
    for world in (replace(COOL, per_s=70.0), replace(WORLD, per_s=1.0, age_s=4.5)):
        planner = ScalingPlanner(limits)
        looks(planner, ScalingSituation((world, peak)), 0, 2)

        assert looks(planner, ScalingSituation((world, calm)), 2, 2000) == []


def test_standby_that_was_started_is_stopped_when_it_has_long_been_idle() -> None:
    """What the command began it also ends."""
    situation = ScalingSituation((COOL,), {"broker": (B2, B3)}, frozenset({B3}))
    told = looks(ScalingPlanner(LIMITS), situation, 0, 601)

    assert [(d.action, d.server) for _, d in told] == [("stop", B3)]


def test_busy_gateway_gives_half_of_its_area_away() -> None:
    """Its clients find the closer one by themselves."""
    gateway = AreaLoad("gateway", "/3", B1, cpu=0.97, cells=CELLS)
    situation = ScalingSituation((gateway,), {"gateway": (B2,)})
    ((_, decision),) = looks(ScalingPlanner(LIMITS), situation, 0, 60)

    assert (decision.action, decision.kind, decision.server) == ("split", "gateway", B2)
    assert "CPU 97% busy for 30 s" in decision.reason


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 200)), max_size=300))
def test_planner_never_acts_twice_within_a_rest(
    loads: list[tuple[float, float]],
) -> None:
    """Whatever the load does."""
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
