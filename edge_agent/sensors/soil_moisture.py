"""A capacitive soil moisture probe on a channel of a converter."""

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.adc import AdcSettings, Converter
from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.errors import SensorRangeError
from spatial_mqtt.envelope import Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

LEAST_SPAN_V = 0.1
HIGHEST_VWC = 0.7
_SLACK = 0.02  # noise about dry soil is not a broken probe


@dataclass(frozen=True)
class SoilMoistureSettings(AdcSettings):
    """Keys of kind ``soil-moisture``."""

    quantity: ClassVar[str] = "volumetric water content"
    senml_unit: ClassVar[str | None] = "/"
    range: ClassVar[tuple[float, float]] = (0.0, HIGHEST_VWC)
    largest_step: ClassVar[float | None] = 0.15

    dry_v: float = key(Rule("Reading in dry soil.", unit="V", low=0, high=5))
    wet_v: float = key(Rule("Reading in saturated soil.", unit="V", low=0, high=5))
    porosity: float = key(
        Rule("Water content of saturated soil.", unit="m3/m3", low=0.2, high=0.7), 0.45
    )

    def __post_init__(self) -> None:
        """Refuse a calibration without a span."""
        if abs(self.wet_v - self.dry_v) < LEAST_SPAN_V:
            rule = f"at least {LEAST_SPAN_V} V away from dry_v ({self.dry_v:g} V)"
            raise FieldError("wet_v", rule, self.wet_v, "calibrate the probe")


def decode(volts: float, settings: SoilMoistureSettings) -> float:
    """Water content of the soil, by the installer's two points."""
    s = settings
    return s.porosity * (volts - s.dry_v) / (s.wet_v - s.dry_v)


class SoilMoisture(Described):
    """Volumetric water content as a ratio, from the median of some samples."""

    def __init__(self, settings: SoilMoistureSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._converter = Converter(settings, hardware)

    def read(self, now_s: float) -> list[Reading]:
        """Water content now.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The voltage means no water content.
        """
        volts = self._converter.volts()
        vwc = decode(volts, self._settings)
        if not -_SLACK <= vwc <= HIGHEST_VWC:
            raise SensorRangeError(
                self.name,
                f"must read a water content between 0 and {HIGHEST_VWC}, "
                f"got {vwc:.2f} from {volts:.3f} V",
                "check the probe's cable, or calibrate dry_v and wet_v",
            )
        return [Reading(self.name, "/", round(max(vwc, 0.0), 5))]

    def close(self) -> None:
        """Give the converter back; others on it go on."""
        self._converter.close()
