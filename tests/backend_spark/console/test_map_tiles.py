"""Tiles of the console's map: served from packs, cached, and behind the login."""

import gzip
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from browser import picture
from console_pages import find, map_data, no_problems, shown
from console_workspace import Workspace, log_in
from PIL import Image
from pmtiles.tile import TileType
from selenium.webdriver import Chrome
from tile_pack_files import pmtiles, vector_pack

from demo.terrain import write_terrain
from service_runtime.settings import SettingsError

Open = Callable[..., httpx.Client]


@pytest.fixture(scope="module")
def terrain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's pack, made once."""
    return write_terrain(tmp_path_factory.mktemp("terrain"))


def test_tile_is_served_with_type_and_caching(
    open_app: Open, terrain: Path, tmp_path: Path
) -> None:
    """A browser keeps it for a week; an address without a tile answers 204."""
    client = open_app(f'map_packs = ["{terrain}", "{vector_pack(tmp_path)}"]')
    base, roads = client.get("/api/session").json()["packs"]
    place = base["tiles"].format(z=13, x=7134, y=3284)
    answer = client.get(f"/{place}")

    assert answer.headers["content-type"] == "image/webp"
    assert answer.content[:4] == b"RIFF"
    assert answer.headers["cache-control"] == "private, max-age=604800, immutable"
    tag = {"If-None-Match": answer.headers["etag"]}
    assert client.get(f"/{place}", headers=tag).status_code == 304
    assert client.get(f"/{base['tiles'].format(z=13, x=1, y=1)}").status_code == 204
    vector = client.get(f"/{roads['tiles'].format(z=10, x=898, y=408)}")
    assert vector.headers["content-encoding"] == "gzip"
    assert vector.content == b"\x1a\x00"
    assert "地理院タイル</a>" in roads["attribution"]


@pytest.mark.parametrize(
    ("place", "status"),
    [
        ("7/1/1/1", 404),
        ("-1/1/1/1", 404),
        ("0/40/1/1", 422),
        ("0/3/x/1", 422),
        ("0/3/9/9", 204),
    ],
)
def test_address_outside_the_packs_is_refused(
    open_app: Open, terrain: Path, place: str, status: int
) -> None:
    """Neither another pack nor another zoom can be asked for."""
    client = open_app(f'map_packs = ["{terrain}"]')

    assert client.get(f"/api/map/{place}").status_code == status


def test_tiles_are_behind_the_login(
    open_app: Open, workspace: Workspace, terrain: Path
) -> None:
    """Without an account neither a tile nor the list of packs is served."""
    client = open_app(f'{workspace.with_accounts()}\nmap_packs = ["{terrain}"]')

    assert client.get("/api/map/0/13/7134/3284").status_code == 401
    assert "packs" not in client.get("/api/session").json()
    log_in(client, "a-viewer")
    assert client.get("/api/map/0/13/7134/3284").status_code == 200


def test_console_does_not_start_with_a_foreign_file(
    open_app: Open, tmp_path: Path
) -> None:
    """The error names the setting and the remedy."""
    path = tmp_path / "map.mbtiles"
    path.write_bytes(b"GIF89a")

    with pytest.raises(SettingsError, match=r"console\.map_packs.*map-pack"):
        open_app(f'map_packs = ["{path}"]')


def test_pack_damaged_while_it_is_served_leaves_the_levels(
    open_app: Open, tmp_path: Path
) -> None:
    """Its tiles answer 503; the rest of the console goes on."""
    path = pmtiles(tmp_path, TileType.MVT, gzip.compress(b"\x1a\x00"))
    client = open_app(f'map_packs = ["{path}"]')
    path.write_bytes(path.read_bytes()[:100])

    assert client.get("/api/map/0/10/898/408").status_code == 503
    assert client.get("/api/cells").status_code == 200


LOOKS = {
    "level 3": (255, 40, 0),
    "level 4": (170, 0, 170),
    "held 3": (214, 115, 95),
    "held 4": (166, 91, 169),
    "level 2": (242, 231, 0),
    "held 2": (204, 199, 91),
}
"""Colours of `badges.ts` that could be taken for one another."""


def looks_on(picture: bytes) -> Counter[str]:
    """Number of pixels by the look whose colour is nearest, greys left out."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").crop((0, 60, 860, 640))
    pixels = np.asarray(image).reshape(-1, 3).astype(int)
    vivid = pixels[np.ptp(pixels, axis=1) > 70]
    distances = [np.abs(vivid - colour).sum(axis=1) for colour in LOOKS.values()]
    names = list(LOOKS)
    return Counter(names[at] for at in np.argmin(distances, axis=0))


def test_map_opens_on_a_landscape(
    run_console: Callable[..., str], driver: Chrome, terrain: Path
) -> None:
    """The pack is drawn below the cells, with its attribution; nothing is blocked."""
    address = run_console(f'map_packs = ["{terrain}"]')
    shown(driver, address, "ja")

    assert find(driver, ".maplibregl-ctrl-attrib").text == "架空の地形（デモ用）"
    loaded = driver.execute_script(
        "return performance.getEntriesByType('resource')"
        ".filter((e) => e.name.includes('/api/map/0/')).length"
    )
    assert loaded >= 4
    assert map_data(driver)["cells"] != "0"
    # Cells of level 3, of level 4 and a held one are shown, and look like no other.
    found = looks_on(driver.get_screenshot_as_png())
    assert min(found[name] for name in ("level 3", "level 4", "held 4")) > 500, found
    # Stripes are mixed with the colour at their edges.
    assert found["level 3"] > 3 * found["held 3"], found
    assert found["held 4"] > 3 * found["held 2"], found
    picture(driver, "map-ground-ja")
    no_problems(driver)
