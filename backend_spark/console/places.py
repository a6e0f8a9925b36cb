"""Places: districts and slopes with their households, shelter and contact.

`backend-spark places load` joins a file of the municipality (`place_files`) to analysis
cells and stores the result; the console, the reports and the exports read it.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from backend_spark.config import CONSOLE_FOLDER
from backend_spark.console.level_grid import headline_order
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.files import write_atomic
from spatial_mqtt.cells import distance_km

log = logging.getLogger(__name__)

PLACES_FILE: Final = "places.json"
"""Folder in the data folder, and file in it."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A slope or a part of a district.

    Attributes:
        district: Name of the district (地区).
        cells: Tokens of the analysis cells in which it lies.
        slope: Name of the slope; empty without one.
        town: Name of the municipality; empty where there is only one.
        households: Number of households in danger; None if unknown.
        shelter: Where its people go.
        contact: Person and telephone number.
        node: Name of the node on it; empty: the nodes in its cells.
        position: Latitude and longitude in degrees; None if given by cells.
    """

    district: str
    cells: tuple[str, ...]
    slope: str = ""
    town: str = ""
    households: int | None = None
    shelter: str = ""
    contact: str = ""
    node: str = ""
    position: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """District and slope."""
        return f"{self.district} {self.slope}".strip()


class Gazetteer:
    """Places by cell and by node.

    Args:
        places: All places.
    """

    def __init__(self, places: Sequence[Place] = ()) -> None:
        self.places = tuple(places)
        self._of_node = {place.node: place for place in places if place.node}

    @cached_property
    def _of_cell(self) -> Mapping[str, Sequence[Place]]:
        found: dict[str, list[Place]] = {}
        for place in self.places:
            for cell in place.cells:
                found.setdefault(cell, []).append(place)
        for each in found.values():
            each.sort(key=lambda place: (-(place.households or 0), place.name))
        return found

    @cached_property
    def districts(self) -> frozenset[str]:
        """Names of all districts."""
        return frozenset(place.district for place in self.places)

    def in_cell(self, cell: str) -> Sequence[Place]:
        """Places of a cell, the most households first."""
        return self._of_cell.get(cell, ())

    def name(self, cell: str) -> str:
        """Name of the first place of a cell, and the number of others; or empty."""
        places = self.in_cell(cell)
        if not places:
            return ""
        more = f" +{len(places) - 1}" if len(places) > 1 else ""
        return places[0].name + more

    def households(self, cell: str) -> int:
        """Known households in a cell."""
        return sum(place.households or 0 for place in self.in_cell(cell))

    def of_node(
        self, node: str, cell: str | None, position: tuple[float, float] | None
    ) -> Place | None:
        """Place of a node: the one that names it, or else the nearest in its cell."""
        if node in self._of_node:
            return self._of_node[node]
        free = [place for place in self.in_cell(cell or "") if not place.node]
        if position is None:
            return free[0] if free else None

        def distance(place: Place) -> float:
            there = place.position
            return 0.0 if there is None else distance_km(there, position)

        return min(free, key=distance, default=None)

    def roll_up(self, levels: Mapping[str, int]) -> list["DistrictLevel"]:
        """Highest level of each district, the highest first, then the most households.

        Args:
            levels: Level by cell as in the array of levels, of the cells that count.
        """
        found: dict[tuple[str, str], list[tuple[int, Place]]] = {}
        for place in self.places:
            shown = [levels[cell] for cell in place.cells if cell in levels]
            if shown:
                reached = max(shown, key=headline_order), place
                found.setdefault((place.town, place.district), []).append(reached)
        rows = [_district(*key, reached) for key, reached in found.items()]
        rows.sort(key=lambda row: (row.households, row.name), reverse=True)
        return sorted(rows, key=lambda row: headline_order(row.level), reverse=True)

    def as_json(self, nodes: Iterable[tuple[str, Place | None]] = ()) -> dict[str, Any]:
        """For the pages: the places, and the number of the place of each node."""
        number = {id(place): at for at, place in enumerate(self.places)}
        of_node = {node: number[id(place)] for node, place in nodes if place}
        return {"places": self.places, "nodes": of_node}


NO_PLACES: Final = Gazetteer()


class DistrictLevel(msgspec.Struct, frozen=True):
    """A district with its highest level.

    Attributes:
        town: Name of the municipality; empty where there is only one.
        name: Name of the district.
        level: Its highest level, as in the array of levels.
        places: Number of its places at that level.
        households: Known households of these places.
    """

    town: str
    name: str
    level: int
    places: int
    households: int


def _district(
    town: str, name: str, reached: Sequence[tuple[int, Place]]
) -> DistrictLevel:
    level = max((level for level, _ in reached), key=headline_order)
    worst = [place for at, place in reached if at == level]
    households = sum(place.households or 0 for place in worst)
    return DistrictLevel(town, name, level, len(worst), households)


def write_places(data: Path, places: Sequence[Place]) -> None:
    """Replace the stored places of a data folder atomically."""
    path = data / CONSOLE_FOLDER / PLACES_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(places))


class StoredPlaces:
    """The stored places, read again when the file changes; without one there are none.

    Args:
        data: The data folder.
    """

    def __init__(self, data: Path) -> None:
        self._path = data / CONSOLE_FOLDER / PLACES_FILE
        self._version: tuple[int, int] | None = None
        self._gazetteer = Gazetteer()

    @property
    def now(self) -> Gazetteer:
        """The places; those of before while the file is damaged."""
        version = self._stat()
        if version != self._version:
            self._version = version
            self._gazetteer = Gazetteer(self._read())
        return self._gazetteer

    def _read(self) -> Sequence[Place]:
        if self._version is None:
            if self._gazetteer.places:
                log.warning("%s is missing: there are no places; load them", self._path)
            return ()
        try:
            return decode_json(self._path.read_bytes(), list[Place])
        except (OSError, *DECODE_ERRORS) as error:
            log.error("%s cannot be read: %s; load the places again", self._path, error)  # noqa: TRY400 - the error says it all
            return self._gazetteer.places

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
