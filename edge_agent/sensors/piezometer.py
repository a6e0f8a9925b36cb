"""A piezometer with a 4-20 mA output, over a shunt on a channel of a converter."""

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.adc import AdcSettings, Converter
from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.current_loop import MOST_MA, measured, share
from spatial_mqtt.envelope import Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

HPA_PER_KPA = 10.0
KPA_PER_M = 9.80665
"""A metre of water; fresh water near 4 Celsius."""


@dataclass(frozen=True)
class PiezometerSettings(AdcSettings):
    """Keys of kind ``piezometer``."""

    quantity: ClassVar[str] = "pore pressure"
    senml_unit: ClassVar[str | None] = "hPa"  # SenML knows no kPa
    range: ClassVar[tuple[float, float]] = (-1000.0, 10_000.0)
    largest_step: ClassVar[float | None] = 100.0
    warm_up_s: ClassVar[float] = 2.0

    at_20ma_kpa: float = key(
        Rule("Pressure at 20 mA, from the plate.", unit="kPa", low=1, high=1000)
    )
    at_4ma_kpa: float = key(
        Rule("Pressure at 4 mA, from the plate.", unit="kPa", low=-100, high=100), 0.0
    )
    shunt_ohm: float = key(
        Rule("The resistor that the current runs through.", "Ohm", low=10, high=250),
        120.0,
    )

    def __post_init__(self) -> None:
        """Keep the currents of a failure within what the converter sees."""
        if self.at_4ma_kpa >= self.at_20ma_kpa:
            rule = f"less than at_20ma_kpa ({self.at_20ma_kpa:g})"
            raise FieldError("at_4ma_kpa", rule, self.at_4ma_kpa)
        most_ohm = 1000 * self.vref_v / MOST_MA
        if self.shunt_ohm > most_ohm:
            raise FieldError(
                "shunt_ohm",
                f"at most {most_ohm:.0f} Ohm, for {MOST_MA:g} mA to stay under vref_v",
                self.shunt_ohm,
            )


class Piezometer(Described):
    """Pore pressure, the same as metres of water, and the current behind both."""

    def __init__(self, settings: PiezometerSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._converter = Converter(settings, hardware)

    def read(self, now_s: float) -> list[Reading]:
        """Pressure now.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The current is no measurement.
        """
        s = self._settings
        loop_ma = measured(self.name, self._converter.volts(), s.shunt_ohm)
        kpa = s.at_4ma_kpa + (s.at_20ma_kpa - s.at_4ma_kpa) * share(loop_ma)
        return [
            Reading(self.name, "hPa", round(kpa * HPA_PER_KPA, 3)),
            Reading(f"{self.name}/head", "m", round(kpa / KPA_PER_M, 4)),
            Reading(f"{self.name}/loop", "mA", round(loop_ma, 4)),
        ]

    def close(self) -> None:
        """Give the converter back; others on it go on."""
        self._converter.close()
