"""An extensometer: a string across a crack turns a potentiometer."""

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.adc import AdcSettings, Converter
from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.errors import SensorRangeError
from spatial_mqtt.envelope import Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

LEAST_SPAN_V = 0.5
RAIL_V = 0.1
"""How far from ground and reference both ends of the travel must be."""

_SLACK = 0.02  # of the travel


@dataclass(frozen=True)
class ExtensometerSettings(AdcSettings):
    """Keys of kind ``extensometer``."""

    quantity: ClassVar[str] = "displacement"
    senml_unit: ClassVar[str | None] = "mm"
    range: ClassVar[tuple[float, float]] = (0.0, 5000.0)
    # no largest step: a slide that has begun moves by metres in a minute, and a
    # string that does not move says the same for days

    travel_mm: float = key(
        Rule("How far the string runs out.", unit="mm", low=10, high=5000)
    )
    home_v: float = key(
        Rule("Reading with the string all in.", unit="V", low=0, high=5)
    )
    full_v: float = key(
        Rule("Reading with the string all out.", unit="V", low=0, high=5)
    )

    def __post_init__(self) -> None:
        """Keep the travel clear of what a broken cable reads."""
        if abs(self.full_v - self.home_v) < LEAST_SPAN_V:
            rule = f"at least {LEAST_SPAN_V} V away from home_v ({self.home_v:g} V)"
            raise FieldError("full_v", rule, self.full_v, "calibrate the sensor")
        highest_v = self.vref_v - RAIL_V
        for name in ("home_v", "full_v"):
            volts = getattr(self, name)
            if not RAIL_V <= volts <= highest_v:
                raise FieldError(
                    name,
                    f"between {RAIL_V:g} and {highest_v:g} V",
                    volts,
                    "put a resistor at each end of the potentiometer, or a broken "
                    "cable looks like a place on its travel",
                )


def decode(volts: float, settings: ExtensometerSettings) -> float:
    """How far the string is out, in mm."""
    s = settings
    return s.travel_mm * (volts - s.home_v) / (s.full_v - s.home_v)


class Extensometer(Described):
    """Displacement in mm; a rate is somebody else's."""

    def __init__(self, settings: ExtensometerSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._converter = Converter(settings, hardware)

    def read(self, now_s: float) -> list[Reading]:
        """How far the string is out now.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The voltage is no place on the travel.
        """
        volts = self._converter.volts()
        out_mm = decode(volts, self._settings)
        travel_mm = self._settings.travel_mm
        slack_mm = _SLACK * travel_mm
        if not -slack_mm <= out_mm <= travel_mm + slack_mm:
            raise SensorRangeError(
                self.name,
                f"must be between 0 and {travel_mm:g} mm of its travel, "
                f"got {out_mm:.0f} mm from {volts:.3f} V",
                "check cable and string; a string that is all out must be reset",
            )
        return [Reading(self.name, "mm", round(min(max(out_mm, 0.0), travel_mm), 3))]

    def close(self) -> None:
        """Give the converter back; others on it go on."""
        self._converter.close()
