"""What a probe of the installer's choice sees of the slope, by its unit."""

from collections.abc import Callable, Mapping

from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.probe import ProbeSettings, ScaledSettings

_SEEN: Mapping[str, Callable[[SlopeState], float]] = {
    "/": lambda state: state.vwc,
    "/100": lambda state: state.vwc * 100,
    "%RH": lambda state: state.air.humidity_pct,
    "Cel": lambda state: state.temp_c,
    "Pa": lambda state: state.pore_kpa * 1000,
    "deg": lambda state: state.tilt_x_deg,
    "hPa": lambda state: state.pore_kpa * 10,
    "m": lambda state: state.groundwater_m,
    "mm": lambda state: state.displacement_mm,
    "mm/h": lambda state: state.velocity_mm_per_h,
}


def followed(settings: ProbeSettings, state: SlopeState) -> float:
    """The reading that the slope deserves, within the probe's range.

    Units that nothing on the slope has stay in the middle of the range.
    """
    low, high = settings.range
    see = _SEEN.get(settings.unit)
    if see is None:
        return (low + high) / 2
    return min(max(see(state), low), high)


def number_for(settings: ScaledSettings, value: float) -> float:
    """The probe's own number for a reading: the calibration, backwards."""
    return (value - settings.offset) / settings.scale
