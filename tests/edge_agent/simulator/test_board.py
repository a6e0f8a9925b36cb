import random

import pytest
from gpiozero import MCP3008, MCP3208, DigitalInputDevice

from edge_agent.sensors.base import Hardware
from edge_agent.sensors.tilt import Adxl355 as Driver
from edge_agent.sensors.tilt import Adxl355Settings, decode_adxl355
from edge_agent.simulator.buses import SlopePinFactory
from edge_agent.simulator.chips import Adxl355Chip, Mcp3x08Chip


def seeded_random() -> random.Random:
    """Random numbers with a fixed seed."""
    return random.Random(3)


def open_driver(factory: SlopePinFactory) -> Driver:
    """The driver of an accelerometer on CE0."""
    settings = Adxl355Settings(kind="tilt", name="tilt", device=0)
    return Driver(settings, Hardware(factory, lambda _: None))


def test_accelerometer_measures_only_when_switched_on() -> None:
    """It starts in standby, with its ids and without data."""
    factory = SlopePinFactory()
    chip = Adxl355Chip(0, seeded_random(), factory)
    driver = open_driver(factory)
    assert driver.read_registers(0x00, 4) == b"\xad\x1d\xed\x01"
    assert driver.read_registers(0x08, 9) == bytes(9)
    driver.write_register(0x2D, 0)
    assert decode_adxl355(driver.read_registers(0x08, 9))[2] == pytest.approx(
        1.0, abs=0.01
    )
    driver.write_register(0x2F, 0x52)
    assert driver.read_registers(0x08, 9) == bytes(9)
    assert not chip.is_dead


@pytest.mark.parametrize(
    ("filter_setting", "sigma_g"), [(0, 25e-6 * 1000**0.5), (10, 25e-6)]
)
def test_accelerometer_noise_follows_its_filter(
    filter_setting: int, sigma_g: float
) -> None:
    """25 micro-g per root hertz over the filter's band."""
    factory = SlopePinFactory()
    Adxl355Chip(0, seeded_random(), factory)
    driver = open_driver(factory)
    driver.write_register(0x28, filter_setting)
    driver.write_register(0x2D, 0)
    seen = [decode_adxl355(driver.read_registers(0x08, 9))[0] for _ in range(300)]
    spread = (sum(g * g for g in seen) / len(seen)) ** 0.5
    assert spread == pytest.approx(sigma_g, rel=0.15)


@pytest.mark.parametrize("volts", [0.0, 0.7, 1.65, 3.3])
@pytest.mark.parametrize("channel", range(8))
@pytest.mark.parametrize(
    ("bits", "adc_class", "lsb_v"), [(10, MCP3008, 0.0033), (12, MCP3208, 0.0009)]
)
def test_converter_gives_the_voltage_of_the_channel(
    bits: int, adc_class: type, lsb_v: float, channel: int, volts: float
) -> None:
    """10 or 12 bits of each of the eight channels, as read by gpiozero's driver."""
    factory = SlopePinFactory()
    chip = Mcp3x08Chip(1, seeded_random(), factory, bits)
    chip.volts[channel] = volts
    adc = adc_class(channel=channel, port=0, device=1, pin_factory=factory)
    assert adc.voltage == pytest.approx(volts, abs=3 * lsb_v)


def test_held_pin_overrides_its_pull() -> None:
    """A wire to ground overrides a pull-up that is enabled later."""
    factory = SlopePinFactory()
    factory.pin(4).hold(level=False)
    device = DigitalInputDevice(4, pull_up=True, pin_factory=factory)
    assert device.is_active
    factory.pin(4).release()
    assert not device.is_active


def test_pins_keep_no_history() -> None:
    """A simulation that runs for months needs little memory."""
    factory = SlopePinFactory()
    Mcp3x08Chip(0, seeded_random(), factory)
    adc = MCP3208(port=0, device=0, pin_factory=factory)
    for _ in range(20):
        factory.pin(4).hold(level=False)
        factory.pin(4).release()
        assert adc.value >= 0
    assert max(len(pin.states) for pin in factory.pins.values()) < 5


def test_closed_bus_releases_its_pins() -> None:
    """A pin of the bus can then be used for something else."""
    factory = SlopePinFactory()
    adc = MCP3208(port=0, device=0, pin_factory=factory)
    adc.close()
    assert DigitalInputDevice(8, pin_factory=factory).pin is factory.pin(8)
