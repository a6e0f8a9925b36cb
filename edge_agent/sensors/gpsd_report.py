"""What gpsd says of the receiver, in JSON.

Source: gpsd_json(5), objects POLL and TPV: ``mode`` 2 is a fix in two dimensions,
3 in three; what is unknown is left out.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spatial_mqtt.cells import check_position

FIX_2D = 2


class NoFixError(ValueError):
    """There is no position; the words say why."""


@dataclass(frozen=True)
class Fix:
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


def decode(text: str) -> Fix:
    """The best fix in a line of class ``POLL`` or ``TPV``.

    Raises:
        NoFixError: No receiver is connected, it sees no satellites, or the text is
            not gpsd's.
    """
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoFixError(f"gpsd must speak JSON, got {text[:60]!r}") from error
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


def _fix(tpv: Mapping[str, Any]) -> Fix:
    # releases before 3.20 say alt, later ones altMSL; eph came with 3.20, too
    altitude = tpv.get("altMSL", tpv.get("alt"))
    error_m = tpv.get("eph", tpv.get("epx"))
    time = tpv.get("time")
    check_position(tpv["lat"], tpv["lon"])
    return Fix(
        float(tpv["lat"]),
        float(tpv["lon"]),
        None if altitude is None else float(altitude),
        None if time is None else datetime.fromisoformat(time).timestamp(),
        None if error_m is None else float(error_m),
    )
