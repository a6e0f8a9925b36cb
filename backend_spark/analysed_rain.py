"""JMA's analyses of rain and soil water: import of files, and table for scoring.

An analysis counts from its import (decision 28). A file is imported completely or not
at all; an invalid one is moved to the subfolder ``refused`` with its reasons.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from backend_spark.config import KeepSection
from backend_spark.errors import AnalysisFileError
from backend_spark.grib_files import (
    MAX_BYTES,
    Analysis,
    Product,
    digest,
    read_analysis,
    time_of,
)
from backend_spark.scoring.observation import STEP_S
from backend_spark.scoring.surrounding_rain import Span
from backend_spark.tables.delta_writer import (
    commit_files,
    time_literal,
    write_file,
)
from backend_spark.tables.maintenance import (
    credible_now_s,
    maintain_tables,
)
from backend_spark.tables.read_files import importing
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import ANALYSES, UTC_TIME
from backend_spark.tables.store import Folder, open_table, version_with_rows
from service_runtime.files import make_folder, write_atomic
from slope_science.official_rain import AnalysedRain, AnalysedState
from slope_science.rain_and_soil_water import STEPS_PER_HOUR

TABLE: Final = "analyses"
REFUSED: Final = "refused"
UNFINISHED_S: Final = 60.0
"""Age from which a refused file is moved; a younger one may still be being copied."""

NEWEST_LAST: Final = ("received_at", "issued_at", "batch_id")
"""Sort order of the issues for one time; a run gives its files one time of receipt."""

DAY_S: Final = 86_400
HOUR_S: Final = 3600
_MICRO: Final = 1_000_000


@dataclass(frozen=True)
class ImportedAnalysis:
    """Result of importing one file.

    Attributes:
        path: The file.
        added: Meshes that are new in the table; 0 if the file was read before, or is
            older than the rows that are kept.
        known: Those of them with a value.
    """

    path: Path
    added: int
    known: int

    def __str__(self) -> str:
        """One line for a person."""
        if not self.added:
            return f"{self.path}: nothing new"
        return f"{self.path}: {self.added} meshes loaded, {self.known} with a value"


@dataclass(frozen=True)
class AnalysisImporter:
    """Imports files; only one process at a time.

    Attributes:
        tables: Folder of the tables.
        keep: How long rows stay.
        meshes: Codes of the meshes of interest, ascending.
        now_s: Unix time: what is loaded is known from now on.
        as_issued: Whether an analysis counts as known since its time; for past ones.
        locks: Folder of the lock and of the cache; None: that of the tables.
    """

    tables: Folder
    keep: KeepSection
    meshes: np.ndarray
    now_s: float
    as_issued: bool = False
    locks: Path | None = None

    def import_folders(
        self, folders: Mapping[Product, Path]
    ) -> Iterator[ImportedAnalysis | AnalysisFileError]:
        """Import the files of each product's folder, the oldest name first.

        An invalid file does not stop the others.

        Raises:
            AlreadyRunningError: Another process loads.
        """
        run = importing(self.tables, TABLE, self.keep, self.now_s, self.locks)
        with run as known:
            for product, folder in folders.items():
                try:
                    paths = _files(folder)
                except AnalysisFileError as error:
                    yield error
                    continue
                for path in paths:
                    nothing = ImportedAnalysis(path, 0, 0)
                    load = partial(self._load, product)
                    yield known.load_new(path, load, nothing, AnalysisFileError)

    def _load(self, product: Product, path: Path) -> ImportedAnalysis:
        data = _read(path)
        at_s = time_of(data, product)
        if at_s is not None and (
            at_s < self._oldest_s or _is_there(self.tables, digest(data), at_s)
        ):
            return ImportedAnalysis(path, 0, 0)
        try:
            analysis = read_analysis(path, data, product, self.now_s, self.meshes)
        except AnalysisFileError as error:
            _put_aside(path, error, self.now_s)
            raise
        values = analysis.at_meshes(self.meshes)
        self._add(analysis, values, path.name)
        return ImportedAnalysis(path, len(values), int(np.isfinite(values).sum()))

    @cached_property
    def _oldest_s(self) -> float:
        """Unix time before which no analysis is loaded: its rows may be deleted."""
        days = self.keep.days_of(TABLE)
        if not days:
            return -math.inf
        return credible_now_s(self.tables, self.now_s) - days * DAY_S

    def _add(self, analysis: Analysis, values: np.ndarray, file: str) -> None:
        path = self.tables / TABLE
        table = open_table(path)
        count, batch_id = len(values), table.version() + 1
        known_s = analysis.at_s if self.as_issued else self.now_s
        columns = {
            "product": analysis.product.value,
            "at": _us(analysis.at_s),
            "issued_at": _us(analysis.reference_s),
            "received_at": _us(known_s),
            "file": file,
            "issue": analysis.issue,
            "batch_id": batch_id,
        }
        arrays = {
            name: pa.repeat(pa.scalar(value, ANALYSES.field(name).type), count)
            for name, value in columns.items()
        }
        arrays["mesh"] = pa.array(self.meshes.astype(np.int32))
        arrays["mm"] = pa.array(values, mask=np.isnan(values))
        rows = pa.table({name: arrays[name] for name in ANALYSES.names})
        part = write_file(path, rows.cast(ANALYSES), ANALYSES)
        commit_files(path, [part])
        maintain_tables([path], batch_id)


def _files(folder: Path) -> list[Path]:
    """GRIB2 files of a folder by name, which begins with the time."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        problem = f"must be a folder: {error.strerror}; make it, or change the settings"
        raise AnalysisFileError(str(folder), [problem]) from error
    return [
        path
        for path in paths
        if not path.name.startswith(".")
        and path.suffix not in {".tmp", ".part"}
        and path.is_file()
    ]


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            problem = f"must have at most {MAX_BYTES} bytes; remove it"
            raise AnalysisFileError(str(path), [problem])
        return path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror}; check its rights"
        raise AnalysisFileError(str(path), [problem]) from error


