"""New rows of a Delta table, file by file as its log names them.

A merge writes files anew, so a row may come again: who takes rows from here puts
them in place by their key.
"""

import logging
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

log = logging.getLogger(__name__)

_MICRO: Final = 1_000_000


class Feed:
    """Rows of one table that were not given before.

    Args:
        path: Folder of the table; it need not be there yet.
        columns: Those wanted; one that a file lacks is empty.
        time: The column that says how old a row is.
    """

    def __init__(self, path: Path, columns: pa.Schema, time: str = "at") -> None:
        self._time = time
        self._path = path
        self._columns = columns
        self._table: DeltaTable | None = None
        self._version: int | None = None
        self._seen: frozenset[str] = frozenset()

    def take(self, since_s: float) -> pa.Table | None:
        """Rows from a moment on, of files not read yet; None: no news."""
        table = self._newest()
        if table is None or table.version() == self._version:
            return None
        version, files = table.version(), self._files(table, since_s)
        try:
            parts = [self._read(name, since_s) for name in files if not self._has(name)]
        except FileNotFoundError as error:
            # Swept away between the log and the read: the next version says what for.
            log.info("%s went while it was read; trying again", error.filename)
            return None
        self._version, self._seen = version, frozenset(files)
        return pa.concat_tables(parts) if parts else None

    def newest_s(self) -> float:
        """Unix time of the newest row, by the log's statistics; 0 without any."""
        table = self._newest()
        if table is None:
            return 0.0
        return max((last or 0.0 for _, last in self._lasts(table)), default=0.0)

    def _files(self, table: DeltaTable, since_s: float) -> list[str]:
        """Files of the newest version that can hold rows from a moment on."""
        lasts = self._lasts(table)
        return [name for name, last in lasts if last is None or last >= since_s]

    def _lasts(self, table: DeltaTable) -> list[tuple[str, float | None]]:
        actions = pa.table(table.get_add_actions(flatten=True))
        names = actions["path"].to_pylist()
        column = f"max.{self._time}"
        if column not in actions.column_names:
            return [(name, None) for name in names]
        ends = actions[column].to_pylist()
        lasts = [None if end is None else end.timestamp() for end in ends]
        return list(zip(names, lasts, strict=True))

    def _has(self, name: str) -> bool:
        return name in self._seen

    def _newest(self) -> DeltaTable | None:
        path = str(self._path.absolute())
        if self._table is not None:
            self._table.update_incremental()
        elif DeltaTable.is_deltatable(path):
            self._table = DeltaTable(path)
        return self._table

    def _read(self, name: str, since_s: float) -> pa.Table:
        """Rows of one file; the schema casts the views that a merge writes."""
        since = pa.scalar(round(since_s * _MICRO), pa.timestamp("us", tz="UTC"))
        path = str(self._path / name)
        file = ds.dataset(path, schema=self._columns, format="parquet")
        return file.to_table(filter=pc.field(self._time) >= since)
