"""Scoring as Spark runs it: silver rows of cells in, rows of levels out."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.scoring.observation import RAIN, Observation
from backend_spark.scoring.reviews import NO_REVIEWS, ReadingReviews
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.saved_states import (
    REREAD_S,
    STATE_FORMAT,
    HotHead,
    ScoringState,
    decode_hot,
    decode_rain,
    decode_state,
    encode_hot,
    encode_state,
)
from backend_spark.scoring.score import (
    DAY_S,
    CellScores,
    LevelRow,
    score_cell,
    score_from_hot,
)
from backend_spark.scoring.surrounding_rain import (
    NO_NEARBY_RAIN,
    CellDistances,
    NearbyRain,
    collect_nearby_rain,
)
from backend_spark.tables.schemas import CELL_STATES, FLAGS, LEVELS, SENSORS
from slope_science.reasons import reason_to_json

log = logging.getLogger(__name__)

OBSERVATION_COLUMNS = ("node", "name", "unit", "value", "value_text", "sum")
FLAG_COLUMNS = ("boot", "seq", "synchronised", "node_flag", "flag", "flag_why")
LEVEL_COLUMNS = ("pri", "why", "reason_codes")
HISTORY_COLUMNS = (
    *("cell", "at", *OBSERVATION_COLUMNS, "received_at", *FLAG_COLUMNS),
    *LEVEL_COLUMNS,
)
READING_KEY = ("node", "boot", "seq", "name")
SCORE_TABLES = {
    "levels": LEVELS,
    "sensors": SENSORS,
    "flags": FLAGS,
    "memories": CELL_STATES,
}
CELL_SCORES = pa.schema([pa.field("table", pa.string()), pa.field("rows", pa.binary())])
"""Rows of several tables from one pass over a cell: each an Arrow stream."""

HOT_AT_ONCE = 120
"""Cells whose new readings and the rain around them are in memory as objects: at a
report a minute the rain of a cell takes 0.3 MB."""

ROWS_AS_OBJECTS = 2_048
"""Rows that are Python objects at a time; as those a row takes ten times its memory."""

CELL_ERRORS: Final = (ArithmeticError, LookupError, TypeError, ValueError)
"""What readings that no rule foresees may raise while their cell is scored."""

_MICRO = 1_000_000


class ScoreCollector:
    """Collects the scores of cells as rows of tables.

    Attributes:
        hot: The newest hot state of each cell, encoded; None for a cell without one.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {"levels": [], "sensors": []}
        self._parts: dict[str, list[pa.Table]] = {name: [] for name in SCORE_TABLES}
        self.hot: dict[str, bytes | None] = {}

    def add(self, cell: str, found: CellScores) -> None:
        """Add the scores of a cell, without its changed flags."""
        self._rows["levels"] += [_row(cell, row) for row in found.rows]
        self._rows["sensors"] += [{"cell": cell} | row for row in found.sensors]
        if found.memories:
            self._parts["memories"].append(make_memories_table(cell, found.memories))
        if sum(map(len, self._rows.values())) >= ROWS_AS_OBJECTS:
            self._pack()

    def add_flags(self, flags: pa.Table) -> None:
        """Add changed flags; schemas.FLAGS."""
        if flags.num_rows:
            self._parts["flags"].append(flags)

    def _pack(self) -> None:
        for name, rows in self._rows.items():
            if rows:
                part = pa.Table.from_pylist(rows, schema=SCORE_TABLES[name])
                self._parts[name].append(part)
                self._rows[name] = []

    def pop_gold(self) -> dict[str, pa.Table]:
        """Rows of levels and sensors that were added since the last call."""
        found = self.tables()
        self._parts |= {name: [] for name in self._rows}
        return {name: found[name] for name in self._rows}

    def tables(self) -> dict[str, pa.Table]:
        """Rows of each table of `SCORE_TABLES`."""
        self._pack()
        return {
            name: pa.concat_tables([SCORE_TABLES[name].empty_table(), *parts])
            for name, parts in self._parts.items()
        }


