from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.overlay_study.baselines import SkipGraph
from experiments.overlay_study.methods import TopicPattern
from experiments.overlay_study.network import (
    LoadScenario,
    SimulatedNetwork,
    measure_delays,
)
from gateway_daemon.overlay.forwarder import Forwarder
from gateway_daemon.overlay.keys import VECTOR_BITS
from gateway_daemon.overlay.messages import (
    CopyReceipt,
    DeliverMessage,
    MessageCopy,
    OverlayMessage,
    PriorityBacklog,
    PublicationDone,
    RangeReport,
    RankedNode,
    SendPacket,
)
from gateway_daemon.overlay.partition import (
    choose_plan,
    head_positions,
    second_tree_heads,
)
from gateway_daemon.overlay.peers import RoundTripTimes

LEARN = OverlayMessage("learn", 1)


def make_network(seed: int, pattern: TopicPattern) -> SimulatedNetwork:
    chance = Random(seed)
    return SimulatedNetwork(
        SkipGraph([chance.getrandbits(VECTOR_BITS) for _ in range(pattern.members)]),
        pattern,
    )


def publication_delays_ms(
    network: SimulatedNetwork, message: OverlayMessage, publisher: int
) -> list[float]:
    """Delivery delays of one publication, sorted, in ms."""
    start_s = network.now_s
    network.publish(publisher, message)
    network.run()
    return sorted(
        1000 * (at_s - start_s) for at_s in network.delivery_times(message.id).values()
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 200), st.integers(1, 5)
)
def test_every_subscriber_gets_a_message_once_and_the_publisher_learns_heads(
    seed: int, publishers: int, subscribers: int, priority: int
) -> None:
    """First by links alone, then by the heads that the reports named."""
    pattern = TopicPattern(publishers, subscribers)
    network = make_network(seed, pattern)
    publisher = Random(seed).randrange(publishers)
    subscriber_ranks = set(range(publishers, pattern.members))

    network.publish(publisher, LEARN)
    network.run()
    sent = network.copies
    network.publish(publisher, OverlayMessage("next", priority))
    network.run()

    assert (
        set(network.delivery_times("learn"))
        == set(network.delivery_times("next"))
        == subscriber_ranks
    )
    assert network.forwarder(publisher).subscriber_count == subscribers
    trees = 2 if priority == 5 and subscribers > 110 else 1
    assert network.copies - sent == pytest.approx(trees * subscribers, abs=2)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(2, 200),
    st.floats(0, 0.2),
    st.integers(1, 5),
)
def test_live_subscribers_are_reached_despite_crashes(
    seed: int, subscribers: int, share: float, priority: int
) -> None:
    """A range whose head does not answer is reassigned."""
    network = make_network(seed, TopicPattern(1, subscribers))
    network.publish(0, LEARN)
    network.run()
    dead = Random(seed).sample(range(1, subscribers + 1), int(share * subscribers))
    network.crash(dead)

    network.publish(0, OverlayMessage("urgent", priority))
    network.run()

    missed = (
        set(range(1, subscribers + 1))
        - set(dead)
        - set(network.delivery_times("urgent"))
    )
    assert len(missed) <= 0.01 * subscribers


def test_emergency_is_fast_with_a_tenth_of_the_nodes_crashed() -> None:
    """Two trees and retries reach all live nodes, 99 % of them within 60 ms."""
    for seed in range(3):
        network = make_network(seed, TopicPattern(1, 990))
        network.publish(0, LEARN)
        network.run()
        network.crash(Random(seed).sample(range(1, 991), 99))

        delays_ms = publication_delays_ms(network, OverlayMessage("urgent", 5), 0)

        assert len(delays_ms) == 891
        assert delays_ms[int(0.99 * 891)] <= 60.0


def test_second_tree_uses_other_heads_for_large_ranges() -> None:
    """A crashed head of one tree is a leaf of the other."""
    sizes = [40, 30, 20, 3, 1]

    assert set(second_tree_heads(sizes)) & set(head_positions(sizes)[:-1]) == set()
    assert second_tree_heads(sizes)[0] == 1


class NoNeighbours:
    """A node without links."""

    def right_neighbours(self) -> list[RankedNode[int]]:
        return []

    def left_neighbours(self) -> list[int]:
        return []


