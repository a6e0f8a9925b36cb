"""The SenML decoder with hostile input: a pack, or an error that names the field."""

import json
import math
from typing import Any

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.senml import (
    MAX_LISTS,
    MAX_PAYLOAD_BYTES,
    MAX_RECORDS,
    MessageId,
    Pack,
    Reading,
    decode_message_id,
    decode_pack,
    encode_cbor,
    encode_json,
)

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63), NUMBERS, st.text()
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)
HEAD: dict[Any, Any] = {"bn": "n-1/", "bt": 1.0, "boot": "b", "seq": 7}
RECORD: dict[Any, Any] = HEAD | {"n": "rain", "u": "mm", "v": 0.5}
PACK = Pack(
    MessageId("n-1", "b", 7),
    priority=1,
    time_s=1.0,
    readings=(Reading("rain", "mm", 0.5),),
)
FULL = Pack(
    MessageId("n-1", "b", 2**63 - 1),
    priority=5,
    time_s=1.7e9,
    readings=(
        Reading("tilt/x", "deg", -0.0, 2.5, -60.0, {"x": [1, {"y": None}], 99: "z"}),
        Reading("雨", None, "言葉"),
        Reading("wire", None, value=True),
        Reading("raw", None, bytes(range(30))),
    ),
    synchronised=False,
    mono_s=12.5,
    why="r60",
    reasons=[["frost", -2]],
)


def refused_field(payload: bytes) -> str | None:
    """The invalid field, or None when the payload is a pack."""
    try:
        decode_pack(payload)
    except EnvelopeError as error:
        assert str(error).startswith(f"{error.field} must be ")  # noqa: PT017
        return error.field
    return None


def broken(label: str, value: object) -> list[dict[Any, Any]]:
    """A pack that is valid except for one label."""
    record = RECORD | {label: value}
    if label in {"vs", "vb", "vd"}:
        del record["v"]
    if label == "bu":
        del record["u"]
    return [record | ({"s": 1.0} if label == "bs" else {})]


TEXT_WRONG = [1, 1.5, True, [], {}]
NUMBER_WRONG = ["1", True, None, [], {}, math.nan, math.inf, -math.inf]
WRONG: dict[str, list[object]] = {
    "bn": [*TEXT_WRONG, None, "", "n", "/", "a b/", "offer/", "-/"],
    "bt": NUMBER_WRONG,
    "bv": NUMBER_WRONG,
    "bs": NUMBER_WRONG,
    "n": list(TEXT_WRONG),
    "u": list(TEXT_WRONG),
    "v": NUMBER_WRONG,
    "vs": list(TEXT_WRONG),
    "vb": [0, 1, "true", None, []],
    "vd": [1, True, None, []],
    "s": NUMBER_WRONG,
    "t": NUMBER_WRONG,
    "boot": [1, True, None, "", "b" * 33, []],
    "seq": [-1, 2**63, 1.0, "1", True, None, []],
    "pri": [0, 6, 1.0, "1", True, None, []],
    "mono": NUMBER_WRONG,
    "why": list(TEXT_WRONG),
}
CASES = [(label, value) for label, values in WRONG.items() for value in values]


@pytest.mark.parametrize(("label", "value"), CASES)
def test_wrong_type_is_refused_with_the_label(label: str, value: object) -> None:
    """The error names the label, in CBOR and in JSON."""
    records = broken(label, value)
    with pytest.raises(EnvelopeError, match=rf"^(record 0 )?{label} must be "):
        decode_pack(cbor2.dumps(records))
    if not isinstance(value, float) or math.isfinite(value):
        with pytest.raises(EnvelopeError, match=rf"^(record 0 )?{label} must be "):
            decode_pack(json.dumps(records).encode())


@given(label=st.sampled_from(sorted(WRONG)), value=PLAIN)
def test_any_value_of_any_label_is_accepted_or_refused(
    label: str, value: object
) -> None:
    """For any value the result is a pack or an error that names the label."""
    field = refused_field(cbor2.dumps(broken(label, value)))

    assert field is None or field.split()[-1] == label