@dataclass(frozen=True)
class Scorer:
    """Scores cells on the executors.

    Attributes:
        rules: Rules by cell.
        horizon_s: Maximum age of readings relative to the cell's newest, where there is
            no saved state.
        touched_us: Unix microseconds of the earliest new reading, by cell.
        memories: Encoded saved states by cell.
        around: Cells around each cell whose rain it is compared with.
        makes_hot: Whether hot states are wanted.
        reviews: Reviews of readings that count.
    """

    rules: Mapping[str, CellRules]
    horizon_s: int
    touched_us: Mapping[str, int]
    memories: Mapping[str, bytes] = field(default_factory=dict)
    around: Mapping[str, CellDistances] = field(default_factory=dict)
    makes_hot: bool = False
    reviews: ReadingReviews = NO_REVIEWS

    @property
    def cells(self) -> set[str]:
        """The cells to score, and those around them."""
        others = (token for each in self.around.values() for _, token in each)
        return {*self.rules, *others}

    def score(self, history: pa.Table) -> pa.Table:
        """Score cells.

        Shape:
            in: reader.HISTORY_SCHEMA and ROW_LOCATION of `cells`, any order; of the
                cells around, the rain suffices.
            out: CELL_SCORES: rows of schemas.LEVELS, SENSORS and FLAGS that new
                readings can have changed, and of schemas.CELL_STATES.
        """
        found = ScoreCollector()
        self.collect(history, found)
        rows = found.tables().items()
        return pa.Table.from_pylist(
            [{"table": name, "rows": table_to_ipc(each)} for name, each in rows],
            schema=CELL_SCORES,
        )

    def collect(self, history: pa.Table, into: ScoreCollector) -> None:
        """Score cells from their saved states; `history` is that of `score`."""
        nearby = self._nearby(history)
        ours = pc.is_in(history["cell"], pa.array(sorted(self.rules), pa.string()))
        for cell, rows in _by_cell(history.filter(ours)):
            found = self._score(cell, rows, nearby.get(cell, NO_NEARBY_RAIN))
            into.add(cell, found)
            into.add_flags(make_flags_table(rows, found.reflagged))
            if self.makes_hot:
                into.hot[cell] = None if found.hot is None else encode_hot(found.hot)

    def _nearby(self, history: pa.Table) -> dict[str, NearbyRain]:
        """Rain around each cell."""
        others = {token for each in self.around.values() for _, token in each}
        theirs = pc.is_in(history["cell"], pa.array(sorted(others), pa.string()))
        rows = history.filter(pc.and_(theirs, pc.equal(history["name"], RAIN)))
        rain = {
            cell: self.reviews.mark(read_observations(part))
            for cell, part in _by_cell(rows)
        }
        return collect_nearby_rain(rain, self.around)

    def _score(self, cell: str, rows: pa.Table, nearby: NearbyRain) -> CellScores:
        """The scores of a cell; none if it cannot be scored, and its rows stay."""
        try:
            return self._cell(cell, rows, nearby)
        except pa.ArrowException:
            raise  # of a table that every cell needs
        except CELL_ERRORS:
            log.exception("cell %s cannot be scored; its rows stay as they are", cell)
            return CellScores([], [], [])

    def _cell(self, cell: str, rows: pa.Table, nearby: NearbyRain) -> CellScores:
        body, touched_us = self.memories.get(cell), self.touched_us.get(cell)
        past = decode_state(body) if body else None
        known = self.reviews.mark(read_observations(rows))
        if past is None:
            known = drop_before_horizon(known, self.horizon_s)
        else:
            known = [o for o in known if o.at_s > past.at_s - REREAD_S]
        touched_s = None if touched_us is None else touched_us / _MICRO
        return score_cell(
            *(known, self.rules[cell], touched_s, past, nearby),
            makes_hot=self.makes_hot,
        )


