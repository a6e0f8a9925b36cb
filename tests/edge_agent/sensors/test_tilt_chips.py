import math
import statistics

import pytest
from slope_bench import START_S, opened, values

from edge_agent.sensors.base import (
    Hardware,
    Health,
    RetryingSensor,
    Sensor,
    SensorBusError,
    SensorConfig,
    SensorRangeError,
)
from edge_agent.sensors.registry import open_sensors, parse_sensors
from edge_agent.sensors.tilt import decode_adxl345
from edge_agent.simulator.board import Board
from edge_agent.simulator.buses import Fault
from edge_agent.simulator.slope import SlopeSite

MAX_SIGMA_DEG = 0.0029  # largest noise for 0.01 deg/h
KINDS = ("adxl345", "sca3300", "scl3300", "tilt")
SITE = SlopeSite(start_s=START_S, mounted_deg=(-3.0, 2.0))
DRIFT_DEG = 0.3  # drift of an ADXL345 on a cold day


def table(kind: str, **keys: object) -> dict[str, object]:
    return {"kind": kind, "name": "it", "device": 1} | keys


def x_of(kind: str) -> str:
    """Name of the first angle."""
    return "it/pitch" if kind == "adxl345" else "it/x"


def sigma_deg(kind: str) -> float:
    (settings,) = parse_sensors([table(kind)])
    return float(settings.sigma_deg)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("raw", "g"),
    [
        ("000100010001", (1.0, 1.0, 1.0)),
        ("00ff01000000", (-1.0, 1 / 256, 0.0)),
        ("ff0100feffff", (511 / 256, -2.0, -1 / 256)),
    ],
)
def test_registers_of_the_adxl345_decode(raw: str, g: tuple[float, ...]) -> None:
    """Low byte first, two's complement, 256 digits to the g in full resolution."""
    assert decode_adxl345(bytes.fromhex(raw)) == g


def test_short_transfer_is_no_sample() -> None:
    """Three axes of two bytes belong together."""
    with pytest.raises(ValueError, match="raw must be 6 bytes, got 5"):
        decode_adxl345(bytes(5))


@pytest.mark.parametrize("kind", KINDS)
def test_tilt_is_read_back_within_its_noise(kind: str) -> None:
    """Both axes, within five sigma of the declared noise, and the drift."""
    board, sensors = opened(table(kind), site=SITE)
    state = board.advance(START_S + 3600)
    tolerance = 5 * sigma_deg(kind) + (DRIFT_DEG if kind == "adxl345" else 0)
    seen = values(sensors["it"])
    y = "it/roll" if kind == "adxl345" else "it/y"
    assert seen[x_of(kind)] == pytest.approx(state.tilt_x_deg, abs=tolerance)
    assert seen[y] == pytest.approx(state.tilt_y_deg, abs=tolerance)
    if "it/temp" in seen:
        assert seen["it/temp"] == pytest.approx(state.temp_c, abs=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_declared_noise_agrees_with_that_of_bursts(kind: str) -> None:
    """By the data sheet, by the burst itself, and by many bursts: about the same."""
    _, sensors = opened(table(kind), site=SITE)
    seen = [values(sensors["it"]) for _ in range(60)]
    spread = statistics.stdev(one[x_of(kind)] for one in seen)
    estimated = statistics.median(one["it/sigma"] for one in seen)
    assert sigma_deg(kind) == pytest.approx(spread, rel=0.5)
    assert estimated == pytest.approx(spread, rel=0.7)


def test_chips_with_noise_low_enough_for_creep() -> None:
    """Ten minutes' noise for 0.01 deg/h; the ADXL345 is far too coarse."""
    fine_enough = [kind for kind in KINDS if sigma_deg(kind) <= MAX_SIGMA_DEG]
    assert fine_enough == ["sca3300", "scl3300", "tilt"]
    assert sigma_deg("adxl345") > 0.02


def test_thermal_drift_is_not_evaluated_as_creep() -> None:
    """The readings that drift have no x and y, to which triage fits rates."""
    _, sensors = opened(table("adxl345"), site=SITE)
    assert values(sensors["it"]).keys() == {"it/pitch", "it/roll", "it/sigma"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault.DEAD, "sensor it answers only 00; check power"),
        (Fault.STUCK, r"sensor it is stuck: it gave the same sample \d+ times"),
        (Fault.IO_ERROR, "sensor it cannot be read: .*Input/output error"),
    ],
)
def test_broken_chip_is_reported_and_a_new_one_is_set_up(
    kind: str, fault: Fault, expected: str
) -> None:
    """It loses its settings with its power, and is read when it has them again."""
    board, sensors = opened(table(kind), site=SITE)
    sensors["it"].read(0.0)
    board.inject_fault("it", fault)
    with pytest.raises(SensorBusError, match=expected):
        sensors["it"].read(0.0)
    board.clear_fault("it")
    board.advance(START_S + 60)
    assert values(sensors["it"])[x_of(kind)] == pytest.approx(-3.0, abs=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_unnoticed_power_loss_is_detected(kind: str) -> None:
    """A brown-out puts it into standby or into another mode, which is no tilt."""
    board, sensors = opened(table(kind), site=SITE)
    before = values(sensors["it"])
    board.clear_fault("it")
    with pytest.raises(SensorBusError, match=r"answers only 00|an error: power"):
        sensors["it"].read(0.0)
    assert values(sensors["it"])[x_of(kind)] == pytest.approx(
        before[x_of(kind)], abs=0.2
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("adxl345", r"it must answer as an ADXL345 \(E5\), got E6; check power"),
        ("sca3300", r"it must answer as an SCA3300 \(51\), got 77"),
        ("scl3300", r"it must answer as an SCL3300 \(C1\), got 77"),
        ("tilt", r"it must answer as an ADXL355 \(AD, ED\), got AD, CB"),
    ],
)
def test_another_chip_is_reported(kind: str, expected: str) -> None:
    """A related chip would answer in other units."""
    board, sensors = opened(table(kind), site=SITE)
    board.inject_fault("it", Fault.IMPOSTOR)
    for _ in range(2):  # the first may detect the power loss first
        with pytest.raises(
            SensorBusError, match=rf"{expected}|answers only|an error: p"
        ):
            sensors["it"].read(0.0)
    with pytest.raises(SensorBusError, match=expected):
        sensors["it"].read(0.0)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault.GARBLED, r"sends a wrong checksum: [0-9A-F]{2} and not [0-9A-F]{2} in"),
        (
            Fault.SATURATED,
            "reports an error: saturated; look for a pile that is shaken",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["sca3300", "scl3300"])
