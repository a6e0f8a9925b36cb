import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors.murata import (
    FrameError,
    MurataAnswer,
    ReturnStatus,
    crc8,
    decode,
    decode_temp_c,
    encode,
    format_status_flags,
)

READS = {
    0x01: "040000F7", 0x02: "080000FD", 0x03: "0C0000FB", 0x04: "100000E9",
    0x05: "140000EF", 0x06: "180000E5", 0x07: "1C0000E3", 0x08: "200000C1",
    0x09: "240000C7", 0x0A: "280000CD", 0x0B: "2C0000CB", 0x0D: "340000DF",
    0x10: "40000091", 0x19: "640000A7", 0x1A: "680000AD", 0x1F: "7C0000B3",
}  # fmt: skip
WRITES = {
    (0x0D, 0x00): "B400001F", (0x0D, 0x01): "B4000102", (0x0D, 0x02): "B4000225",
    (0x0D, 0x03): "B4000338", (0x0D, 0x04): "B400046B", (0x0D, 0x20): "B4002098",
    (0x0C, 0x1F): "B0001F6F", (0x1F, 0x00): "FC000073", (0x1F, 0x01): "FC00016E",
}  # fmt: skip


@pytest.mark.parametrize(("register", "word"), READS.items())
def test_read_commands_equal_the_data_sheet(register: int, word: str) -> None:
    """SCL3300-D01, table of operations: each word with its checksum."""
    assert encode(register).hex().upper() == word


@pytest.mark.parametrize(("register_and_data", "word"), WRITES.items())
def test_write_commands_equal_the_data_sheet(
    register_and_data: tuple[int, int], word: str
) -> None:
    """Modes 1 to 4, power down, reset, angles on, banks."""
    assert encode(*register_and_data).hex().upper() == word


def test_answer_of_the_data_sheet() -> None:
    """The example 0500DC1C: register 1, normal operation, 00DC, checksum 1C."""
    assert decode(bytes.fromhex("0500DC1C")) == MurataAnswer(
        0x01, ReturnStatus.NORMAL, 0x00DC
    )
    assert decode(bytes.fromhex("0700DC1F")).status is ReturnStatus.ERROR


@given(st.integers(0, 2**24 - 1), st.integers(0, 31))
def test_single_wrong_bit_is_always_detected(head: int, bit: int) -> None:
    """A checksum of eight bits detects any single one."""
    three = head.to_bytes(3)
    frame = int.from_bytes(three + bytes([crc8(three)])) ^ (1 << bit)
    with pytest.raises(FrameError, match=r"wrong checksum|answers only"):
        decode(frame.to_bytes(4))


@pytest.mark.parametrize("frame", ["00000000", "FFFFFFFF"])
def test_silence_is_an_error(frame: str) -> None:
    """All bits alike is a line without a chip."""
    with pytest.raises(FrameError, match=f"answers only {frame[:2]}"):
        decode(bytes.fromhex(frame))


def test_data_is_signed() -> None:
    """Two's complement; the example is 220 digits."""
    assert MurataAnswer(1, ReturnStatus.NORMAL, 0x00DC).signed == 220
    assert MurataAnswer(1, ReturnStatus.NORMAL, 0xFFEA).signed == -22


def test_flags_have_names() -> None:
    """Status register, bit by bit."""
    assert format_status_flags(0x0041) == "saturated, pin continuity"
    assert format_status_flags(0) == "no flag"


@pytest.mark.parametrize(("data", "celsius"), [(0x161E, 26.6), (0, -273), (5000, -8.4)])
def test_temperature_follows_the_data_sheet(data: int, celsius: float) -> None:
    """18.9 digits to a degree from -273."""
    assert decode_temp_c(data) == pytest.approx(celsius, abs=0.06)