@dataclass(frozen=True)
class HotScorer:
    """Scores cells from hot states on the executors.

    Attributes:
        rules: Rules of the cells to score.
        touched_us: Unix microseconds of the earliest new reading, by cell.
        bodies: Encoded hot states of these cells, and of those around them.
        heads: Heads of the states that are used.
        around: Cells around each cell whose rain it is compared with.
        rain: Rain of cells around without a hot state: a day before the new readings.
        reviews: Reviews of readings that count.
    """

    rules: Mapping[str, CellRules]
    touched_us: Mapping[str, int]
    bodies: Mapping[str, bytes | pa.Buffer]
    heads: Mapping[str, HotHead]
    around: Mapping[str, CellDistances]
    rain: Mapping[str, list[Observation]] = field(default_factory=dict)
    reviews: ReadingReviews = NO_REVIEWS

    def collect(self, history: pa.Table, into: ScoreCollector) -> list[str]:
        """Score cells.

        Args:
            history: Readings of the cells in `heads` since the earliest of them, as of
                `Scorer.score`; of the cells around, the rain suffices.
            into: Where the scores are added.

        Returns:
            Cells that must be scored from saved states.
        """
        history = self._after_states(history)
        history = history.sort_by([("cell", "ascending"), ("at", "ascending")])
        cells, rest = list(self.rules), list[str]()
        for first in range(0, len(cells), HOT_AT_ONCE):
            some = cells[first : first + HOT_AT_ONCE]
            rest += self._collect_some(some, history, into)
        return rest

    def _collect_some(
        self, cells: Sequence[str], history: pa.Table, into: ScoreCollector
    ) -> list[str]:
        """Score some cells of `collect`; only their readings become objects."""
        history = self._with_rain_around(cells, history)
        known = self.reviews.mark(read_observations(history))
        numbers = dict(_numbers_by_cell(history))
        readings = {
            cell: known[each.start : each.stop] for cell, each in numbers.items()
        }
        nearby = self._nearby(cells, readings)
        flags: list[tuple[int, Observation]] = []
        rest = []
        for cell in cells:
            found = self._score(cell, readings.get(cell, []), nearby[cell])
            if found is None:
                rest.append(cell)
                continue
            into.add(cell, found)
            if found.reflagged:
                places = {_key_of(known[n]): n for n in numbers[cell]}
                flags += ((places[_key_of(o)], o) for o in found.reflagged)
            if found.hot is not None:
                into.hot[cell] = encode_hot(found.hot)
        into.add_flags(_flags_table(history, flags))
        return rest

    def _with_rain_around(self, cells: Sequence[str], history: pa.Table) -> pa.Table:
        """Readings of some cells, and the rain of those around them."""
        others = {token for cell in cells for _, token in self.around.get(cell, ())}
        is_ours = pc.is_in(history["cell"], pa.array(cells, pa.string()))
        is_near = pc.is_in(history["cell"], pa.array(sorted(others), pa.string()))
        is_rain = pc.equal(history["name"], RAIN)
        return history.filter(pc.or_(is_ours, pc.and_(is_near, is_rain)))

    def _score(
        self, cell: str, readings: Sequence[Observation], nearby: NearbyRain
    ) -> CellScores | None:
        if not readings:
            return None
        state, touched_s = decode_hot(self.bodies[cell]), self.touched_us[cell] / _MICRO
        try:
            return score_from_hot(readings, self.rules[cell], touched_s, state, nearby)
        except pa.ArrowException:
            raise  # of a table that every cell needs
        except CELL_ERRORS:
            log.exception("cell %s cannot be scored from its hot state", cell)
            return None

    def _after_states(self, history: pa.Table) -> pa.Table:
        """Readings after the state of their cell."""
        states_us = pa.array([head.at_s * _MICRO for head in self.heads.values()])
        places = pc.index_in(history["cell"], pa.array(self.heads, pa.string()))
        at_us = history["at"].cast(pa.int64())
        return history.filter(pc.greater(at_us, states_us.take(places)))

    def _nearby(
        self, cells: Sequence[str], readings: Mapping[str, list[Observation]]
    ) -> dict[str, NearbyRain]:
        """Rain around each of some cells."""
        around = {cell: self.around.get(cell, ()) for cell in cells}
        others = {token for each in around.values() for _, token in each}
        rain = {token: self.rain[token] for token in others & self.rain.keys()}
        past = {}
        for token in others & self.heads.keys():
            kept = decode_rain(self.bodies[token])
            new = (o for o in readings.get(token, ()) if o.is_rain)
            rain[token] = [*kept.last, *new]
            past[token] = kept.gauges
        return collect_nearby_rain(rain, around, past)


def _key_of(o: Observation) -> tuple[float, str, str, int, str]:
    """What identifies a reading of a cell."""
    return o.at_s, o.node, o.boot, o.seq, o.name


def _numbers_by_cell(rows: pa.Table) -> Iterator[tuple[str, range]]:
    """Numbers of the rows of each cell; the rows are sorted by cell."""
    first = 0
    for count in pc.value_counts(rows["cell"]).to_pylist():
        yield count["values"], range(first, first + count["counts"])
        first += count["counts"]


