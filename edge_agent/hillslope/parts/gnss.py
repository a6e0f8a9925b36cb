"""A GNSS receiver on the slope, as gpsd reports it."""

import json
import math
from datetime import UTC, datetime
from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.gnss import GnssSettings

_M_PER_DEG = 111_195.0
_SIGMA_M, _EPH_M, _ALTITUDE_M = 1.2, 4.0, 500.0


class GnssPart(BreakablePart):
    """Moves down the slope with it, under metres of noise."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.SATURATED,
        Fault.DISCONNECTED,
    })

    def __init__(self, settings: GnssSettings, bench: Bench) -> None:
        super().__init__()
        self._settings = settings
        self._rng = bench.rng
        self._buses = bench.buses
        self._text = _poll()
        self.mend()

    def move(self, state: SlopeState) -> None:
        """Take a fix."""
        if self.fault is None:
            s = self._settings
            south_m = state.displacement_mm / 1000 + self._rng.gauss(0, _SIGMA_M)
            east_m = self._rng.gauss(0, _SIGMA_M)
            shrink = max(math.cos(math.radians(s.latitude)), 1e-6)
            tpv = {
                "class": "TPV", "mode": 3, "eph": _EPH_M, "altMSL": _ALTITUDE_M,
                "time": datetime.fromtimestamp(state.time_s, UTC).isoformat(),
                "lat": s.latitude - south_m / _M_PER_DEG,
                "lon": s.longitude + east_m / _M_PER_DEG / shrink,
            }  # fmt: skip
            self._text = _poll(tpv)

    def fail(self, fault: Fault) -> None:
        """Stop the daemon, pull the receiver out, or cover the sky with it."""
        super().fail(fault)
        if fault is Fault.DEAD:
            self._buses.gpsd_report = None
        elif fault is Fault.DISCONNECTED:
            self._text = json.dumps({"class": "POLL", "active": 0, "tpv": []})
        elif fault is Fault.SATURATED:
            self._text = _poll({"class": "TPV", "mode": 1})

    def mend(self) -> None:
        """Start the daemon, plug the receiver in."""
        super().mend()
        self._buses.gpsd_report = lambda: self._text


def _poll(*tpv: dict[str, object]) -> str:
    return json.dumps({"class": "POLL", "active": 1, "tpv": list(tpv)})