def test_self_checking_chip_reports_the_reason(
    kind: str, fault: Fault, expected: str
) -> None:
    """A wrong bit on the cable and a shaken element need different repairs."""
    board, sensors = opened(table(kind), site=SITE)
    board.inject_fault("it", fault)
    with pytest.raises(SensorBusError, match=expected):
        sensors["it"].read(0.0)


@pytest.mark.parametrize("kind", ["sca3300", "scl3300"])
def test_start_follows_the_data_sheet(kind: str) -> None:
    """Reset, 1 ms and more, mode 4, 100 ms, clear status; then samples 0.1 s apart."""
    sleeps: list[float] = []
    _, sensors = opened(table(kind, samples=3), site=SITE, sleep=sleeps.append)
    assert sleeps == [0.002, 0.1]
    sensors["it"].read(0.0)
    assert sleeps[2:] == [0.5, 0.1, 0.1]


@pytest.mark.parametrize("kind", KINDS)
def test_missing_chip_is_retried(kind: str) -> None:
    """Opened without the chip, it is read once the chip is there."""
    board, sensors = opened(table(kind), site=SITE)
    sensors["it"].close()
    board.inject_fault("it", Fault.DEAD)
    again = opened_on(board, parse_sensors([table(kind)])[0])
    assert isinstance(again, RetryingSensor)
    with pytest.raises(SensorBusError, match=r"answers only 00|got 00"):
        again.read(0.0)
    board.clear_fault("it")
    assert math.isfinite(values(again)[x_of(kind)])


def opened_on(board: Board, settings: SensorConfig) -> Sensor:
    (sensor,) = open_sensors([settings], Hardware(board.pin_factory, lambda _: None))
    return sensor


@pytest.mark.parametrize("kind", KINDS)
def test_no_gravity_is_out_of_range(kind: str) -> None:
    """A broken element measures no gravity."""
    board, sensors = opened(table(kind), site=SITE)
    board._parts["it"]._chip.accel_g = (0.1, 0.1, 0.1)  # noqa: SLF001 - a broken element
    with pytest.raises(SensorRangeError, match=r"a gravity between 0\.5 and 1\.5 g"):
        sensors["it"].read(0.0)


@pytest.mark.parametrize("mounted_deg", [(12.0, 0.0), (0.0, -30.0)])
def test_inclinometer_beyond_its_fine_range_is_read_in_the_wide_one(
    mounted_deg: tuple[float, float],
) -> None:
    """Mode 4 of the SCL3300 is for 10 degrees; from the first reading on."""
    site = SlopeSite(start_s=START_S, mounted_deg=mounted_deg)
    board, sensors = opened(table("scl3300"), site=site)
    for after_s in (60, 120):
        state = board.advance(START_S + after_s)
        seen = values(sensors["it"])
        assert seen["it/x"] == pytest.approx(state.tilt_x_deg, abs=0.02)
        assert seen["it/y"] == pytest.approx(state.tilt_y_deg, abs=0.02)


def test_toppling_pile_is_read_on_and_back() -> None:
    """From 3 to 80 degrees, also where one burst passes the end of the range."""
    board, sensors = opened(table("scl3300"), site=SITE)
    chip = board._parts["it"]._chip  # noqa: SLF001 - tilted faster than a slope
    modes = []
    for x_deg in (3.0, 8.9, 9.1, 9.9, 10.5, 80.0, 8.0, 6.0, 3.0):
        x = math.radians(x_deg)
        chip.accel_g = (math.sin(x), 0.0, math.cos(x))
        assert values(sensors["it"])["it/x"] == pytest.approx(x_deg, abs=0.05)
        modes.append(chip._mode + 1)  # noqa: SLF001
    assert modes == [4, 4, 1, 1, 1, 1, 1, 4, 4]


def test_shaken_inclinometer_is_read_again_when_it_is_still() -> None:
    board, sensors = opened(table("scl3300"), site=SITE)
    board.inject_fault("it", Fault.SATURATED)
    with pytest.raises(SensorBusError, match="saturated") as caught:
        sensors["it"].read(0.0)
    assert caught.value.health is Health.SATURATED
    board.clear_fault("it")
    board.advance(START_S + 60)
    for _ in range(2):
        seen = values(sensors["it"])
    assert seen["it/x"] == pytest.approx(-3.0, abs=0.1)
    assert seen["it/sigma"] == pytest.approx(sigma_deg("scl3300"), rel=0.9)
