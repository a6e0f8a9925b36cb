"""Scoring pipeline in memory: the steps of `streaming.pipeline` without Spark or files.

Messages are decoded and flagged as batches do it, then passes score the cells that new
messages change, from saved states, and revise rows as in the tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.scoring import decode
from backend_spark.scoring.arrow import Scorer, collect_rows
from backend_spark.scoring.observation import STEP_S
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
from spatial_mqtt.cells import TOPIC_LEVEL, Cell
from spatial_mqtt.reading_table import TableMessage, TableReading
from spatial_mqtt.senml import MessageId, Pack
from spatial_mqtt.topics import cell_topic

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
