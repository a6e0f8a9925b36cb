"""OGC API Features: the cells and the history of their levels, by area and time.

Source: OGC API Features part 1: core (17-069r4), sections 7.14 to 7.16.
"""

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import shapely

from backend_spark.console.level_grid import utc_time
from backend_spark.console.live_state import LiveState
from backend_spark.console.places import Gazetteer, StoredPlaces
from backend_spark.errors import ExportError, StandardsRequestError
from backend_spark.exports.cell_states import (
    COLUMNS,
    VALIDITY,
    CellState,
    cell_feature,
    cell_ring,
    read_cell_states,
    state_of_row,
)
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.bounded_answers import (
    AnswerLimits,
    RowQuery,
    TimeWalk,
    fits_sql,
)
from backend_spark.tables.reader import DeltaTables, sql_literal

CELLS: Final = "cells"
LEVELS: Final = "levels"

MAX_LIMIT: Final = 10_000
DEFAULT_LIMIT: Final = 100
_STEP: Final = timedelta(seconds=STEP_S)
_CORNERS: Final = (4, 6)

Feature = dict[str, Any]


@dataclass(frozen=True)
class FeatureSelection:
    """Which features are wanted.

    Attributes:
        area: Box that they intersect; None for any.
        begin: Time from which they are valid; None for any.
        end: Time until which they are valid; None for any.
        limit: Most features of a page.
        start: Where the page begins, as in the link to it; empty for the first.
    """

    area: shapely.Geometry | None = None
    begin: datetime | None = None
    end: datetime | None = None
    limit: int = DEFAULT_LIMIT
    start: str = ""


@dataclass(frozen=True)
class FeaturePage:
    """One page of features.

    Attributes:
        features: The features.
        next: Where the next page begins; None if there is none.
        matched: Number of all features; None if it is not counted.
    """

    features: list[Feature]
    next: str | None
    matched: int | None = None


@dataclass
class CellFeatures:
    """Selects features; for several threads.

    Attributes:
        live_state: Live state, with the folder of the tables.
        limits: Of the work for answers.
        places: Names of the cells.
    """

    live_state: LiveState
    limits: AnswerLimits
    places: StoredPlaces
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cached: tuple[object, list[CellState]] = (None, [])

    def select(self, collection: str, wanted: FeatureSelection) -> FeaturePage:
        """One page of a collection.

        Raises:
            StandardsRequestError: There is no such collection, or no time for it.
        """
        with self.limits.turn() as budget:
            if collection == CELLS:
                return self._cells(wanted)
            if collection == LEVELS:
                return self._levels(wanted, budget.is_over)
        raise missing_error("collection", collection)

    def find(self, collection: str, key: str) -> Feature:
        """One feature.

        Raises:
            StandardsRequestError: There is none with that id.
        """
        if collection == LEVELS:
            cell, _, at_s = key.partition("@")
            at = _moment(at_s)
            rows = self._read_row(cell, at) if at else []
            features = [self._level_feature(row) for row in rows]
        else:
            found = self.states() if collection == CELLS else []
            features = [self._feature(state) for state in found if state.cell == key]
        if not features:
            raise missing_error("feature", key)
        return features[0]

    def states(self) -> list[CellState]:
        """Present state of each cell; read once for each change and minute."""
        now_s = self.live_state.now_s()
        places = self.places.now
        key = self.live_state.version, int(now_s // 60), places
        with self._lock:
            if self._cached[0] != key:
                self._cached = key, self._read_states(now_s, places)
            return self._cached[1]

    def bounds(self) -> list[float] | None:
        """Box around all cells in degrees; None without cells."""
        rings = [cell_ring(state.cell) for state in self.states()]
        points = [point for ring in rings for point in ring]
        if not points:
            return None
        longitudes, latitudes = zip(*points, strict=True)
        return [min(longitudes), min(latitudes), max(longitudes), max(latitudes)]

    def times(self) -> tuple[datetime, datetime] | None:
        """First and last time of the levels; None without any."""
        extent = self._tables.extent("levels")
        return extent and extent[:2]

    @property
    def _tables(self) -> DeltaTables:
        return DeltaTables(self.live_state.tables)

    def _read_states(self, now_s: float, places: Gazetteer) -> list[CellState]:
        now = utc_time(now_s)
        try:
            limits = self.live_state.limits
            return read_cell_states(
                self._tables, now, None, limits, places, may_be_old=True
            )[1]
        except ExportError:
            return []  # no levels yet

    def _cells(self, wanted: FeatureSelection) -> FeaturePage:
        first = _offset(wanted.start)
        found = [each for each in self.states() if _is_wanted(each, wanted)]
        end = first + wanted.limit
        features = [self._feature(state) for state in found[first:end]]
        return FeaturePage(features, f"{end}" if end < len(found) else None, len(found))

    def _levels(
        self, wanted: FeatureSelection, is_over: Callable[[], bool]
    ) -> FeaturePage:
        area = wanted.area
        query = RowQuery(
            "levels",
            COLUMNS,
            ("cell",),
            begin=wanted.begin,
            # A row is valid during the step before its time.
            end=wanted.end and _later(wanted.end, _STEP),
            accepts=area and (lambda row: intersects(row["cell"], area)),
        )
        page = TimeWalk(self._tables, is_over).read_page(
            query, wanted.limit, start=wanted.start or None
        )
        if not page.rows and page.end is not None:
            rule = "narrower: the time for an answer was over before the first row"
            raise StandardsRequestError("datetime", rule, "all times")
        features = [self._level_feature(row) for row in page.rows]
        return FeaturePage(features, None if page.end is None else f"{page.end}")

    def _read_row(self, cell: str, at: datetime) -> list[dict[str, Any]]:
        conditions = [f"cell = {sql_literal(cell)}", f"at = {sql_literal(at)}"]
        rows = self._tables.select("levels", COLUMNS, conditions, "at", (1, 0))
        return list(rows.to_pylist())

    def _level_feature(self, row: dict[str, Any]) -> Feature:
        """Level of a cell in a step as it was judged then."""
        state = state_of_row(row, row["at"])
        feature = self._feature(state)
        return feature | {"id": f"{state.cell}@{int(state.at.timestamp())}"}

    def _feature(self, state: CellState) -> Feature:
        return cell_feature(state, is_exercise=self.live_state.exercise)


def _moment(text: str) -> datetime | None:
    if not (text.isascii() and text.isdigit() and len(text) < 11):  # noqa: PLR2004 - digits of a time until 2286
        return None
    at = utc_time(int(text))
    return at if fits_sql(at) else None


def _is_wanted(state: CellState, wanted: FeatureSelection) -> bool:
    """Whether a cell meets the area, and its level's validity the times."""
    if wanted.end is not None and state.at - _STEP > wanted.end:
        return False
    if wanted.begin is not None and state.at + VALIDITY < wanted.begin:
        return False
    return wanted.area is None or intersects(state.cell, wanted.area)


@lru_cache(maxsize=65_536)
def _polygon(cell: str) -> shapely.Geometry:
    return shapely.Polygon(cell_ring(cell))


def intersects(cell: str, area: shapely.Geometry) -> bool:
    """Whether a cell meets an area."""
    return bool(shapely.intersects(_polygon(cell), area))


def _offset(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):  # noqa: PLR2004 - enough cells
        raise StandardsRequestError("start", "that of a link to a next page", text)
    return int(text or 0)


def _later(at: datetime, by: timedelta) -> datetime:
    return at + by if at < datetime.max.replace(tzinfo=UTC) - by else at


def missing_error(kind: str, name: str) -> StandardsRequestError:
    """Error for what does not exist."""
    return StandardsRequestError(kind, "one that exists", name, status=404)


PARAMETERS: Final = ("bbox", "datetime", "limit", "start", "f")
"""Query parameters of a collection's features."""


def parse_selection(pairs: Iterable[tuple[str, str]]) -> FeatureSelection:
    """Parse the query of a request for features.

    Raises:
        StandardsRequestError: A parameter is unknown, repeated or invalid.
    """
    found, seen = FeatureSelection(), set()
    for name, value in pairs:
        if name not in PARAMETERS or name in seen:
            rule = f"one of {', '.join(PARAMETERS)}, given once"
            raise StandardsRequestError("query parameter", rule, name)
        seen.add(name)
        found = _with(found, name, value)
    return found


def _with(wanted: FeatureSelection, name: str, value: str) -> FeatureSelection:
    if name == "bbox":
        return replace(wanted, area=_parse_box(value))
    if name == "datetime":
        begin, end = _parse_times(value)
        return replace(wanted, begin=begin, end=end)
    if name == "limit":
        return replace(wanted, limit=_parse_limit(value))
    if name == "start":
        return replace(wanted, start=value)
    if value != "json":
        raise StandardsRequestError("f", "json", value)
    return wanted


def _parse_limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and text.strip("0") and len(text) < 10):  # noqa: PLR2004 - a number
        raise StandardsRequestError("limit", "a whole number from 1 on", text)
    return min(int(text), MAX_LIMIT)


