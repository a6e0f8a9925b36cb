"""Forecasts as scoring asks for them: what comes to a cell, at a moment."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backend_spark.criteria.mesh import mesh_at
from backend_spark.forecast.table import DAY_S, Place, runs, version
from slope_science.rain_forecast import MAX_AGE_S, Coming, coming
from spatial_mqtt.cells import Cell
from spatial_mqtt.errors import FieldError

LOOK_BACK_DAYS: Final = 1
"""A feed that died is told of for so long; then there is none."""


@dataclass(frozen=True)
class CellForecast:
    """Forecasts for one cell; calling it gives what comes after a moment.

    It is asked on the executors and reads the table there, a day at a time.

    Attributes:
        tables: Folder of the tables.
        version: Of the table of forecasts.
        places: That hold the cell, in the order in which they are wanted.
        max_age_s: Greatest age of a forecast that is used.
    """

    tables: Path
    version: int
    places: tuple[Place, ...]
    max_age_s: float

    def __call__(self, at_s: float) -> Coming:
        """What the newest usable forecast known at a moment says."""
        day = int(at_s // DAY_S)
        days = range(day - LOOK_BACK_DAYS, day + 1)
        told = (runs(self.tables, self.version, d, self.places) for d in days)
        return coming((run for each in told for run in each), at_s, self.max_age_s)


@dataclass(frozen=True)
class Feed:
    """Forecasts of all cells.

    Attributes:
        tables: Folder of the tables.
        max_age_s: See `CellForecast`.
    """

    tables: Path
    max_age_s: float = MAX_AGE_S

    def newest(self) -> int | None:
        """Version of the table now; None without any forecast."""
        return version(self.tables)

    def of(self, cell: str, municipality: str | None, newest: int) -> CellForecast:
        """Forecasts of one cell, by a version of the table."""
        places = places_of(cell, municipality)
        return CellForecast(self.tables, newest, places, self.max_age_s)


def places_of(token: str, municipality: str | None) -> tuple[Place, ...]:
    """Places whose forecast is a cell's, the smallest first."""
    cell = Cell.from_token(token)
    around = [("cell", cell.parent(n).token) for n in range(cell.level, -1, -1)]
    with suppress(FieldError):  # beyond Japan's meshes
        around.insert(1, ("mesh", mesh_at(*cell.center())))
    return (*around, *([("municipality", municipality)] if municipality else []))
