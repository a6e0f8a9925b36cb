"""How long a node waits follows how long answers take."""

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
from gateway_daemon.overlay.timeouts import ReplyTimeouts, RoundTripTimes

PATIENCE = ReplyTimeouts(receipt_timeout_s=3.0, min_timeout_s=0.25)


class Two:
    """Knows two subscribers, 1 and 2."""

    def right_neighbours(self) -> list[RankedNode[int]]:
        return [RankedNode(1, 0), RankedNode(2, 1)]

    def left_neighbours(self) -> list[int]:
        return []


def sent_to(forwarder: Forwarder[int], id_: str, now_s: float) -> dict[int, int]:
    """Numbers of a publication's copies by who gets them."""
    actions = forwarder.publish(OverlayMessage(id_, 3), 1, 9, now_s)
    return {a.to: a.packet.number for a in actions if isinstance(a, SendPacket)}


def test_nobody_known_is_waited_for_as_long_as_the_settings_say() -> None:
    """Before the first answer there is nothing to learn from."""
    assert RoundTripTimes[int](PATIENCE).timeout_s(1) == 3.0


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(0, 50))
def test_the_wait_stays_within_its_bounds(took: list[float], silences: int) -> None:
    """Whatever was measured."""
    trips = RoundTripTimes[int](PATIENCE)
    for each in took:
        trips.on_answer(1, each)
    for _ in range(silences):
        trips.on_timeout(1)

    for key in (1, 2):
        assert (
            PATIENCE.min_timeout_s <= trips.timeout_s(key) <= PATIENCE.receipt_timeout_s
        )


@given(st.floats(0.1, 0.5))
def test_who_answers_evenly_is_soon_waited_for_a_little_longer_than_that(
    took_s: float,
) -> None:
    """And a stranger for twice that long."""
    trips = RoundTripTimes[int](PATIENCE)
    for _ in range(20):
        trips.on_answer(1, took_s)

    assert took_s < trips.timeout_s(1) <= max(PATIENCE.min_timeout_s, 1.1 * took_s)
    assert trips.timeout_s(2) == pytest.approx(
        max(PATIENCE.min_timeout_s, 2 * trips.timeout_s(1)), rel=0.5
    )


def test_silence_doubles_the_wait_and_an_answer_ends_that() -> None:
    """One who is slow for a moment is not taken for dead again and again."""
    trips = RoundTripTimes[int](PATIENCE)
    for _ in range(50):
        trips.on_answer(1, 0.3)
    before_s = trips.timeout_s(1)
    trips.on_timeout(1)

    assert trips.timeout_s(1) == pytest.approx(2 * before_s)
    trips.on_answer(1, 0.3)
    assert trips.timeout_s(1) == pytest.approx(before_s, rel=0.1)
    assert trips.timeout_count == 1


def test_all_keys_of_a_gateway_answer_alike() -> None:
    """What one of them took tells about the others."""
    trips = RoundTripTimes[str](PATIENCE, lambda key: key[0])
    for _ in range(20):
        trips.on_answer("a1", 2.0)
        trips.on_answer("b1", 0.01)

    assert trips.timeout_s("a2") > 2.0
    assert trips.timeout_s("b2") == PATIENCE.min_timeout_s


def test_a_forwarder_cuts_anew_as_soon_as_answers_are_overdue() -> None:
    """Not after the three seconds that it starts with."""
    trips = RoundTripTimes[int](PATIENCE)
    forwarder = Forwarder[int](0, Two(), PATIENCE, round_trips=trips)
    for turn in range(10):
        for to, number in sent_to(forwarder, f"m{turn}", turn).items():
            report = RangeReport(number, 1, (RankedNode(to, 0),), is_whole=True)
            forwarder.receive(to, report, turn + 0.05)
    sent_to(forwarder, "late", 100.0)
    due_s = forwarder.next_due_s()

    assert due_s is not None
    assert 100.0 < due_s <= 100.0 + PATIENCE.min_timeout_s + 2 * PATIENCE.per_copy_s
    forwarder.on_timer(due_s + 0.1)
    assert trips.timeout_count > 0


def test_an_answer_behind_its_time_teaches_to_wait_longer() -> None:
    """A machine that was busy is not left out for ever."""
    trips = RoundTripTimes[int](PATIENCE)
    forwarder = Forwarder[int](0, Two(), PATIENCE, round_trips=trips)
    for _ in range(20):
        trips.on_answer(1, 0.01)
    number = sent_to(forwarder, "m", 100.0)[1]
    forwarder.on_timer(101.0)
    forwarder.receive(1, CopyReceipt(number), 101.5)

    assert trips.timeout_s(1) > PATIENCE.min_timeout_s
    assert 1 in sent_to(forwarder, "n", 102.0)
