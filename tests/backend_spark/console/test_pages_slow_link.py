"""Pages on a slow link: answers that are late, or come in another order."""

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from conftest import wait_until
from console_pages import (
    LISTED,
    Program,
    fill,
    find,
    hold_answer,
    hold_requests,
    map_data,
    press,
    press_twice,
    shown,
    text,
    wait_for_held,
)
from console_tables import Slope, storm, write_tables
from console_workspace import NOW_S, PASSWORD, SLOPES, Workspace, add_alert
from deltalake import write_deltalake
from doubtful_slope import DOUBTFUL, write_doubtful
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from soak.relay import Relay

from backend_spark.tables.schemas import LEVELS
from spatial_mqtt.cells import Cell

RunConsole = Callable[..., str]
CELL, OTHER = (slope.cell.token for slope in SLOPES[:2])


def log_in(driver: Chrome, address: str, name: str) -> None:
    """Open the page with an account."""
    driver.get(f"{address}?lang=ja")
    find(driver, "input[name=name]").send_keys(name)
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))


@pytest.fixture
def address(run_console: RunConsole, workspace: Workspace) -> str:
    """A console with accounts."""
    return run_console(workspace.with_accounts())


@pytest.fixture
def relay(workspace: Workspace) -> Iterator[Relay]:
    """The link from the browser to the console."""
    relay = Relay(workspace.port)
    yield relay
    relay.close()


@pytest.mark.long
@pytest.mark.usefixtures("address")
def test_list_goes_on_after_a_link_that_died_without_an_error(
    relay: Relay, driver: Chrome, workspace: Workspace
) -> None:
    """A request without an answer froze the list, beside a page that rang."""
    log_in(driver, f"http://127.0.0.1:{relay.port}/", "a-analyst")
    press(driver, "[data-tab=events]")
    press(driver, "[data-state=all]")
    find(driver, "tr[data-event] .acknowledge")
    count = len(driver.find_elements(By.CSS_SELECTOR, "tr[data-event]"))
    relay.lose()
    press(driver, "[data-state=open]")
    press(driver, "tr[data-event] .acknowledge")
    time.sleep(0.5)  # in which the requests are sent
    relay.restore()
    add_alert(workspace)
    newest = "tr[data-event]:first-child .eventWhere"
    wait_until(lambda: "otani-9" in text(driver, newest))

    assert len(driver.find_elements(By.CSS_SELECTOR, "tr[data-event]")) == count + 1
    words = "実行されたかどうか分かりません"
    wait_until(lambda: words in text(driver, ".events-page .problem"))


@pytest.mark.long
def test_levels_wait_for_their_cells_after_a_restart(
    running_console: Program, driver: Chrome, workspace: Workspace
) -> None:
    """They were drawn on the cells before, and each second all cells were fetched."""
    shown(driver, running_console.start(), "en")
    wet = Slope("otani-8", 33.56, 133.48, storm(60, 48))
    write_tables(workspace.data, [wet], NOW_S)
    wait_until(lambda: f"{wet.cell.token} 5" in driver.execute_script(LISTED))
    listed, title = driver.execute_script(LISTED), driver.title
    release = hold_requests(driver, "api/cells")
    running_console.stop()
    wait_until(lambda: text(driver, ".status.alarm"))
    running_console.start()  # with the cells in another order
    wait_until(lambda: driver.execute_script("return window.asked"))
    add_alert(workspace)
    count = int(title.split(")")[0].removeprefix("("))
    wait_until(lambda: driver.title.startswith(f"({count + 1})"))
    press(driver, f".pick[data-token='{CELL}']")
    press(driver, ".panel .back")

    assert driver.execute_script(LISTED) == listed
    assert driver.execute_script("return window.asked") == 1
    release()
    wait_until(lambda: not text(driver, ".status.alarm"))
    assert driver.execute_script(LISTED) == listed


MANY = 3000
SLOW_BYTES_PER_S = 150.0
"""At it the answer's head takes some seconds, and all cells half a minute."""


