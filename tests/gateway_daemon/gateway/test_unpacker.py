"""Unpacking of batches and fragments."""

import logging

import pytest

from gateway_daemon.gateway.incoming import Unpacker
from spatial_mqtt.batching import BatchItem, encode_batch, split_message
from spatial_mqtt.topics import BATCH_CONTENT, FRAGMENT_CONTENT
from spatial_mqtt.transport import IncomingMessage


def incoming(payload: bytes, content: str | None = None) -> IncomingMessage:
    return IncomingMessage(
        "/forward/1/pri1", payload, 1, False, None, None, None, (1, 1), content
    )


def test_messages_are_unpacked_in_order_with_their_ages() -> None:
    """What is in a batch is not a batch again."""
    batch = encode_batch([BatchItem(b"b"), BatchItem(b"c", 90)])
    unpacked = Unpacker(float).unpack(incoming(batch, BATCH_CONTENT))

    assert [(m.payload, m.age_s) for m in unpacked] == [(b"b", None), (b"c", 90)]
    assert {m.content for m in unpacked} == {None}


def test_fragments_are_assembled_across_calls() -> None:
    """Fragments arrive over seconds; the last one completes the message."""
    unpacker, payload = Unpacker(float), bytes(range(256)) * 20
    results = [
        unpacker.unpack(incoming(chunk.encode(), FRAGMENT_CONTENT))
        for chunk in split_message("n:b:1", payload, 1200)
    ]

    assert results[:-1] == [[]] * 4
    assert [m.payload for m in results[-1]] == [payload]


def test_undecodable_publication_is_logged_and_others_are_unpacked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A faulty sender stops neither the others nor the daemon."""
    with caplog.at_level(logging.ERROR):
        unpacker = Unpacker(float)
        unpacked = [
            *unpacker.unpack(incoming(b"junk", BATCH_CONTENT)),
            *unpacker.unpack(incoming(b"junk", FRAGMENT_CONTENT)),
            *unpacker.unpack(incoming(b"well")),
        ]

    assert [m.payload for m in unpacked] == [b"well"]
    assert caplog.text.count("cannot unpack /forward/1/pri1") == 2


def test_foreign_content_types_are_plain_messages() -> None:
    """A client may label its JSON with any content type."""
    unpacked = Unpacker(float).unpack(incoming(b"{}", "application/json"))

    assert [m.payload for m in unpacked] == [b"{}"]
