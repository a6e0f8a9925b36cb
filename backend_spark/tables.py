"""The tables as analysts read them: pyarrow, without Spark.

tables = open_tables("/var/lib/yamamori/backend")
tables.levels().to_pandas()
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder

from backend_spark.config import TABLES_FOLDER
from backend_spark.fragments import dataset_of
from backend_spark.schemas import NODES, TABLES


@dataclass(frozen=True)
class Tables:
    """The Delta tables of one data folder; each call reads the newest version.

    Attributes:
        folder: Where the tables are.
    """

    folder: Path

    def path(self, name: str) -> Path:
        """Folder of a table."""
        return self.folder / name

    def dataset(self, name: str, version: int | None = None) -> ds.Dataset:
        """A table as a pyarrow dataset; a table not made yet is an empty one.

        Args:
            name: Of the table.
            version: The table as it was; None is the newest.
        """
        path = str(self.path(name).absolute())
        if not DeltaTable.is_deltatable(path):
            return ds.dataset(TABLES[name].empty_table())
        return dataset_of(DeltaTable(path, version), path)

    def read(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Rows of a table, whole or some columns of it."""
        wanted = TABLES[name].names if columns is None else columns
        return self.dataset(name).to_table(columns=wanted)

    def of(
        self,
        name: str,
        column: str,
        text: str,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> pa.Table:
        """Rows of one cell or node, by time.

        The dataset's own filter cannot compare texts: delta-rs writes views of
        strings when it merges, and Arrow has no equality for those.

        Args:
            name: Of the table.
            column: Such as cell or node.
            text: What it must be.
            since: The first moment, with its zone; None is the first there is.
            until: The last one; None is the last there is.
        """
        wanted = [f"{column} = {_literal(text)}"]
        wanted += [] if since is None else [f"at >= {_literal(since)}"]
        wanted += [] if until is None else [f"at <= {_literal(until)}"]
        return self._ask(name, f"t WHERE {' AND '.join(wanted)} ORDER BY at")

    def cell(
        self, token: str, since: datetime | None = None, until: datetime | None = None
    ) -> pa.Table:
        """Levels of one cell, by time; see `of`."""
        return self.of("levels", "cell", token, since, until)

    def sensor(
        self,
        node: str,
        name: str,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> pa.Table:
        """Readings of one sensor of a node, by time; see `of`."""
        rows = self.of("silver", "node", node, since, until)
        return rows.filter(pc.equal(rows["name"], name))

    def newest(self) -> pa.Table:
        """The newest level of each cell, by cell."""
        nth = "row_number() OVER (PARTITION BY cell ORDER BY at DESC) AS nth"
        rows = f"(SELECT *, {nth} FROM t) WHERE nth = 1 ORDER BY cell"  # noqa: S608 - no input
        return self._ask("levels", rows)

    def _ask(self, name: str, rows: str) -> pa.Table:
        """Rows of a table by SQL from FROM on, in which it is called t."""
        path = str(self.path(name).absolute())
        if not DeltaTable.is_deltatable(path):
            return TABLES[name].empty_table()
        table = DeltaTable(path)
        there = {field.name for field in table.schema().fields}
        schema = pa.schema([field for field in TABLES[name] if field.name in there])
        columns = ", ".join(f'"{column}"' for column in schema.names)
        query = f"SELECT {columns} FROM {rows}"  # noqa: S608 - the texts are literals
        found = QueryBuilder().register("t", table).execute(query)
        return pa.table(found.read_all()).cast(schema)

    def last_messages(self) -> pa.Table:
        """For each node of `messages` its cell, and when it last spoke."""
        path = str(self.path("messages").absolute())
        if not DeltaTable.is_deltatable(path):
            return NODES.empty_table()
        query = (
            "SELECT node, max(cell) AS cell, max(at) AS at, "
            "max(received_at) AS received_at FROM t WHERE at IS NOT NULL GROUP BY node"
        )
        found = QueryBuilder().register("t", DeltaTable(path)).execute(query)
        return pa.table(found.read_all())

    def bronze(self, columns: list[str] | None = None) -> pa.Table:
        """Messages as received."""
        return self.read("bronze", columns)

    def silver(self, columns: list[str] | None = None) -> pa.Table:
        """One row a reading."""
        return self.read("silver", columns)

    def rejected(self, columns: list[str] | None = None) -> pa.Table:
        """Packs that do not decode, and why."""
        return self.read("rejected", columns)

    def levels(self, columns: list[str] | None = None) -> pa.Table:
        """One row per cell and 10-minute step."""
        return self.read("levels", columns)

    def sensors(self, columns: list[str] | None = None) -> pa.Table:
        """One row per moving sensor and 10-minute step."""
        return self.read("sensors", columns)

    def revisions(self, columns: list[str] | None = None) -> pa.Table:
        """Rows of levels as they stood before late data revised them."""
        return self.read("revisions", columns)

    def alerts(self, columns: list[str] | None = None) -> pa.Table:
        """One row per message of priority 4 or 5, within a second of its coming."""
        return self.read("alerts", columns)

    def forecasts(self, columns: list[str] | None = None) -> pa.Table:
        """One row per interval of an official forecast of rain."""
        return self.read("forecasts", columns)

    def messages(self, columns: list[str] | None = None) -> pa.Table:
        """One row per message id."""
        return self.read("messages", columns)

    def nodes(self, columns: list[str] | None = None) -> pa.Table:
        """One row per node: when it last spoke, and what it told of itself."""
        return self.read("nodes", columns)


def open_tables(data: str | Path) -> Tables:
    """The tables of a data folder (``backend.data`` of the settings)."""
    return Tables(Path(data) / TABLES_FOLDER)


def _literal(value: str | datetime) -> str:
    """A value in SQL; a quotation mark in it stays one."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat()}'"
    return "'" + value.replace("'", "''") + "'"
