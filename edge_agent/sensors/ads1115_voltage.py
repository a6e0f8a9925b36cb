"""A voltage on an ADS1115, with the linear calibration of what gives it."""

from dataclasses import dataclass

from edge_agent.sensors.ads1115 import Ads1115Input, Ads1115Settings
from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.probe import ScaledSettings, reading
from spatial_mqtt.envelope import Reading


@dataclass(frozen=True)
class Ads1115VoltageSettings(ScaledSettings, Ads1115Settings):
    """Keys of kind ``ads1115-voltage``; the probe's number is volts."""


class Ads1115Voltage(Described):
    """The reading for the median voltage of some samples."""

    def __init__(self, settings: Ads1115VoltageSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._input = Ads1115Input(settings, hardware)

    def read(self, now_s: float) -> list[Reading]:
        """What the voltage means now.

        Raises:
            SensorBusError: The chip does not answer, or is another one.
            SensorRangeError: The voltage is beyond the amplifier or the range.
        """
        return [reading(self._settings, self._input.volts())]
