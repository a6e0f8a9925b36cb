"""Gateways that join, leave, crash and are partitioned, in simulated time."""

import math

import msgspec
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
from gateway_daemon.overlay.gateway_node import OverlayNode
from gateway_daemon.overlay.keys import (
    OverlayError,
    OverlayKey,
    TopicRole,
    subscriber_range,
)
from gateway_daemon.overlay.messages import (
    CarriedMessage,
    MessageCopy,
    OverlayMessage,
    RangeReport,
    decode_carried,
)
from spatial_mqtt.batching import MAX_AGE_S

TOPIC = "/3/1/2/0/1"
seeds = st.integers(0, 2**32)


def name_of(number: int) -> str:
    """Ten valleys; gateways whose numbers differ by ten share a place."""
    return f"/3/1/2/{number % 10}@h:{number + 1}!g{number}"


def started_gateways(seed: int, size: int, *filters: str) -> SimulatedGateways:
    """Gateways that started one after the other, with all joins finished."""
    gateways = SimulatedGateways(seed)
    for number in range(size):
        gateways.start(name_of(number), *filters or ("/3/1/#",))
        gateways.run(gateways.random.uniform(0.0, 0.5))
    gateways.run(20.0)
    return gateways


def publish(
    gateways: SimulatedGateways, name: str, id_: str, priority: int = 5
) -> None:
    """Publish and run until the publication has ended."""
    gateways.publish(name, TOPIC, id_, priority)
    gateways.run(10.0)


@settings(max_examples=30)
@given(seeds, st.floats(0.0, 3.0), st.permutations([0, 1]))
def test_emergency_is_received_as_soon_as_two_gateways_have_met(
    seed: int, apart_s: float, order: list[int]
) -> None:
    """After a power cut both found a ring of their own, and the rings merge."""
    gateways = SimulatedGateways(seed)
    first, last = (name_of(number) for number in order)
    listens = {name_of(1): ("/3/1/#",)}
    gateways.start(first, *listens.get(first, ()))
    gateways.run(apart_s)
    gateways.start(last, *listens.get(last, ()))
    gateways.nodes[first].add_peer(last, gateways.now_s)
    # While two rings merge, a gateway may be in neither: it reports an incomplete
    # publication, which its owner repeats.
    while (
        len(gateways.joined_keys()) < 3 or not gateways.is_consistent()
    ) and gateways.now_s < 60:
        gateways.run(0.05)
    gateways.publish(name_of(0), TOPIC, "m", 5)
    gateways.run(0.5)

    assert gateways.received[name_of(1)] == ["m"]


@settings(max_examples=4)
@given(seeds, st.integers(2, 14), st.integers(1, 5))
def test_every_gateway_receives_a_message_once(
    seed: int, size: int, priority: int
) -> None:
    """Filters may be wide, narrow or full of wildcards."""
    gateways = started_gateways(seed, size)
    filters = ("/3/1/#", "/#", "/3/1/2/0/1", "/3/+/2/0/#", "/4/#")
    for number in range(size):
        gateways.set_filters(name_of(number), filters[number % 5])
    gateways.run(10.0)
    publish(gateways, name_of(0), "first", priority)
    publish(gateways, name_of(0), "second", priority)

    assert gateways.is_consistent()
    for number in range(size):
        wanted = [] if number % 5 == 4 else ["first", "second"]
        assert gateways.received[name_of(number)] == wanted
    assert all(each.is_complete for each in gateways.results)


@pytest.mark.long
def test_upper_levels_are_joined() -> None:
    """Every node is reachable in a logarithmic number of hops."""
    gateways = started_gateways(1, 20)
    gateways.run(60.0)
    homes = [
        OverlayKey("", TopicRole.PUBLISHER, name_of(number)) for number in range(20)
    ]
    reach = [len(gateways.nodes[home.gateway].links_of(home)) for home in homes]

    assert min(reach) >= 4


def test_publisher_keys_join_one_after_the_other() -> None:
    """When the brokers are lost, joins in all areas at once would fill the link."""
    gateways = started_gateways(1, 3)
    name = name_of(0)
    for number in range(8):
        topic = f"/3/1/2/{number % 4}/{number // 4}/0/0/0/1"
        gateways.publish(name, topic, f"m{number}", 4)
    gateways.run(0.2)
    joined_at_first = gateways.nodes[name].joined_keys()
    gateways.run(20.0)

    assert len(joined_at_first) <= 3  # home, subscriber and the first publisher key
    assert len(gateways.nodes[name].joined_keys()) == 2 + 1 + 4 + 8
    assert sorted(gateways.received[name_of(1)]) == [f"m{n}" for n in range(8)]


