"""Priority, id and sender of a message as Correlation Data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spatial_mqtt.correlation import (
    MAX_PRIORITY,
    MessageProperties,
    decode_correlation,
    encode_correlation,
)
from spatial_mqtt.senml import MAX_SEQ, MessageId

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True).filter(
    lambda name: name != "offer"
)
boots = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
ids = st.builds(MessageId, names, boots, st.integers(0, MAX_SEQ))
priorities = st.integers(1, MAX_PRIORITY)


@given(priorities, ids, st.booleans())
def test_message_with_an_id(priority: int, id_: MessageId, is_answered: bool) -> None:
    """Everything that is encoded is decoded."""
    data = encode_correlation(priority, id_, id_.node if is_answered else None)

    assert data is not None
    topic = f"/custody/{id_.node}" if is_answered else None
    assert decode_correlation(data) == MessageProperties(priority, str(id_), topic)


@given(priorities, st.none() | names)
def test_message_whose_payload_contains_the_id(
    priority: int, receiver: str | None
) -> None:
    """Its priority, and who gets the receipt."""
    data = encode_correlation(priority, None, receiver)

    assert data is not None
    topic = f"/custody/{receiver}" if receiver else None
    assert decode_correlation(data) == MessageProperties(priority, None, topic)


def test_size() -> None:
    """A user property ``id`` alone has 7 bytes and the text of the id."""
    data = encode_correlation(5, MessageId("gw-1", "0123abcd", 20_000), "gw-1")

    assert data == bytes.fromhex("b5 0123abcd a09c01") + b"gw-1"


@pytest.mark.parametrize(
    ("priority", "id_", "receiver"),
    [
        (5, MessageId("gw-1", "boot", 1), None),
        (5, MessageId("gw-1", "0123ABCD", 1), None),
        (5, MessageId("gw-1", "0123abcd", 1), "gw-2"),
        (0, None, None),
        (MAX_PRIORITY + 1, None, None),
    ],
)
def test_properties_without_this_form(
    priority: int, id_: MessageId | None, receiver: str | None
) -> None:
    """They are sent as user properties."""
    assert encode_correlation(priority, id_, receiver) is None


headers = st.integers(0x80, 0xBF).map(lambda header: bytes((header,)))
data_like_ours = st.builds(
    lambda *parts: b"".join(parts),
    headers,
    st.binary(max_size=16),
    names.map(str.encode) | st.just(b""),
)


@given(st.binary(max_size=40) | data_like_ours)
def test_arbitrary_data_is_ignored_or_encodes_to_itself(data: bytes) -> None:
    """No bytes raise an error."""
    read = decode_correlation(data)

    if read is not None:
        id_ = None if read.message_id is None else MessageId.parse(read.message_id)
        receiver = read.response_topic and read.response_topic.removeprefix("/custody/")
        again = encode_correlation(read.priority, id_, receiver)
        assert again is not None
        assert decode_correlation(again) == read


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_text_of_another_program_is_ignored(text: str) -> None:
    """Such as a UUID or a counter in a request."""
    assert decode_correlation(text.encode()) is None