@pytest.mark.parametrize("value", TEXT_WRONG)
def test_base_unit_of_another_type_is_refused_with_its_label(value: object) -> None:
    """The error names `bu`, not `u`."""
    with pytest.raises(EnvelopeError, match=r"^bu must be text"):
        decode_pack(cbor2.dumps(broken("bu", value)))


@pytest.mark.parametrize("value", ["0", "no", [], 2, None])
def test_clock_label_of_another_type_is_refused(value: object) -> None:
    """`tq` is 0 or 1; the text "0" must not count as a synchronised clock."""
    with pytest.raises(EnvelopeError, match=r"^tq must be"):
        decode_pack(cbor2.dumps(broken("tq", value)))


@pytest.mark.parametrize("label", ["bn", "boot", "seq"])
def test_missing_part_of_the_id_is_refused(label: str) -> None:
    """Without an id no receipt is possible."""
    record = {name: value for name, value in RECORD.items() if name != label}
    for read in (decode_pack, decode_message_id):
        with pytest.raises(EnvelopeError, match=f"^{label} must be"):
            read(cbor2.dumps([record]))


def test_pack_without_a_reading_is_refused() -> None:
    """Base values alone are no reading, though the id can be receipted."""
    payload = cbor2.dumps([HEAD, {"pri": 3}])

    assert decode_message_id(payload) == (MessageId("n-1", "b", 7), 1)
    with pytest.raises(EnvelopeError, match=r"^records must be at least one reading"):
        decode_pack(payload)


@pytest.mark.parametrize("second", [{"vs": "x"}, {"vb": True}, {"vd": b"x"}])
def test_two_values_in_a_record_are_refused(second: dict[str, object]) -> None:
    """A reading has one value; a choice between two would be arbitrary."""
    with pytest.raises(EnvelopeError, match=r"^record 0 must be one value at most"):
        decode_pack(cbor2.dumps([RECORD | second]))
    with pytest.raises(EnvelopeError, match=r"^record 1 must be one value at most"):
        decode_pack(cbor2.dumps([RECORD, {"n": "x", "v": 1} | second]))


@pytest.mark.parametrize("fields", [{}, {"n": "x", "v": 1}])
def test_second_base_time_is_refused(fields: dict[str, object]) -> None:
    """A pack has one base time."""
    with pytest.raises(EnvelopeError, match=r"^bt must be in the first record only"):
        decode_pack(cbor2.dumps([RECORD, {"bt": 2.0} | fields]))


def test_second_base_name_is_refused() -> None:
    """Custody and the backend must identify a message by one id."""
    payload = cbor2.dumps([RECORD, {"bn": "other/", "n": "x", "v": 1}])

    assert decode_message_id(payload)[0].node == "n-1"
    with pytest.raises(EnvelopeError, match=r"^bn must be in the first record only"):
        decode_pack(payload)


@pytest.mark.parametrize(
    "payload", [b"[NaN]", b"[Infinity]", b'[{"bn":"n/","v":-Infinity}]']
)
def test_constants_that_are_not_json_are_refused(payload: bytes) -> None:
    """Python's JSON parser accepts NaN; SenML does not."""
    with pytest.raises(EnvelopeError, match=r"payload must be SenML .* is not JSON"):
        decode_pack(payload)


def test_number_beyond_a_double_is_refused() -> None:
    """`1e999` is valid JSON and overflows to infinity."""
    payload = json.dumps([RECORD]).replace("0.5", "1e999").encode()
    with pytest.raises(EnvelopeError, match=r"^record 0 v must be a finite number"):
        decode_pack(payload)


@pytest.mark.parametrize("label", ["v", "s", "t", "bt", "mono"])
def test_integer_too_large_for_a_double_is_refused(label: str) -> None:
    """A number of 400 digits cannot be represented."""
    with pytest.raises(EnvelopeError, match=f"{label} must be a finite number"):
        decode_pack(json.dumps(broken(label, 10**400)).encode())


