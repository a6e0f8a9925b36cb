import random

import pytest

from edge_agent.sensors.base import Hardware, SensorBusError, SensorRangeError
from edge_agent.sensors.bme280 import Bme280, Bme280Settings
from edge_agent.simulator.buses import SimulatedBuses
from edge_agent.simulator.chips import Bme280Chip

SETTINGS = Bme280Settings(kind="bme280", name="air")


def make_chip() -> tuple[SimulatedBuses, Bme280Chip, Hardware]:
    """A bus with a chip on it."""
    buses, chip = SimulatedBuses(), Bme280Chip(random.Random(1))
    buses.attach_i2c(1, 0x76, chip)
    return buses, chip, Hardware(None, lambda _: None, buses=buses)


def test_air_is_read_back() -> None:
    """Temperature, humidity and pressure of the simulated air."""
    _, chip, hardware = make_chip()
    chip.air = (-7.5, 95_000.0, 88.0)
    chip.slow_polls = 3
    found = {r.name: (r.unit, r.value) for r in Bme280(SETTINGS, hardware).read(0.0)}
    assert found["air/temp"] == ("Cel", pytest.approx(-7.5, abs=0.03))
    assert found["air/humidity"] == ("%RH", pytest.approx(88.0, abs=0.2))
    assert found["air/pressure"] == ("hPa", pytest.approx(950.0, abs=0.1))


def test_missing_chip_is_reported_with_its_address() -> None:
    """Address, error and what to check."""
    buses, _, hardware = make_chip()
    buses.i2c(1).chips.clear()
    with pytest.raises(
        SensorBusError,
        match=r"^sensor air I2C1 0x76 does not answer: .*Remote I/O.*; check power",
    ):
        Bme280(SETTINGS, hardware)


def test_bmp280_without_humidity_is_reported() -> None:
    """A BMP280 looks the same on the board and has another id."""
    _, chip, hardware = make_chip()
    chip.is_impostor = True
    with pytest.raises(
        SensorBusError, match=r"BME280 \(60\), got 58, a BMP280 without"
    ):
        Bme280(SETTINGS, hardware)


def test_replaced_chip_is_read_with_its_own_calibration() -> None:
    """After a failure the calibration is read again."""
    buses, chip, hardware = make_chip()
    sensor = Bme280(SETTINGS, hardware)
    del buses.i2c(1).chips[0x76]
    with pytest.raises(SensorBusError, match="does not answer"):
        sensor.read(0.0)
    buses.attach_i2c(1, 0x76, chip)
    chip.is_impostor = True
    with pytest.raises(SensorBusError, match="got 58"):
        sensor.read(0.0)
    chip.is_impostor = False
    assert len(sensor.read(0.0)) == 3


def test_chip_that_never_gets_ready_is_reported() -> None:
    """A measurement that takes ten times its time is a fault."""
    _, chip, hardware = make_chip()
    sensor = Bme280(SETTINGS, hardware)
    chip.slow_polls = 100
    with pytest.raises(SensorBusError, match="is not ready after 10 measuring times"):
        sensor.read(0.0)


def test_impossible_air_is_out_of_range() -> None:
    """A broken membrane gives a pressure that does not occur on earth."""
    _, chip, hardware = make_chip()
    chip.air = (20.0, 20_000.0, 50.0)
    with pytest.raises(SensorRangeError, match="between 30000 and 110000 Pa, got 2"):
        Bme280(SETTINGS, hardware).read(0.0)
