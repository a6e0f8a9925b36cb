"""Overlays, search and addresses of the console's map in a real browser."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import picture
from conftest import wait_until
from console_contrast import hard_to_read
from console_pages import find, map_data, no_problems, shown, text
from console_workspace import PASSWORD, SLOPES, Workspace
from overlay_data import zones_shapefile
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

RunConsole = Callable[..., str]
WET = SLOPES[0].cell.token


def open_overlays(driver: Chrome, address: str) -> None:
    """Log in as a chief and open the form of the overlays."""
    driver.get(f"{address}?lang=ja")
    find(driver, "input[name=name]").send_keys("a-chief")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: map_data(driver).get("shownMs"))
    find(driver, ".overlays > summary").click()
    find(driver, ".overlay-add > summary").click()


def upload(driver: Chrome, path: Path, kind: str) -> None:
    """Fill the form of an overlay as a chief does, and send it."""
    find(driver, "input[name=file]").send_keys(str(path))
    find(driver, "input[name=title]").send_keys(path.stem)
    Select(find(driver, "select[name=kind]")).select_by_value(kind)
    find(driver, ".overlay-form .primary").click()


def test_chief_adds_zones_and_finds_an_address(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, tmp_path: Path
) -> None:
    """A zipped Shapefile is drawn with its legend; an address is found and shown."""
    open_overlays(driver, run_console(workspace.with_accounts()))
    zones, wrong = tmp_path / "zones.zip", tmp_path / "wrong.csv"
    addresses = tmp_path / "addresses.csv"
    zones.write_bytes(zones_shapefile())
    wrong.write_text("name,x\n1,2\n")
    addresses.write_text(
        "住所,緯度,経度\n大谷12-3,33.5752,133.5011\n", encoding="cp932"
    )

    upload(driver, wrong, "road")
    wait_until(lambda: "緯度" in text(driver, ".overlays .problem"))
    driver.execute_script("document.querySelector('.overlay-form').reset()")
    upload(driver, zones, "warning_zone")
    wait_until(lambda: map_data(driver).get("overlays") == "1")
    assert "土砂災害特別警戒区域" in text(driver, ".overlay-list")
    upload(driver, addresses, "place")
    wait_until(lambda: map_data(driver).get("overlays") == "2")
    find(driver, ".search input").send_keys("大谷12")
    wait_until(lambda: "大谷12-3" in text(driver, ".found"))
    assert hard_to_read(driver) == []
    find(driver, ".found button").click()
    wait_until(lambda: text(driver, ".maplibregl-popup") == "大谷12-3")
    wait_until(lambda: "map=33.57520,133.50110,14.00" in driver.current_url)
    picture(driver, "map-overlays-ja")
    logged = [each["message"] for each in driver.get_log("browser")]
    assert not [each for each in logged if "Content Security Policy" in each]


@pytest.mark.long
def test_link_of_a_cell_counts_while_the_address_is_written(
    console: str, driver: Chrome
) -> None:
    """The page writes its view into the address shortly after each change."""
    shown(driver, console, "en")
    script = """
    location.hash = arguments[0];
    history.replaceState(null, "", "?lang=en#map=33.57,133.50,14.00");
    """
    driver.execute_script(script, WET)

    wait_until(lambda: WET in text(driver, ".panel code"))


def test_address_opens_the_same_view(console: str, driver: Chrome) -> None:
    """Cell, time, map, tab and language of one page are those of another."""
    shown(driver, console, "en")
    driver.execute_script("location.hash = arguments[0]", WET)
    wait_until(lambda: WET in text(driver, ".panel code"))
    find(driver, ".slider input").send_keys(Keys.HOME)
    wait_until(lambda: f"cell={WET}&at=" in driver.current_url)
    before = driver.current_url
    find(driver, ".maplibregl-ctrl-zoom-out").click()
    wait_until(lambda: driver.current_url != before)
    past, address = text(driver, ".slider output"), driver.current_url

    driver.switch_to.new_window("tab")
    driver.get(address)
    wait_until(lambda: WET in text(driver, ".panel code"))
    wait_until(lambda: text(driver, ".slider output") == past)
    assert past.startswith("Showing the past")
    wait_until(lambda: driver.current_url == address)
    find(driver, "[data-tab=health]").click()
    wait_until(lambda: "tab=health" in driver.current_url)
    driver.refresh()
    wait_until(
        lambda: (
            find(driver, "[data-tab=health]").get_attribute("aria-current") == "true"
        )
    )
    assert not driver.find_elements(By.CSS_SELECTOR, ".problem:not(:empty)")
    no_problems(driver)


LATE_CELLS = """
const original = window.fetch;
let isLate = true;
window.fetch = async (...request) => {
  const answer = await original(...request);
  const address = String(request[0]?.url ?? request[0]);
  if (!isLate || !address.endsWith("api/cells")) return answer;
  isLate = false;
  const { tokens, corners } = await answer.json();
  const at = tokens.indexOf("WET");
  tokens.splice(at, 1);
  corners.splice(at, 1);
  return Response.json({ geometry: -2, tokens, corners });
};
""".replace("WET", WET)
"""The first list lacks a cell."""


@pytest.mark.long
def test_list_of_cells_that_is_late_is_not_drawn(console: str, driver: Chrome) -> None:
    """It is fetched again: list and map show all cells with their own levels."""
    added = driver.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": LATE_CELLS}
    )
    try:
        driver.get(f"{console}?lang=en")
        wait_until(lambda: map_data(driver).get("nodes"))
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    wait_until(lambda: map_data(driver)["cells"] == str(len(SLOPES)))
    pick = f".pick[data-token='{WET}']"
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, pick), timeout_s=20)


@pytest.mark.parametrize(
    "hash_",
    [
        "map=x,y,z&at=-1&tab=none&replay=5,1",
        pytest.param("map=99,999,50&lang=xx", marks=pytest.mark.long),
    ],
)
def test_damaged_address_opens_the_present(
    console: str, driver: Chrome, hash_: str
) -> None:
    """What is no place, time, tab or cell is left out."""
    driver.get(f"{console}?lang=en#{hash_}")
    wait_until(lambda: map_data(driver).get("shownMs"))

    assert text(driver, ".slider output").startswith("Now")
    assert find(driver, "[data-tab=map]").get_attribute("aria-current") == "true"
    no_problems(driver)


DRAWN_LEVELS = """
const colours = arguments[0];
dispatchEvent(new Event("beforeprint"));
const canvas = document.querySelector(".print-map");
const { width, height } = canvas;
const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
const found = new Set();
for (let at = 0; at < data.length; at += 4)
  for (const [level, colour] of Object.entries(colours))
    if (colour.every((value, part) => Math.abs(value - data[at + part]) < 6))
      found.add(level);
