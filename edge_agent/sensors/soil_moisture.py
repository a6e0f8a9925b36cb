"""A capacitive soil moisture probe on a channel of an MCP3208 converter."""

import statistics
from dataclasses import dataclass
from typing import ClassVar

from gpiozero import MCP3208

from edge_agent.sensors.base import Described, Hardware, SensorSettings
from edge_agent.sensors.errors import SensorBusError, SensorRangeError, pin_errors
from spatial_mqtt.envelope import Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

LEAST_SPAN_V = 0.1
HIGHEST_VWC = 0.7
_SLACK = 0.02  # noise about dry soil is not a broken probe


@dataclass(frozen=True)
class SoilMoistureSettings(SensorSettings):
    """Keys of kind ``soil-moisture``."""

    quantity: ClassVar[str] = "volumetric water content"
    senml_unit: ClassVar[str | None] = "/"
    range: ClassVar[tuple[float, float]] = (0.0, 0.7)
    largest_step: ClassVar[float | None] = 0.15
    warm_up_s: ClassVar[float] = 1.0

    channel: int = key(Rule("Channel of the MCP3208.", low=0, high=7))
    device: int = key(
        Rule("Chip select of SPI0: 0 for CE0, 1 for CE1.", low=0, high=1), 0
    )
    dry_v: float = key(Rule("Reading in dry soil.", unit="V", low=0, high=5))
    wet_v: float = key(Rule("Reading in saturated soil.", unit="V", low=0, high=5))
    porosity: float = key(
        Rule("Water content of saturated soil.", unit="m3/m3", low=0.2, high=0.7), 0.45
    )
    vref_v: float = key(
        Rule("Reference of the converter.", unit="V", low=2.5, high=5.5), 3.3
    )
    samples: int = key(
        Rule("Samples in one reading; the median counts.", low=1, high=99), 9
    )

    def __post_init__(self) -> None:
        """Refuse a calibration without a span."""
        if abs(self.wet_v - self.dry_v) < LEAST_SPAN_V:
            rule = f"at least {LEAST_SPAN_V} V away from dry_v ({self.dry_v:g} V)"
            raise FieldError("wet_v", rule, self.wet_v, "calibrate the probe")

    @property
    def claims(self) -> tuple[str, ...]:
        """The channel."""
        return (f"SPI0.{self.device} channel {self.channel}",)


class SoilMoisture(Described):
    """Volumetric water content as a ratio, from the median of some samples."""

    def __init__(self, settings: SoilMoistureSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._adc = MCP3208(
            channel=settings.channel,
            max_voltage=settings.vref_v,
            port=0,
            device=settings.device,
            pin_factory=hardware.pin_factory,
        )

    def read(self, now_s: float) -> list[Reading]:
        """Water content now.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The voltage means no water content.
        """
        s = self._settings
        try:
            volts = statistics.median(self._adc.voltage for _ in range(s.samples))
        except pin_errors() as error:
            raise SensorBusError(
                self.name, f"cannot be read: {error}", "check SPI and the wiring"
            ) from error
        vwc = s.porosity * (volts - s.dry_v) / (s.wet_v - s.dry_v)
        if not -_SLACK <= vwc <= HIGHEST_VWC:
            raise SensorRangeError(
                self.name,
                f"must read a water content between 0 and {HIGHEST_VWC}, "
                f"got {vwc:.2f} from {volts:.3f} V",
                "check the probe's cable, or calibrate dry_v and wet_v",
            )
        return [Reading(self.name, "/", round(max(vwc, 0.0), 5))]

    def state(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Give the converter back; others on it go on."""
        self._adc.close()
