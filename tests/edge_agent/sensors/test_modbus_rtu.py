import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors.modbus import (
    BYTE_ORDERS,
    NUMBER_TYPES,
    ModbusAnswerError,
    ModbusExceptionError,
    count_registers,
    decode,
    decode_number,
    encode_request,
    is_complete,
    modbus_crc,
)

REQUEST = encode_request(0x11, 3, 0x006B, 3)


def make_frame(body: str) -> bytes:
    """A frame with this body and its CRC."""
    data = bytes.fromhex(body)
    return data + modbus_crc(data)


def test_crc_of_the_check_string() -> None:
    """CRC-16/MODBUS of 123456789 is 4B37, sent low byte first."""
    assert modbus_crc(b"123456789").hex() == "374b"


def test_request_of_the_standard() -> None:
    """Application protocol 6.3: registers 108 to 110, here of device 17."""
    assert REQUEST.hex(" ") == "11 03 00 6b 00 03 76 87"


def test_answer_of_the_standard() -> None:
    """Application protocol 6.3: the contents are 02 2B, 00 00, 00 64."""
    frame = make_frame("11 03 06 02 2B 00 00 00 64")
    assert decode(frame, REQUEST).hex() == "022b00000064"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1, "illegal function"),
        (2, "illegal data address"),
        (6, "device busy"),
        (11, "gateway target does not respond"),
        (99, "unknown exception"),
    ],
)
def test_exception_is_reported(code: int, expected: str) -> None:
    """Application protocol 7."""
    with pytest.raises(
        ModbusExceptionError, match=f"exception {code}, {expected}"
    ) as caught:
        decode(make_frame(f"11 83 {code:02x}"), REQUEST)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"", "answers only 0 bytes"),
        (make_frame("11 03 06 02 2B 00 00 00 64")[:-1], "answers only 10 bytes"),
        (make_frame("11 03 06 02 2B 00 00 00 64")[:-1] + b"\0", "a wrong CRC: 11 03"),
        (make_frame("12 03 06 02 2B 00 00 00 64"), "answers for another"),
        (make_frame("11 04 06 02 2B 00 00 00 64"), "answers for another"),
        (make_frame("11 03 02 02 2B"), "answers 2 bytes of registers, not 6"),
    ],
)
def test_damaged_answer_is_reported(frame: bytes, expected: str) -> None:
    """The fault and the bytes."""
    with pytest.raises(ModbusAnswerError, match=expected):
        decode(frame, REQUEST)


@pytest.mark.parametrize(
    ("data", "kind", "order", "value"),
    [
        ("ff38", "int16", "ABCD", -200),
        ("38ff", "int16", "BADC", -200),
        ("ff38", "uint16", "CDAB", 65336),
        ("00010000", "uint32", "ABCD", 65536),
        ("00000001", "uint32", "CDAB", 65536),
        ("fffffffe", "int32", "DCBA", -16777217),
        ("42f6e979", "float32", "ABCD", 123.456),
        ("e97942f6", "float32", "CDAB", 123.456),
        ("f64279e9", "float32", "BADC", 123.456),
        ("79e9f642", "float32", "DCBA", 123.456),
    ],
)
def test_number_in_registers(data: str, kind: str, order: str, value: float) -> None:
    """Every type, in the orders that are known of probes."""
    assert decode_number(bytes.fromhex(data), kind, order) == pytest.approx(
        value, rel=1e-6
    )


@given(st.binary(min_size=4, max_size=4), st.sampled_from(sorted(BYTE_ORDERS)))
def test_orders_undo_themselves(data: bytes, order: str) -> None:
    """Each order is its own inverse, so that a probe can be simulated with it."""
    wire = bytes(data[at] for at in BYTE_ORDERS[order])
    assert decode_number(wire, "uint32", order) == struct.unpack(">I", data)[0]


@given(st.integers(1, 125), st.binary(max_size=250))
def test_every_prefix_of_an_answer_is_incomplete(count: int, content: bytes) -> None:
    """A frame is complete with its last byte and not before."""
    body = bytes([1, 3, 2 * count]) + content.ljust(2 * count, b"\0")[: 2 * count]
    frame = body + modbus_crc(body)
    assert is_complete(frame)
    assert not is_complete(frame[:-1])


def test_two_registers_for_thirty_two_bits() -> None:
    """A register has 16 bits."""
    assert {kind: count_registers(kind) for kind in NUMBER_TYPES} == {
        "int16": 1, "uint16": 1, "int32": 2, "uint32": 2, "float32": 2,
    }  # fmt: skip


@given(st.binary(max_size=40), st.booleans())
def test_no_other_error_is_raised_for_any_bytes(noise: bytes, has_crc: bool) -> None:
    """Noise, also with a valid CRC, is damaged or an exception."""
    frame = noise + modbus_crc(noise) if has_crc else noise
    with contextlib.suppress(ModbusAnswerError, ModbusExceptionError):
        assert len(decode(frame, REQUEST)) == 6
