import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors.base import Health
from edge_agent.sensors.ds18b20 import NoTemperatureError, OneWireAnswerError, decode

SLAVE = """50 05 4b 46 7f ff 0c 10 1c : crc=1c YES
50 05 4b 46 7f ff 0c 10 1c t={milli}
"""


@pytest.mark.parametrize(
    ("milli", "celsius"),
    [
        ("125000", 125.0), ("25062", 25.062), ("10125", 10.125), ("500", 0.5),
        ("0", 0.0), ("-500", -0.5), ("-25062", -25.062), ("-55000", -55.0),
    ],
)  # fmt: skip
def test_both_files_give_the_temperature(milli: str, celsius: float) -> None:
    """Temperatures of the data sheet's table 1, as the kernel writes them."""
    assert decode(f"{milli}\n") == celsius
    assert decode(SLAVE.format(milli=milli)) == celsius


@pytest.mark.parametrize("text", ["85000\n", SLAVE.format(milli="85000")])
def test_power_on_value_is_no_temperature(text: str) -> None:
    """85.0 C is in the chip before its first conversion."""
    with pytest.raises(NoTemperatureError, match=r"85.0 C, its value after power-on"):
        decode(text)


@pytest.mark.parametrize("milli", ["-127000", "127937"])
def test_disconnected_chip_is_reported(milli: str) -> None:
    """Values decoded from an idle or a shorted wire."""
    with pytest.raises(NoTemperatureError, match="it is disconnected"):
        decode(milli)


def test_nine_zero_bytes_are_no_temperature() -> None:
    """Their CRC is 0 as well; byte 5 of the chip is always FF."""
    zeros = "00 " * 9
    with pytest.raises(NoTemperatureError, match="only zero bytes") as caught:
        decode(f"{zeros}: crc=00 YES\n{zeros}t=0\n")
    assert caught.value.health is Health.SHORTED
    freezing = "00 00 4b 46 7f ff 0c 10 c8 "
    assert decode(f"{freezing}: crc=c8 YES\n{freezing}t=0\n") == 0.0


@pytest.mark.parametrize("milli", ["-55063", "125062"])
def test_temperature_outside_the_range_is_reported(milli: str) -> None:
    """The chip measures -55 to 125 C."""
    with pytest.raises(NoTemperatureError, match="beyond what it can measure"):
        decode(milli)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "an empty file"),
        (SLAVE.format(milli="20000").replace("YES", "NO"), "a wrong CRC"),
        ("00 00 : crc=00 YES\n00 00\n", "gives no temperature"),
        ("warm", "gives no temperature: 'warm'"),
    ],
)
def test_damaged_answer_is_reported(text: str, expected: str) -> None:
    """The kernel writes YES or NO for the CRC."""
    with pytest.raises(OneWireAnswerError, match=expected):
        decode(text)


@given(st.text(max_size=80) | st.integers().map(str))
def test_no_other_error_is_raised_for_any_text(text: str) -> None:
    """The result is a temperature in the chip's range, or the reason."""
    with contextlib.suppress(OneWireAnswerError, NoTemperatureError):
        assert -55 <= decode(text) <= 125
