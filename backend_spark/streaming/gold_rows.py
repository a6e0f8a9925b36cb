"""New rows of gold: compared with the stored ones on the executors, and written.

A share compares the rows of some of its cells at a time with the stored ones of these
cells only. Few rows wait for the next ones of about the same time, because a comparison
reads whole row groups, however few of their rows it needs. A file is written when the
new rows fill two row groups, and at the end.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.scoring.arrow import table_to_ipc
from backend_spark.scoring.revisions import NewReadings, revise_rows
from backend_spark.tables.delta_writer import ROW_GROUP_ROWS, write_file
from backend_spark.tables.reader import CellRowReader
from backend_spark.tables.schemas import LEVEL_KEY, SENSOR_KEY, TABLES
from backend_spark.tables.store import Folder

REVISION_TABLES: Final = {"levels": "revisions", "sensors": "sensor_revisions"}
"""Tables of the rows that a revision replaces."""

ROW_KEYS: Final = {"levels": LEVEL_KEY, "sensors": SENSOR_KEY}
"""Keys of the rows of gold."""

FILE_ROWS: Final = 2 * ROW_GROUP_ROWS
"""New rows in memory above which they are written to a file."""

JOINED_ROWS: Final = 2_048
"""Most new rows of a table that are compared together with the ones before."""

JOINED_US: Final = 6 * 3600 * 1_000_000
"""Longest time between the earliest of both: all stored rows since then are read."""

ShareResult = dict[str, object]
"""Row of `scoring_tasks.SHARE_RESULT`."""


class GoldRows:
    """Rows of gold of a share of cells.

    Args:
        tables: Folder of the tables.
        versions: Versions of the tables to compare with.
        news: For each cell the messages of its nodes, as causes of revisions.
        name: Name of the pass.
    """

    def __init__(
        self,
        tables: Folder,
        versions: Mapping[str, int],
        news: Mapping[str, Sequence[NewReadings]],
        name: str,
    ) -> None:
        self._tables = tables
        self._versions = versions
        self._news = news
        self._name = name
        self._fresh: dict[str, list[pa.Table]] = {name: [] for name in ROW_KEYS}
        self._waiting: dict[str, pa.Table] = {}

    def compare(self, scored: Mapping[str, pa.Table]) -> Iterator[ShareResult]:
        """Compare rows of some cells with the stored ones, or keep them for the next.

        Args:
            scored: Rows by table.

        Yields:
            Rows that replace others, and these; a file if there are many new rows.
        """
        for table in ROW_KEYS:
            rows, waiting = scored[table], self._waiting.get(table)
            if not rows.num_rows:
                continue
            if waiting is not None and _can_join(waiting, rows):
                rows = pa.concat_tables([waiting, rows])
            elif waiting is not None:
                yield from self._compare(table, waiting)
            self._waiting[table] = rows

    def _compare(self, table: str, rows: pa.Table) -> Iterator[ShareResult]:
        since_us = _earliest_us(rows)
        cells = sorted(pc.unique(rows["cell"]).to_pylist())
        path, version = self._tables / table, self._versions[table]
        reader = CellRowReader(path, TABLES[table], cells, since_us, version)
        old = reader.read(reader.list_files(self._name)).select(TABLES[table].names)
        past = TABLES[REVISION_TABLES[table]]
        revision = revise_rows(rows, old, ROW_KEYS[table], self._news, past)
        for kind in ("changed", "superseded"):
            each = getattr(revision, kind)
            if each.num_rows:
                yield {"kind": f"{kind} {table}", "data": table_to_ipc(each)}
        fresh = self._fresh[table]
        fresh.append(revision.fresh)
        if sum(part.num_rows for part in fresh) >= FILE_ROWS:
            yield from self._write(table)

    def write(self) -> Iterator[ShareResult]:
        """Compare the rows that wait, and write the files of the other new rows."""
        for table in ROW_KEYS:
            waiting = self._waiting.pop(table, None)
            if waiting is not None:
                yield from self._compare(table, waiting)
            yield from self._write(table)

    def _write(self, table: str) -> Iterator[ShareResult]:
        rows = pa.concat_tables([TABLES[table].empty_table(), *self._fresh[table]])
        self._fresh[table] = []
        if rows.num_rows:
            part = write_file(self._tables / table, rows, TABLES[table])
            data = json.dumps(asdict(part)).encode()
            yield {"kind": f"file {table}", "data": data}


def _can_join(rows: pa.Table, more: pa.Table) -> bool:
    """Whether new rows of different cells are compared together."""
    is_near = abs(_earliest_us(rows) - _earliest_us(more)) <= JOINED_US
    return is_near and rows.num_rows + more.num_rows <= JOINED_ROWS


def _earliest_us(rows: pa.Table) -> int:
    return int(pc.min(rows["at"].cast(pa.int64())).as_py())
