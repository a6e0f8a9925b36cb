"""The codec for PUBLISH and PUBACK agrees with paho."""

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from spatial_mqtt import codec
from spatial_mqtt.custody import decode_correlation, encode_correlation
from spatial_mqtt.errors import PacketError
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import NO_SUBSCRIBERS, Publication

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
ages = st.none() | st.integers(1, 999_999_999)
publications = st.builds(
    Publication,
    topic=texts.filter(bool),
    payload=st.binary(max_size=300),
    retain=st.booleans(),
    priority=st.none() | st.integers(1, 5),
    response_topic=st.none() | texts,
    message_id=st.none() | texts,
    expiry_s=st.none() | st.integers(1, 2**32 - 1),
    content=st.none() | texts,
    age_s=ages,
    # Data that is not of our programs: theirs states priority, id and response topic.
    correlation=st.none()
    | st.binary(max_size=60).filter(lambda data: decode_correlation(data) is None),
)


def single_packet(packet: bytes) -> tuple[int, bytes]:
    """First byte and body of the single packet in the bytes."""
    buffer = bytearray(packet)
    found = codec.split_packets(buffer)
    assert (len(found), buffer) == (1, b"")
    return found[0]


@given(publications, st.integers(1, 65535))
def test_encoded_publish_decodes_to_the_same_fields(
    publication: Publication, mid: int
) -> None:
    """Every field is kept except the expiry, which only the broker reads."""
    packet = codec.encode_publish(publication, publication.topic, None, mid)

    read = codec.decode_publish(*single_packet(packet), generation=7)

    assert read.delivery == (7, mid)
    assert read.qos == 1
    for name in set(read._fields) & set(publication._fields) - {"qos"}:
        assert getattr(read, name) == getattr(publication, name), name


def paho_properties(publication: Publication, alias: int | None) -> bytes:
    """Properties as encoded by paho."""
    packed = Properties(PacketTypes.PUBLISH)
    named = [("pri", publication.priority), ("age", publication.age_s)]
    named.append(("id", publication.message_id))
    packed.UserProperty = [(n, str(v)) for n, v in named if v is not None] or [
        ("x", "y")
    ]
    if publication.expiry_s is not None:
        packed.MessageExpiryInterval = publication.expiry_s
    if publication.content is not None:
        packed.ContentType = publication.content
    if alias is not None:
        packed.TopicAlias = alias
    return packed.pack()


@given(publications, st.none() | st.integers(1, 10))
def test_paho_decodes_our_publish(publication: Publication, alias: int | None) -> None:
    """Paho unpacks the properties to the same values, and no bytes are left over."""
    topic = "" if alias else publication.topic
    first, body = single_packet(codec.encode_publish(publication, topic, alias, 5))
    properties_offset = 2 + int.from_bytes(body[:2], "big") + 2

    unpacked, used = Properties(PacketTypes.PUBLISH).unpack(body[properties_offset:])

    assert body[properties_offset + used :] == publication.payload
    assert first == 0x32 | publication.retain
    user_properties = dict(getattr(unpacked, "UserProperty", []))
    assert user_properties.get("id") == publication.message_id
    assert getattr(unpacked, "ResponseTopic", None) == publication.response_topic
    assert getattr(unpacked, "MessageExpiryInterval", None) == publication.expiry_s
    assert getattr(unpacked, "ContentType", None) == publication.content
    assert getattr(unpacked, "TopicAlias", None) == alias


@given(publications, st.none() | st.integers(1, 10))
def test_we_decode_the_properties_of_paho(
    publication: Publication, alias: int | None
) -> None:
    """In any order of the properties."""
    properties = paho_properties(publication, alias)
    body = b"\0\4/1/2\0\x09" + properties + publication.payload

    read = codec.decode_publish(0x32, body, 1)

    assert read.topic == "/1/2"
    assert read.payload == publication.payload
    assert read.priority == publication.priority
    assert read.age_s == publication.age_s
    assert read.message_id == publication.message_id
    assert read.content == publication.content


COMPACT = encode_correlation(5, MessageId("gw", "0123abcd", 7), "gw")


def test_correlation_data_states_priority_id_and_response_topic() -> None:
    """Its size is smaller than that of the properties which it replaces."""
    full = Publication(
        "/1",
        b"x",
        priority=5,
        message_id="gw:0123abcd:7",
        response_topic="/custody/gw",
        age_s=3,
    )
    compact = Publication("/1", b"x", age_s=3, correlation=COMPACT)
    packets = [codec.encode_publish(each, "/1", None, 1) for each in (full, compact)]
    read = [codec.decode_publish(*single_packet(each), 1) for each in packets]

    assert read[0] == read[1]
    assert [len(each) for each in packets] == [62, 30]
    properties = codec.make_publish_properties(compact, None)
    assert codec.publish_packet_bytes(compact, "/1", properties) == len(packets[1])


