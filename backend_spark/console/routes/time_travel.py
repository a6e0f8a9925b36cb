"""Routes of the replay: levels of all cells, or of one, over any span of the tables.

``from_s`` and ``to_s`` are Unix times. ``known`` is ``now`` for levels as late data
revised them, or ``then`` for levels as they were first published: the first version of
each row, if some data of its step arrived within an hour. A row may change within that
hour without a new version (`scoring.revisions`), so its earlier states are unknown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Depends, HTTPException, Query, Response

from backend_spark.console import level_grid, snake_line
from backend_spark.console.dependencies import Services, viewer
from backend_spark.console.http import json_response
from backend_spark.console.level_grid import (
    HELD_DAYS,
    HELD_OFFSET,
    LATE_STEPS,
    MISSING,
    NO_JUDGEMENT,
    Bytes,
    Integers,
    ended_levels,
    number_cells,
    severity,
    shown_levels,
    unix_seconds,
    utc_time,
)
from backend_spark.console.panels import (
    EXTRA_COLUMNS,
    two_hour_futures,
)
from backend_spark.i18n import reasons_of, render_both
from backend_spark.scoring.holds import HELD, LOW_HOLD_S, NO_LIMITS, HoldLimits
from backend_spark.scoring.observation import STEP_S
from backend_spark.scoring.revisions import SETTLED_S
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, cast_to_schema
from backend_spark.tables.store import Folder, is_table, open_table
from service_runtime.errors import shortened
from slope_science.evidence.settings import LevelThresholds
from slope_science.levels import ADVISORY, WARNING, Criteria

MAX_FRAMES: Final = 1008
"""Seven days of steps; in a longer span a frame covers several steps."""

LOOK_BACK_DAYS: Final = (0, 2, 4, 8)
"""How far before the newest row of a cell one in time is searched, in turn."""

MAX_ROWS: Final = 20_000_000
LATE_S: Final = LATE_STEPS * STEP_S
DAY_S: Final = 86_400
_MICRO: Final = 1_000_000
_COLUMNS: Final = (
    *("cell", "at", "level", "state", "known_until"),
    *("version", "latest_received"),
)
_WITH_REASONS: Final = (*_COLUMNS, "reasons", "reason_codes")
_SCHEMA: Final = pa.schema([LEVELS.field(name) for name in _WITH_REASONS])
_LEVELS: Final = np.array(
    sorted(
        [MISSING, NO_JUDGEMENT, *range(1, 6), *range(HELD_OFFSET + 1, HELD_OFFSET + 6)],
        key=severity,
    ),
    np.uint8,
)
"""Values of the level array by rank: levels outrank "no judgement" and "missing", and
a held level the same one judged."""

_RANK_OF: Final = np.zeros(int(_LEVELS.max()) + 1, np.uint8)
_RANK_OF[_LEVELS] = np.arange(len(_LEVELS))
_SEVERITY: Final = np.array([severity(level)[0] for level in _LEVELS], np.uint8)
"""Level by rank; 0 without one."""

_RANK_BITS: Final = 4
_AGE_BITS: Final = 8


@dataclass(frozen=True)
class ReplaySpan:
    """Span of a replay.

    Attributes:
        from_s: Unix time of the first frame, the end of a step.
        to_s: Unix time of the last step's end.
        is_then: Whether to show levels as first published, not as revised since.
    """

    from_s: int
    to_s: int
    is_then: bool

    @property
    def frame_s(self) -> int:
        """Seconds between frames; a frame shows the highest level of its steps."""
        steps = (self.to_s - self.from_s) // STEP_S + 1
        return STEP_S * -(-steps // MAX_FRAMES)

    @property
    def begin_s(self) -> int:
        """Unix time of the first frame to read; older levels may still be shown."""
        return self.from_s - LATE_S // self.frame_s * self.frame_s

    @property
    def frames(self) -> int:
        """Number of frames to read."""
        return -(-(self.to_s - self.begin_s) // self.frame_s) + 1


@dataclass
class ReplayFrames:
    """Frames of all cells that have a level in a span.

    Attributes:
        span: Of the frames.
        tokens: Cell of each row.
        ranks: Rank of the highest level of each cell and frame.
        last: Of the last level of each cell and frame, from the lowest bits: how many
            steps ago it was judged, its rank, and the number of its step in the frame.
        starts: Level of each cell before the span, 0 for none that is held.
        starts_s: Unix time of the row of that level.
        judged_s: Unix time at which it was judged.
        limits: When holds end.
        revised: Number of levels that were revised after they were published.
    """

    span: ReplaySpan
    tokens: list[str] = field(default_factory=list)
    ranks: Bytes = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    last: npt.NDArray[np.uint32] = field(
        default_factory=lambda: np.zeros((0, 0), np.uint32)
    )
    starts: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    starts_s: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    judged_s: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    limits: HoldLimits = NO_LIMITS
    revised: int = 0

    def __post_init__(self) -> None:
        """Start without cells."""
        self.ranks = np.zeros((0, self.span.frames), np.uint8)
        self.last = np.zeros((0, self.span.frames), np.uint32)
        self._row_of: dict[str, int] = {}

    @property
    def levels(self) -> Bytes:
        """Levels with one row per cell and one column per frame.

        A silent cell has the level that is held: not the highest of a frame, which a
        later one of the frame may have ended.
        """
        shown: Bytes = _LEVELS[self.ranks]
        held, held_s, judged_s = self.starts, self.starts_s, self.judged_s
        for frame in range(self.span.frames):
            at_s = self.span.begin_s + frame * self.span.frame_s
            is_known = self.ranks[:, frame] > 0
            last = self.last[:, frame]
            ranks = last >> _AGE_BITS & ((1 << _RANK_BITS) - 1)
            ages = (last & ((1 << _AGE_BITS) - 1)).astype(np.int64)
            held = np.where(is_known, _SEVERITY[ranks], held)
            held_s = np.where(is_known, at_s, held_s)
            judged_s = np.where(is_known, at_s - ages * STEP_S, judged_s)
            is_silent = at_s - held_s > LATE_S
            rows = ~is_known & is_silent & self._is_held(held, at_s - judged_s)
            shown[rows, frame] = held[rows] + HELD_OFFSET
        return shown

    def start(self, rows: pa.Table) -> None:
        """Add the newest row of each cell before the span, where its level is held."""
        at_s, judged_s = unix_seconds(rows["at"]), _judged_s(rows)
        levels = _SEVERITY[_ranks(rows)]
        is_held = self._is_held(levels, self.span.begin_s - judged_s)
        cells = self._rows_of(rows.filter(pa.array(is_held)))
        self.starts[cells], self.starts_s[cells] = levels[is_held], at_s[is_held]
        self.judged_s[cells] = judged_s[is_held]

    def add(self, rows: pa.Table) -> None:
        """Add rows of the levels table; those with reasons may be added again."""
        at_s = unix_seconds(rows["at"])
        after_s, frame_s = at_s - self.span.begin_s, self.span.frame_s
        frames = -(-after_s // frame_s)
        steps = (after_s - 1) % frame_s // STEP_S
        ranks = _ranks(rows)
        cells = self._rows_of(rows)
        np.maximum.at(self.ranks, (cells, frames), ranks)
        ages = ((at_s - _judged_s(rows)) // STEP_S).clip(0, (1 << _AGE_BITS) - 1)
        last = ((steps << _RANK_BITS | ranks) << _AGE_BITS | ages).astype(np.uint32)
        np.maximum.at(self.last, (cells, frames), last)

    def _rows_of(self, rows: pa.Table) -> Integers:
        cells = number_cells(rows["cell"].cast(pa.string()), self.tokens, self._row_of)
        more = ((0, len(self.tokens) - len(self.ranks)), (0, 0))
        if more[0][1]:
            self.ranks = np.pad(self.ranks, more)
            self.last = np.pad(self.last, more)
            self.starts = np.pad(self.starts, more[0])
            self.starts_s = np.pad(self.starts_s, more[0])
            self.judged_s = np.pad(self.judged_s, more[0])
        return cells

    def _is_held(self, levels: Bytes, held_s: Integers) -> npt.NDArray[np.bool_]:
        """Whether the map shows levels of silent cells some time after a judgement."""
        low_s = min(LOW_HOLD_S, self.limits.hold_s)
        is_low = (levels == ADVISORY) & (held_s <= low_s)
        held: npt.NDArray[np.bool_] = (levels >= WARNING) | is_low
        return held


def _judged_s(rows: pa.Table) -> Integers:
    """Unix time at which the level of each row was judged."""
    is_held = pc.equal(rows["state"], HELD).fill_null(False)
    known = pc.coalesce(rows["known_until"], rows["at"])
    return unix_seconds(pc.if_else(is_held, known, rows["at"]))


def _ranks(rows: pa.Table) -> Bytes:
    """Rank of the level of each row, with reasons also of a hold that has ended."""
    shown = shown_levels(rows)
    if "reasons" in rows.column_names:
        ended = ended_levels(rows)
        # As on the map: also after the hold for notices has ended.
        shown = np.where(ended >= WARNING, ended + HELD_OFFSET, shown)
    ranks: Bytes = _RANK_OF[shown]
    return ranks


def read_replay(
    tables: DeltaTables, span: ReplaySpan, limits: HoldLimits = NO_LIMITS
) -> ReplayFrames:
    """Read the frames of a span."""
    played = ReplayFrames(span, limits=limits)
    played.start(_newest_before(tables, span))
    between = span.begin_s, span.to_s
    for name in ("levels", "revisions") if span.is_then else ("levels",):
        not_judged = 0
        for rows in _rows(tables, name, between):
            if name == "levels":
                played.revised += pc.sum(pc.greater(rows["version"], 1)).as_py() or 0
            played.add(first_versions(rows) if span.is_then else rows)
            not_judged += rows["level"].null_count
        # Reasons take most of a row, and few rows are without a judgement.
        wanted = pc.field("level").is_null()
        again = _rows(tables, name, between, wanted, _WITH_REASONS)
        for rows in again if not_judged else ():
            played.add(first_versions(rows) if span.is_then else rows)
    return played


def _newest_before(tables: DeltaTables, span: ReplaySpan) -> pa.Table:
    """The newest row before a span of each cell, however long it has been silent.

    Of cells with later rows, it is searched for in `HELD_DAYS` before the span. As
    known then, it is the newest first version in time of the week before that row.
    """
    until_s = max(0, span.begin_s - STEP_S)
    between = utc_time(max(0, until_s - HELD_DAYS * DAY_S)), utc_time(until_s)
    found = tables.newest_levels(_WITH_REASONS, *between, with_silent=True)
    newest = pa.Table.from_pylist(found, schema=_SCHEMA)
    if not span.is_then:
        return newest
    parts = [first_versions(newest)]
    others = newest.filter(pc.invert(pc.is_in(newest["cell"], parts[0]["cell"])))
    days = unix_seconds(others["at"]) // DAY_S
    for day in np.unique(days).tolist():
        cells = others.filter(pa.array(days == day))["cell"]
        end_s = min((day + 1) * DAY_S - STEP_S, until_s)
        parts += _first_before(tables, cells.unique(), end_s)
    return _newest_rows(pa.concat_tables(parts))


def _first_before(
    tables: DeltaTables, cells: pa.Array, end_s: int
) -> Iterator[pa.Table]:
    """Newest first versions in time of cells, searched in growing windows."""
    for begin, end in pairwise(LOOK_BACK_DAYS):
        between = end_s - end * DAY_S, end_s - begin * DAY_S
        wanted = pc.field("cell").isin(cells)
        found = [
            _newest_rows(first_versions(rows))
            for name in ("levels", "revisions")
            for rows in _rows(tables, name, between, wanted, _WITH_REASONS)
        ]
        yield from found
        for rows in found:
            cells = cells.filter(pc.invert(pc.is_in(cells, rows["cell"])))
        if not len(cells):
            return


def _newest_rows(rows: pa.Table) -> pa.Table:
    """The newest row of each cell."""
    rows = rows.sort_by("at")
    places = rows.append_column("place", pa.array(np.arange(rows.num_rows)))
    last = places.group_by("cell").aggregate([("place", "max")])["place_max"]
    return rows.take(last)


def first_versions(rows: pa.Table) -> pa.Table:
    """First versions of rows, of steps with data that arrived in time."""
    first = pc.less_equal(rows["version"].fill_null(1), 1)
    settled = pc.add(rows["at"], pa.scalar(SETTLED_S * _MICRO, pa.duration("us")))
    in_time = pc.less_equal(rows["latest_received"], settled).fill_null(False)
    return rows.filter(pc.and_(first, in_time))


@dataclass(frozen=True)
class TableExtent:
    """Time range of a table, from the statistics in its log.

    Attributes:
        files: First and last Unix time and number of rows of each file.
    """

    files: tuple[tuple[float, float, int], ...]

    @property
    def bounds(self) -> tuple[float, float] | None:
        """First and last Unix time of the table; None without rows."""
        if not self.files:
            return None
        return min(f[0] for f in self.files), max(f[1] for f in self.files)

    def rows(self, span: ReplaySpan) -> int:
        """Upper bound of the number of rows to read for a span."""
        wanted = (f for f in self.files if f[1] >= span.begin_s and f[0] <= span.to_s)
        return sum(f[2] for f in wanted)


def levels_extent(tables: DeltaTables) -> TableExtent:
    """Extent of the levels table, without files that lack statistics."""
    path = tables.path("levels")
    if not is_table(path):
        return TableExtent(())
    actions = pa.table(open_table(path).get_add_actions(flatten=True))
    names = ("min.at", "max.at", "num_records")
    if not set(names) <= set(actions.column_names):
        return TableExtent(())
    known = zip(*(actions[name].to_pylist() for name in names), strict=True)
    files = [
        (first.timestamp(), last.timestamp(), rows)
        for first, last, rows in known
        if None not in {first, last, rows}
    ]
    return TableExtent(tuple(files))


def _rows(
    tables: DeltaTables,
    name: str,
    between: tuple[int, int],
    condition: pc.Expression | None = None,
    columns: Sequence[str] = _COLUMNS,
) -> Iterator[pa.Table]:
    """Batches of a table within two Unix times; columns that it lacks are null."""
    source = tables.dataset(name)
    schema = pa.schema([LEVELS.field(column) for column in columns])
    begin, end = (pa.scalar(s * _MICRO, pa.timestamp("us", tz="UTC")) for s in between)
    wanted = (pc.field("at") >= begin) & (pc.field("at") <= end)
    if condition is not None:
        wanted &= condition
    stored = [column for column in columns if column in source.schema.names]
    for batch in source.to_batches(columns=stored, filter=wanted):
        if batch.num_rows:
            yield cast_to_schema(pa.table(batch), schema)


NUMBERS: Final = ("r60_mm", "swi_mm", "tilt_rate_deg_per_h")


@dataclass(frozen=True)
class CellHistory:
    """Reads one cell in the past.

    Attributes:
        tables: Folder of the tables.
    """

    tables: Folder

    def numbers(
        self,
        token: str,
        span: ReplaySpan,
        criteria: Criteria,
        tilt: LevelThresholds,
    ) -> dict[str, Any] | None:
        """Numbers of a cell at each step of a span; None without any row.

        Args:
            token: Of the cell.
            span: Steps to read.
            criteria: Of today, for the lines of the charts.
            tilt: Levels and rates of tilt of today.
        """
        rows = self._rows(token, span)
        if not rows.num_rows:
            return None
        at_s = rows["at"].cast(pa.int64()).to_numpy() // 1_000_000
        step = (at_s - span.begin_s) // STEP_S
        series: dict[str, Any] = {}
        for name in NUMBERS:
            numbers = np.full((span.to_s - span.begin_s) // STEP_S + 1, np.nan)
            numbers[step] = rows[name].to_numpy()
            series[name] = level_grid.json_numbers(numbers.tolist())
        return series | {
            "token": token,
            "begin_s": span.begin_s,
            "step_s": STEP_S,
            "lines": snake_line.criteria_lines(criteria),
            "tilt_limits": sorted(tilt),
        }

    def frame(
        self, token: str, frame: ReplaySpan, criteria: Criteria
    ) -> dict[str, Any] | None:
        """Level, reasons and futures of a cell as the map shows it in one frame.

        The row with the highest level of the frame, and of equal ones the newest; if
        the frame has no row, the newest of the half hour before. None without any.

        Args:
            token: Of the cell.
            frame: First and last step of the frame.
            criteria: Of today, for futures that gold lacks.
        """
        rows = self._rows(token, frame).to_pylist()
        if not rows:
            return None
        own = [row for row in rows if row["at"].timestamp() >= frame.from_s]
        row = max(own or rows[-1:], key=lambda row: (row["level"] or 0, row["at"]))
        latest = level_grid.latest_row(row)
        return {
            "latest": asdict(latest),
            "causes": list(latest.causes),
            "reasons": render_both(reasons_of(latest.reason_codes, latest.reasons)),
            "version": row["version"] or 1,
            "revised_because": row["revised_because"],
            "more": {name: row[name] for name in EXTRA_COLUMNS},
            "futures": two_hour_futures(latest, criteria, row),
        }

    def _rows(self, token: str, span: ReplaySpan) -> pa.Table:
        """Rows of a cell by time, from the first whose level is shown in the span."""
        tables = DeltaTables(self.tables)
        between = (utc_time(span.begin_s), utc_time(span.to_s))
        parts = [LEVELS.empty_table(), tables.of("levels", "cell", token, *between)]
        if span.is_then:
            parts.append(tables.of("revisions", "cell", token, *between))
        rows = pa.concat_tables(parts, promote_options="default")
        return first_versions(rows).sort_by("at") if span.is_then else rows


MAX_DAYS: Final = 400
LAST_S: Final = 4_102_444_800
"""2100-01-01; a later time is a typing error."""

UnixTime = Annotated[int | None, Query(ge=0, le=LAST_S)]
Known = Literal["now", "then"]

router = APIRouter(prefix="/api", dependencies=[Depends(viewer)])


def requested_span(from_s: int, to_s: int, known: Known = "now") -> ReplaySpan:
    """Steps between two moments, from the query of a request.

    Raises:
        HTTPException: 422 if the span is invalid or too long.
    """
    first, last = from_s // STEP_S * STEP_S, to_s // STEP_S * STEP_S
    if not 0 <= first <= last <= LAST_S:
        raise HTTPException(
            422,
            "from_s and to_s must be Unix times up to the year 2100, from_s not after "
            f"to_s, got {shortened(from_s)} and {shortened(to_s)}",
        )
    if last - first > MAX_DAYS * DAY_S:
        days = (last - first) / DAY_S
        raise HTTPException(
            422, f"to_s must be at most {MAX_DAYS} days after from_s, got {days:.1f}"
        )
    return ReplaySpan(first, last, is_then=known == "then")


RequestedSpan = Annotated[ReplaySpan, Depends(requested_span)]

MAX_FRAME_S: Final = ReplaySpan(0, MAX_DAYS * DAY_S, is_then=False).frame_s - STEP_S
"""From the first to the last step of a frame of the longest replay."""


def requested_frame(span: RequestedSpan) -> ReplaySpan:
    """Steps of one frame, of which all columns are read.

    Raises:
        HTTPException: 422 if no replay has such a long frame.
    """
    if span.to_s - span.from_s > MAX_FRAME_S:
        limit, hours = (s / 3600 for s in (MAX_FRAME_S, span.to_s - span.from_s))
        raise HTTPException(
            422,
            f"to_s must be at most {limit:.1f} hours after from_s in a frame, "
            f"got {hours:.1f}",
        )
    return span


RequestedFrame = Annotated[ReplaySpan, Depends(requested_frame)]


@router.get("/replay/bounds")
def bounds(services: Services) -> Response:
    """First and last moment of the tables."""
    return json_response(levels_extent(DeltaTables(services.tables)).bounds)


@router.get("/replay/levels")
def levels(span: RequestedSpan, services: Services) -> Response:
    """A header in JSON, of ``X-Head-Bytes`` bytes, then one byte per cell and frame."""
    tables = DeltaTables(services.tables)
    rows = levels_extent(tables).rows(span)
    if rows > MAX_ROWS:
        share = MAX_ROWS / rows
        raise HTTPException(
            422,
            f"from_s to to_s holds {rows:,} levels, at most {MAX_ROWS:,} are shown: "
            f"choose about {share:.0%} of that time",
        )
    with services.turn(services.replays):
        played = read_replay(tables, span, services.live_state.limits)
    head = msgspec.json.encode({
        "tokens": played.tokens,
        "corners": services.live_state.corners.of(played.tokens),
        "begin_s": span.begin_s,
        "from_s": span.from_s,
        "to_s": span.to_s,
        "frame_s": span.frame_s,
        "frames": span.frames,
        "known": "then" if span.is_then else "now",
        "revised": played.revised,
    })
    headers = {"X-Head-Bytes": str(len(head)), "Cache-Control": "no-store"}
    body = head + played.levels.tobytes()
    return Response(body, media_type="application/octet-stream", headers=headers)


@router.get("/replay/cell/{token}")
def cell(token: str, span: RequestedSpan, services: Services) -> Response:
    """Numbers of a cell over the span."""
    thresholds = services.thresholds
    lines = (thresholds.for_cell(token), thresholds.tilt_of(token))
    with services.turn(services.replays):
        numbers = CellHistory(services.tables).numbers(token, span, *lines)
    return json_response(numbers)


@router.get("/replay/cell/{token}/frame")
def frame(token: str, span: RequestedFrame, services: Services) -> Response:
    """A cell as the map shows it in one frame."""
    criteria = services.thresholds.for_cell(token)
    with services.turn(services.replays):
        shown = CellHistory(services.tables).frame(token, span, criteria)
    return json_response(shown)
