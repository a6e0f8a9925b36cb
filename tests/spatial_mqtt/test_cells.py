"""S2 cells: names, ancestors, coverings."""

import math

import pytest
import s2sphere
from hypothesis import given, settings
from hypothesis import strategies as st

from spatial_mqtt.cells import (
    EARTH_RADIUS_KM,
    Cell,
    check_position,
    cover_circle,
    distance_km,
)
from spatial_mqtt.errors import PositionError

LATITUDES = st.floats(-90, 90)
LONGITUDES = st.floats(-180, 180)
LEVELS = st.integers(0, 30)
CELLS = st.builds(
    lambda face, digits: Cell.from_digits(face, tuple(digits)),
    st.integers(0, 5),
    st.lists(st.integers(0, 3), max_size=30),
)


def move(
    start_deg: tuple[float, float], distance: float, bearing_rad: float
) -> tuple[float, float]:
    """The position at a distance (km) and a bearing from another."""
    arc = distance / EARTH_RADIUS_KM
    latitude, longitude = map(math.radians, start_deg)
    sine = math.sin(latitude) * math.cos(arc)
    sine += math.cos(latitude) * math.sin(arc) * math.cos(bearing_rad)
    sine = max(-1.0, min(1.0, sine))
    east = math.sin(bearing_rad) * math.sin(arc) * math.cos(latitude)
    north = math.cos(arc) - math.sin(latitude) * sine
    turned = math.degrees(longitude + math.atan2(east, north))
    return math.degrees(math.asin(sine)), (turned + 180) % 360 - 180


@given(cell=CELLS)
def test_cell_survives_token_and_digits(cell: Cell) -> None:
    """A token, like the face and digits, names exactly one cell."""
    assert Cell.from_token(cell.token) == cell
    assert Cell.from_digits(cell.face, cell.digits) == cell
    assert len(cell.digits) == cell.level


@given(face=st.integers(0, 5), digits=st.lists(st.integers(0, 3), max_size=30))
def test_digits_come_back_in_their_order(face: int, digits: list[int]) -> None:
    """Digits run from coarse to fine, one for each level, after the face."""
    cell = Cell.from_digits(face, tuple(digits))

    assert (cell.face, cell.digits) == (face, tuple(digits))
    assert cell.name == f"{face}/{''.join(map(str, digits))}"


@given(latitude=LATITUDES, longitude=LONGITUDES, level=LEVELS)
def test_cell_at_a_position_has_the_level_and_lies_in_its_parents(
    latitude: float, longitude: float, level: int
) -> None:
    """A coarser cell of the same position contains the finer one."""
    leaf, cell = (
        Cell.at(latitude, longitude, 30),
        Cell.at(latitude, longitude, level),
    )

    assert cell.level == level
    assert cell == leaf.parent(level)
    assert cell.contains(leaf)
    assert leaf.contains(cell) == (level == 30)


@given(cell=CELLS, data=st.data())
def test_parent_keeps_the_first_digits(cell: Cell, data: st.DataObject) -> None:
    """An ancestor's digits are a prefix of its descendants'."""
    level = data.draw(st.integers(0, cell.level))

    assert cell.parent(level).digits == cell.digits[:level]
    assert cell.parent(level).face == cell.face


@given(one=CELLS, other=CELLS)
def test_containment_is_a_prefix_of_digits(one: Cell, other: Cell) -> None:
    """One cell contains another exactly if its name is a prefix of the other's."""
    assert one.contains(other) == other.name.startswith(one.name)


@given(latitude=LATITUDES, longitude=LONGITUDES, level=LEVELS)
def test_center_lies_in_its_own_cell(
    latitude: float, longitude: float, level: int
) -> None:
    """The centre of a cell is a position of that cell."""
    cell = Cell.at(latitude, longitude, level)

    assert Cell.at(*cell.center(), level) == cell


def test_corners_surround_the_center() -> None:
    """Four corners run counter-clockwise around the centre."""
    cell = Cell.at(34.479, 132.495, 13)
    latitude, longitude = cell.center()
    angles = [math.atan2(a - latitude, b - longitude) for a, b in cell.corners()]
    turns = [
        (later - sooner) % math.tau
        for sooner, later in zip(angles, angles[1:] + angles[:1], strict=True)
    ]

    assert len(angles) == 4
    assert sum(turns) == pytest.approx(math.tau)


def test_token_of_the_analysis_level_is_the_published_one() -> None:
    """Check value: 34.479 N 132.495 E at level 13 is 355a9c44."""
    assert Cell.at(34.479, 132.495, 13).token == "355a9c44"  # noqa: S105 - an S2 token


def test_circle_of_the_paper_is_covered_by_its_four_cells() -> None:
    """Tables 1 and 2 of the paper, cell for cell."""
    cells = cover_circle(31.828061073646502, 131.4153025207035, 1.0)

    assert [cell.name for cell in cells] == [
        "1/222130121002",
        "1/222130121003",
        "1/222130121010111",
        "1/222130121013",
    ]


@settings(deadline=None)
@given(
    center=st.tuples(LATITUDES, LONGITUDES),
    radius_km=st.floats(-4, 4).map(lambda exponent: 10**exponent),
    max_cells=st.integers(1, 20),
    bearing=st.floats(0, math.tau),
    share=st.floats(0, 0.999),
)
def test_covering_holds_every_point_of_the_circle(
    center: tuple[float, float],
    radius_km: float,
    max_cells: int,
    bearing: float,
    share: float,
) -> None:
    """No position inside the circle is left out, also at poles and date line."""
    cells = cover_circle(*center, radius_km, max_cells=max_cells)
    leaf = Cell.at(*move(center, radius_km * share, bearing), 30)

    assert any(cell.contains(leaf) for cell in cells)


