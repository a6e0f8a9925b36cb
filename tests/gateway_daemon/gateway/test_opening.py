"""A gateway opens what its nodes pack."""

import logging

import pytest

from gateway_daemon.gateway.ingress_messages import Unpacker
from spatial_mqtt.batching import BatchItem, encode_batch, split_message
from spatial_mqtt.topics import BATCH_CONTENT, FRAGMENT_CONTENT
from spatial_mqtt.transport import IncomingMessage


def incoming(payload: bytes, content: str | None = None) -> IncomingMessage:
    return IncomingMessage(
        "/forward/1/pri1", payload, 1, False, None, None, None, (1, 1), content
    )


def test_messages_come_out_in_order_with_their_ages() -> None:
    """A parcel between two plain messages stays between them."""
    parcel = encode_batch([BatchItem(b"b"), BatchItem(b"c", 90)])
    opened = Unpacker().unpack([
        incoming(b"a"),
        incoming(parcel, BATCH_CONTENT),
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
    opener, payload = Unpacker(), bytes(range(256)) * 20
    told = [
        opener.unpack([incoming(chunk.encode(), FRAGMENT_CONTENT)])
        for chunk in split_message("n:b:1", payload, 1200)
    ]

    assert told[:-1] == [[]] * 4
    assert [m.payload for m in told[-1]] == [payload]


def test_what_cannot_be_opened_is_named_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broken sender does not stop the others, nor the daemon."""
    with caplog.at_level(logging.ERROR):
        opened = Unpacker().unpack([
            incoming(b"junk", BATCH_CONTENT),
            incoming(b"junk", FRAGMENT_CONTENT),
            incoming(b"well"),
        ])

    assert [m.payload for m in opened] == [b"well"]
    assert caplog.text.count("cannot unpack /forward/1/pri1") == 2


def test_foreign_content_types_are_plain_messages() -> None:
    """A client may label its JSON as it likes."""
    opened = Unpacker().unpack([incoming(b"{}", "application/json")])

    assert [m.payload for m in opened] == [b"{}"]
