"""Simulated slope: rain, tanks, pore pressure, creep, tilt, stream and air.

The rain fills the tanks; it is generated or from a CSV file, in equal steps. All other
values are pure functions of the rain and the time, without a clock or chance,
so a restarted simulation continues where the slope is by then. Sizes are those of a
first-order gully with a catchment of half a square kilometre, 500 m above the sea.

Source: tanks as in `slope_science.rain_and_soil_water`; tertiary creep by Fukuzono
1985, 1/v falls linearly to the failure; tilt linear in displacement (Xie 2019).
"""

import bisect
import csv
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path

from edge_agent.config import STORM_SHAPES
from slope_science.rain_and_soil_water import A1, A2, A3, A4, L1, L2, L3, L4, SoilWater

_PEAK_AT = 0.6  # of the duration, as in the usual design hyetographs
_STORM_STEP_S = 600.0
_ROUGHNESS = 0.3

_CATCHMENT_M2 = 5e5
_MANNING_N, _BED_SLOPE, _BED_M = 0.05, 0.05, 3.0
_PULSES_PER_MM = 3.0  # stones that roll while the soil moves by a millimetre
_PULSES_PER_H = 0.2  # wind, animals, a car
_CALM_HPA, _TIDE_HPA, _STORM_HPA = 955.0, 1.0, 6.0
_CALM_C, _DAY_C, _STORM_C = 16.0, 5.0, 3.0
_DEW_POINT_C = 11.0
_WET_MM = 10.0  # water on the ground at which 63 % of a storm is in the air
_DAY_S = 86400.0


@dataclass(frozen=True)
class SimulatedRain:
    """Rain depths one after another.

    Attributes:
        start_s: Unix time at which the first step begins.
        step_s: Length of a step.
        depths_mm: Rain in each step, zero or more.
        gaps: Steps that a record lacks; they count as no rain.
    """

    start_s: float
    step_s: float
    depths_mm: tuple[float, ...]
    gaps: int = 0

    @property
    def end_s(self) -> float:
        """Unix time at which the last step ends."""
        return self.start_s + self.step_s * len(self.depths_mm)

    @property
    def total_mm(self) -> float:
        """Rain of the whole series."""
        return self._sums[-1]

    def cumulative_mm(self, t_s: float) -> float:
        """Rain from the start of the series until a time, linear inside a step."""
        steps = (t_s - self.start_s) / self.step_s
        if steps <= 0:
            return 0.0
        whole = int(min(steps, len(self.depths_mm)))
        if whole == len(self.depths_mm):
            return self.total_mm
        return self._sums[whole] + (steps - whole) * self.depths_mm[whole]

    @cached_property
    def _sums(self) -> tuple[float, ...]:
        return tuple(itertools.accumulate(self.depths_mm, initial=0.0))


def make_storm(
    kind: str, start_s: float, duration_h: float, total_mm: float, seed: int = 0
) -> SimulatedRain:
    """Generate a storm in 10-minute steps.

    Args:
        kind: ``peaked`` rises to 60 % of its duration and falls faster, roughened
            by chance; ``uniform`` is constant; ``quiet`` has no rain.
        start_s: Unix time at which it begins.
        duration_h: How long it lasts.
        total_mm: Rain of the whole storm.
        seed: The same seed gives the same storm.

    Raises:
        ValueError: There is no such kind, or no such storm.
    """
    if kind not in STORM_SHAPES:
        raise ValueError(f"kind must be one of {STORM_SHAPES}, got {kind!r}")
    if not (duration_h > 0 and total_mm >= 0 and math.isfinite(total_mm)):
        rule = "duration_h must be more than 0 and total_mm 0 or more"
        raise ValueError(f"{rule}, got {duration_h!r} and {total_mm!r}")
    steps = max(1, round(duration_h * 3600 / _STORM_STEP_S))
    if kind == "quiet":
        return SimulatedRain(start_s, _STORM_STEP_S, (0.0,) * steps)
    rng = random.Random(seed)  # noqa: S311 - weather, no secret
    weights = [1.0] * steps
    if kind == "peaked":
        weights = [_swell((at + 0.5) / steps, rng) for at in range(steps)]
    scale = total_mm / sum(weights)
    return SimulatedRain(start_s, _STORM_STEP_S, tuple(w * scale for w in weights))


