"""S2 cells, the positions of messages on the earth. Only this file imports s2sphere.

Source: Gamma (seed 000) section 3.1 and tables 1-2; S2 geometry.
"""

import math
from dataclasses import dataclass

import s2sphere

from spatial_mqtt.errors import PositionError

EARTH_RADIUS_KM = 6371.01
"""Mean radius, as Gamma uses it."""

LEAF_LEVEL = 30
TOPIC_LEVEL = 20
"""Level of a node's own cell, about 9 m wide: finer than any subscription."""

ANALYSIS_LEVEL = 13
"""Level of a scored cell, 0.86 km2 in Japan: the closest to JMA's 1 km mesh."""

HALF_TURN_DEG = 180.0
QUARTER_TURN_DEG = 90.0


@dataclass(frozen=True, order=True)
class Cell:
    """An S2 cell.

    Attributes:
        id: The 64-bit S2 cell id.
    """

    id: int

    @classmethod
    def at(
        cls, latitude_deg: float, longitude_deg: float, level: int = TOPIC_LEVEL
    ) -> "Cell":
        """The cell of a level that contains a position.

        Raises:
            PositionError: The position or the level is out of range.
        """
        check_position(latitude_deg, longitude_deg)
        _check_level(level)
        point = s2sphere.LatLng.from_degrees(latitude_deg, longitude_deg)
        return cls(s2sphere.CellId.from_lat_lng(point).parent(level).id())

    @classmethod
    def from_token(cls, token: str) -> "Cell":
        """The cell of an S2 token such as ``355a9c44``.

        Raises:
            PositionError: The token is not that of a cell.
        """
        try:
            cell_id = s2sphere.CellId.from_token(token)
        except ValueError:
            cell_id = s2sphere.CellId(0)
        if not cell_id.is_valid():
            raise PositionError("token", "the token of an S2 cell", token)
        return cls(cell_id.id())

    @classmethod
    def from_digits(cls, face: int, digits: tuple[int, ...]) -> "Cell":
        """The cell of a cube face and one base-4 digit for each level.

        Raises:
            PositionError: The face, a digit or their number is out of range.
        """
        if not 0 <= face <= 5:  # noqa: PLR2004 - a cube has six faces
            raise PositionError("face", "between 0 and 5", face)
        if len(digits) > LEAF_LEVEL or any(not 0 <= d <= 3 for d in digits):  # noqa: PLR2004
            raise PositionError("digits", "at most 30 digits between 0 and 3", digits)
        # As in `digits`: two bits a level below the face, and one marker bit.
        found = face
        for digit in digits:
            found = found << 2 | digit
        return cls((found << 1 | 1) << 2 * (LEAF_LEVEL - len(digits)))

    @property
    def level(self) -> int:
        """Level of the cell, 0 (a cube face) to 30 (a leaf)."""
        return int(self._s2.level())

    @property
    def token(self) -> str:
        """Short hexadecimal name of the cell."""
        return str(self._s2.to_token())

    @property
    def face(self) -> int:
        """Cube face, 0 to 5."""
        return int(self._s2.face())

    @property
    def digits(self) -> tuple[int, ...]:
        """One digit 0 to 3 for each level, coarse to fine."""
        # Two bits a level below the face, and one marker bit after the last.
        return tuple(
            (self.id >> (2 * (LEAF_LEVEL - level) + 1)) & 3
            for level in range(1, self.level + 1)
        )

    @property
    def name(self) -> str:
        """Name in S2's own form, ``face/digits``, as in Gamma's table 2."""
        return f"{self.face}/{''.join(map(str, self.digits))}"

    def parent(self, level: int) -> "Cell":
        """The ancestor of a level; the cell itself at its own level.

        Raises:
            PositionError: The level is finer than the cell.
        """
        if not 0 <= level <= self.level:
            raise PositionError("level", f"between 0 and {self.level}", level)
        return Cell(self._s2.parent(level).id())

    def contains(self, other: "Cell") -> bool:
        """Whether the other cell is this cell or lies within it."""
        return other.level >= self.level and other.parent(self.level) == self

    def center(self) -> tuple[float, float]:
        """Latitude and longitude of the centre, in degrees."""
        point = self._s2.to_lat_lng()
        return point.lat().degrees, point.lng().degrees

    def corners(self) -> tuple[tuple[float, float], ...]:
        """Four corners (latitude, longitude) in degrees, counter-clockwise."""
        cell = s2sphere.Cell(self._s2)
        points = [s2sphere.LatLng.from_point(cell.get_vertex(i)) for i in range(4)]
        return tuple((p.lat().degrees, p.lng().degrees) for p in points)

    @property
    def _s2(self) -> s2sphere.CellId:
        return s2sphere.CellId(self.id)