def test_key_that_has_just_joined_reaches_all_subscribers_in_a_few_hops() -> None:
    """It has no upper levels yet: along level 0 each publisher would be a hop."""
    gateways = started_gateways(1, 16)
    for number in range(16):
        gateways.publish(name_of(number), TOPIC, f"first-{number}", 4)
    gateways.run(0.6)
    gateways.publish(name_of(0), TOPIC, "alarm", 5)
    gateways.run(0.3)

    assert all("alarm" in ids for ids in gateways.received.values())


def test_publisher_pauses_without_subscribers_and_resumes() -> None:
    """It sends no copy meanwhile."""
    gateways = started_gateways(2, 6, "/5/#")
    publish(gateways, name_of(0), "learn", 1)
    for number in range(6):
        gateways.set_filters(name_of(number))
    gateways.run(10.0)
    before = gateways.copies
    publish(gateways, name_of(0), "nobody", 4)
    assert (gateways.copies, gateways.results[-1].reached) == (before, 0)

    gateways.set_filters(name_of(3), "/3/1/#")
    gateways.run(10.0)
    publish(gateways, name_of(0), "somebody", 4)

    assert gateways.received[name_of(3)] == ["somebody"]


@pytest.mark.parametrize("seed", [pytest.param(2, marks=pytest.mark.long), 3])
def test_publishers_resume_although_the_notice_of_a_subscriber_is_lost(
    seed: int,
) -> None:
    """A gateway between them is out of reach while the first subscriber joins."""
    gateways = started_gateways(seed, 6, "/5/#")
    for number in range(6):
        publish(gateways, name_of(number), f"learn {number}", 1)
        gateways.set_filters(name_of(number))
    gateways.run(10.0)
    away = name_of(gateways.random.choice((1, 2, 4)))
    gateways.partitioned.add(away)
    gateways.set_filters(name_of(3), "/3/1/#")
    gateways.run(0.4)
    gateways.partitioned.clear()
    gateways.run(20.0)
    for number in range(6):
        publish(gateways, name_of(number), f"alarm {number}", 4)

    alarms = {f"alarm {number}" for number in range(6)}
    assert alarms <= {*gateways.received[name_of(3)]}


@pytest.mark.long
@settings(max_examples=4)
@given(seeds, st.integers(6, 14), st.integers(1, 3))
def test_publisher_learns_that_a_subscriber_was_given_up(
    seed: int, size: int, crashed: int
) -> None:
    """It keeps the message, and after the repair every gateway has it once."""
    gateways = started_gateways(seed, size)
    publish(gateways, name_of(0), "learn")
    for number in gateways.random.sample(range(1, size), crashed):
        gateways.crash(name_of(number))
    gateways.publish(name_of(0), TOPIC, "warning", 5)
    gateways.run(30.0)
    while not gateways.results[-1].is_complete:
        gateways.publish(name_of(0), TOPIC, "warning", 5)
        gateways.run(10.0)

    assert gateways.is_consistent()
    assert all(gateways.received[name].count("warning") == 1 for name in gateways.nodes)


@pytest.mark.parametrize("number", range(1, 6))
def test_gateway_that_missed_a_copy_is_served_after_its_next_ping(number: int) -> None:
    """It is still suspected by others, which pings do not reach."""
    gateways = started_gateways(0, 6)
    publish(gateways, name_of(0), "learn", 4)
    gateways.partitioned = {name_of(number)}
    gateways.publish(name_of(0), TOPIC, "early", 4)
    gateways.run(0.5)
    gateways.partitioned = set()
    gateways.run(1.8)

    publish(gateways, name_of(0), "late", 4)

    assert all("late" in ids for ids in gateways.received.values())
    assert gateways.results[-1].is_complete


@pytest.mark.parametrize("is_one_way", [True, False])
@pytest.mark.parametrize("size", [3, 6])
@pytest.mark.parametrize("ends", [(0, 1), (0, 2), (1, 2), (2, 1)])
def test_broken_link_hides_no_gateway(
    ends: tuple[int, int], size: int, is_one_way: bool
) -> None:
    """While the nodes next to it repair the ring, again and again."""
    gateways = started_gateways(1, size)
    link = (name_of(ends[0]), name_of(ends[1]))
    gateways.broken_links = {link} if is_one_way else {link, link[::-1]}
    wanted = [f"m{number}" for number in range(10)]

    for id_ in wanted:
        publish(gateways, name_of(0), id_)

    missed = {
        name: [id_ for id_ in wanted if id_ not in ids]
        for name, ids in gateways.received.items()
    }
    assert not any(missed.values()), missed
    assert all(len(ids) == len(wanted) for ids in gateways.received.values())


