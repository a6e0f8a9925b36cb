from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.overlay_study.churn import SimulatedRing
from gateway_daemon.overlay.ddll import (
    DEFAULT_PING_TIMES,
    LinkSend,
    RingLink,
    is_between,
)
from gateway_daemon.overlay.messages import (
    LinkChange,
    LinkSequence,
    LinkStatus,
    NeighbourReply,
    SetLeft,
    SetRight,
    SetRightReply,
)

seeds = st.integers(0, 2**32)


def joined_ring(seed: int, size: int) -> SimulatedRing:
    """A ring of `size` nodes that joined one after the other."""
    ring = SimulatedRing(seed)
    keys = Random(seed).sample(range(1000), size)
    ring.join(keys[0])
    for key in keys[1:]:
        ring.join(key, near=keys[0])
    ring.run(60.0)
    assert ring.joined_keys() == sorted(keys)
    assert ring.is_consistent()
    return ring


def test_join_takes_three_messages_and_no_lock() -> None:
    """The left neighbour accepts the new node and sends SetLeft to the right one."""
    left, new, right = RingLink(1), RingLink(5), RingLink(9)
    left.found_ring(0.0)
    for link, near in ((right, 1), (new, 1)):
        answer = NeighbourReply(LinkStatus.IN, left.right, LinkSequence(), (1,))
        link.join(near, 0.0)
        (request,) = link.receive(1, answer, 0.0)
        reply, set_left = left.receive(link.key, request.packet, 0.0)
        link.receive(1, reply.packet, 0.0)
        {1: left, 9: right}[set_left.to].receive(1, set_left.packet, 0.0)

    assert (left.right, new.right, right.right) == (5, 9, 1)
    assert (left.left, new.left, right.left) == (9, 1, 5)


def test_second_of_two_joins_at_one_position_is_refused() -> None:
    """The refusal names the current right neighbour, where the node retries."""
    left = RingLink(1)
    left.found_ring(0.0)
    left.receive(5, SetRight(LinkChange.INSERT, 5, 1, LinkSequence()), 0.0)

    (answer,) = left.receive(7, SetRight(LinkChange.INSERT, 7, 1, LinkSequence()), 0.0)

    assert answer.to == 7
    assert isinstance(answer.packet, NeighbourReply)
    assert (answer.packet.refused, answer.packet.right) == (True, 5)


def test_late_message_of_an_earlier_repair_changes_nothing() -> None:
    """Each repair raises the first number of the sequence."""
    link = RingLink(5)
    link.found_ring(0.0)
    link.receive(3, SetLeft(LinkSequence(1, 0), (3, 1)), 0.0)
    link.receive(4, SetLeft(LinkSequence(0, 9), (4, 3)), 0.0)

    assert link.left == 3


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 40))
def test_simultaneous_joins_end_in_one_sorted_ring(seed: int, size: int) -> None:
    """All nodes join through the same node at once, over links that reorder."""
    joined_ring(seed, size)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(2, 25), st.integers(1, 25))
def test_right_links_stay_correct_without_crashes(
    seed: int, size: int, joining: int
) -> None:
    """At any moment a walk along the right links visits every joined node."""
    ring = joined_ring(seed, size)
    keys = ring.joined_keys()
    for key in Random(seed + 1).sample(range(1000, 2000), joining):
        ring.join(key - 1000 if key - 1000 not in ring.links else key, near=keys[0])

    for _ in range(100):
        ring.run(0.01)
        assert set(ring.joined_keys()) <= set(ring.walk(keys[0]))
    ring.run(60.0)
    assert ring.is_consistent()
    assert len(ring.joined_keys()) == size + joining


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 25), st.integers(0, 1000))
def test_lone_node_joins_a_ring_without_disconnecting_any_node(
    seed: int, size: int, key: int
) -> None:
    """Each side founded its own ring because it knew no peer; then they meet."""
    ring = joined_ring(seed, size)
    keys = ring.joined_keys()
    if key not in keys:
        ring.join(key)

    for _ in range(600):
        ring.run(0.1)
        assert set(keys) <= set(ring.walk(keys[0]))
    assert ring.joined_keys() == sorted({*keys, key})
    assert ring.is_consistent()


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(3, 40), st.floats(0.0, 0.9))
def test_orderly_leaves_keep_the_ring_consistent(
    seed: int, size: int, share: float
) -> None:
    """Neighbours that leave at the same time wait for each other."""
    ring = joined_ring(seed, size)
    going = Random(seed).sample(ring.joined_keys(), int(share * size))
    for key in going:
        ring.leave(key)
    ring.run(120.0)

    assert all(ring.links[key].status is LinkStatus.OUT for key in going)
    assert len(ring.joined_keys()) == size - len(going)
    assert ring.is_consistent()


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(3, 40), st.floats(0.0, 0.6))
def test_ring_recovers_after_crashes(seed: int, size: int, share: float) -> None:
    """Also when more than four neighbours in a row have crashed."""
    ring = joined_ring(seed, size)
    for key in Random(seed).sample(ring.joined_keys(), int(share * size)):
        ring.crash(key)
    ring.run(400.0)

    assert len(ring.joined_keys()) == size - int(share * size)
    assert ring.is_consistent()


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_ring_recovers_after_mixed_churn(seed: int) -> None:
    """Joins, leaves and crashes at any moment; the same keys come back."""
    chance = Random(seed)
    ring = joined_ring(seed, 20)
    anchor = ring.joined_keys()[0]
    for _ in range(60):
        ring.run(chance.uniform(0.0, 1.0))
        others = [key for key in ring.joined_keys() if key != anchor]
        match chance.choice(("join", "leave", "crash")):
            case "join":
                key = chance.randrange(1000)
                if key not in ring.links:
                    ring.join(key, near=anchor)
            case "leave" if others:
                ring.leave(chance.choice(others))
            case "crash" if others:
                ring.crash(chance.choice(others))
    ring.run(600.0)

    assert all(
        link.status in {LinkStatus.IN, LinkStatus.OUT} for link in ring.links.values()
    )
    assert ring.is_consistent()


