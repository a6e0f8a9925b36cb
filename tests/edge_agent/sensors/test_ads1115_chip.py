import pytest

from edge_agent.sensors.ads1115 import InputSaturatedError, decode, encode_config


@pytest.mark.parametrize(
    ("raw", "volts"),
    [
        ("0001", 2.048 / 32768),
        ("0000", 0.0),
        ("ffff", -2.048 / 32768),
        ("4000", 1.024),
        ("7ffe", 2.048 * 32766 / 32768),
    ],
)
def test_code_is_decoded_to_volts(raw: str, volts: float) -> None:
    """Codes of the data sheet's "Data Format", at +-2.048 V."""
    assert decode(bytes.fromhex(raw), 2.048) == pytest.approx(volts, abs=1e-9)


@pytest.mark.parametrize("raw", ["7fff", "8000"])
def test_code_at_the_end_of_the_range_is_no_voltage(raw: str) -> None:
    """Data Format: the greatest and the least code stand for everything beyond."""
    with pytest.raises(InputSaturatedError, match=r"the end of \+-4.096 V"):
        decode(bytes.fromhex(raw), 4.096)


@pytest.mark.parametrize(
    ("channel", "full_scale_v", "config"),
    [(0, 2.048, 0xC583), (3, 4.096, 0xF383), (1, 0.256, 0xDB83), (2, 6.144, 0xE183)],
)
def test_config_starts_one_conversion_against_ground(
    channel: int, full_scale_v: float, config: int
) -> None:
    """Config Register: start, AINx to GND, the range, single shot, 128 a second."""
    assert encode_config(channel, full_scale_v) == config
