"""Where the node is and what time it is, from a GNSS receiver on gpsd.

A single fix is good to some metres: it tells that the node was carried away, not
that the slope creeps.
"""

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.bus_errors import naming
from edge_agent.sensors.errors import Health, SensorBusError
from edge_agent.sensors.gpsd_report import Fix, NoFixError, decode
from edge_agent.sensors.slow import SlowSettings
from spatial_mqtt.cells import distance_km
from spatial_mqtt.envelope import Reading
from spatial_mqtt.settings import Rule, key

_REMEDY = "check the antenna's view of the sky, the receiver, and that gpsd runs"
_STANDSTILL_S = 10.0


@dataclass(frozen=True)
class GnssSettings(SlowSettings):
    """Keys of kind ``gnss``."""

    quantity: ClassVar[str] = "distance from the site"
    senml_unit: ClassVar[str | None] = "m"
    # down to the Dead Sea's altitude, up to half round the earth
    range: ClassVar[tuple[float, float]] = (-430.0, 20_037_600.0)
    warm_up_s: ClassVar[float] = 60.0  # a cold receiver searches for satellites

    latitude: float = key(
        Rule("Where the receiver was mounted.", unit="degrees", low=-90, high=90)
    )
    longitude: float = key(
        Rule("Where the receiver was mounted.", unit="degrees", low=-180, high=180)
    )

    @property
    def claims(self) -> tuple[str, ...]:
        """The daemon: it has one best position for all."""
        return ("gpsd",)


class Gnss(Described):
    """Position, distance from the site, and how far the node's clock is ahead."""

    def __init__(self, settings: GnssSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._site = (settings.latitude, settings.longitude)
        self._poll = hardware.buses.gpsd
        self._last: tuple[float, float | None] | None = None

    def read(self, now_s: float) -> list[Reading]:
        """The last fix.

        Raises:
            SensorBusError: No gpsd, no receiver, no fix, or one that stands still.
        """
        with naming(self.name, "gpsd", _REMEDY):
            text = self._poll()
        try:
            fix = decode(text)
        except NoFixError as error:
            raise SensorBusError(self.name, f"has no fix: {error}", _REMEDY) from error
        self._refuse_standstill(fix, now_s)
        return self._readings(fix, now_s)

    def _refuse_standstill(self, fix: Fix, now_s: float) -> None:
        """Refuse what gpsd keeps of a receiver that was pulled out."""
        last, self._last = self._last, (now_s, fix.time_s)
        if last is None or fix.time_s is None or last[1] != fix.time_s:
            return
        self._last = last
        if now_s - last[0] >= _STANDSTILL_S:
            raise SensorBusError(
                self.name, "tells an old fix again", _REMEDY, Health.STUCK
            )

    def _readings(self, fix: Fix, now_s: float) -> list[Reading]:
        here = (fix.latitude_deg, fix.longitude_deg)
        moved_m = distance_km(self._site, here) * 1000
        found = [
            ("moved", "m", moved_m, 1),
            ("lat", "lat", fix.latitude_deg, 7),
            ("lon", "lon", fix.longitude_deg, 7),
            ("alt", "m", fix.altitude_m, 1),
            ("error", "m", fix.error_m, 1),
            ("clock", "s", None if fix.time_s is None else now_s - fix.time_s, 1),
        ]
        return [
            Reading(f"{self.name}/{name}", unit, round(value, digits))
            for name, unit, value, digits in found
            if value is not None
        ]
