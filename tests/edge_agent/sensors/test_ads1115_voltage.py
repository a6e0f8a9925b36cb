import random
import threading

import pytest

from edge_agent.sensors.ads1115 import Ads1115Voltage, Ads1115VoltageSettings
from edge_agent.sensors.base import Hardware, SensorBusError, SensorRangeError
from edge_agent.simulator.buses import SimulatedBuses
from edge_agent.simulator.chips import Ads1115Chip
from spatial_mqtt.senml import Reading

BATTERY = {
    "kind": "ads1115-voltage", "name": "battery", "channel": 2, "unit": "V",
    "measures": "battery", "scale": 5.0, "low": 8.0, "high": 16.0,
}  # fmt: skip


def make_settings(**keys: object) -> Ads1115VoltageSettings:
    """A battery behind a divider by five, on channel 2."""
    return Ads1115VoltageSettings(**(BATTERY | keys))  # type: ignore[arg-type]


def make_sensor(**keys: object) -> tuple[Ads1115Chip, SimulatedBuses, Ads1115Voltage]:
    """The chip, its bus, and the sensor."""
    buses, chip = SimulatedBuses(), Ads1115Chip(random.Random(1))
    buses.attach_i2c(1, 0x48, chip)
    hardware = Hardware(None, _wait, buses=buses)
    return chip, buses, Ads1115Voltage(make_settings(**keys), hardware)


def _wait(_: float) -> None:
    """Do not wait."""


def test_voltage_is_calibrated() -> None:
    """Scale and offset give the installer's unit."""
    chip, _, sensor = make_sensor()
    chip.volts[2], chip.slow_polls = 2.5, 2
    (reading,) = sensor.read(0.0)
    assert (reading.name, reading.unit) == ("battery", "V")
    assert reading.value == pytest.approx(12.5, abs=0.002)
    assert sensor.claims == ("I2C1 0x48 channel 2",)


def test_two_sensors_of_one_chip_never_read_each_others_channel() -> None:
    """The bus is held from the start of a conversion to its end."""
    chip, buses, first = make_sensor(samples=1)
    chip.volts[2], chip.volts[0] = 2.0, 3.0
    other = make_settings(channel=0, name="b", samples=1)
    second = Ads1115Voltage(other, Hardware(None, _wait, buses=buses))
    seen: list[Reading] = []
    other_thread = threading.Thread(target=lambda: seen.extend(second.read(0.0)))

    def start_other_thread(_: float) -> None:
        if not other_thread.ident:
            other_thread.start()
        other_thread.join(0.05)  # long enough to use the chip if it were free

    hardware = Hardware(None, start_other_thread, buses=buses)
    seen += Ads1115Voltage(make_settings(samples=1), hardware).read(0.0)
    other_thread.join()
    assert {r.name: round(float(str(r.value))) for r in seen} == {
        "battery": 10,
        "b": 15,
    }
    assert first.read(0.0)


@pytest.mark.parametrize(
    ("volts", "expected"),
    [
        (0.0, r"must read between 8 and 16 V, got 0.* from"),
        (5.0, r"reads \+32767, the end of \+-4.096 V; check the wiring, or raise"),
    ],
)
def test_impossible_voltage_is_reported(volts: float, expected: str) -> None:
    """A cut wire, and an input beyond the amplifier."""
    chip, _, sensor = make_sensor()
    chip.volts[2] = volts
    with pytest.raises(SensorRangeError, match=expected):
        sensor.read(0.0)


def test_other_chip_at_the_address_is_detected() -> None:
    """A chip that does not keep the settings is no ADS1115."""
    chip, _, sensor = make_sensor()
    chip.is_impostor = True
    with pytest.raises(SensorBusError, match=r"as an ADS1115 does, E383, got 8583"):
        sensor.read(0.0)


def test_missing_and_slow_chip_are_reported() -> None:
    """The driver gives up on both."""
    chip, buses, sensor = make_sensor()
    chip.slow_polls = 1000
    with pytest.raises(SensorBusError, match="not ready after 20 conversion times"):
        sensor.read(0.0)
    buses.i2c(1).chips.clear()
    with pytest.raises(SensorBusError, match="I2C1 0x48 does not answer"):
        sensor.read(0.0)
