"""Reply timeouts adapt to measured round-trip times (RFC 6298)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_daemon.overlay.forwarder import Forwarder
from gateway_daemon.overlay.messages import (
    CopyReceipt,
    OverlayMessage,
    RangeReport,
    RankedNode,
    SendPacket,
)
from gateway_daemon.overlay.peers import ReplyTimeouts, RoundTripTimes

TIMEOUTS = ReplyTimeouts(receipt_timeout_s=3.0, min_timeout_s=0.25)


class TwoSubscribers:
    """A node with links to the subscribers 1 and 2."""

    def right_neighbours(self) -> list[RankedNode[int]]:
        return [RankedNode(1, 0), RankedNode(2, 1)]

    def left_neighbours(self) -> list[int]:
        return []


def sent_to(forwarder: Forwarder[int], id_: str, now_s: float) -> dict[int, int]:
    """Copy numbers of one publication by recipient."""
    actions = forwarder.publish(OverlayMessage(id_, 3), 1, 9, now_s)
    return {a.to: a.packet.number for a in actions if isinstance(a, SendPacket)}


def test_unknown_peer_gets_the_configured_timeout() -> None:
    """Before the first answer there is no measurement."""
    assert RoundTripTimes[int](TIMEOUTS).timeout_s(1) == 3.0


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(0, 50))
def test_timeout_stays_within_its_bounds(took: list[float], silences: int) -> None:
    """For any measured times and any number of timeouts."""
    trips = RoundTripTimes[int](TIMEOUTS)
    for each in took:
        trips.on_answer(1, each)
    for _ in range(silences):
        trips.on_timeout(1)

    for key in (1, 2):
        assert (
            TIMEOUTS.min_timeout_s <= trips.timeout_s(key) <= TIMEOUTS.receipt_timeout_s
        )


@given(st.floats(0.1, 0.5))
def test_steady_peer_gets_a_timeout_slightly_above_its_answer_time(
    took_s: float,
) -> None:
    """An unknown peer gets twice that."""
    trips = RoundTripTimes[int](TIMEOUTS)
    for _ in range(20):
        trips.on_answer(1, took_s)

    assert took_s < trips.timeout_s(1) <= max(TIMEOUTS.min_timeout_s, 1.1 * took_s)
    assert trips.timeout_s(2) == pytest.approx(
        max(TIMEOUTS.min_timeout_s, 2 * trips.timeout_s(1)), rel=0.5
    )


def test_timeout_doubles_without_answer_and_an_answer_resets_it() -> None:
    """A peer that is slow for a moment is not suspected again and again."""
    trips = RoundTripTimes[int](TIMEOUTS)
    for _ in range(50):
        trips.on_answer(1, 0.3)
    before_s = trips.timeout_s(1)
    trips.on_timeout(1)

    assert trips.timeout_s(1) == pytest.approx(2 * before_s)
    trips.on_answer(1, 0.3)
    assert trips.timeout_s(1) == pytest.approx(before_s, rel=0.1)
    assert trips.timeout_count == 1


def test_all_keys_of_a_gateway_share_one_estimate() -> None:
    """A measurement of one key applies to the gateway's other keys."""
    trips = RoundTripTimes[str](TIMEOUTS, lambda key: key[0])
    for _ in range(20):
        trips.on_answer("a1", 2.0)
        trips.on_answer("b1", 0.01)

    assert trips.timeout_s("a2") > 2.0
    assert trips.timeout_s("b2") == TIMEOUTS.min_timeout_s


def test_forwarder_reassigns_ranges_as_soon_as_answers_are_overdue() -> None:
    """It does not wait for the initial timeout of three seconds."""
    trips = RoundTripTimes[int](TIMEOUTS)
    forwarder = Forwarder[int](0, TwoSubscribers(), TIMEOUTS, round_trips=trips)
    for turn in range(10):
        for to, number in sent_to(forwarder, f"m{turn}", turn).items():
            report = RangeReport(number, 1, (RankedNode(to, 0),), is_whole=True)
            forwarder.receive(to, report, turn + 0.05)
    sent_to(forwarder, "late", 100.0)
    due_s = forwarder.next_due_s()

    assert due_s is not None
    assert 100.0 < due_s <= 100.0 + TIMEOUTS.min_timeout_s + 2 * TIMEOUTS.per_copy_s
    forwarder.on_timer(due_s + 0.1)
    assert trips.timeout_count > 0


def test_late_answer_lengthens_the_timeout() -> None:
    """A machine that was busy for a while is used again."""
    trips = RoundTripTimes[int](TIMEOUTS)
    forwarder = Forwarder[int](0, TwoSubscribers(), TIMEOUTS, round_trips=trips)
    for _ in range(20):
        trips.on_answer(1, 0.01)
    number = sent_to(forwarder, "m", 100.0)[1]
    forwarder.on_timer(101.0)
    forwarder.receive(1, CopyReceipt(number), 101.5)

    assert trips.timeout_s(1) > TIMEOUTS.min_timeout_s
    assert 1 in sent_to(forwarder, "n", 102.0)