def _put_aside(path: Path, error: AnalysisFileError, now_s: float) -> None:
    """Move a refused file to the subfolder, unless it may still be being copied.

    Raises:
        AnalysisFileError: It cannot be moved; with the problems of the file.
    """
    folder = path.parent / REFUSED
    try:
        if now_s - path.stat().st_mtime < UNFINISHED_S:
            return
        make_folder(folder)
        path.replace(folder / path.name)
        write_atomic(folder / f"{path.name}.why.txt", f"{error}\n".encode())
    except OSError as failure:
        problem = f"cannot be moved to {folder}: {failure.strerror}; check its rights"
        raise AnalysisFileError(error.source, [*error.problems, problem]) from failure


def _is_there(tables: Folder, issue: str, at_s: float) -> bool:
    """Whether a file was imported before; reads only rows of about its time."""
    condition = f"at = {time_literal(_us(at_s))}"
    there = DeltaTables(tables).distinct(TABLE, ["issue"], [condition])
    return issue in there["issue"].to_pylist()


def _us(unix_s: float) -> int:
    return round(unix_s * _MICRO)


@dataclass(frozen=True)
class MeshSeries:
    """Analyses of one product and mesh, in the order of their time, then `NEWEST_LAST`.

    Attributes:
        at_s: Unix times for which they apply.
        known_s: Unix times of receipt.
        mm: Values; nan is missing.
    """

    at_s: np.ndarray
    known_s: np.ndarray
    mm: np.ndarray

    def newest(self, from_s: float, to_s: float, known_s: float) -> dict[int, float]:
        """For each time in a closed interval, the value that became known last."""
        first, last = np.searchsorted(self.at_s, (from_s, to_s), "left")
        while last < len(self.at_s) and self.at_s[last] <= to_s:
            last += 1
        rows = range(int(first), int(last))
        return {
            int(self.at_s[n]): float(self.mm[n])
            for n in rows
            if self.known_s[n] <= known_s
        }


@lru_cache(maxsize=8)
def _day(
    tables: Folder, version: int, day: int
) -> Mapping[tuple[str, int], MeshSeries]:
    """Analyses that became known on a day since 1970, in UTC."""
    known = ds.field("received_at")
    first, beyond = (pa.scalar(n * DAY_S * _MICRO, UTC_TIME) for n in (day, day + 1))
    order = ["product", "mesh", "at", *NEWEST_LAST]
    dataset = DeltaTables(tables).dataset(TABLE, version)
    is_wanted = (known >= first) & (known < beyond)
    rows = dataset.to_table([*order, "mm"], filter=is_wanted)
    rows = rows.sort_by([(name, "ascending") for name in order])
    return {
        (product.value, mesh): series
        for product in Product
        for mesh, series in _by_mesh(
            rows.filter(pc.equal(rows["product"], product.value))
        )
    }


