"""Messages that the broker refuses, without a network."""

import pytest

from edge_agent.queue.base import QueuedMessage
from edge_agent.uplink.in_flight import (
    MAX_REFUSED_BYTES,
    CustodyMode,
    FlightLimits,
    InFlight,
)
from spatial_mqtt.senml import MessageId

LIMITS = FlightLimits(refused_pause_s=5)


def message(seq: int, priority: int = 3, size_bytes: int = 1) -> QueuedMessage:
    id_ = MessageId("n", "b", seq)
    return QueuedMessage(seq, id_, priority, "/t", bytes(size_bytes))


def make_in_flight(*, needs_subscriber: bool = False) -> InFlight:
    in_flight = InFlight(
        LIMITS, CustodyMode.RECEIPTS, needs_subscriber=needs_subscriber
    )
    in_flight.on_up(0.0, receive_maximum=20)
    return in_flight


def test_refused_message_is_retried_after_a_pause() -> None:
    """It is neither lost nor retried in a busy loop."""
    f = make_in_flight()
    f.on_sent(1, (message(1),), 1, 0.0)

    assert f.on_published(1, "Quota exceeded", 1.0) == (message(1),)
    assert f.take_actions(5.9).release == []
    assert f.take_actions(6.0).release == [1]


@pytest.mark.parametrize(
    ("priority", "pauses_s"), [(5, [5, 10, 20, 40, 60, 60]), (1, [5, 10, 20, 40, 80])]
)
def test_pause_of_a_refused_message_doubles(
    priority: int, pauses_s: list[float]
) -> None:
    """Many that no broker accepts took the whole link from later messages."""
    f, now_s = make_in_flight(), 0.0
    for pause_s in pauses_s:
        f.on_sent(1, (message(1, priority),), 1, now_s)
        f.on_published(1, "Not authorized", now_s)

        assert f.take_actions(now_s + pause_s - 0.1).release == []
        now_s += pause_s
        assert f.take_actions(now_s).release == [1]


def test_broker_that_refuses_does_not_serve_until_it_accepts() -> None:
    """It may have an old list of rights, and another gateway the present one."""
    f = make_in_flight(needs_subscriber=True)
    f.on_sent(1, (message(1),), 1, 0.0)
    f.on_published(1, "Not authorized", 0.1)
    served = [f.is_served(0.2)]
    f.on_sent(2, (message(1),), 1, 6.0)
    f.on_published(2, None, 6.1)

    assert [*served, f.is_served(6.2)] == [False, True]


def test_message_that_every_broker_refuses_ends_no_service() -> None:
    """Otherwise a node would change its gateway for ever because of it."""
    f = make_in_flight(needs_subscriber=True)
    served = []
    for now_s in (0.0, 10.0, 20.0, 30.0):
        f.on_up(now_s, receive_maximum=20)
        f.on_sent(1, (message(1),), 1, now_s)
        f.on_published(1, "Not authorized", now_s)
        served.append(f.is_served(now_s))
        f.on_down()

    assert served == [False, False, False, True]


def refuse(f: InFlight, each: QueuedMessage, now_s: float) -> None:
    f.on_sent(each.seq, (each,), 1, now_s)
    f.on_published(each.seq, "Not authorized", now_s)


def test_refused_messages_are_sent_again_in_the_order_of_their_pauses() -> None:
    """Each has its own: that of one that was refused three times ends later."""
    f = make_in_flight()
    for now_s in (0.0, 5.0, 15.0):
        refuse(f, message(1), now_s)
        if now_s < 15.0:
            assert f.take_actions(2 * now_s + 5.0).release == [1]
    refuse(f, message(2), 16.0)
    refuse(f, message(3), 16.5)

    assert f.take_actions(21.2).release == [2]
    assert f.take_actions(22.0).release == [3]
    assert f.take_actions(34.9).release == []
    assert f.take_actions(35.0).release == [1]


def test_refused_messages_in_memory_are_bounded() -> None:
    """A queue of 200 MB that a broker refused took 770 MB, above the unit's limit."""
    f = make_in_flight()
    size_bytes = MAX_REFUSED_BYTES // 10
    for seq in range(10):
        assert f.sendable_bytes(0.0) > 0
        refuse(f, message(seq, size_bytes=size_bytes), 0.0)
    assert (f.sendable_bytes(0.0), f.sendable_bytes(0.0, 5) > 0) == (0, True)

    assert len(f.take_actions(5.0).release) == 10
    assert f.sendable_bytes(5.0) > 0
    for seq in range(10):
        refuse(f, message(seq, size_bytes=size_bytes), 5.0)
    f.on_down()
    assert len(f.take_actions(5.0).release) == 10
    f.on_up(6.0, receive_maximum=20)
    assert f.sendable_bytes(6.0) > 0
