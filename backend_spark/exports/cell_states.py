"""Cell states: the level of each cell at one moment, also as GeoJSON and GeoParquet.

Sources: RFC 7946 for GeoJSON (longitude before latitude, WGS 84, rings closed and
counter-clockwise); GeoParquet 1.1.0, whose coordinates are the same without ``crs``.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import shapely

from backend_spark.console.level_grid import ended_level
from backend_spark.console.places import NO_PLACES, Gazetteer
from backend_spark.errors import ExportError
from backend_spark.i18n import level_name, reasons_of
from backend_spark.scoring.holds import (
    GRACE_S,
    HELD,
    JUDGED,
    NO_LIMITS,
    HoldLimits,
    PresentLevel,
)
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import TEXTS, UTC_TIME
from service_runtime.files import write_atomic
from slope_science.levels import LOWEST, Cause, find_causes
from spatial_mqtt.cells import Cell

VALIDITY: Final = timedelta(seconds=GRACE_S)
"""Validity of a row after the end of its step; then its cell is silent."""

AHEAD: Final = timedelta(seconds=STEP_S)
"""A row belongs to the end of its step, which may be ahead of the present."""

COLUMNS: Final = (
    "cell",
    "at",
    "level",
    "state",
    "known_until",
    "r60_mm",
    "swi_mm",
    "margin_mm",
    "completeness",
    "lower_bound",
    "reasons",
    "reason_codes",
    "assumed",
    "n_nodes",
)


@dataclass(frozen=True)
class CellState:
    """State of a cell.

    Attributes:
        cell: S2 token.
        at: End of the last step with a row.
        level: 1 to 5, judged or held; None if it is unknown.
        r60_mm: Rain of the last hour; None if unknown.
        swi_mm: Soil water index; None if unknown.
        margin_mm: Distance below the critical line; negative beyond the line.
        completeness: Share of the last day whose rain is known.
        is_lower_bound: Whether rain data are missing, so that the index is too low.
        is_silent: Whether the row is too old for the moment.
        reasons: Reasons of the level.
        assumed: Findings that rest on assumed criteria.
        n_nodes: Number of nodes with data in the step.
        reason_codes: The reasons as JSON; empty in rows of an earlier program.
        state: Judged, held or unknown at the moment; see `scoring.holds`.
        known_until: End of the last judged step, where it is not judged.
        moment: The moment.
        last_level: Level of the last judgement, also after its hold has ended; None if
            it is not known.
        place: Name of the place; empty without one.
    """

    cell: str
    at: datetime
    level: int | None
    r60_mm: float | None
    swi_mm: float | None
    margin_mm: float | None
    completeness: float | None
    is_lower_bound: bool
    is_silent: bool
    reasons: tuple[str, ...]
    assumed: tuple[str, ...]
    n_nodes: int
    reason_codes: tuple[str, ...] = ()
    state: str = JUDGED
    known_until: datetime | None = None
    moment: datetime | None = None
    last_level: int | None = None
    place: str = ""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Causes of the level, rain first."""
        reasons = reasons_of(self.reason_codes, self.reasons)
        return find_causes(self.level or LOWEST, reasons)

    @property
    def is_judged(self) -> bool:
        """Whether the level is that of the moment."""
        return self.level is not None and self.state == JUDGED

    @property
    def is_held(self) -> bool:
        """Whether the level is a held one."""
        return self.state == HELD


