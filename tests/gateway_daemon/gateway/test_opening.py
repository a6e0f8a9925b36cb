"""A gateway opens what its nodes pack."""

import logging

import pytest

from gateway_daemon.gateway.ingress_messages import Opener
from spatial_mqtt.batching import Item, cut, encode_parcel
from spatial_mqtt.topics import CHUNK, PARCEL
from spatial_mqtt.transport import Incoming


def incoming(payload: bytes, content: str | None = None) -> Incoming:
    return Incoming(
        "/forward/1/pri1", payload, 1, False, None, None, None, (1, 1), content
    )


def test_messages_come_out_in_order_with_their_ages() -> None:
    """A parcel between two plain messages stays between them."""
    parcel = encode_parcel([Item(b"b"), Item(b"c", 90)])
    opened = Opener().unpack([
        incoming(b"a"),
        incoming(parcel, PARCEL),
        incoming(b"d"),
    ])

    assert [(m.payload, m.age_s) for m in opened] == [
        (b"a", None),
        (b"b", None),
        (b"c", 90),
        (b"d", None),
    ]
    assert {m.content for m in opened} == {None}


def test_pieces_become_a_message_across_batches() -> None:
    """Chunks arrive over seconds; the last one completes the message."""
    opener, payload = Opener(), bytes(range(256)) * 20
    told = [
        opener.unpack([incoming(chunk.encode(), CHUNK)])
        for chunk in cut("n:b:1", payload, 1200)
    ]

    assert told[:-1] == [[]] * 4
    assert [m.payload for m in told[-1]] == [payload]


def test_what_cannot_be_opened_is_named_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broken sender does not stop the others, nor the daemon."""
    with caplog.at_level(logging.ERROR):
        opened = Opener().unpack([
            incoming(b"junk", PARCEL),
            incoming(b"junk", CHUNK),
            incoming(b"well"),
        ])

    assert [m.payload for m in opened] == [b"well"]
    assert caplog.text.count("cannot unpack /forward/1/pri1") == 2


def test_foreign_content_types_are_plain_messages() -> None:
    """A client may label its JSON as it likes."""
    opened = Opener().unpack([incoming(b"{}", "application/json")])

    assert [m.payload for m in opened] == [b"{}"]