def test_other_properties_take_precedence_over_correlation_data() -> None:
    """A gateway in between may have added them."""
    publication = Publication("/1", b"x", priority=2, correlation=COMPACT)
    packet = codec.encode_publish(publication, "/1", None, 1)

    read = codec.decode_publish(*single_packet(packet), 1)

    assert (read.priority, read.message_id) == (2, "gw:0123abcd:7")


def test_unused_properties_are_skipped() -> None:
    """Correlation data of others, format and subscription identifiers precede ours."""
    packed = Properties(PacketTypes.PUBLISH)
    packed.PayloadFormatIndicator = 1
    packed.CorrelationData = b"\x26\x00"
    packed.SubscriptionIdentifier = 300
    packed.UserProperty = [("other", "1"), ("pri", "4"), ("pri", "2")]

    read = codec.decode_publish(0x31, b"\0\2/1" + packed.pack() + b"data", 1)

    assert (read.qos, read.retain, read.priority, read.payload) == (0, True, 4, b"data")


@given(st.lists(st.binary(max_size=400), max_size=6), st.data())
def test_packets_are_assembled_from_chunks_of_any_size(
    bodies: list[bytes], data: st.DataObject
) -> None:
    """For any chunks of the stream the same packets are split off."""
    stream = b"".join(
        codec.encode_publish(Publication("/1", body), "/1", None, 1) for body in bodies
    )
    buffer, found = bytearray(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        buffer += stream[:size]
        stream = stream[size:]
        found += codec.split_packets(buffer)

    assert [
        codec.decode_publish(*each, generation=1).payload for each in found
    ] == bodies
    assert buffer == b""


def test_incomplete_packet_is_not_copied_at_each_read() -> None:
    """A message of 48 MB kept a gateway's network thread busy for 19 s."""
    packet = codec.encode_publish(Publication("/1", bytes(4 << 20)), "/1", None, 1)
    first = codec.encode_pubacks([1])
    buffer = bytearray(first + packet[:-1])
    before = codec.split_packets(buffer)
    tracemalloc.start()
    try:
        found = codec.split_packets(buffer)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (len(before), found) == (1, [])
    assert peak_bytes < 10_000
    assert len(single_packet(bytes(buffer + packet[-1:]))[1]) > 4 << 20


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_decoded_or_refused(body: bytes) -> None:
    """Any bytes are a message or a `PacketError`, never another error."""
    read = None
    with suppress(PacketError):
        read = codec.decode_publish(0x32, body, 1)

    assert read is None or body.endswith(read.payload)


def test_truncated_message_is_refused() -> None:
    """The property length exceeds the packet."""
    with pytest.raises(PacketError, match="PUBLISH must be whole"):
        codec.decode_publish(0x32, b"\0\2/1\0\1\x30\x26", 1)


@pytest.mark.parametrize(
    "properties",
    [
        b"\x01\x23\x01\x00\x0b",  # a length without bytes, which was read for ever
        b"\x0b\x80",
        b"\x01",
        b"\x02\x00\x00\x00",
        b"\x23\x01",
        b"\x7f\x00",
    ],
)
def test_truncated_or_unknown_property_is_refused(properties: bytes) -> None:
    """The packet is whole, its last property is not."""
    body = b"\0\2/1\0\1" + bytes((len(properties),)) + properties

    with pytest.raises(PacketError, match="PUBLISH must be whole"):
        codec.decode_publish(0x32, body, 1)


def test_length_of_five_bytes_is_refused() -> None:
    """MQTT lengths have at most four bytes."""
    with pytest.raises(PacketError, match="length must be at most 4 bytes"):
        codec.split_packets(bytearray(b"\x30\xff\xff\xff\xff\x01"))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"\x01\x02", (258, None)),
        (b"\x00\x01\x00", (1, None)),
        (b"\x00\x01\x10\x00", (1, NO_SUBSCRIBERS)),
        (b"\x00\x01\x97\x00", (1, "Quota exceeded")),
        (b"\x00\x01\xfe\x00", (1, "reason code 0xfe")),
    ],
)
def test_puback_is_decoded(body: bytes, wanted: tuple[int, str | None]) -> None:
    """A short PUBACK means success; an unknown reason code is shown as a number."""
    assert codec.decode_puback(body) == wanted


def test_puback_without_a_packet_id_is_refused() -> None:
    """One byte is too short."""
    with pytest.raises(PacketError, match="PUBACK must be at least 2 bytes"):
        codec.decode_puback(b"\x01")


def test_pubacks_are_encoded_one_after_the_other() -> None:
    """Two PUBACKs in one write."""
    assert codec.split_packets(bytearray(codec.encode_pubacks([1, 515]))) == [
        (0x40, b"\x00\x01"),
        (0x40, b"\x02\x03"),
    ]


def test_redelivered_message_has_the_duplicate_flag() -> None:
    """DUP is bit 3 of the first byte."""
    _, body = single_packet(
        codec.encode_publish(Publication("/1", b"x"), "/1", None, 9)
    )

    assert codec.decode_publish(0x3A, body, 1).is_duplicate
    assert not codec.decode_publish(0x32, body, 1).is_duplicate