def read_cell_states(
    tables: DeltaTables,
    now: datetime,
    at: datetime | None = None,
    limits: HoldLimits = NO_LIMITS,
    places: Gazetteer = NO_PLACES,
    *,
    may_be_old: bool = False,
) -> tuple[datetime, list[CellState]]:
    """States of all cells at a moment, sorted by token.

    The present is never the time of the newest data: a level is as old as it is.

    Args:
        tables: Tables with the levels.
        now: The present, with its zone.
        at: The moment, with its zone; None means the present.
        limits: When holds of levels end.
        places: Names of the cells.
        may_be_old: Whether the rows of all cells may be from before the time for which
            a level is held, so that all levels are unknown.

    Returns:
        The moment, and one state for each cell with a row in the time before it for
        which a level is held, or with its newest row of all before that time.

    Raises:
        ExportError: There is no level at that moment.
    """
    moment = at or now
    # The present step ends after the present.
    until = moment if at is not None else moment + AHEAD
    since = moment - timedelta(seconds=max(limits.hold_s, 86_400.0))
    rows = tables.newest_levels(COLUMNS, since, until, with_silent=True)
    if not rows or not (may_be_old or any(row["at"] >= since for row in rows)):
        raise _no_levels(tables, moment)
    states = [state_of_row(row, moment, limits) for row in rows]
    return moment, [replace(each, place=places.name(each.cell)) for each in states]


def _no_levels(tables: DeltaTables, moment: datetime) -> ExportError:
    newest = pc.max(tables.newest()["at"]).as_py()
    if newest is None:
        remedy = "score first: backend-spark score"
        return ExportError("levels", "a table with rows", "none", remedy)
    rule = "a moment that levels were computed for"
    remedy = f"the newest level is of {newest.isoformat()}; give --at for the past"
    return ExportError("--at", rule, moment.isoformat(), remedy)


def state_of_row(
    row: dict[str, Any], moment: datetime, limits: HoldLimits = NO_LIMITS
) -> CellState:
    """State of a cell at a moment by its newest row, which has all of `COLUMNS`."""
    present = PresentLevel.of_row(row, moment.timestamp(), limits)
    codes, reasons = row["reason_codes"] or (), row["reasons"] or ()
    known_s = present.known_until_s
    return CellState(
        cell=row["cell"],
        at=row["at"],
        level=present.level,
        r60_mm=row["r60_mm"],
        swi_mm=row["swi_mm"],
        margin_mm=row["margin_mm"],
        completeness=row["completeness"],
        is_lower_bound=bool(row["lower_bound"]),
        is_silent=moment - row["at"] > VALIDITY,
        reasons=tuple(reasons),
        assumed=tuple(row["assumed"] or ()),
        n_nodes=row["n_nodes"] or 0,
        reason_codes=tuple(codes),
        state=present.state,
        known_until=None if known_s is None else datetime.fromtimestamp(known_s, UTC),
        moment=moment,
        last_level=row["level"] or ended_level(reasons_of(codes, reasons)),
    )


GEOJSON: Final = "application/geo+json"
"""Media type."""


DEGREE_DIGITS = 7
"""About a centimetre; RFC 7946 section 11.2 advises against more precision."""


def feature_collection(
    states: Iterable[CellState],
    moment: datetime,
    issued_at: datetime,
    *,
    is_exercise: bool = False,
) -> dict[str, Any]:
    """All cells as polygons.

    Args:
        states: States of the cells.
        moment: Time of the states.
        issued_at: Time of the export.
        is_exercise: Whether past data are taken as the present.
    """
    return {
        "type": "FeatureCollection",
        "valid_time": moment.isoformat(timespec="seconds"),
        "issued_at": issued_at.isoformat(timespec="seconds"),
        **exercise_mark(is_exercise),
        "features": [cell_feature(state, is_exercise=is_exercise) for state in states],
    }


def exercise_mark(is_exercise: bool) -> dict[str, bool]:
    """Property of what has past data as the present."""
    return {"exercise": True} if is_exercise else {}


def cell_ring(cell: str) -> list[list[float]]:
    """Closed outline of a cell: longitude and latitude in degrees."""
    corners = Cell.from_token(cell).corners()
    points = [
        [round(lon, DEGREE_DIGITS), round(lat, DEGREE_DIGITS)] for lat, lon in corners
    ]
    return [*points, points[0]]