def find_wettest_window(series: SimulatedRain, hours: float) -> SimulatedRain:
    """The window of a series with the most rain; the first one of equals."""
    width = round(hours * 3600 / series.step_s)
    if not 1 <= width <= len(series.depths_mm):
        longest = len(series.depths_mm) * series.step_s / 3600
        rule = f"between one step and the series' {longest:g} h"
        raise ValueError(f"hours must be {rule}, got {hours!r}")
    sums = list(itertools.accumulate(series.depths_mm, initial=0.0))
    begins = range(len(sums) - width)
    best = max(begins, key=lambda at: sums[at + width] - sums[at])
    return select_steps(series, best, best + width)


def select_steps(series: SimulatedRain, begin: int, end: int) -> SimulatedRain:
    """Steps of a series by number; how many of them were gaps is not known."""
    depths = series.depths_mm[begin:end]
    return SimulatedRain(series.start_s + begin * series.step_s, series.step_s, depths)


def fill_gaps(depths_mm: Sequence[float | None]) -> tuple[tuple[float, ...], int]:
    """Depths with gaps as no rain, and how many gaps there were."""
    return tuple(d or 0.0 for d in depths_mm), sum(d is None for d in depths_mm)


def _swell(at: float, rng: random.Random) -> float:
    """Intensity at a share of the duration, about 1 at the peak."""
    side = at / _PEAK_AT if at <= _PEAK_AT else (1 - at) / (1 - _PEAK_AT)
    rough: float = 1 + _ROUGHNESS * rng.uniform(-1, 1)
    return math.pow(side, 2.5) * rough + 0.02


class SimulatorError(Exception):
    """Base of the simulator's errors."""


class RainFileError(SimulatorError, ValueError):
    """A file of recorded rain cannot be used.

    Attributes:
        path: The file.
        row: Line number in the file, the header being 1; 0 for the whole file.
        column: Name of the column; empty for the whole row.
        rule: What it must be.
        value: What was found.
    """

    def __init__(  # noqa: PLR0917 - the parts of one message
        self, path: str, row: int, column: str, rule: str, value: object, remedy: str
    ) -> None:
        self.path = path
        self.row = row
        self.column = column
        self.rule = rule
        self.value = value
        place = f"{path} row {row}" if row else path
        place += f" column {column!r}" if column else ""
        super().__init__(f"{place} must be {rule}, got {value!r}; {remedy}")


TIME_COLUMNS = (
    "time_local_end", "time_end", "time_local", "time_utc", "time", "timestamp",
    "datetime", "date",
)  # fmt: skip

_NO_VALUE = frozenset({"", "na", "nan", "null", "none", "-", "m"})
_MAX_STEPS = 2_000_000
_Row = tuple[int, float, float | None]


def read_rain_csv(
    path: Path,
    column: str,
    dates: tuple[str | None, str | None] = (None, None),
) -> SimulatedRain:
    """Read one column of rain depths in mm.

    Times are ISO; without a zone they are taken as UTC. In a column whose name
    ends with ``end`` they mark the end of a step, else its beginning. Rows or values
    that are missing are gaps, counted, and no rain. A step is as long as the shortest
    distance of two rows.

    Args:
        path: The file; its first row names the columns.
        column: The depths; a trailing ``_mm`` may be left out.
        dates: First and last time wanted, ISO; a bare last date is wholly included.

    Raises:
        RainFileError: Names file, row, column, value and remedy.
    """
    with _opened(path) as file:
        table = csv.DictReader(file)
        names = list(table.fieldnames or ())
        depth_column = _depth_column(path, names, column)
        clock = _time_column(path, names)
        every = _rows(path, table, clock, depth_column)
        rows = list(_wanted(every, dates, ends=clock.endswith("end")))
    if not rows:
        rule = "a file with rows between the dates wanted"
        raise RainFileError(str(path), 0, clock, rule, dates, "choose other dates")
    step_s = _shortest(path, rows, clock)
    depths, gaps = fill_gaps(_gridded(path, rows, step_s, clock))
    start_s = rows[0][1] - (step_s if clock.endswith("end") else 0.0)
    return SimulatedRain(start_s, step_s, depths, gaps)


def _opened(path: Path) -> TextIOWrapper:
    try:
        return path.open(newline="", encoding="utf-8-sig")
    except OSError as error:
        rule, why = "a file that can be read", error.strerror
        raise RainFileError(str(path), 0, "", rule, why, "check the path") from error


def _depth_column(path: Path, names: list[str], column: str) -> str:
    for name in (column, f"{column}_mm"):
        if name in names:
            return name
    remedy = f"the file has {', '.join(names)}"
    raise RainFileError(str(path), 1, column, "a column of the file", column, remedy)


