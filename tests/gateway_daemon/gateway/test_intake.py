"""From a publication to a draft."""

from gateway_daemon.gateway.ingress_messages import parse_publication
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.transport import IncomingMessage

ID = MessageId("kochi-1", "ab", 9)
PACK = encode_cbor(Pack(ID, 4, 0.0, (Reading("x", "mm", 1.0),)))


def incoming(
    topic: str, payload: bytes, priority: int | None = None, **more: str
) -> IncomingMessage:
    return IncomingMessage(
        topic, payload, 1, False, priority, more.get("response"), more.get("id"), (1, 1)
    )


def test_priority_level_is_stripped_and_used() -> None:
    """Subscribers never see ``priN``; the slow link never carries it."""
    taken = parse_publication(incoming("/forward/1/2/pri5", PACK), 1)

    assert (taken.draft.topic, taken.draft.priority, taken.draft.id) == ("/1/2", 5, ID)
    assert taken.receipt_topic == "/custody/kochi-1"


def test_envelope_gives_the_priority_when_the_topic_has_none() -> None:
    """A Gamma publisher may still send our envelope."""
    assert parse_publication(incoming("/forward/1/2", PACK), 1).draft.priority == 4


def test_plain_payload_gets_the_default_priority_and_no_receipt() -> None:
    """Plain MQTT publishers are mixed in freely."""
    taken = parse_publication(incoming("/forward/1/2", b"hello"), 2)

    assert (taken.draft.priority, taken.draft.id, taken.receipt_topic) == (
        2,
        None,
        None,
    )


def test_relay_names_message_priority_and_itself_as_properties() -> None:
    """Another gateway's opaque message keeps its id and its place."""
    message = incoming("/forward/1/2", b"x", 3, response="/custody/gw-9", id="gw-9:b:7")
    taken = parse_publication(message, 1)

    assert (taken.draft.id, taken.draft.priority) == (MessageId("gw-9", "b", 7), 3)
    assert taken.receipt_topic == "/custody/gw-9"


def test_priority_of_absurd_length_is_no_priority_and_no_crash() -> None:
    """One publication by anybody must not end a gateway."""
    topic = "/forward/1/2/pri" + "9" * 5000
    taken = parse_publication(incoming(topic, b"x", id="n:b:" + "9" * 5000), 1)

    assert (taken.draft.priority, taken.draft.id) == (1, None)


def test_publishers_name_is_taken_from_the_topic() -> None:
    """Subscribers do not see it; who binds names to ids does."""
    taken = parse_publication(incoming("/from/kochi-1/1/2/pri5", PACK), 1)

    assert (taken.draft.topic, taken.draft.priority) == ("/1/2", 5)
    assert (taken.publisher_id, taken.draft.id) == ("kochi-1", ID)
