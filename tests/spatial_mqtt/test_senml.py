"""The envelope: encoding and decoding of SenML packs."""

import json
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.senml import (
    MAX_SEQ,
    MessageId,
    Pack,
    Reading,
    decode_message_id,
    decode_pack,
    decode_time,
    encode_cbor,
    encode_json,
)

KNOWN = {"bver", "bn", "bt", "bu", "bv", "bs"} | set("nuvst") | {"vs", "vb", "vd", "ut"}
OURS = {"boot", "seq", "pri", "tq", "mono", "why", "rs"}
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
NODES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True).filter(
    lambda node: node != "offer"
)
BOOTS = st.from_regex(r"[A-Za-z0-9._-]{1,32}", fullmatch=True)
IDS = st.builds(
    MessageId, NODES, BOOTS, st.one_of(st.integers(0, MAX_SEQ), st.just(MAX_SEQ))
)
NAMES = st.text().filter(lambda label: label not in KNOWN | OURS)
PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63), NUMBERS, st.text()
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)
FOREIGN_NUMBERS = st.one_of(st.integers(9, 2**32), st.integers(-(2**32), -7))


def packs(values: Any, extras: Any) -> Any:  # noqa: ANN401 - strategies
    """Packs whose readings have these values and unknown labels."""
    reading = st.builds(
        Reading,
        name=st.text(),
        unit=st.one_of(st.none(), st.text()),
        value=values,
        sum=st.one_of(st.none(), NUMBERS),
        time_s=NUMBERS,
        extra=extras,
    )
    return st.builds(
        Pack,
        id=IDS,
        priority=st.integers(1, 5),
        time_s=NUMBERS,
        readings=st.lists(reading, min_size=1, max_size=4).map(tuple),
        synchronised=st.booleans(),
        mono_s=st.one_of(st.none(), NUMBERS),
        why=st.one_of(st.none(), st.text()),
        reasons=st.one_of(st.just(()), st.lists(PLAIN, min_size=1, max_size=3)),
    )


JSON_VALUES = st.one_of(st.none(), st.booleans(), st.text(), NUMBERS)
JSON_PACKS = packs(JSON_VALUES, st.dictionaries(NAMES, PLAIN, max_size=2))
CBOR_PACKS = packs(
    st.one_of(JSON_VALUES, st.binary()),
    st.dictionaries(st.one_of(NAMES, FOREIGN_NUMBERS), PLAIN, max_size=2),
)
HEAD: dict[Any, Any] = {"bn": "n-1/", "bt": 1.0, "boot": "b", "seq": 7}
RECORD: dict[Any, Any] = HEAD | {"n": "rain", "u": "mm", "v": 0.5}
PACK = Pack(
    MessageId("n-1", "b", 7),
    priority=1,
    time_s=1.0,
    readings=(Reading("rain", "mm", 0.5),),
)


@given(pack=CBOR_PACKS)
def test_pack_survives_cbor(pack: Pack) -> None:
    """Unknown labels are kept."""
    assert decode_pack(encode_cbor(pack)) == pack


@given(pack=JSON_PACKS)
def test_pack_survives_json(pack: Pack) -> None:
    """JSON holds the same pack, whose id custody reads."""
    payload = b" " + encode_json(pack)
    assert decode_pack(payload) == pack
    assert decode_message_id(payload) == (pack.id, pack.priority)


@pytest.mark.parametrize("damaged", [None, 1, True, "frost", {"frost": 2}])
def test_malformed_reasons_are_ignored(damaged: object) -> None:
    """The text in `why` holds the same information."""
    pack = decode_pack(cbor2.dumps([RECORD | {"why": "frost", "rs": damaged}]))

    assert (pack.why, pack.reasons) == ("frost", ())


@given(pack=JSON_PACKS)
def test_value_keeps_its_type(pack: Pack) -> None:
    """True is not 1, and the text "1" is neither."""
    for payload in (encode_cbor(pack), encode_json(pack)):
        values = [reading.value for reading in decode_pack(payload).readings]
        assert [type(v) for v in values] == [type(r.value) for r in pack.readings]


@given(pack=CBOR_PACKS)
def test_decode_message_id_agrees_with_decode_pack(pack: Pack) -> None:
    """The partial decoder returns the same id and priority."""
    assert decode_message_id(encode_cbor(pack)) == (pack.id, pack.priority)


@given(pack=JSON_PACKS)
def test_encoding_is_stable(pack: Pack) -> None:
    """Decoding and encoding a pack again gives the same bytes."""
    for encode in (encode_cbor, encode_json):
        once = encode(decode_pack(encode(pack)))
        assert encode(decode_pack(once)) == once


def test_time_of_a_pack_is_that_of_a_clock_that_is_set() -> None:
    """A node that starts without a time server has none."""
    unset = (replace(PACK, synchronised=False), replace(PACK, time_s=0.0))

    assert decode_time(encode_cbor(PACK)) == PACK.time_s
    assert [decode_time(encode_cbor(pack)) for pack in unset] == [None, None]