def _time_column(path: Path, names: list[str]) -> str:
    for name in TIME_COLUMNS:
        if name in names:
            return name
    remedy = f"rename its column of times; the file has {', '.join(names)}"
    rule = f"a file with a column {' or '.join(TIME_COLUMNS)}"
    raise RainFileError(str(path), 1, "", rule, names, remedy)


def _rows(
    path: Path, table: Iterable[Mapping[str, str | None]], clock: str, column: str
) -> Iterator[_Row]:
    for number, row in enumerate(table, 2):
        time_s = _time(path, number, clock, row[clock] or "")
        yield number, time_s, _depth(path, number, column, row[column] or "")


def _time(path: Path, number: int, column: str, text: str) -> float:
    try:
        return _unix(text)
    except ValueError as error:
        rule, remedy = "an ISO time", "write it like 2010-12-12 05:00:00"
        raise RainFileError(str(path), number, column, rule, text, remedy) from error


def _depth(path: Path, number: int, column: str, text: str) -> float | None:
    if text.strip().lower() in _NO_VALUE:
        return None
    try:
        depth_mm = float(text)
    except ValueError:
        depth_mm = math.nan
    if not 0 <= depth_mm < math.inf:
        rule, remedy = "a depth in mm, zero or more", "leave a missing value empty"
        raise RainFileError(str(path), number, column, rule, text, remedy)
    return depth_mm


def _wanted(
    rows: Iterable[_Row], dates: tuple[str | None, str | None], *, ends: bool
) -> Iterator[_Row]:
    first, last = dates
    low = -math.inf if first is None else _unix(first)
    high = math.inf if last is None else _unix(last) + 1
    if last is not None and len(last) == len("2010-12-12"):
        high += 86400 - 1
    # the step that ends at midnight belongs to the day before
    back_s = 0.5 if ends else 0.0
    return (row for row in rows if low <= row[1] - back_s < high)


def _unix(text: str) -> float:
    time = datetime.fromisoformat(text.strip())
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _shortest(path: Path, rows: list[_Row], clock: str) -> float:
    gaps = [later[1] - row[1] for row, later in itertools.pairwise(rows)]
    shortest = min((gap for gap in gaps if gap > 0), default=0.0)
    if not shortest:
        rule = "a file with two rows or more"
        raise RainFileError(str(path), 0, clock, rule, len(rows), "give step_s")
    return shortest


def _gridded(
    path: Path, rows: list[_Row], step_s: float, clock: str
) -> list[float | None]:
    """Depths on an even grid, None where the record has nothing."""
    depths: list[float | None] = []
    for number, time_s, depth_mm in rows:
        steps = (time_s - rows[0][1]) / step_s
        at = round(steps)
        if abs(steps - at) > 1e-6 or not len(depths) <= at < _MAX_STEPS:  # noqa: PLR2004 - rounding
            shown = datetime.fromtimestamp(time_s, UTC).isoformat(" ")
            rule = f"later than the row before by a whole number of {step_s:g} s"
            remedy = "sort the rows, drop repeated ones, or give another step_s"
            raise RainFileError(str(path), number, clock, rule, shown, remedy)
        depths += [None] * (at - len(depths))
        depths.append(depth_mm)
    return depths


@dataclass(frozen=True)
class AirState:
    """The air over the slope.

    Attributes:
        temp_c: Temperature.
        humidity_pct: Relative humidity, 0 to 100.
        pressure_hpa: Pressure, not reduced to the sea.
    """

    temp_c: float
    humidity_pct: float
    pressure_hpa: float


def stream_depth_m(soil: SoilWater) -> float:
    """Depth of the stream below the slope, from what the tanks' sides give off.

    Source:
        Side outlets of the tank model as runoff; Manning for a wide bed,
        h = (n q / sqrt(S))^(3/5) with q the flow for a metre of width.
    """
    mm_per_h = (
        A1 * max(soil.s1_mm - L1, 0.0)
        + A2 * max(soil.s1_mm - L2, 0.0)
        + A3 * max(soil.s2_mm - L3, 0.0)
        + A4 * max(soil.s3_mm - L4, 0.0)
    )
    m2_per_s = mm_per_h / 1000 / 3600 * _CATCHMENT_M2 / _BED_M
    return float((_MANNING_N * m2_per_s / math.sqrt(_BED_SLOPE)) ** 0.6)


def count_shocks(elapsed_s: float, moved_mm: float) -> int:
    """Shocks that a counter on the slope has counted since the start.

    A little all the time, and some for every millimetre that the soil moves, so
    that their rate grows with the speed.
    """
    return int(_PULSES_PER_H * elapsed_s / 3600 + _PULSES_PER_MM * moved_mm)


