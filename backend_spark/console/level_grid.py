"""Level grid: levels and rain of all cells over the last 72 hours, and their runs.

One row per cell, one column per 10-minute step. A step without data is missing, which
is not level 1. A run of a level that began before the grid, and the last row of a cell
that has been silent for longer, are in the newest levels of the tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.i18n import reasons_of
from backend_spark.scoring.holds import (
    HELD,
    JUDGED,
    NO_LIMITS,
    UNKNOWN,
    HoldLimits,
    PresentLevel,
)
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from slope_science.levels import (
    ADVISORY,
    EMERGENCY,
    LOWEST,
    WARNING,
    Cause,
    Criteria,
    find_causes,
)
from slope_science.rain_and_soil_water import SoilWater
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

HOURS: Final = 72
STEPS: Final = HOURS * 3600 // STEP_S + 1
MISSING, NO_JUDGEMENT = 0, 6
"""Values in the array of levels, besides 1 to 5."""

HELD_OFFSET: Final = 10
"""Added to a level that is held: 11 to 15."""

LATE_STEPS: Final = 3
"""Number of steps after its own for which a level is shown."""

RAIN_UNKNOWN, LOWER_BOUND = 1, 2
"""Bits of the array of flags."""

FLAGS: Final = RAIN_UNKNOWN | LOWER_BOUND
ENDED_SHIFT: Final = 2
"""Above those bits: level of a hold that has ended, in steps without a judgement."""

HELD_DAYS: Final = 60
"""How far back the last level of a silent cell is searched. Of a new cell, which has
none, everything within them is read."""

COLUMNS: Final = (
    "cell",
    "at",
    "level",
    "state",
    "known_until",
    "r60_mm",
    "swi_mm",
    "tilt_rate_deg_per_h",
    "lower_bound",
    "rain_known",
    "s1_mm",
    "s2_mm",
    "s3_mm",
    "reasons",
    "reason_codes",
    "n_nodes",
    "latest_received",
    "history_days",
)
ENDED_COLUMNS: Final = ("cell", "at", "level", "reasons", "reason_codes")
ARRAY_COLUMNS: Final = (
    *("cell", "at", "level", "state", "r60_mm", "swi_mm"),
    *("tilt_rate_deg_per_h", "lower_bound", "rain_known"),
)
_MICRO: Final = 1_000_000
_NUMBERS: Final = ("r60_mm", "swi_mm", "tilt_rate_deg_per_h")

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

LAST_WEEK_S: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class LatestRow:
    """The newest row of a cell.

    Attributes:
        at_s: Unix time of the end of its step.
        level: 1 to 5; None if there is no judgement.
        reasons: Reasons of the level.
        tanks: Water in the soil; None before the first rain data.
        r60_mm: Rain of the last hour.
        n_nodes: Number of nodes with data in the step.
        received_s: Unix time at which the last data of the step arrived.
        history_days: Days of rain data that the soil water index rests on.
        flags: RAIN_UNKNOWN and LOWER_BOUND.
        reason_codes: The reasons as JSON; empty in rows of an earlier program.
        state: Judged, held or unknown; see `scoring.holds`.
        known_until_s: Unix time of the last judgement, where it is not judged.
        causes: Causes of the level from level 2 on, rain first.
        last_level: Level of the last judgement, also after its hold has ended.
    """

    at_s: int
    level: int | None
    reasons: tuple[str, ...]
    tanks: SoilWater | None
    r60_mm: float | None
    n_nodes: int
    received_s: float | None
    history_days: float | None
    flags: int
    reason_codes: tuple[str, ...] = ()
    state: str = JUDGED
    known_until_s: float | None = None
    causes: tuple[Cause, ...] = ()
    last_level: int | None = None

    def present(self, now_s: float, limits: HoldLimits = NO_LIMITS) -> PresentLevel:
        """Level and state at a moment, by this row."""
        row = {"level": self.level, "state": self.state}
        times = {"at": self.at_s, "known_until": self.known_until_s}
        return PresentLevel.of_row(row | times, now_s, limits)


@dataclass
class LevelGrid:
    """Arrays of the last 72 hours.

    Attributes:
        end_s: Unix time of the last column.
        tokens: Cell of each row.
        levels: MISSING, 1 to 5, NO_JUDGEMENT, or held 11 to 15.
        flags: RAIN_UNKNOWN, LOWER_BOUND, and levels of ended holds from ENDED_SHIFT on.
        numbers: r60_mm, swi_mm and tilt_rate_deg_per_h; nan is missing.
        latest: The newest row of each cell.
        row_of: Row of each cell.
    """

    end_s: int = 0
    tokens: list[str] = field(default_factory=list)
    levels: Bytes = field(default_factory=lambda: np.zeros((0, STEPS), np.uint8))
    flags: Bytes = field(default_factory=lambda: np.zeros((0, STEPS), np.uint8))
    numbers: dict[str, Numbers] = field(
        default_factory=lambda: {n: _nans(0) for n in _NUMBERS}
    )
    latest: list[LatestRow] = field(default_factory=list)
    row_of: dict[str, int] = field(default_factory=dict)

    @property
    def begin_s(self) -> int:
        """Unix time of the first column."""
        return self.end_s - (STEPS - 1) * STEP_S

    def move(self, end_s: int) -> None:
        """Shift the arrays to another last column; what falls out is dropped."""
        steps = min(max((end_s - self.end_s) // STEP_S, -STEPS), STEPS)
        for bits in (self.levels, self.flags):
            _shift(bits, steps, MISSING)
        for numbers in self.numbers.values():
            _shift(numbers, steps, np.nan)
        self.end_s = end_s

    def store(self, rows: pa.Table, newest: dict[str, int]) -> bool:
        """Store levels and numbers; a repeated row replaces the earlier one.

        Args:
            rows: Rows with `ARRAY_COLUMNS`.
            newest: Time of the newest row of each cell in microseconds; updated.

        Returns:
            Whether any row is within the 72 hours.
        """
        at_us: Integers = rows["at"].cast(pa.int64()).to_numpy()
        at_s = at_us // _MICRO
        wanted = (at_s >= self.begin_s) & (at_s <= self.end_s)
        if not wanted.all():
            rows = rows.filter(pa.array(wanted))
            at_us, at_s = at_us[wanted], at_s[wanted]
        if not rows.num_rows:
            return False
        row = self._rows_of(rows["cell"])
        step: Integers = (at_s - self.begin_s) // STEP_S
        self.levels[row, step] = shown_levels(rows)
        self.flags[row, step] = _flags(rows)
        for name, array in self.numbers.items():
            array[row, step] = rows[name].to_numpy().astype(np.float32)
        last: Integers = np.zeros(len(self.tokens), np.int64)
        np.maximum.at(last, row, at_us)
        for at in np.flatnonzero(last).tolist():
            token = self.tokens[at]
            newest[token] = max(newest.get(token, 0), int(last[at]))
        return True

    def store_ended(self, rows: pa.Table) -> None:
        """Store levels of ended holds, from rows of `store` with `ENDED_COLUMNS`."""
        at_s = unix_seconds(rows["at"])
        step = (at_s - self.begin_s) // STEP_S
        wanted = (step >= 0) & (step < STEPS)
        row = self._rows_of(rows["cell"])[wanted]
        self.flags[row, step[wanted]] |= ended_levels(rows)[wanted] << ENDED_SHIFT

    def held_levels(self) -> Bytes:
        """Levels, with those of ended holds as held, as the map shows them."""
        ended = self.flags >> ENDED_SHIFT
        is_held = (self.levels == NO_JUDGEMENT) & (ended >= WARNING)
        levels: Bytes = np.where(is_held, ended + HELD_OFFSET, self.levels)
        return levels

    def renew(self, rows: pa.Table) -> None:
        """Renew the newest row of each cell from rows with all columns."""
        at_s = unix_seconds(rows["at"])
        self._renew_latest(rows, self._rows_of(rows["cell"]), at_s)

    def remember(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add cells that have been silent for longer, by the last row of each."""
        if not rows:
            return
        tokens = pa.chunked_array([pa.array([row["cell"] for row in rows])])
        for at, row in zip(self._rows_of(tokens).tolist(), rows, strict=True):
            self.latest[at] = max(self.latest[at], latest_row(row), key=_row_time)

    def levels_at(self, at_s: int) -> Bytes:
        """Level of each cell at a Unix time, or of up to LATE_STEPS before."""
        step = (at_s - self.begin_s) // STEP_S
        shown: Bytes = np.zeros(len(self.tokens), np.uint8)
        for back in range(LATE_STEPS + 1):
            if 0 <= step - back < STEPS:
                shown = np.where(shown == MISSING, self.levels[:, step - back], shown)
        return shown

    def _rows_of(self, cells: pa.ChunkedArray) -> Integers:
        rows = number_cells(cells, self.tokens, self.row_of)
        new = len(self.tokens) - len(self.latest)
        if new:
            self.levels = np.vstack([self.levels, np.zeros((new, STEPS), np.uint8)])
            self.flags = np.vstack([self.flags, np.zeros((new, STEPS), np.uint8)])
            for name, array in self.numbers.items():
                self.numbers[name] = np.vstack([array, _nans(new)])
            self.latest += [_NO_ROW] * new
        return rows

    def _renew_latest(self, rows: pa.Table, row_of: Integers, at_s: Integers) -> None:
        order = np.lexsort((at_s, row_of))
        ends = np.append(row_of[order][1:] != row_of[order][:-1], True)
        for row in rows.take(pa.array(order[ends])).to_pylist():
            at = self.row_of[row["cell"]]
            latest = latest_row(row)
            if latest.at_s >= self.latest[at].at_s:
                self.latest[at] = latest


