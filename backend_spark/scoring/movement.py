"""Movement sensors of a cell: tilt meters, extensometers, trip wires; their rows."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from backend_spark.scoring.observation import STEP_S, Observation, step_end_s
from backend_spark.scoring.shocks_and_water import (
    CONFIRM_S,
    ShockSeries,
    WaterLevelSeries,
)
from slope_science.creep import (
    CAUTION_DURATION_H,
    CAUTION_MM_PER_H,
    Velocity,
    fit_velocity,
)
from slope_science.failure_time import (
    FIT_SPAN_H,
    FailureForecast,
    forecast_failure,
)
from slope_science.findings import (
    Finding,
    judge_failure_time,
    judge_speed,
    judge_tilt,
    judge_wire,
)
from slope_science.movement import WINDOW_H, ThermalRegression, TiltRate, fit_tilt_rate
from slope_science.quality import Flag, Verdict, worst_verdict
from slope_science.reason_text import render_english

HOUR_S: Final = 3600.0
MAX_CUT_AGE_S: Final = 12 * HOUR_S
"""Age of a cut after which no confirmation is looked for."""

NO_REGRESSION: Final = ThermalRegression()


@dataclass
class TiltSeries:
    """Readings of one tilt meter, in time order.

    Attributes:
        sensor: Node and name.
        times_s: Unix times at which both axes were read.
        x_deg: Tilt about one axis.
        y_deg: Tilt about the other.
        temp_cel: Temperature of the sensor; nan where missing.
        learnt: Saved thermal regression up to a full hour.
        learnt_s: Unix time of that hour.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    x_deg: list[float] = field(default_factory=list)
    y_deg: list[float] = field(default_factory=list)
    temp_cel: list[float] = field(default_factory=list)
    learnt: ThermalRegression = NO_REGRESSION
    learnt_s: float = 0.0
    _warmth: tuple[list[float], list[ThermalRegression]] | None = None
    _rates: dict[tuple[float, float], TiltRate | None] = field(default_factory=dict)

    def rate(self, end_s: float, window_h: float = WINDOW_H) -> TiltRate | None:
        """Rate over the time before a moment; None with too few readings.

        The thermal part is removed once it is known.
        """
        if (end_s, window_h) not in self._rates:
            self._rates[end_s, window_h] = self._rate(end_s, window_h)
        return self._rates[end_s, window_h]

    def _rate(self, end_s: float, window_h: float) -> TiltRate | None:
        start = bisect_right(self.times_s, end_s - window_h * HOUR_S - 1e-6)
        end = bisect_right(self.times_s, end_s)
        hours = [(t - end_s) / HOUR_S for t in self.times_s[start:end]]
        x_deg, y_deg = self.x_deg[start:end], self.y_deg[start:end]
        slope, warm = self.deg_per_k(end_s), self.temp_cel[start:end]
        if slope is not None and not any(map(math.isnan, warm)):
            x_deg = [
                v - slope[0] * (t - warm[0]) for v, t in zip(x_deg, warm, strict=True)
            ]
            y_deg = [
                v - slope[1] * (t - warm[0]) for v, t in zip(y_deg, warm, strict=True)
            ]
        return fit_tilt_rate(hours, x_deg, y_deg)

    def deg_per_k(self, end_s: float) -> tuple[float, float] | None:
        """Tilt of x and y per kelvin, learnt up to a moment; None if unknown."""
        return self.thermal(end_s).deg_per_k

    def thermal(self, end_s: float) -> ThermalRegression:
        """Thermal regression up to a moment."""
        if self._warmth is None:
            self._warmth = self._learnt()
        hours, known = self._warmth
        last = bisect_right(hours, end_s) - 1
        return known[last] if last >= 0 else self.learnt

    def _learnt(self) -> tuple[list[float], list[ThermalRegression]]:
        """Thermal regression at the end of each pair of consecutive hours."""
        sums: dict[int, list[float]] = {}
        columns = zip(self.times_s, self.temp_cel, self.x_deg, self.y_deg, strict=True)
        for at_s, *values in columns:
            if not math.isnan(values[0]):
                total = sums.setdefault(int(at_s // HOUR_S), [0.0] * 4)
                for place, value in enumerate((*values, 1.0)):
                    total[place] += value
        ends, known, state = [], [], self.learnt
        for hour, total in sums.items():
            if hour - 1 in sums and hour * HOUR_S >= self.learnt_s:
                now = [value / total[3] for value in total[:3]]
                last = [value / sums[hour - 1][3] for value in sums[hour - 1][:3]]
                state = state.updated(*(a - b for a, b in zip(now, last, strict=True)))
                ends.append((hour + 1) * HOUR_S)
                known.append(state)
        return ends, known


@dataclass
class ExtensometerSeries:
    """Readings of one extensometer, in time order.

    Attributes:
        sensor: Node and name.
        times_s: Unix times of the readings.
        moved_mm: Displacement at each.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    moved_mm: list[float] = field(default_factory=list)
    _forecasts: dict[float, FailureForecast | None] = field(default_factory=dict)

    def speed(self, end_s: float) -> Velocity | None:
        """Speed over the hour before a moment; None with too few readings."""
        return fit_velocity(*self._past(end_s, 1.0))

    def has_lasted(self, end_s: float) -> bool:
        """Whether the speed has been at the caution speed for two hours."""
        hours = range(int(CAUTION_DURATION_H) + 1)
        speeds = [self.speed(end_s - hour * HOUR_S) for hour in hours]
        return all(s is not None and s.exceeds(CAUTION_MM_PER_H) for s in speeds)

    def displacement_mm(self, end_s: float, hours: float) -> float | None:
        """Displacement over the last hours; None without a reading at their start."""
        last = bisect_right(self.times_s, end_s) - 1
        first = bisect_right(self.times_s, end_s - hours * HOUR_S) - 1
        if first < 0 or self.times_s[first] < end_s - (hours + 1) * HOUR_S:
            return None
        return self.moved_mm[last] - self.moved_mm[first]

    def forecast_failure(self, end_s: float) -> FailureForecast | None:
        """Time of failure in hours after a moment, by Voight's law.

        None unless the speed exceeds its noise.
        """
        if end_s not in self._forecasts:
            now = self.speed(end_s)
            is_moving = now is not None and now.exceeds(0.0)
            past = self._past(end_s, FIT_SPAN_H)
            self._forecasts[end_s] = forecast_failure(*past) if is_moving else None
        return self._forecasts[end_s]

    def _past(self, end_s: float, hours: float) -> tuple[list[float], list[float]]:
        start = bisect_right(self.times_s, end_s - hours * HOUR_S - 1e-6)
        end = bisect_right(self.times_s, end_s)
        times_h = [(t - end_s) / HOUR_S for t in self.times_s[start:end]]
        return times_h, self.moved_mm[start:end]


@dataclass
class WireSeries:
    """Readings of one trip wire, in time order.

    Attributes:
        sensor: Node and name.
        times_s: Unix times of the readings.
        cut: Whether it was cut, at each.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    cut: list[bool] = field(default_factory=list)

    def cut_since_s(self, end_s: float) -> float | None:
        """Start of the present cut, if within `MAX_CUT_AGE_S`."""
        last = bisect_right(self.times_s, end_s) - 1
        first = last
        while first > 0 and self.cut[first - 1]:
            first -= 1
            if self.times_s[first] < end_s - MAX_CUT_AGE_S:
                return None
        return (
            self.times_s[first]
            if self.times_s[first] >= end_s - MAX_CUT_AGE_S
            else None
        )

    def was_active_near(self, at_s: float, end_s: float) -> bool:
        """Whether it was cut near a moment, by readings up to a step."""
        if not self.is_cut(end_s):
            return False
        cut_s = self.cut_since_s(end_s)
        return cut_s is not None and abs(cut_s - at_s) <= CONFIRM_S

    def is_cut(self, end_s: float) -> bool:
        """Whether its last reading up to a moment is a cut."""
        last = bisect_right(self.times_s, end_s) - 1
        return last >= 0 and self.cut[last]


def group_tilt(
    axes: Iterable[tuple[str, str, float, float]],
    learnt: Mapping[str, ThermalRegression] = {},
    learnt_s: float = 0.0,
) -> list[TiltSeries]:
    """Pair the axes of tilt meters.

    Args:
        axes: (sensor, ``x``, ``y`` or ``temp``, Unix time, value), any order; readings
            of one axis without the other at the same time are dropped.
        learnt: Saved thermal regression of each meter.
        learnt_s: Unix time of these.
    """
    moments: dict[tuple[str, float], dict[str, float]] = {}
    for sensor, axis, at_s, value in axes:
        moments.setdefault((sensor, at_s), {})[axis] = value
    meters: dict[str, TiltSeries] = {}
    for (sensor, at_s), parts in sorted(moments.items(), key=lambda item: item[0]):
        if {"x", "y"} <= parts.keys():
            if sensor not in meters:
                known = learnt.get(sensor, NO_REGRESSION)
                meters[sensor] = TiltSeries(sensor, learnt=known, learnt_s=learnt_s)
            meter = meters[sensor]
            meter.times_s.append(at_s)
            meter.x_deg.append(parts["x"])
            meter.y_deg.append(parts["y"])
            meter.temp_cel.append(parts.get("temp", math.nan))
    return list(meters.values())


def group_extensometers(
    readings: Iterable[tuple[str, float, float]],
) -> list[ExtensometerSeries]:
    """Group (sensor, Unix time, mm) by sensor, in time order."""
    by_sensor: dict[str, ExtensometerSeries] = {}
    for sensor, at_s, moved_mm in sorted(readings):
        rod = by_sensor.setdefault(sensor, ExtensometerSeries(sensor))
        rod.times_s.append(at_s)
        rod.moved_mm.append(moved_mm)
    return list(by_sensor.values())


def group_wires(truths: Iterable[tuple[str, float, bool]]) -> list[WireSeries]:
    """Group (sensor, Unix time, whether cut) by wire, in time order."""
    by_sensor: dict[str, WireSeries] = {}
    for sensor, at_s, is_cut in sorted(truths):
        wire = by_sensor.setdefault(sensor, WireSeries(sensor))
        wire.times_s.append(at_s)
        wire.cut.append(is_cut)
    return list(by_sensor.values())


@dataclass(frozen=True)
class MovementSensors:
    """Movement sensors of one cell."""

    tilt_series: Sequence[TiltSeries] = ()
    extensometers: Sequence[ExtensometerSeries] = ()
    wires: Sequence[WireSeries] = ()
    shocks: Sequence[ShockSeries] = ()
    water_levels: Sequence[WaterLevelSeries] = ()

    def findings(self, end_s: int) -> tuple[float | None, list[Finding | None]]:
        """Fastest tilt at a moment in deg/h, and the findings of all sensors."""
        rates = [(meter.sensor, meter.rate(end_s)) for meter in self.tilt_series]
        known = [rate.deg_per_h for _, rate in rates if rate is not None]
        found = [judge_tilt(sensor, rate) for sensor, rate in rates]
        for rod in self.extensometers:
            speed, lasted = rod.speed(end_s), rod.has_lasted(end_s)
            found.append(judge_speed(rod.sensor, speed, lasted))
            found.append(
                judge_failure_time(rod.sensor, rod.forecast_failure(end_s), 0.0)
            )
        found += [shock.finding(end_s) for shock in self.shocks]
        found += [self._wire(wire, end_s) for wire in self.wires]
        return max(known, default=None), found

    def _wire(self, wire: WireSeries, end_s: int) -> Finding | None:
        """Finding of a wire, with its confirmation by another sensor."""
        if not wire.is_cut(end_s):
            return None
        at_s = wire.cut_since_s(end_s)
        if at_s is None:
            return judge_wire(wire.sensor, is_cut=True, is_old=True)
        others: list[ShockSeries | WaterLevelSeries | WireSeries] = [
            *self.shocks,
            *self.water_levels,
            *(w for w in self.wires if w != wire),
        ]
        felt = next((o.sensor for o in others if o.was_active_near(at_s, end_s)), None)
        return judge_wire(wire.sensor, is_cut=True, confirmed_by=felt)


LONG_WINDOW_H: Final = 6.0
_MICRO: Final = 1_000_000
_HOURS_AHEAD: Final = 400 * 24.0
_SECONDS_AHEAD: Final = _HOURS_AHEAD * HOUR_S
"""Later failure times are not written; they may lie beyond the year 9999."""


def make_sensor_rows(
    signs: MovementSensors, observations: Iterable[Observation], from_s: float
) -> list[dict[str, Any]]:
    """Rows of tilt meters and extensometers in steps with readings.

    Args:
        signs: Sensors of the cell.
        observations: Readings of the cell with their flags.
        from_s: Only steps that end then or later.

    Returns:
        Rows of schemas.SENSORS without the cell; missing columns are null.
    """
    moving: list[TiltSeries | ExtensometerSeries] = [
        *signs.tilt_series,
        *signs.extensometers,
    ]
    flags: dict[str, dict[int, list[Verdict]]] = {sign.sensor: {} for sign in moving}
    for o in observations:
        if o.at_s > from_s - STEP_S and step_end_s(o.at_s) >= from_s:
            _note(flags, o)
    rows = []
    for sign in moving:
        node, _, sensor = sign.sensor.partition(" ")
        for end_s, verdicts in sorted(flags[sign.sensor].items()):
            common = {
                "node": node,
                "sensor": sensor,
                "at": end_s * _MICRO,
                "n_readings": _count(sign.times_s, end_s),
                "worst_flag": int(worst_verdict(verdicts).flag),
            }
            columns = (
                _tilt(sign, end_s)
                if isinstance(sign, TiltSeries)
                else _moved(sign, end_s)
            )
            rows.append(common | dict(columns))
    return rows


def _note(flags: Mapping[str, dict[int, list[Verdict]]], o: Observation) -> None:
    """Collect the flag of a reading of a movement sensor."""
    for name in {o.name, o.name.rpartition("/")[0]}:
        steps = flags.get(f"{o.node} {name}")
        if steps is not None:
            verdict = Verdict(Flag(o.flag or Flag.NOT_EVALUATED))
            steps.setdefault(step_end_s(o.at_s), []).append(verdict)


def _count(times_s: Sequence[float], end_s: int) -> int:
    return bisect_right(times_s, end_s) - bisect_right(times_s, end_s - STEP_S)


def _tilt(meter: TiltSeries, end_s: float) -> Mapping[str, Any]:
    short, long = meter.rate(end_s), meter.rate(end_s, LONG_WINDOW_H)
    slope = meter.deg_per_k(end_s)
    return {
        "kind": "tilt",
        "tilt_rate_deg_per_h": short and short.deg_per_h,
        "tilt_noise_deg_per_h": short and short.noise_deg_per_h(),
        "tilt_rate_6h_deg_per_h": long and long.deg_per_h,
        "tilt_noise_6h_deg_per_h": long and long.noise_deg_per_h(),
        "thermal_deg_per_k": slope and (slope[0] ** 2 + slope[1] ** 2) ** 0.5,
    }


def _moved(rod: ExtensometerSeries, end_s: float) -> Mapping[str, Any]:
    speed, ahead = rod.speed(end_s), rod.forecast_failure(end_s)
    columns: dict[str, Any] = {
        "kind": "displacement",
        "velocity_mm_per_h": speed and speed.mm_per_h,
        "velocity_sigma_mm_per_h": speed and speed.sigma_mm_per_h,
        "moved_24h_mm": rod.displacement_mm(end_s, 24.0),
    }
    if ahead is None:
        return columns
    left_s = ahead.failure_h * HOUR_S
    gate = ahead.failed_gate(0.0)
    is_near = abs(left_s) < _SECONDS_AHEAD
    return columns | {
        "failure_at": round((end_s + left_s) * _MICRO) if is_near else None,
        "failure_half_width_h": min(ahead.half_width_h, _HOURS_AHEAD),
        "failure_r2": ahead.r2,
        "failure_points": ahead.points,
        "failure_usable": gate is None,
        "failure_gate": None if gate is None else render_english(gate),
    }