@pytest.mark.parametrize("is_restart", [True, False])
@pytest.mark.parametrize("number", [1, 4, 6])
def test_gateway_that_is_joining_or_leaving_takes_no_range(
    number: int, is_restart: bool
) -> None:
    """Others still send it copies, but it no longer knows its neighbours."""
    gateways = started_gateways(0, 10)
    publish(gateways, name_of(0), "learn", 4)
    if is_restart:
        gateways.crash(name_of(number))
        gateways.start(name_of(number), "/3/1/#")
    else:
        gateways.set_filters(name_of(number))
    gateways.run(0.02)

    publish(gateways, name_of(0), "m", 4)
    while not gateways.results[-1].is_complete:
        publish(gateways, name_of(0), "m", 4)

    counts = [gateways.received[name_of(n)].count("m") for n in range(10)]
    assert counts == [is_restart or n != number for n in range(10)]


@settings(max_examples=10)
@given(seeds, st.integers(2, 10), st.integers(1, 5), st.data())
def test_gateway_that_cannot_store_acknowledges_nothing(
    seed: int, size: int, priority: int, data: st.DataObject
) -> None:
    """The publisher learns it, whatever other gateways and keys are on the way.

    All others have the message meanwhile, and a gateway has it when it has space again.
    """
    gateways = started_gateways(seed, size, "/3/1/#", "/#", "/3/+/2/0/#")
    publish(gateways, name_of(0), "learn")
    names = st.sampled_from([name_of(number) for number in range(size)])
    gateways.full = data.draw(st.sets(names, min_size=1))
    for _ in range(2):
        publish(gateways, name_of(0), "m", priority)
        assert not gateways.results[-1].is_complete
    for name, ids in gateways.received.items():
        assert ids.count("m") == (name not in gateways.full)

    gateways.full = set()
    publish(gateways, name_of(0), "m", priority)

    assert gateways.results[-1].is_complete
    assert all(ids.count("m") == 1 for ids in gateways.received.values())


@pytest.mark.parametrize(
    ("filter_", "topic"),
    [("test/#", "test/x"), ("/3/1/2/0/", "/3/1/2/0/"), ("/3//1/2/+", "/3//1/2/0")],
)
def test_filter_outside_all_areas_is_served(filter_: str, topic: str) -> None:
    """Any client may subscribe to it."""
    gateways = started_gateways(6, 3, filter_)
    gateways.publish(name_of(0), topic, "m", 5)
    gateways.run(10.0)

    assert all(ids == ["m"] for ids in gateways.received.values())


@pytest.mark.parametrize(
    ("topic", "age_s"),
    [("/1", math.nan), ("/1", -1.0), ("/1/#", 0.0), ("/a" * 201, 0.0), ("/\x01", 0.0)],
    ids=repr,
)
def test_message_that_cannot_be_stored_or_published_is_refused(
    topic: str, age_s: float
) -> None:
    """It would end the gateway, or its own broker's connection again and again."""
    payload = msgspec.msgpack.encode(CarriedMessage(topic, b"", age_s))
    with pytest.raises(OverlayError, match=r"^(message|age) must be"):
        decode_carried(OverlayMessage("m", 5, payload))


def test_age_of_a_message_is_bounded() -> None:
    """An infinite one cannot be stored."""
    payload = msgspec.msgpack.encode(CarriedMessage("/1", b"", math.inf))

    assert decode_carried(OverlayMessage("m", 5, payload)).age_s == MAX_AGE_S


@pytest.mark.parametrize("topic", ["/custody/node-1", "/notice/3", "/drill/3"])
def test_forged_receipt_or_notice_is_not_delivered(topic: str) -> None:
    """Gateways may write these at their brokers; a client subscribes to everything."""
    gateways = started_gateways(5, 3, "/+/+", "/#")
    gateways.publish(name_of(0), topic, "forged", 5)
    gateways.run(10.0)
    publish(gateways, name_of(0), "genuine")

    assert all(ids == ["genuine"] for ids in gateways.received.values())