def finite_or_none(number: float | None) -> float | None:
    """The number rounded to six digits; None if it is not finite."""
    return round(number, 6) if number is not None and math.isfinite(number) else None


def cell_feature(state: CellState, *, is_exercise: bool = False) -> dict[str, Any]:
    """A cell as a GeoJSON feature; of an exercise with a mark."""
    japanese, english = level_name(
        state.level, state.causes, is_silent=state.is_silent, is_held=state.is_held
    )
    return {
        "type": "Feature",
        "id": state.cell,
        "geometry": {"type": "Polygon", "coordinates": [cell_ring(state.cell)]},
        "properties": {
            "s2_token": state.cell,
            **exercise_mark(is_exercise),
            "place": state.place or None,
            "level": state.level,
            "causes": list(state.causes),
            "state": state.state,
            "known_until": state.known_until and state.known_until.isoformat(),
            "level_name": english,
            "level_name_ja": japanese,
            "valid_time": state.at.isoformat(),
            "r60_mm": finite_or_none(state.r60_mm),
            "swi_mm": finite_or_none(state.swi_mm),
            "swi_is_lower_bound": state.is_lower_bound,
            "cl_margin_mm": finite_or_none(state.margin_mm),
            "completeness": finite_or_none(state.completeness),
            "reasons": list(state.reasons),
            "assumed": list(state.assumed),
            "n_nodes": state.n_nodes,
        },
    }


GEOMETRY: Final = "geometry"
GEOPARQUET: Final = pa.schema([
    pa.field("s2_token", pa.string()),
    pa.field("place", pa.string()),
    pa.field("level", pa.int32()),
    pa.field("causes", TEXTS),
    pa.field("state", pa.string()),
    pa.field("known_until", UTC_TIME),
    pa.field("level_name", pa.string()),
    pa.field("level_name_ja", pa.string()),
    pa.field("valid_time", UTC_TIME),
    pa.field("r60_mm", pa.float64()),
    pa.field("swi_mm", pa.float64()),
    pa.field("swi_is_lower_bound", pa.bool_()),
    pa.field("cl_margin_mm", pa.float64()),
    pa.field("completeness", pa.float64()),
    pa.field("reasons", TEXTS),
    pa.field("assumed", TEXTS),
    pa.field("n_nodes", pa.int32()),
    pa.field(GEOMETRY, pa.binary()),
])
"""The properties of the GeoJSON export, with times as such, and the polygon as WKB."""


def write_geoparquet(
    states: Sequence[CellState], moment: datetime, issued_at: datetime, path: Path
) -> int:
    """Write all cells as polygons to one file atomically; returns their number.

    Args:
        states: States of the cells.
        moment: Time of the states.
        issued_at: Time of the export.
        path: File to write.
    """
    rows = pa.Table.from_pylist(
        [_geoparquet_row(state) for state in states], schema=GEOPARQUET
    )
    polygons = shapely.from_wkb(rows[GEOMETRY].to_pylist())
    metadata = {
        "geo": {
            "version": "1.1.0",
            "primary_column": GEOMETRY,
            "columns": {
                GEOMETRY: {
                    "encoding": "WKB",
                    "geometry_types": ["Polygon"],
                    "orientation": "counterclockwise",
                    "bbox": shapely.total_bounds(polygons).tolist(),
                }
            },
        },
        "valid_time": moment.isoformat(timespec="seconds"),
        "issued_at": issued_at.isoformat(timespec="seconds"),
    }
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in metadata.items()
    }
    out = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata(texts), out, compression="zstd")
    write_atomic(path, out.getvalue().to_pybytes())
    return int(rows.num_rows)


def _geoparquet_row(state: CellState) -> dict[str, Any]:
    feature = cell_feature(state)
    polygon = shapely.Polygon(feature["geometry"]["coordinates"][0])
    return {
        **feature["properties"],
        "valid_time": state.at,
        "known_until": state.known_until,
        GEOMETRY: shapely.to_wkb(polygon),
    }
