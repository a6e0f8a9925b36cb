"""Memories of cells in their table: the last that holds, and new ones in its wake."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from backend_spark.schemas import MEMORIES
from backend_spark.sinks.commits import append_rows, sync_version
from backend_spark.sources.history import CellRows
from backend_spark.transforms.memory import FORMAT, holds_for, is_kept

KEY = ("cell", "at")
_MICRO = 1_000_000


@dataclass(frozen=True)
class Remembered:
    """Memories of some cells, as new readings find them.

    Attributes:
        path: Folder of the table.
        last: Of each cell the last that the readings leave as it is: its moment in
            Unix seconds, and what `transforms.memory.encode` wrote.
        others: (cell, moment in Unix microseconds) of all.
    """

    path: Path
    last: Mapping[str, tuple[int, bytes]]
    others: Sequence[tuple[str, int]]

    def replace(self, new: pa.Table) -> None:
        """Add memories, and delete those of their cells that hold no longer.

        Args:
            new: schemas.MEMORIES.
        """
        latest = {c: at for c, (at, _) in self.last.items()}
        newest = latest | dict(zip(new["cell"].to_pylist(), _seconds(new), strict=True))
        gone = [
            {"cell": cell, "at": at_us}
            for cell, at_us in self.others
            if at_us > latest.get(cell, 0) * _MICRO
            or (new.num_rows and not is_kept(at_us / _MICRO, newest.get(cell, 0)))
        ]
        self._delete(gone)
        append_rows(self.path, new)

    def _delete(self, keys: Sequence[dict[str, object]]) -> None:
        if not keys:
            return
        schema = pa.schema([MEMORIES.field(name) for name in KEY])
        DeltaTable(str(self.path)).merge(
            pa.Table.from_pylist(list(keys), schema=schema),
            predicate=" AND ".join(f"target.{key} = source.{key}" for key in KEY),
            source_alias="source",
            target_alias="target",
            streamed_exec=False,
        ).when_matched_delete().execute()
        sync_version(self.path, DeltaTable(str(self.path)).version())


def remembered(path: Path, earliest_us: Mapping[str, int]) -> Remembered:
    """Memories of the cells that new readings came for.

    Args:
        path: Folder of the table.
        earliest_us: For each cell the Unix time, in microseconds, of its earliest
            new reading.
    """
    rows = CellRows(str(path), MEMORIES, sorted(earliest_us), 0)
    last: dict[str, tuple[int, bytes]] = {}
    others = []
    for row in rows.read(rows.files()).sort_by("at").to_pylist():
        cell, at_us = row["cell"], round(row["at"].timestamp() * _MICRO)
        others.append((cell, at_us))
        holds = at_us / _MICRO <= holds_for(earliest_us[cell] / _MICRO)
        if holds and row["format"] == FORMAT:
            last[cell] = (at_us // _MICRO, row["body"])
    return Remembered(path, last, others)


def _seconds(rows: pa.Table) -> list[int]:
    return [us // _MICRO for us in rows["at"].cast(pa.int64()).to_pylist()]