def write_many_cells(workspace: Workspace) -> None:
    """Levels of many cells, which differ."""
    chance, at = random.Random(1), datetime.fromtimestamp(NOW_S, UTC)
    rows = [
        dict.fromkeys(LEVELS.names)
        | {"cell": cell.token, "at": at, "level": chance.choice((1, 2, 3))}
        | {"lower_bound": chance.random() < 0.5, "rain_known": True}
        for n in range(MANY)
        for cell in [Cell.at(34.0 + n // 40 * 0.02, 134.0 + n % 40 * 0.02, 13)]
    ]
    path = str(workspace.data / "tables" / "levels")
    write_deltalake(path, pa.Table.from_pylist(rows, LEVELS), mode="append")


@pytest.mark.long
def test_slow_link_with_many_cells_is_connected_again(
    run_console: RunConsole, relay: Relay, driver: Chrome, workspace: Workspace
) -> None:
    """Its first event took longer than the silence after which the page began anew."""
    write_many_cells(workspace)
    run_console()
    driver.get(f"http://127.0.0.1:{relay.port}/?lang=en")
    wait_until(lambda: map_data(driver).get("shownMs"))
    relay.cut()
    wait_until(lambda: text(driver, ".status.alarm"))
    relay.restore()
    relay.slow(SLOW_BYTES_PER_S)
    wait_until(lambda: not text(driver, ".status.alarm"))


@pytest.mark.long
def test_assumed_rain_that_was_switched_off_is_not_shown(
    console: str, driver: Chrome
) -> None:
    """Its levels stood on the map without the banner, as if they were the present."""
    shown(driver, console, "en")
    deliver = hold_answer(driver, "api/what-if")
    find(driver, ".slider .if").click()
    wait_for_held(driver)
    find(driver, ".slider .if").click()
    deliver()

    assert not driver.find_elements(By.CSS_SELECTOR, ".assumed-banner")
    assert text(driver, ".headline h2") == "Highest level now"


def test_levels_are_those_of_the_newest_assumed_rain(
    console: str, driver: Chrome
) -> None:
    """The answer to an amount that was typed before comes later."""
    shown(driver, console, "en")
    deliver = hold_answer(driver, "api/what-if")
    find(driver, ".slider .if").click()
    wait_for_held(driver)
    amount = find(driver, ".assumed-banner input[name=mm]")
    amount.clear()
    amount.send_keys("5" + Keys.TAB)
    words = text_of_banner(driver, "5 mm")
    deliver()

    assert text(driver, ".assumed-banner p") == words


def text_of_banner(driver: Chrome, part: str) -> str:
    """Words of the banner, once they contain a text."""
    wait_until(lambda: part in text(driver, ".assumed-banner p"))
    return text(driver, ".assumed-banner p")


@pytest.mark.long
def test_saved_decision_stays_when_an_older_list_arrives(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """The readings were back in the list, as if nothing had been saved."""
    write_doubtful(workspace.data)
    log_in(driver, run_console(workspace.with_accounts()), "a-chief")
    press(driver, "[data-tab=reviews]")
    row = f"tr[data-span='{DOUBTFUL.node} tilt/x']"
    find(driver, f"{row} .accept")
    deliver = hold_answer(driver, "api/reviews?")
    wait_for_held(driver)
    press(driver, f"{row} .accept")
    press(driver, ".review-form .primary:enabled")
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".version-state"))
    deliver()

    assert not driver.find_elements(By.CSS_SELECTOR, row)


@pytest.mark.long
def test_saved_thresholds_stay_when_an_older_list_arrives(
    address: str, driver: Chrome
) -> None:
    """The version that was saved was missing in the list; a second click saved two."""
    log_in(driver, address, "a-chief")
    press(driver, "[data-tab=thresholds]")
    find(driver, "form.thresholds input[value=all]").click()
    find(driver, "form.thresholds input[name=why]").send_keys("地震後の暫定基準")
    find(driver, "form.thresholds input[name=sure]").click()
    deliver = hold_answer(driver, "api/thresholds?")
    wait_for_held(driver)
    press_twice(driver, ".thresholds .primary")
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".version-state"))
    deliver()

    assert len(driver.find_elements(By.CSS_SELECTOR, ".version-state")) == 1
    press(driver, "[data-tab=health]")
    press(driver, "[data-tab=thresholds]")
    find(driver, ".version-state")
    assert len(driver.find_elements(By.CSS_SELECTOR, ".version-state")) == 1


