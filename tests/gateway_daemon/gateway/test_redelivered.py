"""A nameless publication that comes again after it was stored."""

from gateway_daemon.gateway.ingress_buffers import RedeliveryFilter
from spatial_mqtt.transport import IncomingMessage


def came(mid: int, payload: bytes = b"x", *, again: bool = False) -> IncomingMessage:
    return IncomingMessage(
        "/forward/1/2",
        payload,
        1,
        False,
        None,
        None,
        None,
        (1, mid),
        is_duplicate=again,
    )


def test_what_was_stored_before_our_death_is_known() -> None:
    """By its packet id, when the broker says that it delivers it again."""
    after = RedeliveryFilter()
    after.load([RedeliveryFilter().to_state([came(1), came(2)])])

    assert after.is_stored(came(1, again=True))
    assert after.is_stored(came(2, again=True))
    assert not after.is_stored(came(3, again=True))


def test_a_new_message_under_an_old_packet_id_is_new() -> None:
    """Packet ids come again; so may payloads, but then it is no duplicate."""
    known = RedeliveryFilter()
    known.mark_stored([came(1)])

    assert not known.is_stored(came(1))
    assert not known.is_stored(came(1, b"other", again=True))


def test_what_is_acknowledged_is_forgotten() -> None:
    """It does not come again, and need not be written again."""
    known = RedeliveryFilter()
    known.mark_stored([came(1), came(2)])
    known.discard([came(1)])

    assert not known.is_stored(came(1, again=True))
    assert known.to_state([]).startswith("2:")


def test_a_broker_without_our_session_delivers_nothing_again() -> None:
    """What it calls a duplicate then is none of ours."""
    known = RedeliveryFilter()
    known.mark_stored([came(1)])
    known.clear()

    assert known.to_state([]) == ""
    assert not known.is_stored(came(1, again=True))


def test_several_lanes_remember_parts() -> None:
    """Each with what it stored."""
    known = RedeliveryFilter()
    known.load([
        RedeliveryFilter().to_state([came(1)]),
        "",
        RedeliveryFilter().to_state([came(2)]),
    ])

    assert known.is_stored(came(1, again=True))
    assert known.is_stored(came(2, again=True))
