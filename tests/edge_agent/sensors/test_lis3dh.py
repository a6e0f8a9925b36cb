import math
import random
import statistics

import pytest

from edge_agent.sensors.analog import interquartile_mean
from edge_agent.sensors.base import Hardware, SensorBusError, SensorRangeError
from edge_agent.sensors.tilt import Lis3dh, Lis3dhSettings, decode_lis3dh
from edge_agent.simulator.buses import SimulatedBuses
from edge_agent.simulator.chips import Lis3dhChip
from edge_agent.simulator.digital_parts import gravity_g
from edge_agent.triage.engine import Triage

MAX_SIGMA_DEG = 0.0029  # largest noise for 0.01 deg/h


def make_chip(samples: int = 64) -> tuple[Lis3dhChip, Hardware, Lis3dhSettings]:
    """A chip on its bus."""
    buses, chip = SimulatedBuses(), Lis3dhChip(random.Random(1))
    buses.attach_i2c(1, 0x18, chip)
    settings = Lis3dhSettings(kind="lis3dh", name="tilt", samples=samples)
    return chip, Hardware(None, lambda _: None, buses=buses), settings


@pytest.mark.parametrize(
    ("raw", "g"),
    [
        ("0000e0150000", (0.0, 0.350, 0.0)),
        ("20ea00400000", (-0.350, 1.024, 0.0)),
        ("00c0f07f0080", (-1.024, 2.047, -2.048)),
    ],
)
def test_registers_of_the_application_note(raw: str, g: tuple[float, ...]) -> None:
    """AN3308 4.2.3: 15E0h is 350 mg, EA20h is -350 mg; 1 mg a digit throughout."""
    assert decode_lis3dh(bytes.fromhex(raw)) == pytest.approx(g)


def test_short_transfer_is_no_sample() -> None:
    """Three axes of two bytes belong together."""
    with pytest.raises(ValueError, match="raw must be 6 bytes, got 5"):
        decode_lis3dh(bytes(5))


def test_tilt_is_read_back_within_its_noise() -> None:
    """Both axes, in degrees, within four sigma of the declared noise."""
    chip, hardware, settings = make_chip(256)
    chip.accel_g = gravity_g(3.0, -2.0)
    seen = {r.name: (r.unit, r.value) for r in Lis3dh(settings, hardware).read(0.0)}
    tolerance = 4 * settings.sigma_deg
    assert seen["tilt/pitch"] == ("deg", pytest.approx(3.0, abs=tolerance))
    assert seen["tilt/roll"] == ("deg", pytest.approx(-2.0, abs=tolerance))


def test_declared_noise_agrees_with_that_of_a_burst() -> None:
    """Not less than in the simulation, and not three times as much."""
    chip, hardware, settings = make_chip(16)
    chip.accel_g = gravity_g(1.0003, 1.0)
    sensor = Lis3dh(settings, hardware)
    readings = [float(str(sensor.read(0.0)[0].value)) for _ in range(200)]
    sigma_deg = statistics.stdev(readings)
    assert sigma_deg < settings.sigma_deg < 3 * sigma_deg


def test_thermal_drift_exceeds_the_slowest_creep() -> None:
    """Averaging more samples does not make it usable for 0.01 deg/h."""
    chip, hardware, settings = make_chip(256)
    assert settings.sigma_deg > MAX_SIGMA_DEG
    sensor = Lis3dh(settings, hardware)
    cold = float(str(sensor.read(0.0)[0].value))
    chip.temp_c += 5
    warm = float(str(sensor.read(0.0)[0].value))
    assert warm - cold == pytest.approx(math.degrees(5 * 0.5e-3), abs=0.04)


def test_warm_morning_raises_no_level() -> None:
    """Ten degrees in an hour raise no level."""
    chip, hardware, settings = make_chip()
    sensor, triage = Lis3dh(settings, hardware), Triage([settings])
    for minute in range(61):
        chip.temp_c = 10 + minute / 6
        result = triage.assess(sensor.read(0.0), 60.0 * minute)
        assert result.level == 1


def test_outliers_do_not_change_the_mean() -> None:
    """A quarter of outliers on one side does not change the mean."""
    assert interquartile_mean([1.0] * 12 + [9.0] * 4) == 1.0
    assert interquartile_mean([1.0, 2.0, 3.0, 4.0]) == 2.5


def test_other_chip_is_reported() -> None:
    """The related LIS331 answers 32."""
    chip, hardware, settings = make_chip()
    chip.is_impostor = True
    with pytest.raises(
        SensorBusError, match=r"as a LIS3DH \(33\), got 32; check power"
    ):
        Lis3dh(settings, hardware)


def test_chip_that_lost_power_is_set_up_again() -> None:
    """It is in standby without a sample; the next reading has its settings again."""
    chip, hardware, settings = make_chip()
    sensor = Lis3dh(settings, hardware)
    chip.power_on()
    with pytest.raises(SensorBusError, match="has no new sample: it lost power"):
        sensor.read(0.0)
    assert len(sensor.read(0.0)) == 2


def test_no_gravity_is_out_of_range() -> None:
    """A broken element measures no gravity."""
    chip, hardware, settings = make_chip()
    chip.accel_g = (0.1, 0.1, 0.1)
    with pytest.raises(
        SensorRangeError, match=r"a gravity between 0\.5 and 1\.5 g, got"
    ):
        Lis3dh(settings, hardware).read(0.0)
