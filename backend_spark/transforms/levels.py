"""Scoring as Spark runs it: silver rows of a cell in, rows of levels out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from backend_spark.schemas import FLAGS, LEVELS, SENSORS
from backend_spark.transforms.observation import Observation
from backend_spark.transforms.score import DAY_S, LevelRow, Rules, assess

OBSERVED = ("node", "name", "unit", "value", "value_text", "sum")
JUDGED = ("boot", "seq", "synchronised", "node_flag", "flag", "flag_why")
HISTORY_COLUMNS = ("cell", "at", *OBSERVED, "received_at", *JUDGED)
CELL_SCORES = pa.schema([pa.field("table", pa.string()), pa.field("rows", pa.binary())])
"""Rows of several tables from one pass over a cell: each an Arrow stream."""

_MICRO = 1_000_000


@dataclass(frozen=True)
class Scorer:
    """Scores cells on the executors.

    Attributes:
        rules: How each of them is judged.
        horizon_s: Readings so much older than the cell's newest do not count.
        touched_us: For each cell the Unix time, in microseconds, of its earliest
            new reading.
    """

    rules: Mapping[str, Rules]
    horizon_s: int
    touched_us: Mapping[str, int]

    def score(self, history: pa.Table) -> pa.Table:
        """Score one cell; for `applyInArrow` by cell.

        Shape:
            in: HISTORY_COLUMNS of one cell.
            out: CELL_SCORES: rows of schemas.LEVELS, SENSORS and FLAGS that new
                readings can have changed.
        """
        cell = history["cell"][0].as_py()
        known = within_horizon(observations(history), self.horizon_s)
        found = assess(known, self.rules[cell], self._touched_s(cell))
        tables = {
            "levels": levels_table(cell, found.rows),
            "sensors": sensors_table(cell, found.sensors),
            "flags": flags_table(cell, found.reflagged),
        }
        return pa.Table.from_pylist(
            [{"table": n, "rows": to_bytes(rows)} for n, rows in tables.items()],
            schema=CELL_SCORES,
        )

    def _touched_s(self, cell: str) -> float | None:
        touched_us = self.touched_us.get(cell)
        return None if touched_us is None else touched_us / _MICRO


def to_bytes(rows: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def rows_of(scored: pa.Table, table: str, schema: pa.Schema) -> pa.Table:
    """Rows of one table out of what all cells' scores gave."""
    streams = [row["rows"] for row in scored.to_pylist() if row["table"] == table]
    parts = [pa.ipc.open_stream(stream).read_all() for stream in streams]
    return pa.concat_tables([schema.empty_table(), *parts])


def observations(history: pa.Table) -> list[Observation]:
    """Silver rows as the score takes them."""
    columns = [
        [at_us / _MICRO for at_us in _micros(history, "at")],
        *(history[name].to_pylist() for name in OBSERVED),
        _micros(history, "received_at"),
        *(history[name].to_pylist() for name in JUDGED),
    ]
    return [Observation(*row) for row in zip(*columns, strict=True)]


def within_horizon(known: list[Observation], horizon_s: int) -> list[Observation]:
    """Observations that are not older than the newest by more than the horizon."""
    newest_s = max((o.at_s for o in known), default=0.0)
    return [o for o in known if o.at_s >= newest_s - horizon_s]


def levels_table(cell: str, rows: list[LevelRow]) -> pa.Table:
    """Scored rows as Arrow."""
    return pa.Table.from_pylist([_row(cell, row) for row in rows], schema=LEVELS)


def sensors_table(cell: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of sensors as Arrow."""
    return pa.Table.from_pylist([{"cell": cell} | row for row in rows], schema=SENSORS)


def flags_table(cell: str, changed: list[Observation]) -> pa.Table:
    """Readings with new flags as Arrow."""
    rows = [
        {
            "cell": cell,
            "at": round(o.at_s * _MICRO),
            "node": o.node,
            "boot": o.boot,
            "seq": o.seq,
            "name": o.name,
            "flag": o.flag,
            "flag_why": o.why,
        }
        for o in changed
    ]
    return pa.Table.from_pylist(rows, schema=FLAGS)


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
        "reasons": list(row.reasons),
        "n_nodes": row.n_nodes,
        "latest_received": row.latest_received_us,
        **row.more,
    }