def air_at(t_s: float, soil: SoilWater) -> AirState:
    """The air at a Unix time; wet ground stands for present or recent rain.

    Source:
        Relative humidity from a steady dew point by Magnus (17.62, 243.12 C);
        semidiurnal pressure tide of 1 hPa.
    """
    storm = 1 - math.exp(-soil.s1_mm / _WET_MM)
    day = 2 * math.pi * t_s / _DAY_S
    temp_c = _CALM_C + _DAY_C * math.sin(day) * (1 - storm) - _STORM_C * storm
    dry_pct = 100 * _vapour(_DEW_POINT_C) / _vapour(temp_c)
    humidity_pct = min(dry_pct + (98.0 - dry_pct) * storm, 100.0)
    tide_hpa = _TIDE_HPA * math.sin(2 * day)
    return AirState(temp_c, humidity_pct, _CALM_HPA + tide_hpa - _STORM_HPA * storm)


def _vapour(temp_c: float) -> float:
    """Saturation vapour pressure of water, up to a constant factor."""
    return math.exp(17.62 * temp_c / (243.12 + temp_c))


DRY_VWC, WET_VWC = 0.15, 0.42
KPA_PER_M = 9.80665

_STEP_S = 60.0
_CHECKPOINT_STEPS = 60
_STORAGE_MM = 60.0  # water in the upper tanks at which 63 % of the pores fill
_SUCTION_KPA = -6.0
_KPA_PER_MM = KPA_PER_M / 1000 / 0.4  # weight of water, standing in pores of 40 %
_CREEP_MM_PER_H = 2e-4
_CREEP_KPA = 1.5  # pore pressure that speeds creep up by a factor of e
_FASTEST_CREEP_MM_PER_H = 0.2  # without a failure to come
_LAST_STEP_S = 60.0  # the slide is over before 1/v reaches zero


@dataclass(frozen=True)
class SlopeSite:
    """Parameters of the site.

    Attributes:
        start_s: Unix time from which the slope is simulated.
        failure_time_s: Unix time at which it fails; None for never.
        wire_break_s: Unix time at which the wire is cut; None for at failure.
        onset_s: How long before the failure tertiary creep begins.
        creep_a_per_mm: Fukuzono's A: 1/v = A (tf - t).
        deg_per_mm: Tilt for each mm of displacement.
        fall_line_deg: Direction of movement, from the x axis towards y.
        mounted_deg: Tilt about x and y as the sensor was mounted.
        soil: Water in the ground at the start.
    """

    start_s: float
    failure_time_s: float | None = None
    wire_break_s: float | None = None
    onset_s: float = 48 * 3600.0
    creep_a_per_mm: float = 0.05
    deg_per_mm: float = 0.02
    fall_line_deg: float = 30.0
    mounted_deg: tuple[float, float] = (1.2, -0.7)
    soil: SoilWater = field(default_factory=lambda: SoilWater(10.0, 15.0, 30.0))


@dataclass(frozen=True)
class SlopeState:
    """The slope at one instant.

    Attributes:
        time_s: Unix time of the instant.
        rain_mm: Rain since the series began.
        soil: Water in the tanks.
        vwc: Volumetric water content, 0..1.
        pore_kpa: Pore pressure; negative is suction.
        velocity_mm_per_h: Speed along the slope.
        displacement_mm: Movement since the simulation's start.
        tilt_x_deg: Tilt about x.
        tilt_y_deg: Tilt about y.
        temp_c: Temperature of the ground.
        wire_cut: Whether the wire is cut.
        stream_m: Depth of the stream below the slope.
        vibration_pulses: Shocks felt since the simulation's start.
        air: The air over the slope.
    """

    time_s: float
    rain_mm: float
    soil: SoilWater
    vwc: float
    pore_kpa: float
    velocity_mm_per_h: float
    displacement_mm: float
    tilt_x_deg: float
    tilt_y_deg: float
    temp_c: float
    wire_cut: bool
    stream_m: float
    vibration_pulses: int
    air: AirState

    @property
    def groundwater_m(self) -> float:
        """Head of water over a pressure sensor in the slip plane; dry is 0."""
        return max(self.pore_kpa, 0.0) / KPA_PER_M


@dataclass(frozen=True)
class _Mark:
    """State at the end of a step."""

    step: int
    soil: SoilWater
    crept_mm: float
    rain_mm: float


