"""QARTOD's flags at the source."""

from edge_agent.sensor_reader import FLAT_LINE_COUNT, PlausibleRange, QualityFlagger
from slope_science.quality import FLAG_LABEL
from spatial_mqtt.senml import Reading

TILT = PlausibleRange("deg", -90, 90, 1.0)
RAIN = PlausibleRange("mm", 0, 50, None)


def flags(
    plausible: PlausibleRange, values: list[object], unit: str = "deg"
) -> list[object]:
    quality = QualityFlagger(plausible)
    told = [quality.flag([Reading("t", unit, v)])[0] for v in values]  # type: ignore[arg-type]
    return [reading.extra.get(FLAG_LABEL) for reading in told]


def test_gross_range_and_step() -> None:
    """4 outside the range, 3 for a jump; after a jump the new value is the measure."""
    assert flags(TILT, [0.0, 91.0, 0.5, 2.0, 2.1]) == [None, 4, None, 3, None]


def test_value_that_is_no_number_of_the_unit_is_not_judged() -> None:
    """Health texts, truth values and a chip's temperature are not the quantity."""
    assert flags(TILT, ["broken", True, None]) == [None] * 3
    assert flags(TILT, [500.0], unit="Cel") == [None]


def test_infinite_value_fails() -> None:
    """It would poison every mean downstream."""
    assert flags(TILT, [float("inf"), float("nan")]) == [4, 4]


def test_part_with_noise_that_repeats_itself_is_stuck() -> None:
    """Sixty equal readings to the last digit are no measurement."""
    told = flags(TILT, [0.12345] * (FLAT_LINE_COUNT + 1) + [0.12346])

    assert told == [None] * (FLAT_LINE_COUNT - 1) + [3, 3, None]


def test_dry_gauge_may_repeat_itself() -> None:
    """No rain for a month is weather."""
    assert set(flags(RAIN, [0.0] * 500, unit="mm")) == {None}
