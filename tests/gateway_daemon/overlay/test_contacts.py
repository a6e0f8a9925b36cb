"""From inside one piece a gateway knows who does not answer, and when that ends."""

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

BEAT_S, ANSWER_S = 10.0, 4.0


def asked_by(known: PeerTable, beats: range) -> list[str]:
    return [name for beat in beats for name in known.next_to_ping(beat * BEAT_S)]


@given(st.integers(1, 2 * MAX_PINGED * CYCLE_ROUNDS))
def test_everybody_is_asked_in_turn_and_never_many_at_once(count: int) -> None:
    """A census costs no storm of connections, and leaves nobody out."""
    known = PeerTable("me", ANSWER_S)
    for number in range(count):
        known.add(f"g{number}")
    beats = max(CYCLE_ROUNDS, -(-count // MAX_PINGED))

    assert {*asked_by(known, range(beats))} == {f"g{n}" for n in range(count)}
    assert len(known.next_to_ping(beats * BEAT_S)) <= MAX_PINGED


def test_who_owes_an_answer_is_silent_and_counts_when_it_comes_back() -> None:
    """Only who was asked, and had its time."""
    known = PeerTable("me", ANSWER_S)
    known.mark_alive("a", 0.0)
    known.mark_alive("b", 0.0)
    assert known.next_to_ping(10.0) == ["a"]
    known.next_to_ping(12.0)
    assert known.summary().silent == ()
    known.next_to_ping(20.0)
    assert known.summary().silent == ("a", "b")
    known.mark_alive("b", 21.0)

    assert known.summary() == peers.PeerSummary(2, ("a",), 1)
    assert str(known.summary()) == "1 of 2 others do not answer"
    known.mark_alive("a", 22.0)
    assert str(known.summary()) == "all 2 others answer"


def test_who_is_silent_for_a_day_is_forgotten() -> None:
    """A gateway that was taken down does not alarm for ever."""
    known = PeerTable("me", ANSWER_S)
    known.add("gone")
    known.next_to_ping(0.0)
    known.next_to_ping(FORGET_AFTER_S)
    assert known.names() == ["gone"]
    known.next_to_ping(FORGET_AFTER_S + BEAT_S)

    assert known.names() == []


def test_we_do_not_ask_ourselves() -> None:
    """Our own name comes back to us from our broker."""
    known = PeerTable("me", ANSWER_S)
    known.mark_alive("me", 0.0)

    assert not known.add("me")
    assert known.next_to_ping(10.0) == []


@pytest.mark.parametrize("seed", range(2))
def test_each_piece_of_a_parted_net_misses_exactly_the_other(seed: int) -> None:
    """And all answer again when the cut is mended."""
    made = SimulatedGateways(seed)
    names = [f"/3/1/2/{n}@h:{n + 1}!g{n}" for n in range(6)]
    for name in names:
        made.start(name, "/3/#")
        made.run(0.3)
    made.run(30.0)
    assert all(node.peer_summary().silent == () for node in made.nodes.values())

    made.partitioned = {*names[:2]}
    made.run(60.0)
    inside, outside = sorted(names[:2]), sorted(names[2:])
    for name, node in made.nodes.items():
        assert list(node.peer_summary().silent) == (
            outside if name in inside else inside
        )

    made.partitioned = set()
    made.run(60.0)
    for name, node in made.nodes.items():
        assert node.peer_summary().silent == ()
        assert node.peer_summary().return_count == (4 if name in inside else 2)
