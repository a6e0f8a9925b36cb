"""Publications without a message id that are redelivered after they were stored."""

import pytest

from gateway_daemon.gateway import unacknowledged
from gateway_daemon.gateway.unacknowledged import RedeliveryFilter, make_mark
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
    """Its state is not stored; on its connection it is not redelivered."""
    redelivered = RedeliveryFilter()
    redelivered.mark_stored(map(make_mark, [incoming(1), incoming(2)]))
    redelivered.discard([incoming(1)])

    assert not redelivered.is_stored(incoming(1, is_duplicate=True))
    assert redelivered.to_state([]).startswith("2:")


def test_lost_acknowledgement_is_repeated_on_the_next_connection() -> None:
    """And on the one after it, if it is lost again. Later the packet id is reused."""
    redelivered = RedeliveryFilter()
    again = incoming(1, is_duplicate=True)
    redelivered.mark_stored([make_mark(incoming(1))])
    redelivered.discard([incoming(1)])
    for _ in range(3):
        redelivered.resume()
        assert redelivered.is_stored(again)
        redelivered.discard([again])
    redelivered.resume()
    redelivered.resume()

    assert not redelivered.is_stored(again)


def test_acknowledgement_of_a_repeated_message_may_be_lost_too() -> None:
    """The broker repeats it once more, also if only the repetition was stored."""
    redelivered = RedeliveryFilter()
    again = incoming(1, is_duplicate=True)
    redelivered.mark_stored([make_mark(again)])
    redelivered.discard([again])
    redelivered.resume()

    assert redelivered.is_stored(again)


def test_acknowledged_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are kept; a packet id stands for its newest message."""
    monkeypatch.setattr(unacknowledged, "MAX_ACKNOWLEDGED", 3)
    redelivered = RedeliveryFilter()
    for mid, payload in ((1, b"old"), (2, b"x"), (3, b"x"), (1, b"new"), (4, b"x")):
        message = incoming(mid, payload)
        redelivered.mark_stored([make_mark(message)])
        redelivered.discard([message])
    redelivered.resume()

    found = [(1, b"old"), (1, b"new"), (2, b"x"), (3, b"x"), (4, b"x")]
    assert [
        redelivered.is_stored(incoming(*each, is_duplicate=True)) for each in found
    ] == [False, True, False, True, True]


def test_lost_session_clears_the_filter() -> None:
    """A broker without our session redelivers none of our messages."""
    redelivered = RedeliveryFilter()
    redelivered.mark_stored(map(make_mark, [incoming(1)]))
    redelivered.clear()

    assert redelivered.to_state([]) == "0:2"
    assert not redelivered.is_stored(incoming(1, is_duplicate=True))


def test_older_state_of_another_route_does_not_count() -> None:
    """The broker uses packet ids again, after its restart or after 65,535 messages."""
    running = RedeliveryFilter()
    old = running.to_state([make_mark(incoming(1, b"old"))])
    running.mark_stored([make_mark(incoming(1, b"old"))])
    running.clear()
    new = running.to_state([make_mark(incoming(1, b"new"))])

    for states in ([old, new], [new, old]):
        after = RedeliveryFilter()
        after.load(states)
        assert after.is_stored(incoming(1, b"new", is_duplicate=True))
        assert not after.is_stored(incoming(1, b"old", is_duplicate=True))
        next_run = RedeliveryFilter()
        next_run.load([old, new, after.to_state([make_mark(incoming(2))])])
        assert next_run.is_stored(incoming(1, b"new", is_duplicate=True))
        assert next_run.is_stored(incoming(2, is_duplicate=True))


def test_state_of_an_earlier_version_is_loaded() -> None:
    """It has no number; one with a number is newer."""
    mid, checksum = make_mark(incoming(1))
    before = RedeliveryFilter()
    before.load([f"{mid}:{checksum}", ""])
    after = RedeliveryFilter()
    after.load(["1:1", before.to_state([])])

    for each in (before, after):
        assert each.is_stored(incoming(1, is_duplicate=True))


def test_states_of_several_routes_are_merged() -> None:
    """Each route stores the state of its own messages of a batch."""
    redelivered = RedeliveryFilter()
    redelivered.load([
        RedeliveryFilter().to_state(map(make_mark, [incoming(1)])),
        "",
        RedeliveryFilter().to_state(map(make_mark, [incoming(2)])),
    ])

    assert redelivered.is_stored(incoming(1, is_duplicate=True))
    assert redelivered.is_stored(incoming(2, is_duplicate=True))
