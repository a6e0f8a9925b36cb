"""Parsing of publications into message drafts."""

import pytest

from edge_agent.queue.memory import MemoryQueue
from edge_agent.uplink.in_flight import FlightLimits, InFlight
from edge_agent.uplink.scheduler import PublicationBuilder, SenderProfile
from gateway_daemon.gateway.incoming import (
    ParsedMessage,
    parse_delivery,
    parse_publication,
)
from spatial_mqtt.codec import decode_publish, encode_publish, split_packets
from spatial_mqtt.custody import COMPACT_FORM, CustodyOffer
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import ForwardTopic
from spatial_mqtt.transport import IncomingMessage

ID = MessageId("kochi-1", "ab", 9)
PACK = encode_cbor(Pack(ID, 4, 0.0, (Reading("x", "mm", 1.0),)))
COMPACT_STORE = CustodyOffer("ingest", ("#",), (COMPACT_FORM,))


def incoming(
    topic: str, payload: bytes, priority: int | None = None, **more: str
) -> IncomingMessage:
    return IncomingMessage(
        topic, payload, 1, False, priority, more.get("response"), more.get("id"), (1, 1)
    )


def parse(message: IncomingMessage, default_priority: int) -> ParsedMessage:
    topic = ForwardTopic.parse(message.topic)
    return parse_publication(message, topic, default_priority)


def test_priority_level_is_stripped_and_used() -> None:
    """Subscribers never see `priN`; the slow link never carries it."""
    parsed = parse(incoming("/forward/1/2/pri5", PACK), 1)

    assert (parsed.draft.topic, parsed.draft.priority, parsed.draft.id) == (
        "/1/2",
        5,
        ID,
    )
    assert parsed.receipt_topic == "/custody/kochi-1"


def test_priority_is_read_from_the_envelope_when_the_topic_has_none() -> None:
    """A Gamma publisher may still send our envelope."""
    assert parse(incoming("/forward/1/2", PACK), 1).draft.priority == 4


def test_plain_payload_gets_the_default_priority_and_no_receipt() -> None:
    """Plain MQTT publishers may share the broker."""
    parsed = parse(incoming("/forward/1/2", b"hello"), 2)

    assert (parsed.draft.priority, parsed.draft.id, parsed.receipt_topic) == (
        2,
        None,
        None,
    )


def test_relay_sends_id_priority_and_receipt_topic_as_properties() -> None:
    """Another gateway's opaque message keeps its id."""
    message = incoming("/forward/1/2", b"x", 3, response="/custody/gw-9", id="gw-9:b:7")
    parsed = parse(message, 1)

    assert (parsed.draft.id, parsed.draft.priority) == (MessageId("gw-9", "b", 7), 3)
    assert parsed.receipt_topic == "/custody/gw-9"


def test_priority_of_absurd_length_is_ignored() -> None:
    """A single hostile publication must not crash a gateway."""
    topic = "/forward/1/2/pri" + "9" * 400
    parsed = parse(incoming(topic, b"x", id="n:b:" + "9" * 5000), 1)

    assert (parsed.draft.priority, parsed.draft.id) == (1, None)


def test_publisher_name_is_taken_from_the_topic() -> None:
    """Subscribers do not see it; `IdentityCheck` compares it with the id."""
    parsed = parse(incoming("/from/kochi-1/1/2/pri5", PACK), 1)

    assert (parsed.draft.topic, parsed.draft.priority) == ("/1/2", 5)
    assert (parsed.publisher_id, parsed.draft.id) == ("kochi-1", ID)


@pytest.mark.parametrize(
    "payload", [b"21.5 C", PACK[:-1], b"\x81\xa0"], ids=["plain", "cut", "nameless"]
)
@pytest.mark.parametrize(
    "offer", [None, CustodyOffer("ingest", ("#",), (COMPACT_FORM,))]
)
def test_id_that_a_client_has_given_a_plain_payload_reaches_the_next_store(
    payload: bytes, offer: CustodyOffer | None
) -> None:
    """It was sent on without its id, got no receipt, and was repeated for ever."""
    message = incoming("/forward/1/2", payload, 4, id="logger7:89abcdef:12")
    queue, in_flight = MemoryQueue("gw1", "0123abcd", 10**6), InFlight(FlightLimits())
    queue.put([parse(message, 1).draft])
    in_flight.on_up(0.0, 100, [] if offer is None else [offer])
    sender = SenderProfile("gw1", is_relay=True, has_compact_peers=lambda: True)
    sent = PublicationBuilder(queue, sender, in_flight).build_next(4)
    assert sent is not None
    packet = encode_publish(sent.publication, "/1/2", None, 1)
    ((first, body),) = split_packets(bytearray(packet))
    read = decode_publish(first, body, 1)

    assert parse_delivery(read, 1).id == MessageId("logger7", "89abcdef", 12)
    assert read.response_topic == "/custody/gw1"
