"""Files of forecasts into the table, each whole or not at all."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backend_spark.errors import ForecastFileError
from backend_spark.forecast.files import SUFFIXES, read_forecast
from backend_spark.forecast.table import NAME, add
from backend_spark.ingest.lock import hold
from backend_spark.keeping import KeepSettings
from backend_spark.sinks.commits import make_tables
from backend_spark.sinks.trim import trim

LOCK: Final = f".lock-{NAME}"


@dataclass(frozen=True)
class Loaded:
    """What became of one file.

    Attributes:
        path: The file.
        added: Rows that are new in the table.
        known: Rows of issues that were there.
    """

    path: Path
    added: int
    known: int

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.path}: {self.added} rows loaded, {self.known} were there"


@dataclass(frozen=True)
class Loader:
    """Loads files; one process at a time does it.

    Attributes:
        tables: Folder of the tables.
        keep: How long rows stay.
        now_s: Unix time: what is loaded is known from now on.
        as_issued: Whether each forecast counts as known since its issue; for
            forecasts of the past.
    """

    tables: Path
    keep: KeepSettings
    now_s: float
    as_issued: bool = False

    def load(self, paths: Iterable[Path]) -> Iterator[Loaded | ForecastFileError]:
        """Load files, and those of folders; a bad one keeps no other out.

        Raises:
            AlreadyRunningError: Another process loads.
        """
        lock = hold(self.tables / LOCK)
        try:
            make_tables(self.tables, [NAME])
            for path in files(paths):
                try:
                    yield self._load(path)
                except ForecastFileError as error:
                    yield error
            trim(self.tables, [NAME], self.keep, self.now_s)
        finally:
            os.close(lock)

    def _load(self, path: Path) -> Loaded:
        rows = read_forecast(path, self.now_s)
        known_s = None if self.as_issued else self.now_s
        added = add(self.tables, rows, path.name, known_s)
        return Loaded(path, added, len(rows) - added)


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as they are, and of each folder its CSV and JSON by name."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for file in sorted(path.iterdir()):
            is_ours = file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
            if is_ours and file.is_file():
                yield file