def _by_cell(history: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Rows of each cell, in the order of time."""
    rows = history.sort_by([("cell", "ascending"), ("at", "ascending")])
    for cell, numbers in _numbers_by_cell(rows):
        yield cell, rows.slice(numbers.start, len(numbers))


def table_to_ipc(rows: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def collect_rows(scored: pa.Table, table: str, schema: pa.Schema) -> pa.Table:
    """Rows of one table from the scores of all cells."""
    streams = [row["rows"] for row in scored.to_pylist() if row["table"] == table]
    parts = [pa.ipc.open_stream(stream).read_all() for stream in streams]
    return pa.concat_tables([schema.empty_table(), *parts])


def read_observations(history: pa.Table) -> list[Observation]:
    """Silver rows as observations."""
    columns = [
        [at_us / _MICRO for at_us in _micros(history, "at")],
        *(_values(history[name]) for name in OBSERVATION_COLUMNS),
        _micros(history, "received_at"),
        *(_values(history[name]) for name in FLAG_COLUMNS),
        pc.fill_null(history["pri"], 1).to_pylist(),
        _values(history["why"]),
        _values(history["reason_codes"]),
    ]
    return [Observation(*row) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Values of a column; equal strings are one object, as most of silver's are."""
    if not pa.types.is_string(column.type):
        values: list[Any] = column.to_pylist()
        return values
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    words = coded.dictionary.to_pylist()
    return [words[number] for number in coded.indices.to_pylist()]


def drop_before_horizon(known: list[Observation], horizon_s: int) -> list[Observation]:
    """Observations at most the horizon older than the newest."""
    newest_s = max((o.at_s for o in known), default=0.0)
    return [o for o in known if o.at_s >= newest_s - horizon_s]


def make_flags_table(rows: pa.Table, changed: list[Observation]) -> pa.Table:
    """Positions of readings with new flags as Arrow; `rows` contains the readings."""
    if not changed:
        return FLAGS.empty_table()
    ids = [_micros(rows, "at"), *(rows[name].to_pylist() for name in READING_KEY)]
    places = {key: at for at, key in enumerate(zip(*ids, strict=True))}
    ours = (
        places[round(o.at_s * _MICRO), o.node, o.boot, o.seq, o.name] for o in changed
    )
    return _flags_table(rows, list(zip(ours, changed, strict=True)))


def _flags_table(
    rows: pa.Table, changed: Sequence[tuple[int, Observation]]
) -> pa.Table:
    """Positions of readings with new flags, by their numbers in `rows`."""
    ours = pa.array([number for number, _ in changed], pa.int64())
    columns = {
        "file": rows["file"].take(ours),
        "row": rows["row"].take(ours),
        "flag": [o.flag for _, o in changed],
        "flag_why": [o.why for _, o in changed],
    }
    return pa.table(columns, schema=FLAGS)


def make_memories_table(cell: str, memories: list[ScoringState]) -> pa.Table:
    """Saved states of a cell as Arrow."""
    rows = [
        {
            "cell": cell,
            "at": m.at_s * _MICRO,
            "format": STATE_FORMAT,
            "body": encode_state(m),
        }
        for m in memories
    ]
    return pa.Table.from_pylist(rows, schema=CELL_STATES)


def _micros(history: pa.Table, name: str) -> list[int]:
    micros: list[int] = history[name].cast(pa.int64()).to_pylist()
    return micros


def _row(cell: str, row: LevelRow) -> dict[str, Any]:
    tanks = row.rain.tanks
    return {
        "cell": cell,
        "at": row.end_s * _MICRO,
        "r60_mm": row.rain.r60_mm,
        "swi_mm": None if tanks is None else tanks.index_mm,
        "s1_mm": None if tanks is None else tanks.s1_mm,
        "s2_mm": None if tanks is None else tanks.s2_mm,
        "s3_mm": None if tanks is None else tanks.s3_mm,
        "lower_bound": row.rain.is_lower_bound,
        "rain_known": row.rain.is_known,
        "history_days": row.rain.history_s / DAY_S,
        "tilt_rate_deg_per_h": row.tilt_rate_deg_per_h,
        "level": row.level,
        "reasons": list(row.sentences),
        "reason_codes": list(map(reason_to_json, row.reasons)),
        "n_nodes": row.n_nodes,
        "latest_received": row.latest_received_us,
        "state": row.state,
        "known_until": None
        if row.known_until_s is None
        else row.known_until_s * _MICRO,
        **row.more,
    }