def cover_circle(
    latitude_deg: float,
    longitude_deg: float,
    radius_km: float,
    *,
    max_level: int = TOPIC_LEVEL,
    max_cells: int = 4,
) -> tuple[Cell, ...]:
    """Cover a circle on the earth with few cells.

    Args:
        latitude_deg: Centre, -90 to 90.
        longitude_deg: Centre, -180 to 180.
        radius_km: Radius, more than 0 and at most half the circumference of the earth.
        max_level: Finest level to use, 0 to 30.
        max_cells: Largest number of cells; S2 may return up to 4 in any case.

    Returns:
        Cells in the order of their ids; together they cover the circle.

    Raises:
        PositionError: An argument is out of range.

    Source:
        Gamma (seed 000) section 3.4, steps 1-2, tables 1 and 2.
    """
    check_position(latitude_deg, longitude_deg)
    _check_level(max_level)
    if not 0 < radius_km <= 3.1415 * EARTH_RADIUS_KM:
        raise PositionError("radius_km", "more than 0 and at most 20000", radius_km)
    if max_cells < 1:
        raise PositionError("max_cells", "at least 1", max_cells)
    center = s2sphere.LatLng.from_degrees(latitude_deg, longitude_deg).to_point()
    angle = s2sphere.Angle.from_radians(radius_km / EARTH_RADIUS_KM)
    coverer = s2sphere.RegionCoverer()
    coverer.max_level = max_level
    coverer.max_cells = max_cells
    covering = coverer.get_covering(s2sphere.Cap.from_axis_angle(center, angle))
    return tuple(sorted(Cell(c.id()) for c in covering))


def cover_rectangle(
    south_west_deg: tuple[float, float],
    north_east_deg: tuple[float, float],
    level: int,
    *,
    max_cells: int,
) -> tuple[Cell, ...]:
    """All cells of a level that a rectangle of latitude and longitude touches.

    Args:
        south_west_deg: Latitude and longitude of a corner.
        north_east_deg: Those of the opposite corner, east of it.
        level: Of the cells.
        max_cells: Largest number of cells.

    Raises:
        PositionError: A corner is out of range, or there are more cells.
    """
    check_position(*south_west_deg)
    check_position(*north_east_deg)
    _check_level(level)
    corners = [
        s2sphere.LatLng.from_degrees(*deg) for deg in (south_west_deg, north_east_deg)
    ]
    rectangle = s2sphere.LatLngRect.from_point_pair(*corners)
    # Before the cover is made, which takes a second for each 10,000 cells.
    steradians = 4 * math.pi / (6 * 4**level)
    if rectangle.area() / steradians > max_cells:
        rule = f"a rectangle of at most {max_cells} cells of level {level}"
        raise PositionError("area", rule, (south_west_deg, north_east_deg))
    coverer = s2sphere.RegionCoverer()
    coverer.min_level = coverer.max_level = level
    coverer.max_cells = 2 * max_cells
    return tuple(sorted(Cell(c.id()) for c in coverer.get_covering(rectangle)))


def distance_km(from_deg: tuple[float, float], to_deg: tuple[float, float]) -> float:
    """Distance on the sphere between two (latitude, longitude) pairs.

    As `s2sphere.LatLng.get_distance`, the haversine formula, without its ten objects:
    the scoring job needs the distances of 20,000 cells in each pass.
    """
    (from_lat, from_lng), (to_lat, to_lng) = from_deg, to_deg
    south, north = math.radians(from_lat), math.radians(to_lat)
    half_lat = math.sin((north - south) / 2)
    half_lng = math.sin((math.radians(to_lng) - math.radians(from_lng)) / 2)
    share = half_lat**2 + half_lng**2 * math.cos(south) * math.cos(north)
    return 2 * EARTH_RADIUS_KM * math.atan2(share**0.5, max(0.0, 1 - share) ** 0.5)


def check_position(latitude_deg: float, longitude_deg: float) -> None:
    """Check that a position is on the earth.

    Raises:
        PositionError: The latitude or the longitude is out of range.
    """
    if not -QUARTER_TURN_DEG <= latitude_deg <= QUARTER_TURN_DEG:
        raise PositionError(
            "latitude",
            "between -90 and 90 degrees",
            latitude_deg,
            "are latitude and longitude swapped?",
        )
    if not -HALF_TURN_DEG <= longitude_deg <= HALF_TURN_DEG:
        raise PositionError("longitude", "between -180 and 180 degrees", longitude_deg)


def _check_level(level: int) -> None:
    if not 0 <= level <= LEAF_LEVEL:
        raise PositionError("level", f"between 0 and {LEAF_LEVEL}", level)
