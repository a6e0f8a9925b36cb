"""What each moving sensor shows, step by step: rows of the sensors table."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from backend_spark.transforms.motion import (
    HOUR_S,
    Extensometer,
    Signs,
    TiltMeter,
)
from backend_spark.transforms.observation import Observation
from backend_spark.transforms.steps import STEP_S, step_end_s
from slope_science.quality import Flag, Verdict, worst

LONG_H: Final = 6.0
_MICRO: Final = 1_000_000
_SECONDS_AHEAD: Final = 400 * 86_400.0
"""A failure further ahead than this is none; it may lie beyond the year 9999."""


def sensor_rows(
    signs: Signs, observations: Iterable[Observation], from_s: float
) -> list[dict[str, Any]]:
    """Rows of tilt meters and extensometers in the steps they spoke in.

    Args:
        signs: Sensors of the cell.
        observations: Readings of the cell with their flags.
        from_s: Only steps that end then or later.

    Returns:
        Rows of schemas.SENSORS without the cell; a column that is not there is null.
    """
    moving: list[TiltMeter | Extensometer] = [*signs.meters, *signs.rods]
    flags: dict[str, dict[int, list[Verdict]]] = {sign.sensor: {} for sign in moving}
    for o in observations:
        if o.at_s > from_s - STEP_S and step_end_s(o.at_s) >= from_s:
            _note(flags, o)
    rows = []
    for sign in moving:
        node, _, sensor = sign.sensor.partition(" ")
        for end_s, told in sorted(flags[sign.sensor].items()):
            common = {
                "node": node,
                "sensor": sensor,
                "at": end_s * _MICRO,
                "n_readings": _count(sign.times_s, end_s),
                "worst_flag": int(worst(told).flag),
            }
            what = (
                _tilt(sign, end_s)
                if isinstance(sign, TiltMeter)
                else _moved(sign, end_s)
            )
            rows.append(common | dict(what))
    return rows


def _note(flags: Mapping[str, dict[int, list[Verdict]]], o: Observation) -> None:
    """Keep the flag of a moving sensor's reading, or of one of its numbers."""
    for name in {o.name, o.name.rpartition("/")[0]}:
        steps = flags.get(f"{o.node} {name}")
        if steps is not None:
            verdict = Verdict(Flag(o.flag or Flag.NOT_EVALUATED))
            steps.setdefault(step_end_s(o.at_s), []).append(verdict)


def _count(times_s: Sequence[float], end_s: int) -> int:
    return bisect_right(times_s, end_s) - bisect_right(times_s, end_s - STEP_S)


def _tilt(meter: TiltMeter, end_s: float) -> Mapping[str, Any]:
    short, long = meter.rate(end_s), meter.rate(end_s, LONG_H)
    slope = meter.deg_per_k(end_s)
    return {
        "kind": "tilt",
        "tilt_rate_deg_per_h": short and short.deg_per_h,
        "tilt_noise_deg_per_h": short and short.noise_deg_per_h(),
        "tilt_rate_6h_deg_per_h": long and long.deg_per_h,
        "tilt_noise_6h_deg_per_h": long and long.noise_deg_per_h(),
        "thermal_deg_per_k": slope and (slope[0] ** 2 + slope[1] ** 2) ** 0.5,
    }


def _moved(rod: Extensometer, end_s: float) -> Mapping[str, Any]:
    speed, ahead = rod.speed(end_s), rod.failure(end_s)
    told: dict[str, Any] = {
        "kind": "displacement",
        "velocity_mm_per_h": speed and speed.mm_per_h,
        "velocity_sigma_mm_per_h": speed and speed.sigma_mm_per_h,
        "moved_24h_mm": rod.moved(end_s, 24.0),
    }
    if ahead is None:
        return told
    left_s = ahead.failure_h * HOUR_S
    gate = ahead.closed_gate(0.0)
    is_near = abs(left_s) < _SECONDS_AHEAD
    return told | {
        "failure_at": round((end_s + left_s) * _MICRO) if is_near else None,
        "failure_half_width_h": ahead.half_width_h,
        "failure_r2": ahead.r2,
        "failure_points": ahead.points,
        "failure_usable": gate is None,
        "failure_gate": gate,
    }