@given(message_id=IDS)
def test_message_id_survives_formatting_and_parsing(message_id: MessageId) -> None:
    """An id in a log line identifies the message."""
    assert MessageId.parse(str(message_id)) == message_id


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "id"),
        ("n", "id"),
        ("n:b", "id"),
        ("n:b:", "id"),
        ("n:b:x", "id"),
        ("n:b:-1", "id"),
        ("n:b:1.0", "id"),
        ("n:b:１", "id"),
        ("n:b:²", "id"),
        ("n:b:c:1", "id"),
        (":b:1", "bn"),
        ("-n:b:1", "bn"),
        ("offer:b:1", "bn"),
        ("n::1", "boot"),
        (f"n:{'b' * 33}:1", "boot"),
        (f"n:b:{2**63}", "seq"),
    ],
)
def test_invalid_message_id_is_refused(text: str, field: str) -> None:
    """The error names the invalid part."""
    with pytest.raises(EnvelopeError, match=f"^{field} must be"):
        MessageId.parse(text)


@given(text=st.text())
def test_any_text_is_a_message_id_or_refused(text: str) -> None:
    """A foreign id raises only the package's own error."""
    try:
        message_id = MessageId.parse(text)
    except EnvelopeError:
        return
    assert MessageId.parse(str(message_id)) == message_id


def test_message_id_of_very_many_digits_is_refused() -> None:
    """A number beyond 2^63-1 is no sequence number, however long."""
    try:
        MessageId.parse("n:b:" + "9" * 5000)
    except EnvelopeError:
        return
    pytest.fail("parsed")


def test_message_id_with_a_slash_is_refused() -> None:
    """`a/b` is no node id, and must not stand for another node."""
    with pytest.raises(EnvelopeError, match=r"^bn must be"):
        MessageId.parse("a/b:boot:1")


def test_boot_id_with_a_colon_is_refused() -> None:
    """An id that was decoded can be formatted and parsed again."""
    with pytest.raises(EnvelopeError, match=r"^boot must be 1 to 32 of"):
        decode_message_id(cbor2.dumps([RECORD | {"boot": "b:c"}]))


def test_cbor_uses_the_numeric_labels_of_the_standard() -> None:
    """RFC 8428 table 4; our own labels are text."""
    assert cbor2.loads(encode_cbor(PACK)) == [
        {
            -2: "n-1/",
            -3: 1.0,
            "boot": "b",
            "seq": 7,
            "pri": 1,
            0: "rain",
            1: "mm",
            2: 0.5,
        }
    ]


def test_json_uses_the_names_of_the_standard() -> None:
    """Defaults and absent values are not encoded."""
    assert json.loads(encode_json(PACK)) == [RECORD | {"pri": 1}]


def test_bytes_are_refused_in_json() -> None:
    """SenML JSON has no byte strings; CBOR must be used."""
    pack = replace(PACK, readings=(Reading("raw", None, b"\x01"),))
    with pytest.raises(EnvelopeError, match="value must be a number, text or truth"):
        encode_json(pack)


def test_foreign_pack_is_resolved() -> None:
    """Base unit, base value and base sum apply to the records that follow."""
    first = HEAD | {
        "bn": "n-1/tilt/",
        "bu": "deg",
        "bv": 10,
        "bs": 100,
        "n": "x",
        "v": 1,
    }
    records = [
        first,
        {"n": "y", "v": 2, "s": 3, "t": -60},
        {"n": "z", "u": "m", "s": 0},
    ]
    pack = decode_pack(json.dumps(records).encode())

    assert pack.id.node == "n-1"
    assert pack.readings == (
        Reading("tilt/x", "deg", 11.0),
        Reading("tilt/y", "deg", 12.0, 103.0, -60.0),
        Reading("tilt/z", "m", None, 100.0),
    )


def test_absent_labels_get_the_defaults() -> None:
    """The lowest priority, time 0, a synchronised clock."""
    pack = decode_pack(
        json.dumps([{"bn": "n/", "boot": "b", "seq": 0, "vb": True}]).encode()
    )

    assert pack == Pack(
        MessageId("n", "b", 0), 1, 0.0, (Reading("", None, value=True),)
    )
    assert (pack.synchronised, pack.mono_s, pack.why) == (True, None, None)


def test_first_record_may_hold_base_values_only() -> None:
    """A first record with only base fields and labels is no reading."""
    payload = cbor2.dumps([HEAD, {"n": "rain", "v": 1}])

    assert decode_pack(payload).readings == (Reading("rain", None, 1.0),)


def test_text_labels_are_accepted_in_cbor() -> None:
    """Some libraries write CBOR with text labels."""
    assert decode_pack(cbor2.dumps([RECORD])) == PACK
    assert decode_pack(b" \n" + json.dumps([RECORD]).encode()) == PACK


def test_our_labels_apply_in_the_first_record_only() -> None:
    """In later records they are treated as unknown labels and kept."""
    payload = cbor2.dumps([RECORD, {"n": "x", "v": 1, "seq": "old"}])

    assert decode_pack(payload).readings[1].extra == {"seq": "old"}
