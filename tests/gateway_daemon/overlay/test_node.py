"""Whole gateways that join, leave, crash and part, in simulated time."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sizes import sizes

from experiments.overlay_study.churn import SimulatedGateways
from gateway_daemon.overlay.keys import OverlayKey, TopicRole

TOPIC = "/3/1/2/0/1"
seeds = st.integers(0, 2**32)


def name_of(number: int) -> str:
    """Ten valleys; every second gateway of one has the same place."""
    return f"/3/1/2/{number % 10}@h:{number + 1}!g{number}"


def grown(seed: int, size: int, *filters: str) -> SimulatedGateways:
    """Gateways that started one after the other, at rest."""
    made = SimulatedGateways(seed)
    for number in range(size):
        made.start(name_of(number), *filters or ("/3/1/#",))
        made.run(made.random.uniform(0.0, 0.5))
    made.run(20.0)
    return made


def publish(made: SimulatedGateways, name: str, id_: str, priority: int = 5) -> None:
    """Publish, and let it come to its end."""
    made.publish(name, TOPIC, id_, priority)
    made.run(10.0)


@settings(max_examples=30)
@given(seeds, st.floats(0.0, 3.0), st.permutations([0, 1]))
def test_an_emergency_is_heard_as_soon_as_two_have_met(
    seed: int, apart_s: float, order: list[int]
) -> None:
    """After a power cut both begin a ring of their own, and the rings become one."""
    made = SimulatedGateways(seed)
    first, last = (name_of(number) for number in order)
    listens = {name_of(1): ("/3/1/#",)}
    made.start(first, *listens.get(first, ()))
    made.run(apart_s)
    made.start(last, *listens.get(last, ()))
    made.nodes[first].add_peer(last, made.now_s)
    # While two rings merge, a gateway may be in neither: it reports an incomplete
    # publication, which its owner repeats.
    while (len(made.joined_keys()) < 3 or not made.is_consistent()) and made.now_s < 60:
        made.run(0.05)
    made.publish(name_of(0), TOPIC, "m", 5)
    made.run(0.5)

    assert made.received[name_of(1)] == ["m"]


@settings(max_examples=4)
@given(seeds, st.integers(2, 14), st.integers(1, 5))
def test_every_gateway_hears_a_message_once(
    seed: int, size: int, priority: int
) -> None:
    """Also those whose filters are wide, narrow or full of wildcards."""
    made = grown(seed, size)
    filters = ("/3/1/#", "/#", "/3/1/2/0/1", "/3/+/2/0/#", "/4/#")
    for number in range(size):
        made.set_filters(name_of(number), filters[number % 5])
    made.run(10.0)
    publish(made, name_of(0), "first", priority)
    publish(made, name_of(0), "second", priority)

    assert made.is_consistent()
    for number in range(size):
        wanted = [] if number % 5 == 4 else ["first", "second"]
        assert made.received[name_of(number)] == wanted
    assert all(each.is_complete for each in made.results)


def test_upper_levels_are_joined() -> None:
    """A way of logarithmic length leads to every place."""
    made = grown(1, 20)
    made.run(60.0)
    homes = [
        OverlayKey("", TopicRole.PUBLISHER, name_of(number)) for number in range(20)
    ]
    reach = [len(made.nodes[home.gateway].links_of(home)) for home in homes]

    assert min(reach) >= 4


def test_a_publisher_pauses_while_nobody_subscribes_and_resumes() -> None:
    """No copy leaves it; an emergency is sent all the same."""
    made = grown(2, 6, "/5/#")
    publish(made, name_of(0), "learn", 1)
    for number in range(6):
        made.set_filters(name_of(number))
    made.run(10.0)
    before = made.copies
    publish(made, name_of(0), "nobody", 4)
    assert (made.copies, made.results[-1].reached) == (before, 0)

    made.set_filters(name_of(3), "/3/1/#")
    made.run(10.0)
    publish(made, name_of(0), "somebody", 4)

    assert made.received[name_of(3)] == ["somebody"]


@settings(max_examples=4)
@given(seeds, st.integers(6, 14), st.integers(1, 3))
def test_a_publisher_is_told_when_somebody_had_to_be_given_up(
    seed: int, size: int, crashed: int
) -> None:
    """So it keeps the message, and after the repair everybody has it once."""
    made = grown(seed, size)
    publish(made, name_of(0), "learn")
    for number in made.random.sample(range(1, size), crashed):
        made.crash(name_of(number))
    made.publish(name_of(0), TOPIC, "warning", 5)
    made.run(30.0)
    while not made.results[-1].is_complete:
        made.publish(name_of(0), TOPIC, "warning", 5)
        made.run(10.0)

    assert made.is_consistent()
    assert all(made.received[name].count("warning") == 1 for name in made.nodes)


def test_alone_a_message_is_not_said_to_have_been_sent() -> None:
    """Who publishes by the overlay alone keeps it until there is somebody."""
    made = SimulatedGateways(0)
    made.start(name_of(0), "/3/#")
    publish(made, name_of(0), "m")

    assert made.received[name_of(0)] == ["m"]
    assert [(each.reached, each.is_complete) for each in made.results] == [(0, False)]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_cut_makes_two_overlays_and_its_end_one(seed: int) -> None:
    """Each side hears its own while the backbone is cut."""
    made = grown(seed, 10)
    made.partitioned = {name_of(number) for number in range(4)}
    made.run(60.0)
    publish(made, name_of(0), "inside")
    assert made.is_consistent(made.partitioned)
    assert all(made.received[name].count("inside") == 1 for name in made.partitioned)
    assert not any(
        "inside" in heard
        for name, heard in made.received.items()
        if name not in made.partitioned
    )

    made.partitioned = set()
    made.run(60.0)
    publish(made, name_of(0), "outside")

    assert made.is_consistent()
    assert all(heard.count("outside") == 1 for heard in made.received.values())


class Churn(RuleBasedStateMachine):
    """Gateways join, leave, crash and come back at any moment, in any order."""

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.made = SimulatedGateways(seed)
        self.going: set[str] = set()
        self.made.start(name_of(0), "/3/1/#")
        self.made.run(5.0)

    def others(self) -> list[str]:
        return [n for n in self.made.nodes if n != name_of(0) and n not in self.going]

    @rule(number=st.integers(1, 12), is_wide=st.booleans())
    def join(self, number: int, is_wide: bool) -> None:
        if name_of(number) not in self.made.nodes:
            self.made.start(name_of(number), "/#" if is_wide else "/3/1/2/0/#")

    @precondition(lambda self: self.others())
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.made.crash(data.draw(st.sampled_from(self.others())))

    @precondition(lambda self: self.others())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.others()))
        self.made.leave(name)
        self.going.add(name)

    @precondition(lambda self: self.others())
    @rule(data=st.data(), filters=st.sets(st.sampled_from(["/3/#", "/4/1/2/3/#"])))
    def listen(self, data: st.DataObject, filters: set[str]) -> None:
        self.made.set_filters(data.draw(st.sampled_from(self.others())), *filters)

    @rule(for_s=st.floats(0.0, 3.0))
    def wait(self, for_s: float) -> None:
        self.made.run(for_s)

    @invariant()
    def nobody_hears_a_message_twice(self) -> None:
        if hasattr(self, "made"):
            for heard in self.made.received.values():
                assert len(heard) == len(set(heard))

    def teardown(self) -> None:
        """When all is quiet again, level 0 is one sorted ring of all keys."""
        if not hasattr(self, "made"):
            return
        self.made.run(120.0)
        for name in self.going & self.made.nodes.keys():
            assert not self.made.nodes[name].joined_keys()
            self.made.crash(name)
        publish(self.made, name_of(0), "last")
        assert self.made.is_consistent()
        homes = {key.gateway for key in self.made.joined_keys() if not key.topic}
        assert homes == set(self.made.nodes)
        assert self.made.results[-1].is_complete == (len(homes) > 1)


@pytest.mark.parametrize("examples", sizes(4, 40))
def test_churn_ends_in_a_sorted_and_complete_ring(examples: int) -> None:
    """Gateways join, leave, crash and come back in any order."""
    run_state_machine_as_test(
        Churn,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=[HealthCheck.too_slow],
            deadline=None,
        ),
    )