def number_cells(
    cells: pa.ChunkedArray, tokens: list[str], row_of: dict[str, int]
) -> Integers:
    """Row of each cell; a new cell is added to the tokens and the rows."""
    coded = cells.combine_chunks().dictionary_encode()
    for token in coded.dictionary.to_pylist():
        if token not in row_of:
            row_of[token] = len(tokens)
            tokens.append(token)
    known = [row_of[token] for token in coded.dictionary.to_pylist()]
    rows: Integers = np.array(known, np.int64)[coded.indices.to_numpy()]
    return rows


def _row_time(row: LatestRow) -> int:
    return row.at_s


_NO_ROW: Final = LatestRow(0, None, (), None, None, 0, None, None, 0)


def json_numbers(array: Sequence[float]) -> list[float | None]:
    """Numbers for JSON: nan becomes null."""
    return [None if n != n else round(float(n), 3) for n in array]  # noqa: PLR0124 - nan


def shown_levels(rows: pa.Table) -> Bytes:
    """Values for the array of levels, from the columns `level` and `state`."""
    levels = rows["level"].fill_null(NO_JUDGEMENT).to_numpy()
    is_held = pc.equal(rows["state"], HELD).fill_null(False).to_numpy()
    shown: Bytes = (levels + HELD_OFFSET * is_held).astype(np.uint8)
    return shown


