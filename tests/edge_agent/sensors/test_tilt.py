import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors.tilt import angles_deg, decode_adxl355, decode_temp_c

ONE_G = 256_000


@pytest.mark.parametrize(
    ("raw", "g"),
    [
        ("000000", 0.0),
        ("7ffff0", 524287 / ONE_G),
        ("800000", -524288 / ONE_G),
        ("fffff0", -1 / ONE_G),
        ("3e8000", 1.0),
        ("c18000", -1.0),
    ],
)
def test_data_registers_decode(raw: str, g: float) -> None:
    """20 bits, two's complement, left-justified, 256000 to the g."""
    assert decode_adxl355(bytes.fromhex(raw) + bytes(6)) == (g, 0.0, 0.0)
    assert decode_adxl355(bytes(6) + bytes.fromhex(raw)) == (0.0, 0.0, g)


def test_low_bits_are_not_data() -> None:
    """The lowest four bits of an axis contain other information."""
    assert decode_adxl355(bytes.fromhex("00001f") * 3) == (1 / ONE_G,) * 3


def test_short_data_is_refused() -> None:
    """Fewer than nine bytes are no sample."""
    with pytest.raises(ValueError, match="raw must be 9 bytes, got 8"):
        decode_adxl355(bytes(8))


@given(st.integers(-(2**19), 2**19 - 1))
def test_every_number_survives_the_registers(lsb: int) -> None:
    """Left-justified numbers are decoded without loss."""
    raw = ((lsb & 0xFFFFF) << 4).to_bytes(3)
    assert decode_adxl355(raw * 3) == (lsb / ONE_G,) * 3


@pytest.mark.parametrize(("lsb", "celsius"), [(1885, 25.0), (1885 - 181, 45.0)])
def test_temperature_follows_the_data_sheet(lsb: int, celsius: float) -> None:
    """25 degrees at 1885, 9.05 digits less for each degree."""
    assert decode_temp_c(lsb.to_bytes(2)) == pytest.approx(celsius)


@given(st.floats(-60, 60), st.floats(-20, 20), st.floats(0.9, 1.1))
def test_angles_do_not_depend_on_the_scale(
    x_deg: float, y_deg: float, scale: float
) -> None:
    """Gravity of any measured length gives the angles of the axes."""
    x, y = math.sin(math.radians(x_deg)), math.sin(math.radians(y_deg))
    z = math.sqrt(1 - x * x - y * y)
    seen = angles_deg(scale * x, scale * y, scale * z)
    assert seen == (pytest.approx(x_deg, abs=1e-6), pytest.approx(y_deg, abs=1e-6))
