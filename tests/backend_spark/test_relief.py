"""Shaded relief: light from the north-west, pale colours, holes stay transparent."""

import io

import numpy as np
import pytest
from PIL import Image

from backend_spark.relief import PIXELS, Heights, Place, relief_tiles
from backend_spark.tile_packs import Tile
from demo import scenario, terrain

PLACE = (7134, 3284)


class OneTile:
    """Elevation of one tile of zoom 13."""

    zoom = 13

    def __init__(self, heights: Heights) -> None:
        self._heights = heights

    def places(self) -> set[Place]:
        return {PLACE}

    def heights(self, _place: Place) -> Heights:
        return self._heights


def tiles_of(heights: Heights, min_zoom: int = 13) -> dict[int, Tile]:
    """Tile of each zoom."""
    found = relief_tiles(OneTile(heights.astype(np.float32)), min_zoom)
    return {tile.zoom: tile for tile in found}


def pixels(tile: Tile) -> np.ndarray:
    """Red, green, blue and opacity, as a browser decodes them."""
    image = Image.open(io.BytesIO(tile.data))
    assert image.format == "WEBP"
    return np.asarray(image.convert("RGBA")).astype(float)


def test_slope_towards_the_light_is_brighter() -> None:
    """A ridge from south-west to north-east: its north-western side is lit."""
    y, x = np.mgrid[:PIXELS, :PIXELS]
    ridge = 1500.0 - 4 * np.abs(x + y - PIXELS)

    seen = pixels(tiles_of(ridge)[13])[..., :3].mean(axis=-1)

    lit, dark = seen[60:100, 60:100].mean(), seen[160:200, 160:200].mean()
    assert lit > dark + 30


def test_ground_stays_pale() -> None:
    """Even a steep slope in the shade is no darker than a light grey."""
    y, x = np.mgrid[:PIXELS, :PIXELS]
    steep = 20.0 * (PIXELS - (x + y) / 2)

    assert pixels(tiles_of(steep)[13])[..., :3].mean() > 130


def test_unknown_heights_are_transparent_on_every_zoom() -> None:
    """The sea, or ground outside the data, shows what lies below the pack."""
    heights = np.full((PIXELS, PIXELS), 100.0)
    heights[:, :128] = np.nan
    found = tiles_of(heights, 11)

    assert set(found) == {13, 12, 11}
    known = pixels(found[13])[..., 3] > 0
    assert not known[:, :128].any()
    assert known[:, 128:].all()
    west, north = (PLACE[0] % 2) * 128, (PLACE[1] % 2) * 128
    parent = pixels(found[12])[north : north + 128, west : west + 128, 3] > 0
    assert parent[:, 64:].all()
    assert not parent[:, :64].any()
    assert (found[12].column, found[12].row) == (PLACE[0] // 2, PLACE[1] // 2)


@pytest.fixture(scope="module")
def landscape() -> terrain.Terrain:
    """The demo's terrain."""
    return terrain.Terrain()


def test_nodes_of_the_demo_stand_on_slopes(landscape: terrain.Terrain) -> None:
    """Each at 9 degrees or more, above the next stream."""
    for _, node in scenario.nodes():
        column, row = terrain.place_of(node.longitude, node.latitude)
        place = (terrain.FIRST[0] + int(column), terrain.FIRST[1] + int(row))
        heights = landscape.heights(place)
        x, y = int(column % 1 * PIXELS), int(row % 1 * PIXELS)
        down, right = np.gradient(heights, 15.9)
        slope = np.degrees(np.arctan(np.hypot(down[y, x], right[y, x])))
        assert slope > 9, node.id
        assert heights[y, x] > heights.min(), node.id


def test_terrain_of_the_demo_is_repeatable(landscape: terrain.Terrain) -> None:
    """The same heights on every machine, without holes."""
    heights = landscape.heights((terrain.FIRST[0] + 3, terrain.FIRST[1] + 2))

    assert np.isfinite(heights).all()
    assert [round(float(each)) for each in heights[::80, 7]] == [547, 757, 545, 633]
