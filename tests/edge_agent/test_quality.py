"""QARTOD flags set by the node."""

from edge_agent.sensor_reader import FLAT_LINE_COUNT, PlausibleRange, QualityFlagger
from slope_science.quality import FLAG_LABEL
from spatial_mqtt.senml import Reading

TILT = PlausibleRange("deg", -90, 90, 1.0)
RAIN = PlausibleRange("mm", 0, 50, None)


def flags(
    plausible: PlausibleRange, values: list[object], unit: str = "deg"
) -> list[object]:
    quality = QualityFlagger(plausible)
    flagged = [quality.flag([Reading("t", unit, v)])[0] for v in values]  # type: ignore[arg-type]
    return [reading.extra.get(FLAG_LABEL) for reading in flagged]


def test_gross_range_and_step_are_flagged() -> None:
    """4 outside the range, 3 for a jump; steps are measured from the value before."""
    assert flags(TILT, [0.0, 91.0, 0.5, 2.0, 2.1]) == [None, 4, None, 3, None]


def test_values_of_another_unit_or_type_get_no_flag() -> None:
    """Health texts, booleans and a chip's temperature are not the quantity."""
    assert flags(TILT, ["broken", True, None]) == [None] * 3
    assert flags(TILT, [500.0], unit="Cel") == [None]


def test_values_that_are_not_finite_fail() -> None:
    """It would make every later mean infinite."""
    assert flags(TILT, [float("inf"), float("nan")]) == [4, 4]


def test_repeated_values_of_a_noisy_sensor_are_suspect() -> None:
    """Sixty equal readings to the last digit are no measurement."""
    flagged = flags(TILT, [0.12345] * (FLAT_LINE_COUNT + 1) + [0.12346])

    assert flagged == [None] * (FLAT_LINE_COUNT - 1) + [3, 3, None]


def test_rain_gauge_may_repeat_zero() -> None:
    """A month without rain is possible."""
    assert set(flags(RAIN, [0.0] * 500, unit="mm")) == {None}