@pytest.mark.long
def test_list_of_thresholds_that_did_not_change_keeps_the_focus(
    address: str, driver: Chrome
) -> None:
    """Every ten seconds the keyboard was back at the begin of the page."""
    log_in(driver, address, "a-chief")
    press(driver, "[data-tab=thresholds]")
    find(driver, ".versions .revert")
    driver.execute_script("document.querySelector('.versions .revert').focus()")
    deliver = hold_answer(driver, "api/thresholds?")
    wait_for_held(driver)
    deliver()

    focused = driver.execute_script("return document.activeElement.className")
    assert focused == "revert"


def test_drill_stays_when_an_older_state_arrives(address: str, driver: Chrome) -> None:
    """The page offered to start one while it was running."""
    log_in(driver, address, "a-chief")
    press(driver, f".pick[data-token='{CELL}']")
    press(driver, ".way-back .start-drill")
    deliver = hold_answer(driver, f"api/cell/{CELL}/way-back")
    wait_for_held(driver)
    press_twice(driver, ".drill-form .start-drill")
    find(driver, ".drill-banner")
    deliver()

    assert driver.find_elements(By.CSS_SELECTOR, ".drill-banner")
    assert not text(driver, ".way-back .problem")


def test_landslide_is_entered_once(address: str, driver: Chrome) -> None:
    """It counted twice after a second click, and nothing removes an entry."""
    log_in(driver, address, "a-analyst")
    press(driver, "[data-tab=skill]")
    find(driver, ".event input[name=time]")
    fill(driver, "time", "2026-10-26T13:00")
    release = hold_requests(driver, "api/landslides")
    press_twice(driver, ".event button")
    release()
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".events tbody tr"))
    press(driver, "[data-tab=health]")
    press(driver, "[data-tab=skill]")
    find(driver, ".events tbody tr")

    assert len(driver.find_elements(By.CSS_SELECTOR, ".events tbody tr")) == 1


def test_panel_is_that_of_the_selected_cell(address: str, driver: Chrome) -> None:
    """Until the data came, and for ever if they did not, it was that of another."""
    log_in(driver, address, "a-chief")
    press(driver, f".pick[data-token='{CELL}']")
    find(driver, f".panel[data-token='{CELL}']")
    driver.execute_cdp_cmd("Network.enable", {})
    urls = {"urls": [f"*/api/cell/{OTHER}"]}
    driver.execute_cdp_cmd("Network.setBlockedURLs", urls)
    press(driver, ".panel .back")
    press(driver, f".pick[data-token='{OTHER}']")
    wait_until(lambda: OTHER in text(driver, ".panel h2"))
    wait_until(lambda: "つながりません" in text(driver, ".panel .problem"))
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    find(driver, ".panel .reasons")

    assert OTHER in text(driver, ".panel h2")


HELD_HISTORY = """
const real = window.fetch;
const released = new Promise((resolve) => { window.release = resolve; });
window.fetch = async (...request) => {
  if (request[0] === "api/history") await released;
  return real(...request);
};
"""


def test_present_is_not_shown_as_the_past_while_this_is_fetched(
    console: str, driver: Chrome
) -> None:
    """The map had the present levels below the mark of the past."""
    source = {"source": HELD_HISTORY}
    add, remove = (
        f"Page.{name}ScriptToEvaluateOnNewDocument" for name in ("add", "remove")
    )
    added = driver.execute_cdp_cmd(add, source)
    try:
        shown(driver, console, "en")
        press(driver, ".stepBack")
        wait_until(lambda: "Showing the past" in text(driver, ".course output"))
        wait_until(lambda: "then" in text(driver, ".headline h2"))
        assert text(driver, ".headline .badge") == "No data"
        driver.execute_script("window.release()")
        wait_until(lambda: "level" in text(driver, ".headline .badge"))
    finally:
        driver.execute_cdp_cmd(remove, added)


IS_ANSWERED = """
const entries = performance.getEntriesByType("resource");
return entries.some((e) => e.name.endsWith(arguments[0]) && e.responseEnd > 0);
"""