@pytest.mark.parametrize("label", ["seq", "pri", "boot", "bn"])
def test_enormous_integer_is_refused_with_the_label(label: str) -> None:
    """A CBOR bignum of any size is refused, as every tag; so is the largest integer."""
    assert refused_field(cbor2.dumps(broken(label, 10**5000))) == "payload"
    assert refused_field(cbor2.dumps(broken(label, 2**64 - 1))) == label


@pytest.mark.parametrize(("base", "label"), [("bv", "v"), ("bs", "s")])
def test_sum_with_the_base_stays_finite(base: str, label: str) -> None:
    """No decoded reading is infinite."""
    with pytest.raises(EnvelopeError, match="must be a finite number"):
        decode_pack(json.dumps([RECORD | {base: 1e308, label: 1e308}]).encode())


@pytest.mark.parametrize("label", ["boot", "n", "u", "why"])
def test_lone_surrogate_is_refused_or_encodable(label: str) -> None:
    """Text that cannot be stored as UTF-8 must not enter by JSON escapes."""
    payload = json.dumps(broken(label, "\ud800")).encode()
    if refused_field(payload) is None:
        encode_cbor(decode_pack(payload))


@given(payload=st.binary())
def test_any_bytes_are_refused_with_a_field(payload: bytes) -> None:
    """Random bytes raise only the package's own error."""
    assert refused_field(payload) is not None


@given(text=st.text())
def test_any_text_in_brackets_is_refused_with_a_field(text: str) -> None:
    """Nor does text that starts like JSON."""
    assert refused_field(f"[{text}".encode()) is not None


@given(data=st.data(), pack=st.sampled_from([PACK, FULL]))
def test_truncated_pack_is_refused(data: st.DataObject, pack: Pack) -> None:
    """No prefix of a pack is a pack."""
    payload = encode_cbor(pack)
    cut = data.draw(st.integers(0, len(payload) - 1))

    assert refused_field(payload[:cut]) == "payload"


@given(cut=st.integers(0, len(encode_json(PACK)) - 1))
def test_truncated_json_is_refused(cut: int) -> None:
    """No prefix of a JSON pack is a pack."""
    assert refused_field(encode_json(PACK)[:cut]) == "payload"


@settings(max_examples=500)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    payload=st.sampled_from([encode_cbor(PACK), encode_json(PACK)]),
)
def test_damaged_pack_is_a_pack_or_refused(
    changes: list[tuple[int, int]], payload: bytes
) -> None:
    """For any flipped bytes the decoder raises only its own error."""
    damaged = bytearray(payload)
    for position, byte in changes:
        damaged[position % len(damaged)] = byte

    field = refused_field(bytes(damaged))
    assert field is None or field


@settings(max_examples=500)
@given(tag=st.integers(0, 2**16), inner=st.binary(max_size=12))
def test_cbor_tag_is_decoded_or_refused(tag: int, inner: bytes) -> None:
    """Decoders of tags such as dates, regular expressions and addresses never fail."""
    tagged = b"\xda" + tag.to_bytes(4, "big") + inner
    head = cbor2.dumps(HEAD | {"n": "x", "v": 0})[:-1]
    for payload in (tagged, b"\x81" + tagged, b"\x81" + head + tagged):
        field = refused_field(payload)
        assert field is None or field


NODE = st.sampled_from(["n-1/", "other/"])
RECORDS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "bn": NODE,
            -2: NODE,
            "bt": st.just(2.0),
            "pri": st.just(4),
            "boot": st.just("c"),
            "n": st.sampled_from(["rain", "other/rain"]),
            "v": st.just(0.5),
        },
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=500)
@given(records=RECORDS)
@example(records=[{"n": "other/rain", "v": 0.5}, {"bn": "other/"}])
def test_pack_has_the_id_and_priority_of_custody(records: list[dict[Any, Any]]) -> None:
    """Otherwise the gateway would check another name than the backend reads."""
    payload = cbor2.dumps([{"boot": "b", "seq": 7} | records[0], *records[1:]])

    if refused_field(payload) is None:
        pack = decode_pack(payload)
        assert decode_message_id(payload) == (pack.id, pack.priority)