@settings(deadline=None)
@given(
    center=st.tuples(LATITUDES, LONGITUDES),
    radius_km=st.floats(0.001, 1000),
    max_level=st.integers(0, 30),
    max_cells=st.integers(4, 20),
)
def test_covering_keeps_its_limits(
    center: tuple[float, float], radius_km: float, max_level: int, max_cells: int
) -> None:
    """Cells are in order, apart from each other, few, and none is too fine."""
    cells = cover_circle(*center, radius_km, max_level=max_level, max_cells=max_cells)

    assert list(cells) == sorted(set(cells))
    assert all(cell.level <= max_level for cell in cells)
    assert not any(a.contains(b) for a in cells for b in cells if a != b)
    # Six cells are the whole sphere, which no limit can reduce.
    assert len(cells) <= max(max_cells, 6)


@given(
    center=st.tuples(st.floats(-89, 89), LONGITUDES),
    distance=st.floats(0.001, 5000),
    bearing=st.floats(0, math.tau),
)
def test_distance_inverts_a_move(
    center: tuple[float, float], distance: float, bearing: float
) -> None:
    """A move along a great circle and the distance on the sphere are inverse."""
    there = move(center, distance, bearing)

    assert distance_km(center, there) == pytest.approx(distance, rel=1e-6, abs=1e-6)


@given(st.tuples(LATITUDES, LONGITUDES), st.tuples(LATITUDES, LONGITUDES))
def test_distance_is_that_of_the_library(
    here: tuple[float, float], there: tuple[float, float]
) -> None:
    """Also over the date line and to the other side of the earth."""
    start, end = (s2sphere.LatLng.from_degrees(*each) for each in (here, there))
    angle = start.get_distance(end)

    assert distance_km(here, there) == pytest.approx(angle.radians * EARTH_RADIUS_KM)


def test_distance_from_equator_to_pole_is_a_quarter_of_the_circumference() -> None:
    """The arc is a right angle."""
    assert distance_km((0, 0), (90, 0)) == pytest.approx(EARTH_RADIUS_KM * math.pi / 2)


@pytest.mark.parametrize(
    ("latitude", "longitude", "field"),
    [
        (90.001, 0.0, "latitude"),
        (-91.0, 0.0, "latitude"),
        (135.0, 34.0, "latitude must .* swapped"),
        (math.nan, 0.0, "latitude"),
        (math.inf, 0.0, "latitude"),
        (0.0, 180.001, "longitude"),
        (0.0, -181.0, "longitude"),
        (0.0, math.nan, "longitude"),
    ],
)
def test_position_off_the_earth_is_refused(
    latitude: float, longitude: float, field: str
) -> None:
    """The error names the coordinate that is out of range."""
    with pytest.raises(PositionError, match=field):
        check_position(latitude, longitude)
    with pytest.raises(PositionError, match=field):
        Cell.at(latitude, longitude)
    with pytest.raises(PositionError, match=field):
        cover_circle(latitude, longitude, 1.0)


@pytest.mark.parametrize("level", [-1, 31])
def test_level_outside_0_to_30_is_refused(level: int) -> None:
    """S2 has levels 0 to 30."""
    with pytest.raises(PositionError, match="level must be between 0 and 30"):
        Cell.at(0.0, 0.0, level)
    with pytest.raises(PositionError, match="level must be between 0 and 30"):
        cover_circle(0.0, 0.0, 1.0, max_level=level)


@pytest.mark.parametrize("level", [-1, 11])
def test_parent_finer_than_the_cell_is_refused(level: int) -> None:
    """A cell has ancestors at coarser levels only."""
    with pytest.raises(PositionError, match="level must be between 0 and 10"):
        Cell.at(0.0, 0.0, 10).parent(level)


@pytest.mark.parametrize(
    "token", ["", "0", "zz", "X", "-1", "355a9c4g", "f" * 16, "1" * 17]
)
def test_token_of_no_cell_is_refused(token: str) -> None:
    """A token must name a cell that exists."""
    with pytest.raises(PositionError, match="token must be the token of an S2 cell"):
        Cell.from_token(token)


@given(token=st.text(max_size=20))
def test_any_text_is_a_cell_or_refused(token: str) -> None:
    """A foreign token never raises anything but the package's own error."""
    try:
        cell = Cell.from_token(token)
    except PositionError:
        return
    assert Cell.from_token(cell.token) == cell


@pytest.mark.parametrize(
    ("face", "digits", "field"),
    [(-1, (), "face"), (6, (), "face"), (0, (4,), "digits"), (0, (-1,), "digits")],
)
def test_digits_of_no_cell_are_refused(
    face: int, digits: tuple[int, ...], field: str
) -> None:
    """There are six faces, and four children per cell."""
    with pytest.raises(PositionError, match=f"{field} must be"):
        Cell.from_digits(face, digits)


def test_more_digits_than_levels_are_refused() -> None:
    """A leaf has no children."""
    with pytest.raises(PositionError, match="at most 30 digits"):
        Cell.from_digits(0, (0,) * 31)


@pytest.mark.parametrize("radius_km", [0.0, -1.0, 30000.0, math.nan, math.inf])
def test_radius_of_no_circle_is_refused(radius_km: float) -> None:
    """The radius must be greater than 0 and no larger than the earth allows."""
    with pytest.raises(PositionError, match="radius_km must be more than 0"):
        cover_circle(0.0, 0.0, radius_km)


def test_covering_with_no_cells_is_refused() -> None:
    """At least one cell is needed."""
    with pytest.raises(PositionError, match="max_cells must be at least 1, got 0"):
        cover_circle(0.0, 0.0, 1.0, max_cells=0)