def _parse_box(text: str) -> shapely.Geometry:
    """Box of west, south, east and north; across the antimeridian two boxes."""
    try:
        numbers = [float(part) for part in text.split(",", 6)]
    except ValueError:
        numbers = []
    if len(numbers) not in _CORNERS or not all(map(math.isfinite, numbers)):
        raise _box_error(text)
    half = len(numbers) // 2
    (west, south), (east, north) = numbers[:2], numbers[half : half + 2]
    if south > north or max(map(abs, (south, north))) > 90:  # noqa: PLR2004 - degrees
        raise _box_error(text)
    if west <= east:
        return shapely.box(west, south, east, north)
    parts = [
        shapely.box(west, south, 180, north),
        shapely.box(-180, south, east, north),
    ]
    return shapely.MultiPolygon(parts)


def _box_error(text: str) -> StandardsRequestError:
    rule = "west,south,east,north in degrees, or with two heights"
    return StandardsRequestError("bbox", rule, text)


def _parse_times(text: str) -> tuple[datetime | None, datetime | None]:
    first, is_interval, last = text.partition("/")
    if not is_interval:
        at = _parse_time(first, text)
        return at, at
    if {first, last} <= {"", ".."}:
        raise _times_error(text)
    begin = None if first in {"", ".."} else _parse_time(first, text)
    end = None if last in {"", ".."} else _parse_time(last, text)
    if begin is not None and end is not None and begin > end:
        raise _times_error(text)
    return begin, end


def _parse_time(text: str, whole: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if len(text) == len("2026-10-26"):
            return found.replace(tzinfo=UTC)
        if found.tzinfo is None:
            raise _times_error(whole)
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise _times_error(whole) from error


def _times_error(text: str) -> StandardsRequestError:
    rule = "a time such as 2026-10-26T07:40:00Z, or two with a slash, one may be .."
    return StandardsRequestError("datetime", rule, text)
