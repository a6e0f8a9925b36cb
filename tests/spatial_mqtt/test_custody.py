"""Receipts, offers, ranges of sequence numbers, and ids as Correlation Data."""

from itertools import pairwise

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spatial_mqtt.custody import (
    MAX_PRIORITY,
    MAX_RECEIPT_BYTES,
    CustodyOffer,
    CustodyReceipt,
    IntervalSet,
    MessageProperties,
    decode_correlation,
    encode_correlation,
    receipt_topic,
)
from spatial_mqtt.errors import ReceiptError
from spatial_mqtt.senml import MAX_SEQ, MessageId
from spatial_mqtt.topics import matches

NODES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True).filter(
    lambda node: node != "offer"
)
SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1]))
)
SEQS = st.one_of(st.integers(0, 40), st.integers(0, MAX_SEQ), st.just(MAX_SEQ))
IDS = st.builds(
    MessageId, st.sampled_from(["n1", "n2"]), st.sampled_from(["b1", "b2"]), SEQS
)
WRONG_FIELDS = {None, "receipt", "offer", "node", "boot", "ranges", "filter"}
DATA = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True).filter(
    lambda name: name != "offer"
)
boots = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
ids = st.builds(MessageId, names, boots, st.integers(0, MAX_SEQ))
priorities = st.integers(1, MAX_PRIORITY)


def refusal(form: type[CustodyReceipt | CustodyOffer], payload: bytes) -> str | None:
    """The invalid field, or None when the payload parses."""
    try:
        form.decode(payload)
    except ReceiptError as error:
        return error.field
    return None


@given(spans=SPANS)
def test_interval_set_holds_what_a_set_holds(spans: list[tuple[int, int]]) -> None:
    """An interval set is a compact form of a set of numbers."""
    ranges = IntervalSet(spans)
    model = {seq for low, high in spans for seq in range(low, high + 1)}

    assert {seq for seq in range(-2, 80) if seq in ranges} == model
    assert ranges.count() == len(model)
    assert IntervalSet.of(model) == ranges
    assert [seq for low, high in ranges for seq in range(low, high + 1)] == sorted(
        model
    )


@given(spans=SPANS)
def test_intervals_never_touch(spans: list[tuple[int, int]]) -> None:
    """Between two intervals a number is missing, so none could be merged."""
    pairs = list(IntervalSet(spans))

    assert all(low <= high for low, high in pairs)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(pairs))
    assert len(IntervalSet(spans)) == len(pairs)


@given(spans=SPANS, span=st.tuples(st.integers(0, 60), st.integers(0, 12)))
def test_add_returns_the_interval_that_holds_the_addition(
    spans: list[tuple[int, int]], span: tuple[int, int]
) -> None:
    """The caller learns which row to store."""
    ranges = IntervalSet(spans)
    low, high = ranges.add(span[0], sum(span))

    assert low <= span[0] <= sum(span) <= high
    assert (low, high) in list(ranges)


@given(seqs=st.permutations(range(30)))
def test_order_of_arrival_does_not_matter(seqs: list[int]) -> None:
    """Numbers without a gap end in one interval, in any order of arrival."""
    ranges = IntervalSet()
    for seq in seqs:
        ranges.add(seq)

    assert list(ranges) == [(0, 29)]


def test_sets_with_equal_numbers_are_equal() -> None:
    """How the numbers were added makes no difference."""
    assert IntervalSet([(1, 2), (3, 4)]) == IntervalSet([(1, 4)])
    assert IntervalSet.of([4, 1, 2, 2, 7]) == IntervalSet([(1, 2), (4, 4), (7, 7)])
    assert IntervalSet([(1, 2)]) != IntervalSet([(1, 3)])
    assert IntervalSet() != []


@given(ids=st.lists(IDS), others=st.lists(IDS))
def test_receipt_holds_its_ids_and_no_other(
    ids: list[MessageId], others: list[MessageId]
) -> None:
    """A receipt for one message never releases another."""
    receipt = CustodyReceipt.from_ids(ids)

    assert all(message_id in receipt for message_id in ids)
    assert {other for other in others if other in receipt} == set(others) & set(ids)


@given(ids=st.lists(IDS))
def test_receipt_survives_encoding_and_decoding(ids: list[MessageId]) -> None:
    """Up to the largest sequence number."""
    receipt = CustodyReceipt.from_ids(ids)

    assert CustodyReceipt.decode(receipt.encode()) == receipt


def test_receipt_of_many_messages_is_short() -> None:
    """Ten thousand consecutive messages take a few bytes."""
    receipt = CustodyReceipt.from_ids(MessageId("n", "b", seq) for seq in range(10_000))

    assert len(receipt.encode()) < 20


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "receipt must be a CBOR map"),
        (5, "receipt must be a CBOR map"),
        ({"n": []}, "receipt must be a CBOR map"),
        ({1: {"b": [1, 1]}}, "node must be text"),
        ({"": {"b": [1, 1]}}, "node must be text"),
        ({"n": {2: [1, 1]}}, "boot must be text"),
        ({"n": {"": [1, 1]}}, "boot must be text"),
        ({"n": {"b": [1]}}, "ranges must be pairs"),
        ({"n": {"b": "11"}}, "ranges must be pairs"),
        ({"n": {"b": {1: 1}}}, "ranges must be pairs"),
        ({"n": {"b": [1.0, 2.0]}}, "ranges must be pairs"),
        ({"n": {"b": [False, True]}}, "ranges must be pairs"),
        ({"n": {"b": [-1, 1]}}, "ranges must be pairs"),
        ({"n": {"b": [0, 2**63]}}, "ranges must be pairs"),
        ({"n": {"b": 2}}, "ranges must be pairs"),
        ({"n": {"b": [2, 1]}}, "ranges must be low before high"),
        ({"n": {"b": [1, 2, 9, 8]}}, "ranges must be low before high"),
    ],
)
def test_malformed_receipt_is_refused(value: object, message: str) -> None:
    """A receipt that could release the wrong message releases none."""
    with pytest.raises(ReceiptError, match=message):
        CustodyReceipt.decode(cbor2.dumps(value))


