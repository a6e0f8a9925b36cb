"""Event detection: signs from the levels of cells and the urgent messages of nodes.

All levels of the last 72 hours are examined, also those of a time in which the console
did not run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from backend_spark.console import level_grid
from backend_spark.console.events import (
    QUIET_S,
    Event,
    EventBook,
    EventState,
    Sign,
    slope_of,
)
from backend_spark.console.level_grid import HELD_OFFSET, MISSING, NO_JUDGEMENT
from backend_spark.console.live_state import LiveState, TableFeed
from backend_spark.i18n import message_reasons
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.schemas import TEXTS, UTC_TIME
from backend_spark.tables.store import Folder
from slope_science.levels import EMERGENCY, WARNING
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, reason_to_json, render_english

CLEAR_STEPS: Final = 6
"""An event ends after an hour below the level, so that a short dip gives no new one.

Only judged steps count: missing data end no event."""

MESSAGE_COLUMNS: Final = pa.schema([
    pa.field("node", pa.string()),
    pa.field("boot", pa.string()),
    pa.field("seq", pa.int64()),
    pa.field("pri", pa.int32()),
    pa.field("cell", pa.string()),
    pa.field("at", UTC_TIME),
    pa.field("synchronised", pa.bool_()),
    pa.field("age_s", pa.int32()),
    pa.field("why", pa.string()),
    pa.field("readings", TEXTS),
    pa.field("received_at", UTC_TIME),
    pa.field("reason", pa.string()),
    pa.field("reason_codes", TEXTS),
])
"""Columns of the table of urgent messages, which may not exist."""

LATE_S: Final = 600
"""A message is late if it was measured longer ago."""

_LOOK_BACK_S: Final = level_grid.HOURS * 3600.0

Steps = npt.NDArray[np.int64]


@dataclass
class EventDetector:
    """Detects events after each refresh of the live state.

    Attributes:
        live_state: Live state.
        events: The events.
        tables: Folder of the tables.
    """

    live_state: LiveState
    events: EventBook
    tables: Folder
    _version: int | None = None
    _steps: "LevelSteps | None" = None
    _rows: dict[int, bytes] = field(default_factory=dict)
    _known: dict[str, float] = field(default_factory=dict)
    _unwritten: list[Sign] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the feed of the messages."""
        self._messages = TableFeed(
            self.tables / "alerts", MESSAGE_COLUMNS, "received_at"
        )

    def detect(self) -> int:
        """Write what changed the events, and return their revision.

        What cannot be written is written by a later call.
        """
        self._unwritten += self._message_signs()
        version = self.live_state.version
        is_new = version != self._version
        if is_new:
            self._unwritten += self._level_signs()
        now_s = self.live_state.clock()
        with self.events.batch():
            for sign in sorted(self._unwritten, key=lambda sign: sign.at_s):
                self._follow(self.events.in_force(sign.slope), sign.at_s, now_s)
                self.events.add(sign, now_s)
            if is_new:
                self._follow(self.events.in_force(), self.live_state.now_s(), now_s)
        self._version = version
        self._unwritten.clear()
        return self.events.summary().revision

    def _message_signs(self) -> list[Sign]:
        """Signs of new messages; after a compaction all of the table are read again."""
        since_s = self.live_state.now_s() - _LOOK_BACK_S
        rows = self._messages.read_new(since_s)
        if rows is None:
            return []
        found = {_message_key(row): row for row in rows.to_pylist()}
        new = {key: row for key, row in found.items() if key not in self._known}
        self._known |= {k: row["received_at"].timestamp() for k, row in new.items()}
        self._known = {k: at_s for k, at_s in self._known.items() if at_s >= since_s}
        return [message_sign(row) for row in new.values()]

    def _level_signs(self) -> list[Sign]:
        with self.live_state.lock:
            grid = self.live_state.grid
            levels, tokens = grid.levels.copy(), list(grid.tokens)
            latest, begin_s = list(grid.latest), grid.begin_s
        rows = {token: row for row, token in enumerate(tokens)}
        self._steps = LevelSteps(levels, latest, rows, begin_s)
        hot = np.flatnonzero((_known_levels(levels) >= WARNING).any(axis=1))
        signs: list[Sign] = []
        for row in hot.tolist():
            state = levels[row].tobytes() + repr(latest[row].reason_codes).encode()
            if self._rows.get(row) != state:
                self._rows[row] = state
                signs += self._signs_of(tokens[row], levels[row], latest[row], begin_s)
        return signs

    def _signs_of(
        self,
        token: str,
        levels: level_grid.Bytes,
        latest: level_grid.LatestRow,
        begin_s: int,
    ) -> Iterator[Sign]:
        """Each new highest level of each rise, and the newest one with its reasons."""
        known = _known_levels(levels)
        for first, last in hot_runs(levels, WARNING):
            last_s = begin_s + last * STEP_S
            highest = np.maximum.accumulate(known[first : last + 1])
            records = np.flatnonzero(np.diff(highest, prepend=0))
            for step in (first + records).tolist():
                at_s = begin_s + step * STEP_S
                is_current = last_s >= latest.at_s and known[step] == latest.level
                why = latest if is_current else None
                yield _level_sign(token, int(known[step]), at_s, last_s, why)
        if latest.level is not None and latest.level >= WARNING:
            yield _level_sign(token, latest.level, latest.at_s, latest.at_s, latest)

    def _follow(self, events: list[Event], until_s: float, now_s: float) -> None:
        """Write which events rose again, and which ended before a moment."""
        for event in events:
            end_s = self._end_of(event)
            rise = self._find_rise(event, end_s or until_s)
            if rise is not None:
                self.events.rise_again(event, rise, now_s)
            if end_s is not None and end_s < until_s:
                self.events.end(event, end_s, now_s)

    def _find_rise(self, event: Event, until_s: float) -> Sign | None:
        """Next rise of an event, if its levels have changed since the last search."""
        if self._steps is None or event.cell is None:
            return None
        levels = self._steps.levels_of(event.cell)
        searched = (levels, event.known, event.state, int(until_s) // STEP_S)
        if event.searched == searched:
            return None
        event.searched = searched
        event.newest = self._steps.newest(event.cell)
        event.lowered = self._steps.lowered(event)
        return self._steps.find_rise(event, until_s)

    def _end_of(self, event: Event) -> int | None:
        """Unix time of the end of an event; None while it lasts."""
        if event.cell is None:
            return event.last_s + QUIET_S
        return None if self._steps is None else self._steps.end(event)


class LevelSteps:
    """Levels of cells by step: where an event ends, and where it rises again.

    Args:
        levels: Of all cells.
        latest: Newest row of each cell.
        row_of: Row of each cell.
        begin_s: Unix time of the first column.
    """

    def __init__(
        self,
        levels: level_grid.Bytes,
        latest: list[level_grid.LatestRow],
        row_of: dict[str, int],
        begin_s: int,
    ) -> None:
        self._levels, self._latest, self._row_of = levels, latest, row_of
        self._begin_s = begin_s

    def end(self, event: Event) -> int | None:
        """Unix time at which a cell had been calm for an hour after the last sign."""
        step, levels = self._after(event.cell, event.last_s)
        calm = np.flatnonzero(_is_calm(levels, WARNING))
        if len(calm) < CLEAR_STEPS:
            return None
        return self._begin_s + (step + int(calm[CLEAR_STEPS - 1])) * STEP_S

    def levels_of(self, cell: str) -> tuple[int, bytes]:
        """Unix time of the first column, and the levels of a cell."""
        return self._begin_s, self._after(cell, 0)[1].tobytes()

    def newest(self, cell: str) -> tuple[int, int] | None:
        """Newest known level of a cell, and the Unix time of its step."""
        _, levels = self._after(cell, 0)
        known = _known_levels(levels)
        steps = np.flatnonzero(known)
        if not len(steps):
            return None
        step = int(steps[-1])
        return int(known[step]), self._begin_s + step * STEP_S

    def lowered(self, event: Event) -> int | None:
        """Highest of the last hour of judged levels after what people know of an event.

        Returns:
            None if fewer levels have been judged since.
        """
        _, levels = self._after(event.cell, event.known[1])
        judged = levels[_is_calm(levels, EMERGENCY + 1)][-CLEAR_STEPS:]
        return int(judged.max()) if len(judged) == CLEAR_STEPS else None

    def find_rise(self, event: Event, until_s: float) -> Sign | None:
        """Next rise of an event above what people know.

        That is a higher level, or, once somebody has decided, one that returns after an
        hour below it.
        """
        level, known_s = event.known
        # Each report until the end of the step that people know writes its row again.
        step, levels = self._after(event.cell, known_s - 1)
        levels = levels[: max(0, int(until_s - self._begin_s) // STEP_S - step + 1)]
        levels = np.concatenate([np.array([level], np.uint8), levels])
        lowest = event.call_level()
        known = _known_levels(levels)
        firsts = np.flatnonzero(known > max(level, lowest - 1))[:1].tolist()
        if event.state is not EventState.OPEN:
            for each in range(lowest, EMERGENCY + 1):
                firsts += [first for first, _ in hot_runs(levels, each)[1:2]]
        if not firsts:
            return None
        first = min(firsts)
        at_s = self._begin_s + (step + first - 1) * STEP_S
        latest = self._latest[self._row_of[event.slope]]
        why = latest if latest.level == known[first] else None
        sign = _level_sign(event.slope, int(known[first]), at_s, at_s, why)
        # The same step may rise once more, after it was revised and decided about.
        return replace(sign, key=str(event.asked))

    def _after(self, cell: str | None, at_s: int) -> tuple[int, level_grid.Bytes]:
        """First step after a Unix time, and the levels of a cell from it on."""
        step = max(0, (at_s - self._begin_s) // STEP_S + 1)
        row = self._row_of.get(cell or "")
        if row is None or row >= len(self._levels):
            return step, np.empty(0, np.uint8)
        return step, self._levels[row, step:]


def hot_runs(levels: level_grid.Bytes, min_level: int) -> list[tuple[int, int]]:
    """First and last step of each rise of one cell.

    Two rises are apart if `CLEAR_STEPS` judged steps between them were calm.
    """
    hot = np.flatnonzero(_known_levels(levels) >= min_level)
    if not len(hot):
        return []
    calm: Steps = np.cumsum(_is_calm(levels, min_level))
    ends = np.flatnonzero(np.diff(calm[hot]) >= CLEAR_STEPS)
    firsts, lasts = np.append(0, ends + 1), np.append(ends, len(hot) - 1)
    return list(zip(hot[firsts].tolist(), hot[lasts].tolist(), strict=True))


def _known_levels(levels: level_grid.Bytes) -> level_grid.Bytes:
    """Levels, held or not; 0 where there is none."""
    known: level_grid.Bytes = np.where(
        levels == NO_JUDGEMENT, MISSING, levels % HELD_OFFSET
    )
    return known


def _is_calm(levels: level_grid.Bytes, min_level: int) -> npt.NDArray[np.bool_]:
    """Whether steps were judged below a level; a held level is not judged."""
    calm: npt.NDArray[np.bool_] = (levels > MISSING) & (levels < min_level)
    return calm


def _level_sign(
    token: str, level: int, at_s: int, last_s: int, why: level_grid.LatestRow | None
) -> Sign:
    reasons = () if why is None else why.reasons
    codes = () if why is None else why.reason_codes
    return Sign(token, None, level, at_s, last_s, "", reasons, codes)


def _message_key(row: dict[str, Any]) -> str:
    return f"{row['node']}:{row['boot']}:{row['seq']}"


def message_sign(row: dict[str, Any]) -> Sign:
    """Sign of an urgent message; its level is the priority that the node chose."""
    error = () if row["why"] else (row["reason"] or "",)
    reasons = [
        *message_reasons(row["reason_codes"], row["why"] or ""),
        *(Reason(ReasonCode.TEXT, text=t) for t in (*error, *(row["readings"] or ()))),
    ]
    at_s = round(row["received_at"].timestamp())
    return Sign(
        slope=slope_of(row["cell"], row["node"]),
        node=row["node"],
        level=row["pri"],
        at_s=at_s,
        last_s=at_s,
        key=_message_key(row),
        reasons=tuple(map(render_english, reasons)),
        reason_codes=tuple(map(reason_to_json, reasons)),
        measured_s=_measured_s(row, at_s),
    )


def _measured_s(row: dict[str, Any], received_s: int) -> int:
    """Unix time of a measurement that came late; 0 for any other."""
    if row["synchronised"] and row["at"] is not None:
        measured_s = round(row["at"].timestamp())
    else:  # the clock of the node was not set
        measured_s = received_s - (row["age_s"] or 0)
    return measured_s if 0 < measured_s < received_s - LATE_S else 0
