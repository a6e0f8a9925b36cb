"""Signs of motion: tilt meters and trip wires."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from slope_science.levels import Finding, tilt_finding, wire_finding
from slope_science.tilt import WINDOW_H, TiltRate, tilt_rate

HOUR_S: Final = 3600.0


@dataclass
class TiltMeter:
    """Readings of one tilt meter, in the order of time.

    Attributes:
        sensor: Its name, with the node's.
        times_s: Unix times at which both axes were read.
        x_deg: Tilt about one axis.
        y_deg: Tilt about the other.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    x_deg: list[float] = field(default_factory=list)
    y_deg: list[float] = field(default_factory=list)

    def rate(self, end_s: float) -> TiltRate | None:
        """Rate over the hour before a moment; None with too few readings."""
        start = bisect_right(self.times_s, end_s - WINDOW_H * HOUR_S - 1e-6)
        end = bisect_right(self.times_s, end_s)
        hours = [(t - end_s) / HOUR_S for t in self.times_s[start:end]]
        return tilt_rate(hours, self.x_deg[start:end], self.y_deg[start:end])


@dataclass
class Wire:
    """Readings of one trip wire, in the order of time.

    Attributes:
        sensor: Its name, with the node's.
        times_s: Unix times of the readings.
        cut: Whether it was cut, at each.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    cut: list[bool] = field(default_factory=list)

    def is_cut(self, end_s: float) -> bool:
        """Whether its last word up to a moment was that it is cut."""
        last = bisect_right(self.times_s, end_s) - 1
        return last >= 0 and self.cut[last]


def tilt_meters(
    axes: Iterable[tuple[str, str, float, float]],
) -> list[TiltMeter]:
    """Pair the axes of tilt meters.

    Args:
        axes: (sensor, ``x`` or ``y``, Unix time, degrees) in any order; a reading
            of one axis without the other at the same time is let go.
    """
    moments: dict[tuple[str, float], dict[str, float]] = {}
    for sensor, axis, at_s, angle_deg in axes:
        moments.setdefault((sensor, at_s), {})[axis] = angle_deg
    meters: dict[str, TiltMeter] = {}
    for (sensor, at_s), pair in sorted(moments.items(), key=lambda item: item[0]):
        if len(pair) == 2:  # noqa: PLR2004 - x and y
            meter = meters.setdefault(sensor, TiltMeter(sensor))
            meter.times_s.append(at_s)
            meter.x_deg.append(pair["x"])
            meter.y_deg.append(pair["y"])
    return list(meters.values())


def wires(truths: Iterable[tuple[str, float, bool]]) -> list[Wire]:
    """Gather (sensor, Unix time, whether cut) by wire, in the order of time."""
    by_sensor: dict[str, Wire] = {}
    for sensor, at_s, is_cut in sorted(truths):
        wire = by_sensor.setdefault(sensor, Wire(sensor))
        wire.times_s.append(at_s)
        wire.cut.append(is_cut)
    return list(by_sensor.values())


def motion_findings(
    meters: Sequence[TiltMeter], trips: Sequence[Wire], end_s: float
) -> tuple[float | None, list[Finding | None]]:
    """The fastest tilt at a moment in deg/h, and what all signs say."""
    rates = [(meter.sensor, meter.rate(end_s)) for meter in meters]
    known = [rate.deg_per_h for _, rate in rates if rate is not None]
    findings = [tilt_finding(sensor, rate) for sensor, rate in rates]
    findings += [wire_finding(wire.sensor, wire.is_cut(end_s)) for wire in trips]
    return max(known, default=None), findings
