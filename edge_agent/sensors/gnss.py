"""GNSS receiver on gpsd: position of the node, and the offset of its clock.

A single fix is accurate to some metres: enough to show that the node was carried
away, not that the slope creeps.

Source: gpsd_json(5), objects POLL and TPV: ``mode`` 2 is a fix in two dimensions,
3 in three; unknown values are left out.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    Health,
    SensorBusError,
    SlowSensorSettings,
    bus_errors_as_sensor_errors,
)
from service_runtime.settings import KeyRule, key
from spatial_mqtt.cells import check_position, distance_km
from spatial_mqtt.senml import Reading

FIX_2D = 2


class NoFixError(ValueError):
    """There is no position; the message gives the reason."""


@dataclass(frozen=True)
class GnssFix:
    """A position at a time.

    Attributes:
        latitude_deg: WGS 84.
        longitude_deg: WGS 84.
        altitude_m: Above mean sea level; None in two dimensions.
        time_s: Unix time of the fix; None when the receiver has no time.
        error_m: Estimated horizontal error; None when unknown.
    """

    latitude_deg: float
    longitude_deg: float
    altitude_m: float | None
    time_s: float | None
    error_m: float | None


def decode(text: str) -> GnssFix:
    """The best fix in a line of class ``POLL`` or ``TPV``.

    Raises:
        NoFixError: No receiver is connected, it sees no satellites, or the text is
            not gpsd's.
    """
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoFixError(f"gpsd must answer in JSON, got {text[:60]!r}") from error
    if not isinstance(report, dict) or report.get("class") not in {"POLL", "TPV"}:
        raise NoFixError(f"gpsd must answer POLL, got {text[:60]!r}")
    if report["class"] == "POLL" and not report.get("active"):
        raise NoFixError("gpsd has no receiver")
    reports = report.get("tpv", []) if report["class"] == "POLL" else [report]
    try:
        fixes = [_fix(tpv) for tpv in reports if _mode(tpv) >= FIX_2D]
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise NoFixError(f"gpsd must report numbers, got {text[:200]!r}") from error
    if not fixes:
        raise NoFixError("the receiver has no fix")
    return min(fixes, key=lambda fix: math.inf if fix.error_m is None else fix.error_m)


def _mode(tpv: Mapping[str, Any]) -> int:
    mode = tpv.get("mode", 0)
    return mode if isinstance(mode, int) and {"lat", "lon"} <= tpv.keys() else 0


def _fix(tpv: Mapping[str, Any]) -> GnssFix:
    # releases before 3.20 have alt, later ones altMSL; eph also came with 3.20
    altitude = tpv.get("altMSL", tpv.get("alt"))
    error_m = tpv.get("eph", tpv.get("epx"))
    time = tpv.get("time")
    check_position(tpv["lat"], tpv["lon"])
    return GnssFix(
        float(tpv["lat"]),
        float(tpv["lon"]),
        None if altitude is None else float(altitude),
        None if time is None else datetime.fromisoformat(time).timestamp(),
        None if error_m is None else float(error_m),
    )


_REMEDY = "check the antenna's view of the sky, the receiver, and that gpsd runs"
_STANDSTILL_S = 10.0


@dataclass(frozen=True)
class GnssSettings(SlowSensorSettings):
    """Keys of kind ``gnss``."""

    quantity: ClassVar[str] = "distance from the site"
    senml_unit: ClassVar[str | None] = "m"
    # down to the Dead Sea's altitude, up to half round the earth
    range: ClassVar[tuple[float, float]] = (-430.0, 20_037_600.0)
    warm_up_s: ClassVar[float] = 60.0  # a cold receiver searches for satellites

    latitude: float = key(
        KeyRule("Where the receiver was mounted.", unit="degrees", low=-90, high=90)
    )
    longitude: float = key(
        KeyRule("Where the receiver was mounted.", unit="degrees", low=-180, high=180)
    )

    @property
    def claims(self) -> tuple[str, ...]:
        return ("gpsd",)


class Gnss(BaseSensor):
    """Position, distance from the site, and how far the node's clock is ahead."""

    def __init__(self, settings: GnssSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._site = (settings.latitude, settings.longitude)
        self._poll = hardware.buses.poll_gpsd
        self._last: tuple[float, float | None] | None = None

    def read(self, now_s: float) -> list[Reading]:
        """The last fix.

        Raises:
            SensorBusError: No gpsd, no receiver, no fix, or a fix that is repeated.
        """
        with bus_errors_as_sensor_errors(self.name, "gpsd", _REMEDY):
            text = self._poll()
        try:
            fix = decode(text)
        except NoFixError as error:
            raise SensorBusError(self.name, f"has no fix: {error}", _REMEDY) from error
        self._check_fix_is_new(fix, now_s)
        return self._readings(fix, now_s)

    def _check_fix_is_new(self, fix: GnssFix, now_s: float) -> None:
        """Reject the last fix that gpsd repeats after the receiver was unplugged."""
        last, self._last = self._last, (now_s, fix.time_s)
        if last is None or fix.time_s is None or last[1] != fix.time_s:
            return
        self._last = last
        if now_s - last[0] >= _STANDSTILL_S:
            raise SensorBusError(self.name, "repeats an old fix", _REMEDY, Health.STUCK)

    def _readings(self, fix: GnssFix, now_s: float) -> list[Reading]:
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