def unix_seconds(times: pa.Array | pa.ChunkedArray) -> Integers:
    """Whole Unix seconds of times in microseconds."""
    seconds: Integers = times.cast(pa.int64()).to_numpy() // _MICRO
    return seconds


def utc_time(at_s: float) -> datetime:
    """A Unix time as a datetime in UTC."""
    return datetime.fromtimestamp(at_s, UTC)


def ended_levels(rows: pa.Table) -> Bytes:
    """Level of a hold that has ended, for each row without a judgement; else 0.

    Args:
        rows: Rows with `level`, `reasons` and `reason_codes`.
    """
    ended: Bytes = np.zeros(rows.num_rows, np.uint8)
    places = np.flatnonzero(rows["level"].is_null().to_numpy())
    silent = rows.select(["level", "reasons", "reason_codes"]).take(places)
    # Rows of a hold have the same reasons: each is parsed once.
    texts = (pc.binary_join(silent[name], "\n") for name in silent.column_names[1:])
    keys = pc.binary_join_element_wise(*(t.fill_null("") for t in texts), "\n")
    coded = keys.combine_chunks().dictionary_encode()
    numbers = coded.indices.to_numpy()
    _, firsts = np.unique(numbers, return_index=True)
    levels = [
        ended_level(_reasons(row)) or 0 for row in silent.take(firsts).to_pylist()
    ]
    ended[places] = np.array(levels, np.uint8)[numbers]
    return ended


