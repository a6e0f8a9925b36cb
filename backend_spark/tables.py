"""The tables as analysts read them: pyarrow, without Spark.

tables = open_tables("/var/lib/yamamori/backend")
tables.levels().to_pandas()
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow import fs

from backend_spark.config import TABLES_FOLDER
from backend_spark.schemas import TABLES


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

    def dataset(self, name: str) -> ds.Dataset:
        """A table as a pyarrow dataset; a table not made yet is an empty one."""
        path = str(self.path(name).absolute())
        if not DeltaTable.is_deltatable(path):
            return ds.dataset(TABLES[name].empty_table())
        # The default file system runs in Python, under threads of Arrow that outlive
        # the interpreter: one reader in four ended with "Aborted" after its work.
        here = fs.SubTreeFileSystem(path, fs.LocalFileSystem())
        return DeltaTable(path).to_pyarrow_dataset(filesystem=here)

    def read(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Rows of a table, whole or some columns of it."""
        wanted = TABLES[name].names if columns is None else columns
        return self.dataset(name).to_table(columns=wanted)

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

    def messages(self, columns: list[str] | None = None) -> pa.Table:
        """One row per message id."""
        return self.read("messages", columns)


def open_tables(data: str | Path) -> Tables:
    """The tables of a data folder (``backend.data`` of the settings)."""
    return Tables(Path(data) / TABLES_FOLDER)