@pytest.mark.parametrize("depth", [1, 10, 100, 399, 400, 401, 900, 1000, 5000, 50_000])
def test_nested_payload_is_refused(depth: int) -> None:
    """Deep nesting does not exhaust the stack."""
    assert refused_field(b"[" * depth) == "payload"
    assert refused_field(b"[" * depth + b"]" * depth) is not None
    assert refused_field(b"\x81" * depth + b"\x00") is not None
    assert refused_field(b'[{"bn":' + b"[" * depth + b"]" * depth + b"}]") is not None
    assert refused_field(b"\x81\xa1\x62bn" + b"\x81" * depth + b"\x00") is not None


@pytest.mark.parametrize("size", [0, MAX_PAYLOAD_BYTES + 1])
def test_payload_of_no_acceptable_size_is_refused(size: int) -> None:
    """Empty payloads and payloads over the limit are refused before decoding."""
    with pytest.raises(EnvelopeError, match=f"payload must be 1 to .*'{size} bytes'"):
        decode_pack(b" " * size)
    with pytest.raises(EnvelopeError, match="payload must be"):
        decode_message_id(b" " * size)


def test_json_of_very_many_lists_is_refused() -> None:
    """Each takes fifty times its size in memory."""
    record = json.dumps(RECORD).removesuffix("}")
    payload = f'[{record}, "x": [{"[]," * MAX_LISTS}[]]}}]'
    assert refused_field(payload.encode()) == "payload"


def test_huge_declared_length_is_refused() -> None:
    """A header that declares more than follows allocates no memory."""
    for first in (b"\x9b", b"\xbb", b"\x5b", b"\x7b"):
        assert refused_field(first + b"\x7f" + b"\xff" * 7) == "payload"
        assert refused_field(b"\x81" + first + b"\x00\x00\x00\xff" * 2) == "payload"


@pytest.mark.parametrize("count", [0, MAX_RECORDS + 1])
def test_record_count_out_of_range_is_refused(count: int) -> None:
    """A pack has 1 to 4096 records."""
    with pytest.raises(EnvelopeError, match="payload must be a list of 1 to 4096"):
        decode_pack(cbor2.dumps([{}] * count))


def test_pack_with_the_maximum_number_of_records_is_decoded() -> None:
    """The limit itself is allowed."""
    records = [RECORD] + [{"n": "x", "v": 1}] * (MAX_RECORDS - 1)

    assert len(decode_pack(cbor2.dumps(records)).readings) == MAX_RECORDS


@pytest.mark.parametrize(
    "value", [5, "text", None, {}, RECORD, [1], [RECORD, "x"], [[]]]
)
def test_cbor_that_is_no_list_of_maps_is_refused(value: object) -> None:
    """SenML is a list of records."""
    with pytest.raises(EnvelopeError, match="payload must be a list of"):
        decode_pack(cbor2.dumps(value))


def test_bytes_after_the_pack_are_refused() -> None:
    """Two packs in one payload are an error of the sender."""
    with pytest.raises(EnvelopeError, match="1 bytes after the value"):
        decode_pack(encode_cbor(PACK) + b"\x00")
    with pytest.raises(EnvelopeError, match="payload must be SenML in CBOR or JSON"):
        decode_pack(encode_json(PACK) * 2)


def test_error_is_one_short_line() -> None:
    """A hostile value does not flood the log."""
    with pytest.raises(EnvelopeError, match=r"^record 0 v must be .{1,120}$"):
        decode_pack(cbor2.dumps([RECORD | {"v": "x" * 10_000}]))


@pytest.mark.parametrize("labels", [("bn", -2), (-2, "bn"), (-2,), ("bn",)])
def test_id_alone_is_that_of_the_pack(labels: tuple[str | int, ...]) -> None:
    """With a label twice too: a receipt must be for the message that is stored."""
    names = {label: f"n-{place}/" for place, label in enumerate(labels)}
    record = names | {key: value for key, value in RECORD.items() if key != "bn"}
    payload = cbor2.dumps([record])

    assert decode_message_id(payload)[0] == decode_pack(payload).id
