"""A transmitter with a 4-20 mA output, over a shunt on an ADS1115."""

from dataclasses import dataclass

from edge_agent.sensors.ads1115 import Ads1115Input, Ads1115Settings
from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.current_loop import (
    HIGHEST_MA,
    LOWEST_MA,
    MOST_MA,
    measured,
    share,
)
from edge_agent.sensors.probe import ProbeSettings, significant
from spatial_mqtt.envelope import Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key


@dataclass(frozen=True)
class Ads1115CurrentSettings(ProbeSettings, Ads1115Settings):
    """Keys of kind ``ads1115-current``."""

    at_4ma: float = key(Rule("Reading at 4 mA, from the plate, in `unit`."))
    at_20ma: float = key(Rule("Reading at 20 mA, from the plate, in `unit`."))
    shunt_ohm: float = key(
        Rule("Resistor that the current runs through.", unit="Ohm", low=10, high=250),
        100.0,
    )

    def __post_init__(self) -> None:
        """Refuse a plate without a span, and currents that are not seen."""
        if self.at_4ma == self.at_20ma:
            rule = f"other than at_4ma ({self.at_4ma:g})"
            raise FieldError("at_20ma", rule, self.at_20ma)
        most_ohm = 1000 * self.full_scale_v / MOST_MA
        if self.shunt_ohm > most_ohm:
            rule = f"at most {most_ohm:.0f} Ohm, for {MOST_MA:g} mA to be seen"
            raise FieldError("shunt_ohm", rule, self.shunt_ohm, "raise full_scale_v")

    @property
    def range(self) -> tuple[float, float]:  # type: ignore[override]
        """Readings at the ends of what NE 43 calls a measurement."""
        ends = sorted(value_at(self, loop_ma) for loop_ma in (LOWEST_MA, HIGHEST_MA))
        return ends[0], ends[1]


def value_at(settings: Ads1115CurrentSettings, loop_ma: float) -> float:
    """The reading for a current."""
    return settings.at_4ma + (settings.at_20ma - settings.at_4ma) * share(loop_ma)


class Ads1115Current(Described):
    """The transmitter's reading, and the current behind it."""

    def __init__(self, settings: Ads1115CurrentSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._input = Ads1115Input(settings, hardware)

    def read(self, now_s: float) -> list[Reading]:
        """What the current means now.

        Raises:
            SensorBusError: The chip does not answer, or is another one.
            SensorRangeError: The current is no measurement.
        """
        shunt_ohm = self._settings.shunt_ohm
        loop_ma = measured(self.name, self._input.volts(), shunt_ohm)
        value = significant(value_at(self._settings, loop_ma))
        return [
            Reading(self.name, self._settings.unit, value),
            Reading(f"{self.name}/loop", "mA", round(loop_ma, 4)),
        ]
