"""Peer liveness during a partition: which peers are silent, and when they return."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.overlay_study.churn import SimulatedGateways
from gateway_daemon.overlay import peers
from gateway_daemon.overlay.peers import (
    CYCLE_ROUNDS,
    FORGET_AFTER_S,
    MAX_PINGED,
    PeerTable,
)

ROUND_S, ANSWER_S = 10.0, 4.0


def pinged_names(table: PeerTable, rounds: range) -> list[str]:
    return [name for round_ in rounds for name in table.next_to_ping(round_ * ROUND_S)]


@given(st.integers(1, 2 * MAX_PINGED * CYCLE_ROUNDS))
def test_all_peers_are_pinged_within_a_cycle_and_few_at_once(count: int) -> None:
    """Pings never cause a storm of connections."""
    table = PeerTable("me", ANSWER_S)
    for number in range(count):
        table.add(f"g{number}")
    rounds = max(CYCLE_ROUNDS, -(-count // MAX_PINGED))

    assert {*pinged_names(table, range(rounds))} == {f"g{n}" for n in range(count)}
    assert len(table.next_to_ping(rounds * ROUND_S)) <= MAX_PINGED


def test_peer_without_answer_is_silent_and_its_return_is_counted() -> None:
    """Only peers that were pinged and did not answer in time are silent."""
    table = PeerTable("me", ANSWER_S)
    table.mark_alive("a", 0.0)
    table.mark_alive("b", 0.0)
    assert table.next_to_ping(10.0) == ["a"]
    table.next_to_ping(12.0)
    assert table.summary().silent == ()
    table.next_to_ping(20.0)
    assert table.summary().silent == ("a", "b")
    table.mark_alive("b", 21.0)

    assert table.summary() == peers.PeerSummary(2, ("a",), 1)
    assert str(table.summary()) == "1 of 2 others do not answer"
    table.mark_alive("a", 22.0)
    assert str(table.summary()) == "all 2 others answer"


def test_peer_silent_for_a_day_is_forgotten() -> None:
    """A gateway that was removed does not raise an alarm forever."""
    table = PeerTable("me", ANSWER_S)
    table.add("gone")
    table.next_to_ping(0.0)
    table.next_to_ping(FORGET_AFTER_S)
    assert table.names() == ["gone"]
    table.next_to_ping(FORGET_AFTER_S + ROUND_S)

    assert table.names() == []


def test_own_name_is_not_pinged() -> None:
    """The own broker delivers the gateway's own name as well."""
    table = PeerTable("me", ANSWER_S)
    table.mark_alive("me", 0.0)

    assert not table.add("me")
    assert table.next_to_ping(10.0) == []


@pytest.mark.parametrize("seed", range(2))
def test_each_side_of_a_partition_misses_exactly_the_other_side(seed: int) -> None:
    """After the partition all peers answer again."""
    gateways = SimulatedGateways(seed)
    names = [f"/3/1/2/{n}@h:{n + 1}!g{n}" for n in range(6)]
    for name in names:
        gateways.start(name, "/3/#")
        gateways.run(0.3)
    gateways.run(30.0)
    assert all(node.peer_summary().silent == () for node in gateways.nodes.values())

    gateways.partitioned = {*names[:2]}
    gateways.run(60.0)
    inside, outside = sorted(names[:2]), sorted(names[2:])
    for name, node in gateways.nodes.items():
        assert list(node.peer_summary().silent) == (
            outside if name in inside else inside
        )

    gateways.partitioned = set()
    gateways.run(60.0)
    for name, node in gateways.nodes.items():
        assert node.peer_summary().silent == ()
        assert node.peer_summary().return_count == (4 if name in inside else 2)