def severity(shown: int) -> tuple[int, bool]:
    """Order of a value of the array: its level, 0 without one; and whether held."""
    if shown in {MISSING, NO_JUDGEMENT}:
        return 0, shown == NO_JUDGEMENT
    return shown % HELD_OFFSET, shown > HELD_OFFSET


_SEVERITY: Final = np.array([severity(n)[0] for n in range(16)], np.uint8)


def headline_order(shown: int) -> tuple[int, bool]:
    """Order in a summary of many cells: a judged level before the same one held.

    A level that is reached is thus never summed up as unknown. Level 1 comes after the
    held one, since no calm is stated for cells that are held.
    """
    level, is_held = severity(shown)
    return level, is_held != (level > 1)


def latest_row(row: dict[str, Any]) -> LatestRow:
    """Convert a row of the levels table."""
    tanks = None
    if None not in {row["s1_mm"], row["s2_mm"], row["s3_mm"]}:
        tanks = SoilWater(row["s1_mm"], row["s2_mm"], row["s3_mm"])
    received, known = row["latest_received"], row["known_until"]
    reasons = _reasons(row)
    return LatestRow(
        at_s=round(row["at"].timestamp()),
        level=row["level"],
        reasons=tuple(row["reasons"] or ()),
        tanks=tanks,
        r60_mm=row["r60_mm"],
        n_nodes=row["n_nodes"] or 0,
        received_s=None if received is None else received.timestamp(),
        history_days=row["history_days"],
        flags=_bits(row["rain_known"], row["lower_bound"]),
        reason_codes=tuple(row["reason_codes"] or ()),
        state=row["state"] or (UNKNOWN if row["level"] is None else JUDGED),
        known_until_s=None if known is None else known.timestamp(),
        causes=find_causes(row["level"] or LOWEST, reasons) if row["level"] else (),
        last_level=row["level"] or ended_level(reasons),
    )


def _reasons(row: dict[str, Any]) -> tuple[Reason, ...]:
    """Reasons of a row without a level, or of level 2 and more."""
    if row["level"] == LOWEST:
        return ()
    return reasons_of(row["reason_codes"], row["reasons"] or ())


def ended_level(reasons: Sequence[Reason]) -> int | None:
    """Level of a hold that has ended without evidence."""
    ended = [each for each in reasons if each.code == ReasonCode.HOLD_ENDED]
    return max((each.params["level"] for each in ended), default=None)


def _bits(rain_known: bool | None, lower_bound: bool | None) -> int:
    return RAIN_UNKNOWN * (not rain_known) | LOWER_BOUND * bool(lower_bound)


def _flags(rows: pa.Table) -> Bytes:
    unknown = ~rows["rain_known"].fill_null(False).to_numpy()
    bound = rows["lower_bound"].fill_null(False).to_numpy()
    bits: Bytes = (unknown * RAIN_UNKNOWN | bound * LOWER_BOUND).astype(np.uint8)
    return bits


def _shift(array: Bytes | Numbers, steps: int, empty: float) -> None:
    """Shift columns to the left, or to the right if negative."""
    if steps >= 0:
        array[:, : STEPS - steps] = array[:, steps:].copy()
        array[:, STEPS - steps :] = empty
    else:
        array[:, -steps:] = array[:, :steps].copy()
        array[:, :-steps] = empty


def _nans(rows: int) -> Numbers:
    return np.full((rows, STEPS), np.nan, np.float32)