@pytest.mark.long
def test_late_failure_leaves_the_nodes_of_a_newer_filter(
    console: str, driver: Chrome
) -> None:
    """That of the filter before emptied the list."""
    shown(driver, console, "en")
    press(driver, "[data-tab=health]")
    find(driver, "tr[data-node]")
    deliver = hold_answer(driver, "api/health?node=o", 503)
    field = find(driver, ".health-page input")
    field.send_keys("o")
    wait_for_held(driver)
    field.send_keys("tani-1")
    wait_until(lambda: driver.execute_script(IS_ANSWERED, "node=otani-1"))
    wait_until(lambda: len(driver.find_elements(By.CSS_SELECTOR, "tr[data-node]")) == 1)
    deliver()

    assert driver.find_elements(By.CSS_SELECTOR, "tr[data-node=otani-1]")
    assert not text(driver, ".health-page .problem")


@pytest.mark.long
def test_late_failure_leaves_the_series_of_a_newer_range(
    console: str, driver: Chrome
) -> None:
    """That of the range before took the place of its charts."""
    shown(driver, console, "en")
    press(driver, "[data-tab=series]")
    find(driver, ".series-found .range")
    deliver = hold_answer(driver, "api/series?hours=6", 503)
    before = text(driver, ".series-found .range")
    press(driver, "[data-hours='6']")
    wait_for_held(driver)
    press(driver, "[data-hours='12']")
    wait_until(lambda: text(driver, ".series-found .range") != before)
    deliver()

    assert text(driver, ".series-found .range") != before
    assert not text(driver, ".series-found .problem")


@pytest.mark.long
def test_enter_opens_the_place_that_was_typed(console: str, driver: Chrome) -> None:
    """And not the first one of the text before, whose list was still shown."""
    shown(driver, console, "en")
    press(driver, ".overlays summary")
    field = find(driver, ".search input")
    field.send_keys("nishi-1")
    wait_until(lambda: "nishi-1" in text(driver, ".found button"))
    release = hold_requests(driver, "api/search")
    field.clear()
    field.send_keys("otani-1" + Keys.ENTER)
    driver.execute_async_script("setTimeout(arguments[0], 500)")
    release()
    popup = ".maplibregl-popup-content"
    wait_until(lambda: text(driver, popup))

    assert text(driver, popup) == "otani-1"


@pytest.mark.long
def test_replay_is_that_of_the_dates_that_were_chosen_last(
    console: str, driver: Chrome
) -> None:
    """The levels of the dates before come later."""
    shown(driver, console, "en")
    press(driver, ".dates")
    find(driver, "input[name=from]")
    deliver = hold_answer(driver, "api/replay/levels")
    fill(driver, "from", "2026-10-25T00:00")
    press(driver, ".replay .primary")
    wait_for_held(driver)
    fill(driver, "from", "2026-10-26T00:00")
    press(driver, ".replay .primary")
    wait_until(lambda: "10/26 00:00 –" in text(driver, ".replay b"))
    deliver()

    assert "10/26 00:00 –" in text(driver, ".replay b")


@pytest.mark.long
def test_dates_of_the_replay_that_cannot_be_read_say_so(
    console: str, driver: Chrome
) -> None:
    """The form stayed empty."""
    shown(driver, console, "en")
    driver.execute_cdp_cmd("Network.enable", {})
    urls = {"urls": ["*/api/replay/bounds"]}
    driver.execute_cdp_cmd("Network.setBlockedURLs", urls)
    press(driver, ".dates")
    wait_until(lambda: "cannot be reached" in text(driver, ".replay .problem"))
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    press(driver, ".dates")
    press(driver, ".dates")

    assert find(driver, "input[name=from]").is_displayed()


@pytest.mark.long
def test_window_of_a_node_that_cannot_be_read_says_so(
    console: str, driver: Chrome
) -> None:
    """Nothing happened after the click."""
    shown(driver, console, "en")
    press(driver, "[data-tab=health]")
    find(driver, "tr[data-node=otani-1] button")
    driver.execute_cdp_cmd("Network.enable", {})
    urls = {"urls": ["*/api/node/*"]}
    driver.execute_cdp_cmd("Network.setBlockedURLs", urls)
    press(driver, "tr[data-node=otani-1] button")

    wait_until(lambda: "cannot be reached" in text(driver, "dialog .problem"))
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