return [...found].sort();
"""
GROUND = (233, 238, 242)
LEVEL_COLOURS = {2: (242, 231, 0), 3: (255, 40, 0), 4: (170, 0, 170), 5: (12, 0, 12)}
OPACITY = 0.92


def drawn_levels(driver: Chrome) -> list[str]:
    """Levels from 2 on whose colour is on the map."""
    colours = {
        level: [
            OPACITY * part + (1 - OPACITY) * below
            for part, below in zip(colour, GROUND, strict=True)
        ]
        for level, colour in LEVEL_COLOURS.items()
    }
    found: list[str] = driver.execute_script(DRAWN_LEVELS, colours)
    return found


def test_map_shows_the_levels_also_after_its_context_was_lost(
    console: str, driver: Chrome
) -> None:
    """A browser takes the context of WebGL from a page when it lacks memory."""
    shown(driver, console)
    counts = "[...document.querySelectorAll('.counts li')]"
    listed = f"return {counts}.filter((li) => li.innerText.trim().match(/[1-9]\\d*$/))"
    levels = driver.execute_script(f"{listed}.map((li) => li.dataset.level)")
    expected = sorted(set(levels) & {str(level) for level in LEVEL_COLOURS})

    assert expected
    assert drawn_levels(driver) == expected
    idle = map_data(driver)["idle"]
    driver.execute_script("""
    const canvas = document.querySelector(".map canvas.maplibregl-canvas");
    const context = canvas.getContext("webgl2").getExtension("WEBGL_lose_context");
    canvas.addEventListener("webglcontextlost",
      () => setTimeout(() => context.restoreContext()), { once: true });
    context.loseContext();
    """)
    wait_until(lambda: map_data(driver)["idle"] != idle)
    wait_until(lambda: drawn_levels(driver) == expected)


COUNT_FRAMES = """
const drawn = globalThis.drawn = { frames: new Set(), shaders: [] };
const { drawElements, shaderSource } = WebGL2RenderingContext.prototype;
const isShown = () => document.querySelector(".map")?.dataset.shownMs;
WebGL2RenderingContext.prototype.drawElements = function (...how) {
  if (!isShown()) drawn.frames.add(document.timeline.currentTime);
  return drawElements.apply(this, how);
};
WebGL2RenderingContext.prototype.shaderSource = function (shader, text) {
  if (!isShown()) drawn.shaders.push(text);
  return shaderSource.call(this, shader, text);
};
"""


def test_first_picture_is_one_frame_of_the_cells(console: str, driver: Chrome) -> None:
    """Each frame waits beside other programs; a sky would be drawn for nothing."""
    added = driver.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": COUNT_FRAMES}
    )
    try:
        shown(driver, console)
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    frames = driver.execute_script("return drawn.frames.size")
    shaders = driver.execute_script("return drawn.shaders")

    assert frames == 1
    assert any("u_levels" in text for text in shaders)
    assert not any("u_sky_color" in text for text in shaders)


@pytest.mark.long
def test_library_of_the_map_is_fetched_beside_the_page(
    console: str, driver: Chrome
) -> None:
    """The page is built while the library is parsed; it is preloaded and used once."""
    shown(driver, console)
    script = """
    const preload = document.querySelector("link[rel=modulepreload]").href;
    return [preload, performance.getEntriesByType("resource").map(({ name }) => name)];
    """
    preload, fetched = driver.execute_script(script)

    assert "/static/maplibre-gl-" in preload
    assert fetched.count(preload) == 1
    no_problems(driver)


SLOW = {"offline": False, "latency": 0, "uploadThroughput": -1}
"""With a throughput: a connection on which the library comes after the cells."""


@pytest.mark.long
def test_place_in_the_address_is_kept_until_the_library_comes(
    console: str, driver: Chrome
) -> None:
    """The address is applied with the first cells, when there may be no map yet."""
    driver.execute_cdp_cmd("Network.enable", {})
    slow = SLOW | {"downloadThroughput": 150_000}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", slow)
    try:
        driver.get(f"{console}?lang=en#map=33.57,133.5,14")
        wait_until(lambda: map_data(driver).get("shownMs"))
    finally:
        usual = SLOW | {"downloadThroughput": -1}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", usual)

    wait_until(lambda: "map=33.57000,133.50000,14.00" in driver.current_url)


def test_list_is_shown_without_the_library(console: str, driver: Chrome) -> None:
    """Without the map the levels are still to be read."""
    driver.execute_cdp_cmd("Network.enable", {})
    block = {"urls": ["*/static/maplibre-gl-*"]}
    driver.execute_cdp_cmd("Network.setBlockedURLs", block)
    try:
        driver.get(f"{console}?lang=en")
        wait_until(lambda: text(driver, ".map .failed"))
        wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".overview .pick"))
    finally:
        driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