@dataclass
class LevelRuns:
    """Begin of the present run of each cell from level 2 on.

    Attributes:
        tables: The tables, for what is older than the grid.
    """

    tables: DeltaTables
    _begins: dict[str, tuple[int, int]] = field(default_factory=dict)
    _unknown: dict[str, int] = field(default_factory=dict)

    def update(self, grid: LevelGrid, shown: Bytes) -> None:
        """Find the runs of levels; those older than the grid remain unknown.

        Args:
            grid: Levels of the last 72 hours.
            shown: Present level of each cell.
        """
        present = _SEVERITY[shown]
        rows = np.flatnonzero(present >= ADVISORY)
        levels = _SEVERITY[grid.levels[rows]]
        is_known = grid.levels[rows] != MISSING
        is_other = is_known & (levels != present[rows, None])
        steps = levels.shape[1]
        last = np.where(
            is_other.any(1), steps - 1 - np.argmax(is_other[:, ::-1], axis=1), -1
        )
        is_run = is_known & (np.arange(steps) > last[:, None])
        first = np.argmax(is_run, axis=1)
        begins = self._begins
        self._begins, self._unknown = {}, {}
        for at, row in enumerate(rows.tolist()):
            token, level = grid.tokens[row], int(present[row])
            known = begins.get(token)
            if last[at] >= 0 and is_run[at].any():
                begin_s = grid.begin_s + int(first[at]) * STEP_S
                self._begins[token] = level, begin_s
            elif known is not None and known[0] == level:
                self._begins[token] = known
            else:
                self._unknown[token] = level

    def read_older(self, until_s: float) -> None:
        """Read the begins that are older than the grid from the tables."""
        wanted, self._unknown = self._unknown, {}
        if not wanted:
            return
        until = utc_time(until_s)
        for token, at in self.tables.level_begins(wanted, until).items():
            self._begins[token] = wanted[token], round(at.timestamp())

    def begin_s(self, token: str) -> int:
        """Unix time of the begin of a run; 0 if unknown or below level 2."""
        return self._begins.get(token, (0, 0))[1]


def margin_mm(row: LatestRow, level: int, criteria: Criteria) -> float | None:
    """Soil water index that is missing to the next level; None without one."""
    if level >= EMERGENCY or row.tanks is None:
        return None
    limit_mm = criteria.limit_mm(level + 1, row.r60_mm or 0.0)
    margin = limit_mm - row.tanks.index_mm
    return round(margin, 1) if np.isfinite(margin) else None


def urgency(
    level: int, margin: float | None, households: int
) -> tuple[int, bool, float, int]:
    """Sort key of a cell in lists: level, margin to the next one, then households.

    A level comes before the same one held.
    """
    shown, is_held = severity(level)
    return -shown, is_held, np.inf if margin is None else margin, -households


def silent_rows(
    tables: DeltaTables,
    grid: LevelGrid,
    last_s: Mapping[str, float],
    newest_s: float,
) -> Sequence[dict[str, Any]]:
    """The newest row of each cell that has been silent since before the grid.

    Args:
        tables: The tables.
        grid: Levels of the last 72 hours.
        last_s: Unix time of the last reading of each cell with nodes.
        newest_s: Unix time of the newest level in the tables.
    """
    until = utc_time(grid.begin_s)
    if not grid.tokens:  # nothing for 72 hours: the last week that has levels
        since_s = min(newest_s, grid.begin_s) - LAST_WEEK_S
        since = utc_time(max(since_s, 0.0))
        return tables.newest_levels(COLUMNS, since, until)
    silent = {cell: at_s for cell, at_s in last_s.items() if cell not in grid.row_of}
    if not silent:
        return []
    since_s = max(min(silent.values()) - 86_400.0, 0.0)
    since = utc_time(since_s)
    return tables.newest_levels(COLUMNS, since, until, silent)


def levels_before(
    tables: DeltaTables, begin_s: float, cells: Sequence[str]
) -> dict[str, int]:
    """Last level of cells before a Unix time, also of a hold that has ended; else 0."""
    until = utc_time(begin_s)
    between = until - timedelta(days=HELD_DAYS), until
    rows = tables.newest_levels(COLUMNS, *between, cells, with_silent=True)
    found = {row["cell"]: latest_row(row).last_level or 0 for row in rows}
    return dict.fromkeys(cells, 0) | found


def last_readings(nodes: Iterable[Any]) -> dict[str, float]:
    """Unix time of the last reading of each cell, from the states of its nodes."""
    found: dict[str, float] = {}
    for node in nodes:
        if node.cell is not None:
            found[node.cell] = max(node.at_s, found.get(node.cell, 0.0))
    return found
