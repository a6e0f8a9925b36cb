import pytest

from edge_agent.sensors.bme280 import (
    NotMeasuredError,
    TrimParameters,
    compensate_pressure,
    compensate_temperature,
    decode,
    decode_trim,
)

# Registers of a real chip; RPi.bme280 0.2.4, an independent driver, computes the
# expected values from the same bytes.
TRIM_TP = bytes.fromhex(
    "686ee8643200538fabd5d00ba3223500f9ffac260ad8bd10004b"
)  # fmt: skip


def test_data_sheet_example() -> None:
    """BMP280 data sheet 3.12, the worked example of the same two formulas."""
    p = (36477, -10685, 3024, 2855, 140, -7, 15500, -14600, 6000)
    trim = TrimParameters((27504, 26435, -1000), p, (0,) * 6)
    fine = compensate_temperature(519888, trim)
    assert int(fine) == 128422
    assert fine / 5120 == pytest.approx(25.08, abs=0.005)
    assert compensate_pressure(415148, fine, trim) == pytest.approx(
        100653.27, abs=0.005
    )


@pytest.mark.parametrize(
    ("trim_h", "raw", "air"),
    [
        ("6c0100130a001e", "5685007e570074df", (20.099911, 932.376184, 54.759937)),
        ("6c0100132a031e", "4f10808321406a40", (26.143397, 993.764853, 39.248778)),
        ("6c0103135affe2", "6010807321407a40", (5.958264, 846.678545, 62.742068)),
    ],
)
def test_air_agrees_with_an_independent_driver(
    trim_h: str, raw: str, air: tuple[float, float, float]
) -> None:
    """All three quantities, with H4, H5 and H6 of both signs."""
    seen = decode(bytes.fromhex(raw), decode_trim(TRIM_TP, bytes.fromhex(trim_h)))
    got = (seen.temp_c, seen.pressure_pa / 100, seen.humidity_percent)
    assert got == pytest.approx(air, abs=1e-6)


def test_trim_shares_a_byte_between_h4_and_h5() -> None:
    """Table 16: 12 bits each, both signed."""
    assert decode_trim(TRIM_TP, bytes.fromhex("6c0103135affe2")).h == (
        75, 364, 3, 314, -11, -30,
    )  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    ["800000" + "7e5700" + "74df", "568500" + "800000" + "74df", "5685007e57008000"],
)
def test_missing_measurement_is_detected(raw: str) -> None:
    """Table 18: the registers' values after power-on."""
    trim = decode_trim(TRIM_TP, bytes.fromhex("6c0100130a001e"))
    with pytest.raises(NotMeasuredError, match="has measured nothing"):
        decode(bytes.fromhex(raw), trim)


def test_empty_calibration_gives_no_division_by_zero() -> None:
    """The guard is in the data sheet."""
    assert (
        compensate_pressure(1, 1.0, TrimParameters((0, 0, 0), (0,) * 9, (0,) * 6))
        == 0.0
    )