@settings(max_examples=8, deadline=None)
@given(seeds, st.integers(4, 30), st.floats(0.1, 0.9))
def test_partition_makes_two_rings_and_its_end_merges_them(
    seed: int, size: int, share: float
) -> None:
    """Each side works on its own while the backbone is cut."""
    ring = joined_ring(seed, size)
    keys = ring.joined_keys()
    ring.partitioned = set(Random(seed).sample(keys, max(1, int(share * size))))
    ring.run(300.0)
    assert ring.is_consistent(ring.partitioned)
    assert ring.is_consistent(set(keys) - ring.partitioned)

    ring.partitioned = set()
    ring.run(400.0)

    assert ring.is_consistent()
    assert ring.joined_keys() == keys


def test_idle_ring_sends_few_packets() -> None:
    """Each node pings its left neighbour and now and then another node."""
    ring = joined_ring(1, 10)
    before = ring.packets
    ring.run(10.0)

    assert ring.packets - before <= 1.3 * 2 * 10 * 10


def test_is_between_wraps_around_the_ring() -> None:
    """The last key's right neighbour is the first."""
    assert is_between(1, 5, 9)
    assert is_between(9, 10, 1)
    assert is_between(9, 0, 1)
    assert not is_between(9, 5, 1)


def test_lone_node_leaves_at_once() -> None:
    """There is no neighbour to notify."""
    link = RingLink(1)
    link.found_ring(0.0)

    assert link.leave(0.0) == []
    assert link.status is LinkStatus.OUT
    assert LinkSend(3, SetRightReply(LinkSequence(), (1,))) not in link.on_timer(99.0)


def test_late_answer_to_a_repair_starts_no_timer_after_a_leave() -> None:
    """A timer that is due for ever would keep the gateway's processor busy."""
    link, answer = RingLink(5), SetRightReply(LinkSequence(1, 0), (3, 1))
    link.found_ring(0.0)
    link.receive(3, SetLeft(LinkSequence(0, 1), (3, 1)), 0.0)
    query = NeighbourReply(LinkStatus.IN, 9, LinkSequence(), (3, 1))
    repair: list[LinkSend[int]] = []
    for now_s in (10.0, 20.0):
        assert link.on_timer(now_s)
        repair = link.receive(3, query, now_s)
    assert [type(each.packet) for each in repair] == [SetRight]

    link.leave(100.0)
    link.receive(3, answer, 100.1)
    assert link.status is LinkStatus.OUT
    link.receive(3, answer, 100.2)
    assert link.next_due_s() is None


def test_node_that_a_repair_skips_is_known_for_two_rounds_of_pings() -> None:
    """It may live, and only the link between it and the repairing node be broken."""
    left = RingLink(1, DEFAULT_PING_TIMES)
    left.found_ring(0.0)
    left.receive(5, SetRight(LinkChange.INSERT, 5, 1, LinkSequence()), 0.0)
    left.receive(9, SetRight(LinkChange.REPAIR, 9, 5, LinkSequence(1)), 0.0)
    assert (left.right, left.skipped) == (9, 5)

    left.on_timer(DEFAULT_PING_TIMES.ping_interval_s)
    assert left.skipped == 5
    left.on_timer(2 * DEFAULT_PING_TIMES.ping_interval_s)
    assert left.skipped is None
