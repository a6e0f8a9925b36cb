"""Publications without a message id that are redelivered after they were stored."""

from gateway_daemon.gateway.ingress import RedeliveryFilter, make_mark
from spatial_mqtt.transport import IncomingMessage


def incoming(
    mid: int, payload: bytes = b"x", *, is_duplicate: bool = False
) -> IncomingMessage:
    return IncomingMessage(
        "/forward/1/2",
        payload,
        1,
        False,
        None,
        None,
        None,
        (1, mid),
        is_duplicate=is_duplicate,
    )


def test_message_stored_before_a_crash_is_recognised() -> None:
    """By its packet id, when the broker marks it as a duplicate."""
    after = RedeliveryFilter()
    after.load([
        RedeliveryFilter().to_state(map(make_mark, [incoming(1), incoming(2)]))
    ])

    assert after.is_stored(incoming(1, is_duplicate=True))
    assert after.is_stored(incoming(2, is_duplicate=True))
    assert not after.is_stored(incoming(3, is_duplicate=True))


def test_new_message_with_a_used_packet_id_is_new() -> None:
    """Packet ids are reused; payloads may repeat without the duplicate flag."""
    redelivered = RedeliveryFilter()
    redelivered.mark_stored(map(make_mark, [incoming(1)]))

    assert not redelivered.is_stored(incoming(1))
    assert not redelivered.is_stored(incoming(1, b"other", is_duplicate=True))


def test_acknowledged_message_is_forgotten() -> None:
    """It is not redelivered, so its state need not be stored."""
    redelivered = RedeliveryFilter()
    redelivered.mark_stored(map(make_mark, [incoming(1), incoming(2)]))
    redelivered.discard([incoming(1)])

    assert not redelivered.is_stored(incoming(1, is_duplicate=True))
    assert redelivered.to_state([]).startswith("2:")


def test_lost_session_clears_the_filter() -> None:
    """A broker without our session redelivers none of our messages."""
    redelivered = RedeliveryFilter()
    redelivered.mark_stored(map(make_mark, [incoming(1)]))
    redelivered.clear()

    assert redelivered.to_state([]) == ""
    assert not redelivered.is_stored(incoming(1, is_duplicate=True))


def test_states_of_several_routes_are_merged() -> None:
    """Each route stores the state of its own messages."""
    redelivered = RedeliveryFilter()
    redelivered.load([
        RedeliveryFilter().to_state(map(make_mark, [incoming(1)])),
        "",
        RedeliveryFilter().to_state(map(make_mark, [incoming(2)])),
    ])

    assert redelivered.is_stored(incoming(1, is_duplicate=True))
    assert redelivered.is_stored(incoming(2, is_duplicate=True))
