from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors.sdi12 import (
    Sdi12AnswerError,
    data_command,
    decode,
    decode_announcement,
    is_complete,
    measure_command,
    sdi12_crc,
)


@pytest.mark.parametrize(
    ("text", "crc"), [("0+3.14", "OqZ"), ("1+2.7+85.2-0.2-2.7+770.5", "CAH")]
)
def test_crc_of_published_answers(text: str, crc: str) -> None:
    """The example of the specification, and one of the Vaisala WMT700's manual."""
    assert sdi12_crc(text) == crc


def test_commands() -> None:
    """Address, letter, number, exclamation mark."""
    assert measure_command("0", 0, with_crc=False) == b"0M!"
    assert measure_command("z", 3, with_crc=True) == b"zMC3!"
    assert data_command("5", 9) == b"5D9!"


@pytest.mark.parametrize("echo", ["", "0M!"])
def test_announcement_is_seconds_and_count(echo: str) -> None:
    """``atttn``; an adapter may echo the command."""
    announcement = decode_announcement(f"{echo}00325\r\n".encode(), b"0M!")
    assert (announcement.wait_s, announcement.count) == (32.0, 5)


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        ("0+1.23-4.5\r\n", [1.23, -4.5]),
        ("0+3-2.+.5\r\n", [3, -2, 0.5]),
        ("0\r\n", []),
        ("0D0!0+1\r\n", [1]),
    ],
)
def test_values_have_signs(answer: str, values: list[float]) -> None:
    """A sign starts each value; the decimal point may be anywhere."""
    assert decode(answer.encode(), b"0D0!", with_crc=False) == values


def test_values_with_a_crc() -> None:
    """The CRC is checked and removed."""
    assert decode(b"0+3.14OqZ\r\n", b"0D0!", with_crc=True) == [3.14]


@pytest.mark.parametrize(
    ("answer", "with_crc", "expected"),
    [
        (b"", False, "no whole line: b''"),
        (b"0+1.2", False, "no whole line"),
        (b"\r\n", False, "for another"),
        (b"0+1\xb2\r\n", False, "no whole line"),
        (b"1+1.2\r\n", False, "for another"),
        (b"0+1,2\r\n", False, "must answer signed numbers"),
        (b"01.2\r\n", False, "must answer signed numbers"),
        (b"0+3.15OqZ\r\n", True, "a wrong CRC"),
        (b"0\r\n", True, "a wrong CRC"),
    ],
)
def test_damaged_answer_is_reported(
    answer: bytes, with_crc: bool, expected: str
) -> None:
    """The fault and the bytes."""
    with pytest.raises(Sdi12AnswerError, match=expected):
        decode(answer, b"0D0!", with_crc=with_crc)


@pytest.mark.parametrize("answer", [b"0+1.2\r\n", b"0\r\n", b"0abc1\r\n"])
def test_malformed_announcement_is_damaged(answer: bytes) -> None:
    """Three digits and one."""
    with pytest.raises(Sdi12AnswerError, match="must announce seconds and a count"):
        decode_announcement(answer, b"0M!")


@given(st.lists(st.floats(-9999, 9999).map(lambda x: f"{x:+.3f}"), max_size=9))
def test_changed_character_is_detected_by_the_crc(values: list[str]) -> None:
    """The complete answer is decoded; with one character changed it is not."""
    text = "7" + "".join(values)
    answer = (text + sdi12_crc(text) + "\r\n").encode()
    assert is_complete(answer)
    assert decode(answer, b"7D0!", with_crc=True) == [float(value) for value in values]
    for at in range(1, len(text)):
        bad = answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]
        with pytest.raises(Sdi12AnswerError, match="answers"):
            decode(bad, b"7D0!", with_crc=True)


@given(st.binary(max_size=20).map(lambda noise: b"0" + noise + b"\r\n"), st.booleans())
def test_no_other_error_is_raised_for_any_bytes(answer: bytes, with_crc: bool) -> None:
    """Noise is damaged, or happens to be numbers."""
    for parse in (decode_announcement, partial(decode, with_crc=with_crc)):
        try:
            assert parse(answer, b"0D0!") is not None
        except Sdi12AnswerError:
            continue