class Slope:
    """Rain on a site. Any time may be queried; going forward is cheap."""

    def __init__(self, rain: SimulatedRain, site: SlopeSite) -> None:
        self.rain = rain
        self.site = site
        first = _Mark(0, site.soil, 0.0, rain.cumulative_mm(site.start_s))
        self._marks = [first]
        self._last = first

    def state_at(self, t_s: float) -> SlopeState:
        """The slope at a Unix time; before the start it is as at the start."""
        elapsed_s = max(t_s - self.site.start_s, 0.0)
        mark = self._mark_at(int(elapsed_s // _STEP_S))
        rest_s = elapsed_s - mark.step * _STEP_S
        if rest_s > 0:
            mark = self._after(mark, rest_s)
        return self._state_of(mark, max(t_s, self.site.start_s))

    def _mark_at(self, step: int) -> _Mark:
        if step < self._last.step:
            at = bisect.bisect_right(self._marks, step, key=lambda mark: mark.step)
            self._last = self._marks[at - 1]
        mark = self._last
        while mark.step < step:
            mark = self._after(mark, _STEP_S)
            if mark.step == self._marks[-1].step + _CHECKPOINT_STEPS:
                self._marks.append(mark)
        self._last = mark
        return mark

    def _after(self, mark: _Mark, dt_s: float) -> _Mark:
        end_s = self.site.start_s + mark.step * _STEP_S + dt_s
        rain_mm = self.rain.cumulative_mm(end_s)
        dt_h = dt_s / 3600
        soil = mark.soil.step(max(rain_mm - mark.rain_mm, 0.0), dt_h)
        crept_mm = mark.crept_mm + _creep(_pore_kpa(soil)) * dt_h
        return _Mark(mark.step + 1, soil, crept_mm, rain_mm)

    def _state_of(self, mark: _Mark, t_s: float) -> SlopeState:
        tertiary_mm, velocity = self._tertiary(t_s)
        moved_mm = mark.crept_mm + tertiary_mm
        tilt_deg = self.site.deg_per_mm * moved_mm
        fall_line = math.radians(self.site.fall_line_deg)
        mounted_x, mounted_y = self.site.mounted_deg
        return SlopeState(
            time_s=t_s,
            rain_mm=mark.rain_mm,
            soil=mark.soil,
            vwc=_vwc(mark.soil),
            pore_kpa=_pore_kpa(mark.soil),
            velocity_mm_per_h=_creep(_pore_kpa(mark.soil)) + velocity,
            displacement_mm=moved_mm,
            tilt_x_deg=mounted_x + tilt_deg * math.cos(fall_line),
            tilt_y_deg=mounted_y + tilt_deg * math.sin(fall_line),
            temp_c=14.0 + 2.0 * math.sin(2 * math.pi * t_s / 86400),
            wire_cut=self._is_cut(t_s),
            stream_m=stream_depth_m(mark.soil),
            vibration_pulses=count_shocks(t_s - self.site.start_s, moved_mm),
            air=air_at(t_s, mark.soil),
        )

    def _tertiary(self, t_s: float) -> tuple[float, float]:
        """Displacement in mm and velocity in mm/h of the slide itself."""
        failure_s, a = self.site.failure_time_s, self.site.creep_a_per_mm
        if failure_s is None or t_s <= failure_s - self.site.onset_s:
            return 0.0, 0.0
        left_s = max(failure_s - t_s, _LAST_STEP_S)
        moved_mm = math.log(self.site.onset_s / left_s) / a
        velocity = 0.0 if t_s >= failure_s else 3600 / (a * left_s)
        return max(moved_mm, 0.0), velocity

    def _is_cut(self, t_s: float) -> bool:
        breaks_s = self.site.wire_break_s
        if breaks_s is None:
            breaks_s = self.site.failure_time_s
        return breaks_s is not None and t_s >= breaks_s


def _vwc(soil: SoilWater) -> float:
    fill = 1 - math.exp(-(soil.s1_mm + soil.s2_mm) / _STORAGE_MM)
    return DRY_VWC + (WET_VWC - DRY_VWC) * fill


def _pore_kpa(soil: SoilWater) -> float:
    dryness = math.exp(-(soil.s1_mm + soil.s2_mm) / _STORAGE_MM)
    return _SUCTION_KPA * dryness + _KPA_PER_MM * (soil.s2_mm + soil.s3_mm)


def _creep(pore_kpa: float) -> float:
    speed = _CREEP_MM_PER_H * math.exp(min(pore_kpa, 20.0) / _CREEP_KPA)
    return min(speed, _FASTEST_CREEP_MM_PER_H)
