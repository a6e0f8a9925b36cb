"""Pipeline in memory over a table, and the clock of receipt that runs its passes.

The steps are those of `streaming.pipeline`, without Spark or files. Messages are
decoded and flagged as batches do it, then passes score the cells that new messages
change, from saved states, and revise rows as in the tables.

The pipeline scores new messages within seconds, so a level can rise and be revised
away before the next reading. In an eventful time a pass therefore runs at each
receipt; in a quiet one, one pass covers up to `LONGEST_S`, with the same result:

* a window is quiet if all its levels are 1 or unknown as before, also if the rain of
  the hour went on, no reading is flagged, late or missing, and nothing was revised;
* another window is undone, and divided; from `SHORTEST_S` on, passes run at receipts.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.notice_state import (
    AHEAD_S,
    NoticePolicy,
    NoticeState,
    select_current_levels,
)
from backend_spark.scoring import decode
from backend_spark.scoring.arrow import Scorer, collect_rows
from backend_spark.scoring.holds import NO_LIMITS, HoldLimits, PresentLevel
from backend_spark.scoring.observation import STEP_S, step_end_s
from backend_spark.scoring.revisions import NewReadings, add_news, revise_rows
from backend_spark.scoring.saved_states import (
    REREAD_S,
    keeps_state,
    last_valid_state_s,
)
from backend_spark.scoring.surrounding_rain import find_nearby_cells
from backend_spark.tables.reader import HISTORY_SCHEMA
from backend_spark.tables.schemas import (
    CELL_STATES,
    FLAGS,
    LEVEL_KEY,
    LEVELS,
    PARSED,
    REVISIONS,
)
from slope_science.levels import LOWEST
from slope_science.quality import Flag
from spatial_mqtt.announcements import Notice
from spatial_mqtt.cells import TOPIC_LEVEL, Cell
from spatial_mqtt.reading_table import TableMessage, TableReading
from spatial_mqtt.senml import MessageId, Pack
from spatial_mqtt.topics import cell_topic, notice_topic

BOOT: Final = "table"
_MICRO: Final = 1_000_000

Row = dict[str, Any]


@dataclass
class Gold:
    """What passes have written so far.

    Attributes:
        levels: Rows of schemas.LEVELS by cell and Unix time of the step's end.
        revisions: Superseded rows, schemas.REVISIONS.
        states: Saved states by cell and Unix time, encoded.
        flags: Flag of each reading.
        whys: Its reasons in English; None without.
        scored: Number of readings that passes have used.
    """

    levels: dict[str, dict[int, Row]]
    revisions: list[Row]
    states: dict[str, dict[int, bytes]]
    flags: np.ndarray
    whys: np.ndarray
    scored: int = 0

    def copy(self) -> "Gold":
        """An independent copy."""
        return Gold(
            {cell: dict(rows) for cell, rows in self.levels.items()},
            list(self.revisions),
            {cell: dict(states) for cell, states in self.states.items()},
            self.flags.copy(),
            self.whys.copy(),
            self.scored,
        )


@dataclass(frozen=True)
class Silver:
    """Decoded readings in the order of their receipt.

    Attributes:
        parsed: schemas.PARSED.
        readings: The rows of the table, one for each row of `parsed`.
        counts: Whether the time of a reading is plausible, as a pass decides it.
        cells: Cell of each reading.
        at_us: Unix time of each, in microseconds.
        received_us: Its receipt.
        first_of: Number of the first reading of each cell.
    """

    parsed: pa.Table
    readings: Sequence[TableReading]
    counts: np.ndarray
    cells: np.ndarray
    at_us: np.ndarray
    received_us: np.ndarray
    first_of: Mapping[str, int]


def decode_table(
    messages: Sequence[TableMessage], max_ahead_s: int, horizon_s: int
) -> tuple[Silver, Gold]:
    """Decode messages as a batch does; also gold before the first pass."""
    parsed = decode.tabulate_readings(
        _envelopes(messages),
        (
            decode.read_pack(_pack(m, n), m.received_s, max_ahead_s=max_ahead_s)
            for n, m in enumerate(messages)
        ),
    )
    counts = decode.has_plausible_time(parsed, max_ahead_s, horizon_s)
    cut = decode.cut_silver(parsed, counts)
    silver = Silver(
        parsed,
        [reading for message in messages for reading in message.readings],
        counts.to_numpy(),
        cells := np.array(parsed["cell"].to_pylist(), dtype=object),
        parsed["at"].cast(pa.int64()).to_numpy(),
        parsed["received_at"].cast(pa.int64()).to_numpy(),
        dict(zip(*np.unique(cells, return_index=True), strict=True)),
    )
    whys = np.array(cut["flag_why"].to_pylist(), dtype=object)
    return silver, Gold({}, [], {}, cut["flag"].to_numpy().copy(), whys)


def _envelopes(messages: Sequence[TableMessage]) -> pa.Table:
    """The columns of a message that are not in its payload."""
    places = {(m.latitude, m.longitude) for m in messages}
    topics = {p: cell_topic(Cell.at(*p, TOPIC_LEVEL)) for p in places}
    columns = {
        "node": [m.node for m in messages],
        "boot": [BOOT] * len(messages),
        "seq": range(len(messages)),
        "pri": [m.priority for m in messages],
        "topic": [topics[m.latitude, m.longitude] for m in messages],
        "age_s": [_age_s(m) for m in messages],
        "received_at": [round(m.received_s * _MICRO) for m in messages],
        "batch_id": [0] * len(messages),
    }
    return pa.table({
        name: pa.array(values).cast(PARSED.field(name).type)
        for name, values in columns.items()
    })


def _age_s(message: TableMessage) -> int | None:
    """Wait in queues of a late message."""
    wait_s = round(message.received_s - message.at_s)
    return wait_s if STEP_S <= wait_s < 2**31 else None


def _pack(message: TableMessage, number: int) -> Pack:
    return Pack(
        MessageId(message.node, BOOT, number),
        message.priority,
        message.at_s,
        tuple(each.reading for each in message.readings),
        message.synchronised,
    )


@dataclass
class MemoryPipeline:
    """Passes over the cells of a table.

    Attributes:
        silver: Decoded readings.
        gold: What passes have written.
        cell_rules: Rules of cells.
        horizon_s: Age from which readings are not scored.
        nearby_km: Radius in which the gauges of other cells are compared.
    """

    silver: Silver
    gold: Gold
    cell_rules: CellRuleProvider
    horizon_s: int
    nearby_km: float = 5.0
    _news: dict[str, dict[str, NewReadings]] = field(default_factory=dict)

    def score(self, upto: int) -> set[str]:
        """Score the cells that readings up to a number change; returns the cells."""
        first, self.gold.scored = self.gold.scored, upto
        earliest_us = self._touched(first, upto)
        if not earliest_us:
            return set()
        states = {cell: self._valid_state(cell, us) for cell, us in earliest_us.items()}
        bodies = {c: self.gold.states[c][s] for c, s in states.items() if s is not None}
        rules = self.cell_rules.rules_of(earliest_us)
        occupied = self._occupied(upto)
        around = find_nearby_cells(sorted(earliest_us), occupied, self.nearby_km)
        scorer = Scorer(rules, self.horizon_s, earliest_us, bodies, around)
        scored = scorer.score(self._history(upto, scorer.cells, earliest_us, states))
        self._write(scored, earliest_us)
        return set(earliest_us)

    def _occupied(self, upto: int) -> set[str]:
        """Cells of the readings up to a number."""
        return {cell for cell, at in self.silver.first_of.items() if at < upto}

    def _touched(self, first: int, upto: int) -> dict[str, int]:
        """Earliest new reading of each cell; the causes of revisions are kept."""
        part = self.silver.parsed.slice(first, upto - first)
        counts = pa.array(self.silver.counts[first:upto])
        earliest_us: dict[str, int] = {}
        self._news = {}
        for row in decode.summarize_changes(part, counts).to_pylist():
            cell, at_us = row.pop("cell"), row.pop("earliest_us")
            del row["rejected"]  # none: a table has no payloads
            if cell is not None and at_us is not None:
                earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
                add_news(self._news.setdefault(cell, {}), NewReadings(**row))
        return earliest_us

    def _valid_state(self, cell: str, earliest_us: int) -> int | None:
        """Last saved state that new readings leave valid; later ones are deleted."""
        states = self.gold.states.setdefault(cell, {})
        last_s = last_valid_state_s(earliest_us / _MICRO)
        for at_s in [at_s for at_s in states if at_s > last_s]:
            del states[at_s]
        return max(states, default=None)

    def _history(
        self,
        upto: int,
        cells: set[str],
        earliest_us: dict[str, int],
        states: dict[str, int | None],
    ) -> pa.Table:
        """Readings that a pass reads: of its cells, and of those around them."""
        since_us = min(
            first_us - self.horizon_s * _MICRO
            if (state_s := states[cell]) is None
            else (state_s - REREAD_S) * _MICRO
            for cell, first_us in earliest_us.items()
        )
        chosen = self.silver.at_us[:upto] >= since_us
        if len(cells) < len(self._occupied(upto)):
            chosen &= np.isin(self.silver.cells[:upto], list(cells))
        places = np.nonzero(chosen & self.silver.counts[:upto])[0]
        rows = self.silver.parsed.select(HISTORY_SCHEMA.names).take(pa.array(places))
        columns = {name: rows[name] for name in rows.column_names} | {
            "flag": pa.array(self.gold.flags[places], pa.int32()),
            "flag_why": pa.array(self.gold.whys[places], pa.string()),
            "file": pa.array([""] * len(places), pa.string()),
            "row": pa.array(places, pa.int64()),
        }
        return pa.table(columns)

    def _write(self, scored: pa.Table, cells: Iterable[str]) -> None:
        gold = self.gold
        rows = collect_rows(scored, "levels", LEVELS)
        if rows.num_rows:
            self._revise(rows)
        for change in collect_rows(scored, "flags", FLAGS).to_pylist():
            gold.flags[change["row"]] = change["flag"]
            gold.whys[change["row"]] = change["flag_why"]
        for state in collect_rows(scored, "memories", CELL_STATES).to_pylist():
            at_s = round(state["at"].timestamp())
            gold.states[state["cell"]][at_s] = state["body"]
        for cell in cells:
            newest = max(gold.states[cell], default=0)
            states = gold.states[cell]
            gold.states[cell] = {
                at_s: states[at_s] for at_s in states if keeps_state(at_s, newest)
            }

    def _revise(self, rows: pa.Table) -> None:
        old = pa.Table.from_pylist(self._stored(rows), schema=LEVELS)
        news = {cell: list(by_node.values()) for cell, by_node in self._news.items()}
        revision = revise_rows(rows, old, LEVEL_KEY, news, REVISIONS)
        for table in (revision.fresh, revision.changed):
            for row in table.to_pylist():
                at_s = round(row["at"].timestamp())
                self.gold.levels.setdefault(row["cell"], {})[at_s] = row
        self.gold.revisions += revision.superseded.to_pylist()

    def _stored(self, rows: pa.Table) -> list[Row]:
        """Rows of gold that scored rows may replace."""
        at_s = pc.divide(rows["at"].cast(pa.int64()), _MICRO).to_pylist()
        keys = zip(rows["cell"].to_pylist(), at_s, strict=True)
        found = (self.gold.levels.get(cell, {}).get(at) for cell, at in keys)
        return [row for row in found if row is not None]


LONGEST_S: Final = 16 * 86_400
SHORTEST_S: Final = 6 * 3600
DIVISOR: Final = 4
TICK_S: Final = 60
"""Interval of checks of the levels while a notice is in force; otherwise `STEP_S`."""

QUIET_GAP_S: Final = 1800
"""Longest silence of a cell in a quiet window; or 2.5 times its usual interval."""


@dataclass(frozen=True)
class SentNotice:
    """A notice that the publisher sends.

    Attributes:
        at_s: Unix time by the clock of receipt.
        cell: Token of the cell.
        notice: The notice.
    """

    at_s: float
    cell: str
    notice: Notice


@dataclass(frozen=True)
class ShownLevel:
    """A change of the level that notices and the console show for a cell.

    Attributes:
        at_s: Unix time by the clock of receipt.
        cell: Token of the cell.
        level: Level; None if unknown.
        state: ``judged``, ``held`` or ``unknown``.
    """

    at_s: float
    cell: str
    level: int | None
    state: str


@dataclass
class SentRecord:
    """Notices that were sent and levels that were shown while the clock ran.

    Attributes:
        notices: Notices, in the order of time.
        shown: Changes of the shown levels, in the order of time.
        passes: Number of passes.
        coarse_from_s: Unix time from which `Effort.max_passes` was used up.
    """

    notices: list[SentNotice] = field(default_factory=list)
    shown: list[ShownLevel] = field(default_factory=list)
    passes: int = 0
    coarse_from_s: float | None = None


@dataclass(frozen=True)
class Effort:
    """How closely passes follow the receipts.

    Attributes:
        spacing_s: Shortest time between two passes, apart from those at readings that
            are flagged or that change a truth value.
        max_passes: Passes after which windows of `SHORTEST_S` have one pass each.
    """

    spacing_s: int = STEP_S
    max_passes: int = 5000


NORMAL_EFFORT: Final = Effort()


def row_state(row: Mapping[str, Any]) -> str:
    """State of a row of levels: ``judged``, ``held`` or ``unknown``."""
    return str(row["state"])


class ReceiptClock:
    """Runs passes and notices over a table.

    Args:
        pipeline: Has no pass yet.
        policy: When a level is published.
        max_age_s: Age from which a level is not current.
        limits: When holds end.
        effort: How closely passes follow the receipts.
        down_s: Unix times between which the publisher of notices does not run.
    """

    def __init__(
        self,
        pipeline: MemoryPipeline,
        policy: NoticePolicy,
        max_age_s: float,
        *,
        limits: HoldLimits = NO_LIMITS,
        effort: Effort = NORMAL_EFFORT,
        down_s: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._pipeline = pipeline
        self._policy = policy
        self._max_age_s = max_age_s
        self._limits = limits
        self._effort = effort
        self._down_s = down_s
        self._received_s = pipeline.silver.received_us / _MICRO
        self._timeline = SentRecord()
        self._shown: dict[str, tuple[int | None, str]] = {}
        self._now_s = float(self._received_s[0])

    def run(self, until_s: float) -> SentRecord:
        """Run all passes, then advance the clock to a moment."""
        first_s = step_end_s(self._now_s) - STEP_S
        last_s = float(self._received_s[-1])
        with tempfile.TemporaryDirectory() as folder:
            self._notices = NoticeState(
                self._policy, Path(folder) / "notices.json", self._limits
            )
            begin_s = first_s
            while begin_s < last_s:
                end_s = begin_s + LONGEST_S
                self._run_window(begin_s, end_s, min(end_s, last_s))
                begin_s = end_s
            self._tick_until(max(until_s, last_s))
        return self._timeline

    def _run_window(self, begin_s: float, end_s: float, last_s: float) -> None:
        """Run passes for the readings received in (begin, end]."""
        upto = self._count(end_s)
        if upto == self._pipeline.gold.scored:
            self._tick_until(min(end_s, last_s))
            return
        before = self._pipeline.gold.copy()
        self._score(upto)
        is_last = end_s - begin_s <= SHORTEST_S
        if self._is_quiet(before.scored, upto, len(before.revisions)):
            self._tick_until(min(end_s, last_s))
            return
        if is_last and self._is_spent(begin_s):
            self._tick_until(min(end_s, last_s))
            return
        sudden = self._sudden(before.scored, upto)
        self._pipeline.gold = before
        if is_last:
            self._follow(before.scored, upto, sudden)
            return
        part_s = max((end_s - begin_s) / DIVISOR, SHORTEST_S)
        while begin_s < end_s and begin_s < last_s:
            self._run_window(begin_s, begin_s + part_s, last_s)
            begin_s += part_s

    def _follow(self, first: int, upto: int, sudden: np.ndarray) -> None:
        """Run passes at receipts."""
        received_s = self._received_s[first:upto]
        last_of = np.append(received_s[1:] > received_s[:-1], True)
        steps = np.ceil(received_s / self._effort.spacing_s)
        is_due = last_of & np.append(steps[1:] > steps[:-1], True)
        sudden_s = set(received_s[sudden])
        is_due |= last_of & np.isin(received_s, list(sudden_s))
        for place in np.nonzero(is_due)[0]:
            self._tick_until(received_s[place])
            self._score(first + int(place) + 1)
            self._tick(received_s[place])

    def _score(self, upto: int) -> None:
        self._timeline.passes += 1
        self._pipeline.score(upto)

    def _is_spent(self, at_s: float) -> bool:
        if self._timeline.passes < self._effort.max_passes:
            return False
        if self._timeline.coarse_from_s is None:
            self._timeline.coarse_from_s = at_s
        return True

    def _count(self, until_s: float) -> int:
        """Number of readings received up to a moment."""
        return int(np.searchsorted(self._received_s, until_s, side="right"))

    def _is_quiet(self, first: int, upto: int, revisions: int) -> bool:
        silver, gold = self._pipeline.silver, self._pipeline.gold
        part = slice(first, upto)
        if len(gold.revisions) > revisions:
            return False
        if (gold.flags[part] >= Flag.SUSPECT).any() or not silver.counts[part].all():
            return False
        wait_us = silver.received_us[part] - silver.at_us[part]
        if (wait_us > STEP_S * _MICRO).any():
            return False
        cells = set(silver.cells[part])
        return all(self._is_quiet_cell(cell, part) for cell in cells)

    def _is_quiet_cell(self, cell: str, part: slice) -> bool:
        silver = self._pipeline.silver
        received_s = np.unique(self._received_s[part][silver.cells[part] == cell])
        gaps_s = np.diff(received_s)
        if len(gaps_s):
            longest_s = max(QUIET_GAP_S, 2.5 * float(np.median(gaps_s)))
            if float(gaps_s.max()) > longest_s:
                return False
        rows = self._pipeline.gold.levels.get(cell, {})
        first_s = step_end_s(float(silver.at_us[part].min()) / _MICRO)
        last_s = step_end_s(float(silver.at_us[part].max()) / _MICRO)
        found = [
            rows[end_s]
            for end_s in range(first_s - STEP_S, last_s + STEP_S, STEP_S)
            if end_s in rows
        ]
        kinds = {(row["level"], row_state(row)) for row in found}
        # Within a step a level may be higher than at its end, but not than this one.
        ahead = [row["level_same"] or LOWEST for row in found]
        return (
            len(kinds) <= 1
            and all(level in {None, LOWEST} for level, _ in kinds)
            and max(ahead, default=LOWEST) == LOWEST
        )

    def _sudden(self, first: int, upto: int) -> np.ndarray:
        """Whether a reading of a window is flagged, or changes a truth value."""
        gold, silver = self._pipeline.gold, self._pipeline.silver
        found = gold.flags[first:upto] >= Flag.SUSPECT
        last: dict[tuple[str, str], str] = {}
        part = silver.parsed.slice(first, upto - first)
        columns = (part[name].to_pylist() for name in ("node", "name", "value_text"))
        for place, (node, name, text) in enumerate(zip(*columns, strict=True)):
            if text is not None:
                found[place] |= last.get((node, name), text) != text
                last[node, name] = text
        return np.asarray(found)

    def _tick_until(self, until_s: float) -> None:
        """Check the levels at each interval up to and including a moment."""
        while True:
            every_s = TICK_S if self._notices.notices else STEP_S
            next_s = (self._now_s // every_s + 1) * every_s
            if next_s > until_s:
                return
            self._tick(next_s)

    def _tick(self, now_s: float) -> None:
        """Publish, raise or withdraw notices by the levels of one moment."""
        self._now_s = now_s = float(now_s)
        rows = list(self._newest_rows(now_s))
        for row in rows:
            self._show(row)
        if self._down_s[0] <= now_s < self._down_s[1]:
            return
        oldest_s = now_s - self._max_age_s
        current = select_current_levels(
            [row for row in rows if row["at"].timestamp() >= oldest_s],
            now_s,
            self._max_age_s,
            self._limits,
        )
        topics = {notice_topic(cell_topic(Cell.from_token(c))): c for c in self._shown}
        for topic, notice in self._notices.update(current, now_s).items():
            self._timeline.notices.append(SentNotice(now_s, topics[topic], notice))

    def _newest_rows(self, now_s: float) -> Iterator[Mapping[str, Any]]:
        """Newest row of each cell that is not ahead of the receipts or of now."""
        upto = self._count(now_s)
        newest_s = step_end_s(float(self._received_s[upto - 1])) if upto else 0
        limit_s = int(min(now_s + AHEAD_S, newest_s) // STEP_S) * STEP_S
        for rows in self._pipeline.gold.levels.values():
            oldest_s = next(iter(rows))
            for at_s in range(limit_s, oldest_s - STEP_S, -STEP_S):
                if at_s in rows:
                    yield rows[at_s]
                    break

    def _show(self, row: Mapping[str, Any]) -> None:
        now = PresentLevel.of_row(row, self._now_s, self._limits, self._max_age_s)
        found, cell = (now.level, now.state), row["cell"]
        if self._shown.get(cell) != found:
            self._shown[cell] = found
            self._timeline.shown.append(ShownLevel(self._now_s, cell, *found))


def iso_time(at_s: float) -> str:
    """A time as printed: ISO 8601 in UTC."""
    at = datetime.fromtimestamp(at_s, UTC)
    spec = "seconds" if at_s == int(at_s) else "milliseconds"
    return at.isoformat(timespec=spec).replace("+00:00", "Z")
