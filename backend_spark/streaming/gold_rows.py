"""New rows of gold: compared with the stored ones on the executors, and written.

A share compares some of its cells at a time, each with the stored rows of these cells
only. A file is written when the new rows fill two row groups, and at the end.
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

ShareResult = dict[str, object]
"""Row of `scoring_tasks.SHARE_RESULT`."""


class GoldRows:
    """Rows of gold of a share of cells.

    Args:
        tables: Folder of the tables.
        versions: Versions of the tables to compare with.
        news: For each cell the messages of its nodes, as causes of revisions.
    """

    def __init__(
        self,
        tables: Folder,
        versions: Mapping[str, int],
        news: Mapping[str, Sequence[NewReadings]],
    ) -> None:
        self._tables = tables
        self._versions = versions
        self._news = news
        self._fresh: dict[str, list[pa.Table]] = {name: [] for name in ROW_KEYS}

    def compare(self, scored: Mapping[str, pa.Table]) -> Iterator[ShareResult]:
        """Compare rows of some cells with the stored ones.

        Args:
            scored: Rows by table.

        Yields:
            Rows that replace others, and these; a file if there are many new rows.
        """
        for table in ROW_KEYS:
            if scored[table].num_rows:
                yield from self._compare(table, scored[table])

    def _compare(self, table: str, rows: pa.Table) -> Iterator[ShareResult]:
        since_us = pc.min(rows["at"].cast(pa.int64())).as_py()
        cells = sorted(pc.unique(rows["cell"]).to_pylist())
        path, version = self._tables / table, self._versions[table]
        reader = CellRowReader(path, TABLES[table], cells, since_us, version)
        old = reader.read(reader.list_files()).select(TABLES[table].names)
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
        """Write the files of the other new rows."""
        for table in ROW_KEYS:
            yield from self._write(table)

    def _write(self, table: str) -> Iterator[ShareResult]:
        rows = pa.concat_tables([TABLES[table].empty_table(), *self._fresh[table]])
        self._fresh[table] = []
        if rows.num_rows:
            part = write_file(self._tables / table, rows, TABLES[table])
            data = json.dumps(asdict(part)).encode()
            yield {"kind": f"file {table}", "data": data}