def _by_mesh(rows: pa.Table) -> Iterator[tuple[int, MeshSeries]]:
    """Series of each mesh, from rows that are sorted by mesh."""
    meshes = rows["mesh"].to_numpy()
    at_s, known_s = (
        rows[name].cast(pa.int64()).to_numpy() / _MICRO
        for name in ("at", "received_at")
    )
    mm = pc.fill_null(rows["mm"], float("nan")).to_numpy()
    codes, starts = np.unique(meshes, return_index=True)
    ends = np.append(starts, len(meshes))[1:]
    for mesh, begin, end in zip(codes.tolist(), starts, ends, strict=True):
        part = slice(begin, end)
        yield mesh, MeshSeries(at_s[part], known_s[part], mm[part])


@dataclass(frozen=True)
class TableAnalyses:
    """Analyses of one cell; runs on the executors and reads the table by day.

    Attributes:
        tables: Folder of the tables.
        version: Version of the table.
        meshes: Codes of the cell's meshes.
        max_age_s: Age from which an analysis is not used.
    """

    tables: Folder
    version: int
    meshes: tuple[int, ...]
    max_age_s: float

    def state(self, at_s: float, max_age_s: float | None = None) -> AnalysedState:
        """See `scoring.surrounding_rain.CellAnalyses`."""
        from_s = at_s - (self.max_age_s if max_age_s is None else max_age_s)
        index, rain = (
            self._spans(product, from_s, at_s, at_s)
            for product in (Product.SOIL_WATER, Product.RAIN)
        )
        index_at_s, rain_at_s = max(index, default=None), max(rain, default=None)
        return AnalysedState(
            None if index_at_s is None else index[index_at_s][1],
            index_at_s,
            None if rain_at_s is None else rain[rain_at_s][1],
            rain_at_s,
        )

    def hours(self, from_s: float, to_s: float, known_s: float) -> Mapping[int, Span]:
        """See `scoring.surrounding_rain.CellAnalyses`."""
        return self._spans(Product.RAIN, from_s, to_s, known_s)

    def step_rain(self, end_s: int, known_s: float = math.inf) -> AnalysedRain | None:
        """See `scoring.surrounding_rain.CellAnalyses`.

        Of the hours that contain the step the one of the clock hour is used, so that
        its six steps add up to it, else the first; without one the newest before, up
        to `max_age_s`.
        """
        last_s = end_s + HOUR_S - STEP_S
        spans = self._spans(Product.RAIN, end_s - self.max_age_s, last_s, known_s)
        clock_s = -(-end_s // HOUR_S) * HOUR_S
        after = [at_s for at_s in spans if at_s >= end_s]
        if clock_s in spans:
            at_s = clock_s
        elif spans:
            at_s = min(after) if after else max(spans)
        else:
            return None
        return AnalysedRain(spans[at_s][1] / STEPS_PER_HOUR, at_s, max(0, end_s - at_s))

    def _spans(
        self, product: Product, from_s: float, to_s: float, known_s: float
    ) -> dict[int, Span]:
        """Lowest and highest value of the meshes by time, without missing values."""
        until_s = min(known_s, to_s + DAY_S)
        by_time: dict[int, list[float]] = {}
        for mesh in self.meshes:
            newest: dict[int, float] = {}
            for day in range(int(from_s // DAY_S), int(until_s // DAY_S) + 1):
                series = _day(self.tables, self.version, day).get((product, mesh))
                if series is not None:
                    newest |= series.newest(from_s, to_s, known_s)
            for at_s, mm in newest.items():
                if not np.isnan(mm):
                    by_time.setdefault(at_s, []).append(mm)
        return {at_s: (min(mm), max(mm)) for at_s, mm in sorted(by_time.items())}


@dataclass(frozen=True)
class AnalysisReader:
    """Analyses of all cells.

    Attributes:
        tables: Folder of the tables.
        max_age_s: See `TableAnalyses`.
    """

    tables: Folder
    max_age_s: float = float(HOUR_S)

    def newest_version(self) -> int | None:
        """Version of the table now; None without any analysis."""
        return version_with_rows(self.tables / TABLE)

    def of_cell(self, meshes: Iterable[str], version: int) -> TableAnalyses:
        """Analyses of one cell, by its meshes and a version of the table."""
        codes = tuple(int(mesh) for mesh in meshes)
        return TableAnalyses(self.tables, version, codes, self.max_age_s)
