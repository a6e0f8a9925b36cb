"""Rain on the simulated slope: depths in equal steps, generated or from a CSV file."""

import csv
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path

from edge_agent.config import STORM_SHAPES

_PEAK_AT = 0.6  # of the duration, as in the usual design hyetographs
_STORM_STEP_S = 600.0
_ROUGHNESS = 0.3


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