def test_duplicate_message_is_delivered_once() -> None:
    """By two trees, or again after a lost receipt; both copies are answered."""
    node = Forwarder(5, NoNeighbours())
    copies = [
        MessageCopy(n, OverlayMessage("m", 5), 5, 6, 1, tree)
        for n, tree in ((7, 0), (8, 1))
    ]

    first, second = [node.receive(0, copy, 0.0) for copy in copies]

    assert first == [
        DeliverMessage(OverlayMessage("m", 5)),
        SendPacket(0, RangeReport(7, 1, (RankedNode(5, 0),)), "m"),
    ]
    assert second == [SendPacket(0, RangeReport(8, 1, (RankedNode(5, 0),)), "m")]


def test_report_of_an_unknown_copy_changes_nothing() -> None:
    """The copy has been given up, or the gateway has restarted."""
    node = Forwarder(5, NoNeighbours())

    assert node.receive(9, RangeReport(3, 10, ()), 0.0) == []
    assert node.subscriber_count == 0
    assert node.next_due_s() is None


class OneNeighbour(NoNeighbours):
    """A node with a subscriber to the right."""

    def right_neighbours(self) -> list[RankedNode[int]]:
        return [RankedNode(20, 0)]


@pytest.mark.parametrize("number", [0, 4_000_000_000])
def test_only_the_receiver_of_a_copy_answers_it(number: int) -> None:
    """Another node may report a copy of before a restart, with the same number."""
    node = Forwarder(0, OneNeighbour(), numbers=count(number))
    node.publish(OverlayMessage("m", 4), 5, 99, 0.0)
    due_s = node.next_due_s()

    assert node.receive(10, CopyReceipt(number), 0.1) == []
    assert node.receive(10, RangeReport(number, 1, (RankedNode(10, 0),)), 0.1) == []
    assert node.next_due_s() == due_s
    (done,) = node.receive(20, RangeReport(number, 1, (RankedNode(20, 0),)), 0.2)
    assert isinstance(done, PublicationDone)


def test_only_the_receiver_of_a_late_copy_sets_its_round_trip() -> None:
    """As `test_only_the_receiver_of_a_copy_answers_it`, for one that was given up."""
    trips = RoundTripTimes[int]()
    node = Forwarder(0, OneNeighbour(), round_trips=trips)
    node.publish(OverlayMessage("m", 4), 5, 99, 0.0)
    node.on_timer(4.0)

    node.receive(10, CopyReceipt(0), 5.0)
    assert trips.mean_s is None
    node.receive(20, CopyReceipt(0), 6.0)
    assert trips.mean_s == 6.0


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), max_size=30))
def test_backlog_serves_by_priority_then_by_age(
    arrivals: list[tuple[int, float]],
) -> None:
    """Before any message is old enough to age."""
    backlog = PriorityBacklog[tuple[int, int]](ageing_s=100)
    arrivals.sort(key=lambda each: each[1])
    for number, (priority, at_s) in enumerate(arrivals):
        backlog.push((-priority, number), priority, at_s)

    served = [backlog.pop(2.0) for _ in arrivals]

    assert served == sorted(served)
    assert len(backlog) == 0


def test_backlog_ages_low_priorities_but_emergencies_stay_first() -> None:
    """Priority 1 overtakes fresh 3s after a while, and never a 5."""
    backlog = PriorityBacklog[str](ageing_s=1.0)
    backlog.push("old 1", 1, now_s=0.0)
    backlog.push("new 3", 3, now_s=9.0)
    backlog.push("new 5", 5, now_s=9.0)

    assert [backlog.pop(9.0) for _ in range(3)] == ["new 5", "old 1", "new 3"]


def test_priority_queues_keep_an_emergency_fast_under_load() -> None:
    """At 70 % of all brokers' time; in a FIFO queue it waits like all others."""
    small = {"brokers": 200, "topics": 20, "span_s": 0.5}
    queues = measure_delays(LoadScenario(0.7, "policy", **small))
    fifo = measure_delays(LoadScenario(0.7, "policy", is_fifo=True, **small))

    assert queues[5].p99_ms <= 30.0
    assert fifo[5].p99_ms > 2 * queues[5].p99_ms


def test_fan_out_shrinks_with_the_queue_except_for_emergencies() -> None:
    """A wide fan-out delays the messages that wait behind it."""
    assert [choose_plan(4, waiting).root_fan_out for waiting in (0, 1, 100)] == [
        46,
        23,
        8,
    ]
    assert choose_plan(1, 100) == choose_plan(1, 0)
    assert choose_plan(5, 100).root_fan_out == 110