def test_receipt_beyond_its_size_is_refused() -> None:
    """A sender must not have to decode megabytes."""
    payload = b"\xa0" + b"\x00" * MAX_RECEIPT_BYTES
    with pytest.raises(ReceiptError, match="receipt must be at most 65536 bytes"):
        CustodyReceipt.decode(payload)


@given(
    payload=st.one_of(
        st.binary(),
        DATA.map(cbor2.dumps),
        st.integers(0, 60_000).map(lambda depth: b"\x81" * depth),
        st.integers(0, 20_000).map(lambda depth: b"\xa1\x61a" * depth),
    )
)
def test_any_bytes_are_custody_or_refused(payload: bytes) -> None:
    """A hostile payload raises only the package's own error."""
    for form in (CustodyReceipt, CustodyOffer):
        assert refusal(form, payload) in WRONG_FIELDS


def test_receipt_with_an_enormous_number_is_refused() -> None:
    """A CBOR bignum is refused like any other number out of range."""
    payload = cbor2.dumps({"n": {"b": [0, 10**5000]}})
    with pytest.raises(ReceiptError, match="semantic tag 2"):
        CustodyReceipt.decode(payload)


@given(
    offer=st.builds(
        CustodyOffer,
        NODES,
        st.lists(st.text(min_size=1)).map(tuple),
        st.sampled_from([(), ("parcel",), ("parcel", "chunk")]),
        st.booleans(),
    )
)
def test_offer_survives_encoding_and_decoding(offer: CustodyOffer) -> None:
    """It names the receiver, topics and contents, and whether the store is there."""
    assert CustodyOffer.decode(offer.encode()) == offer


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "offer must be a map with receiver and filters"),
        (None, "offer must be a map with receiver and filters"),
        ({"receiver": "a"}, "offer must be a map with receiver and filters"),
        ({"filters": ["#"]}, "offer must be a map with receiver and filters"),
        ({"receiver": "a", "filters": 1}, "filters must be a list, got 1"),
        ({"receiver": 1, "filters": []}, "offer must be a map"),
        ({"receiver": "a/b", "filters": []}, "offer must be a map"),
        ({"receiver": "a", "filters": [1]}, "filter must be text"),
        ({"receiver": "a", "filters": [""]}, "filter must be text"),
        ({"receiver": "a", "filters": [], "takes": "x"}, "takes must be a list"),
    ],
)
def test_malformed_offer_is_refused(value: object, message: str) -> None:
    """An offer that does not parse is ignored."""
    with pytest.raises(ReceiptError, match=message):
        CustodyOffer.decode(cbor2.dumps(value))


def test_offer_whose_filters_are_a_string_is_refused() -> None:
    """Filters are a list; the characters of a text are not filters."""
    payload = cbor2.dumps({"receiver": "a", "filters": "/1/#"})
    with pytest.raises(ReceiptError, match="filters must be a list, got '/1/#'"):
        CustodyOffer.decode(payload)


@given(filters=st.lists(st.sampled_from(["#", "/1/#", "/1/+", "/2", "/0/#"])))
def test_offer_covers_the_topics_that_match_a_filter(filters: list[str]) -> None:
    """One matching filter is enough; without filters nothing is covered."""
    offer = CustodyOffer("a", tuple(filters))

    for topic in ("/1/2", "/2", "/2/3", "/1"):
        assert offer.covers(topic) == any(matches(f, topic) for f in filters)


def test_offer_covers_everything_by_default() -> None:
    """By default a store receipts every message, and is there."""
    assert CustodyOffer("a").covers("/1/2/3")
    payload = cbor2.dumps({"receiver": "a", "filters": ["#"]})
    assert CustodyOffer.decode(payload) == CustodyOffer("a", is_offline=False)


def test_receipt_goes_to_the_response_topic_or_the_custody_topic() -> None:
    """A relay's Response Topic has precedence over the node's own custody topic."""
    message_id = MessageId("node-1", "b", 7)

    assert receipt_topic(message_id, None) == "/custody/node-1"
    assert receipt_topic(message_id, "/custody/gw-1") == "/custody/gw-1"
    for elsewhere in ("/notice/3/1", "/custody/+", "/custody/offer", "#", "", "/3"):
        assert receipt_topic(message_id, elsewhere) == "/custody/node-1"


def test_ranges_in_any_order_are_decoded() -> None:
    """Other programs may send them unsorted or overlapping."""
    receipt = CustodyReceipt.decode(cbor2.dumps({"n": {"b": [40, 50, 1, 9, 5, 20]}}))

    named = [seq for seq in range(60) if MessageId("n", "b", seq) in receipt]

    assert named == [*range(1, 21), *range(40, 51)]


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