def test_publication_without_peers_is_not_complete() -> None:
    """A gateway that routes by overlay alone keeps the message until it has peers."""
    gateways = SimulatedGateways(0)
    gateways.start(name_of(0), "/3/#")
    publish(gateways, name_of(0), "m")

    assert gateways.received[name_of(0)] == ["m"]
    assert [(each.reached, each.is_complete) for each in gateways.results] == [
        (0, False)
    ]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_partition_makes_two_overlays_and_its_end_merges_them(seed: int) -> None:
    """Each side receives its own messages while the backbone is cut."""
    gateways = started_gateways(seed, 10)
    gateways.partitioned = {name_of(number) for number in range(4)}
    gateways.run(60.0)
    publish(gateways, name_of(0), "inside")
    assert gateways.is_consistent(gateways.partitioned)
    assert all(
        gateways.received[name].count("inside") == 1 for name in gateways.partitioned
    )
    assert not any(
        "inside" in ids
        for name, ids in gateways.received.items()
        if name not in gateways.partitioned
    )

    gateways.partitioned = set()
    gateways.run(60.0)
    publish(gateways, name_of(0), "outside")

    assert gateways.is_consistent()
    assert all(ids.count("outside") == 1 for ids in gateways.received.values())


def test_late_answer_to_a_search_does_not_undo_a_leave() -> None:
    """It left level 0 while it still waited for the others, and was located again."""
    gateways = SimulatedGateways(1_635_085_739)
    gateways.start(name_of(0), "/3/1/#")
    gateways.run(5.0)
    for number in (7, 8):
        gateways.start(name_of(number), "/#")
    gateways.run(1.3)
    gateways.start(name_of(5), "/3/1/2/0/#")
    gateways.run(3.0)
    gateways.leave(name_of(7))
    gateways.run(30.0)

    assert gateways.nodes[name_of(7)].joined_keys() == []


def test_copy_waits_until_its_key_has_joined() -> None:
    """Others find the key of a first publication in an area before it has joined."""
    gateways = SimulatedGateways(17)
    gateways.start(name_of(0), "/3/1/#")
    gateways.run(5.0)
    gateways.start(name_of(7), "/#")
    gateways.run(60.0)
    publish(gateways, name_of(0), "first")

    assert gateways.results[-1].is_complete


def test_gateway_that_is_alone_reports_no_range_that_waited() -> None:
    """It found no peer, and would report as covered what it knows nothing about."""
    payload = msgspec.msgpack.encode(CarriedMessage(TOPIC, b"ground moves"))
    low, high = subscriber_range(TOPIC)
    copy = MessageCopy(1, OverlayMessage("m", 4, payload), low, high, 0)
    node = OverlayNode(name_of(1), lambda keys: keys[0])
    node.start(0.0)
    sender = OverlayKey("", TopicRole.PUBLISHER, name_of(2))
    node.receive(node.home, sender, copy, 0.1)
    node.on_timer(60.0)

    assert node.joined_keys() == [node.home]
    sent = [type(each.packet) for each in node.pop_outbox().packets]
    assert RangeReport not in sent


class Churn(RuleBasedStateMachine):
    """Gateways join, leave, crash and come back at any moment, in any order."""

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.gateways = SimulatedGateways(seed)
        self.going: set[str] = set()
        self.gateways.start(name_of(0), "/3/1/#")
        self.gateways.run(5.0)

    def others(self) -> list[str]:
        return [
            n for n in self.gateways.nodes if n != name_of(0) and n not in self.going
        ]

    @rule(number=st.integers(1, 12), is_wide=st.booleans())
    def join(self, number: int, is_wide: bool) -> None:
        if name_of(number) not in self.gateways.nodes:
            self.gateways.start(name_of(number), "/#" if is_wide else "/3/1/2/0/#")

    @precondition(lambda self: self.others())
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.gateways.crash(data.draw(st.sampled_from(self.others())))

    @precondition(lambda self: self.others())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.others()))
        self.gateways.leave(name)
        self.going.add(name)

    @precondition(lambda self: self.others())
    @rule(data=st.data(), filters=st.sets(st.sampled_from(["/3/#", "/4/1/2/3/#"])))
    def listen(self, data: st.DataObject, filters: set[str]) -> None:
        self.gateways.set_filters(data.draw(st.sampled_from(self.others())), *filters)

    @rule(for_s=st.floats(0.0, 3.0))
    def wait(self, for_s: float) -> None:
        self.gateways.run(for_s)

    @invariant()
    def no_gateway_receives_a_message_twice(self) -> None:
        if hasattr(self, "gateways"):
            for ids in self.gateways.received.values():
                assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        """After all churn level 0 is one sorted ring of all keys."""
        if not hasattr(self, "gateways"):
            return
        self.gateways.run(120.0)
        for name in self.going & self.gateways.nodes.keys():
            assert not self.gateways.nodes[name].joined_keys()
            self.gateways.crash(name)
        publish(self.gateways, name_of(0), "last")
        assert self.gateways.is_consistent()
        homes = {key.gateway for key in self.gateways.joined_keys() if not key.topic}
        assert homes == set(self.gateways.nodes)
        assert self.gateways.results[-1].is_complete == (len(homes) > 1)


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
