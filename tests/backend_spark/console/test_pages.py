"""The console's pages in a real browser, served by the real program."""

import base64
import shutil
import time
from collections.abc import Callable

import pytest
from browser import picture, resize
from conftest import wait_until
from console_pages import (
    ANSWERED,
    LISTED,
    Program,
    cut_off,
    fill,
    find,
    hold_requests,
    is_side_too_wide,
    map_data,
    no_problems,
    press,
    shown,
    text,
)
from console_tables import Slope, dry_slope, storm, write_tables
from console_workspace import (
    HIGHEST,
    HOSTILE,
    NOW_S,
    PASSWORD,
    SLOPES,
    Workspace,
)
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from sizes import sizes

from backend_spark.console.level_grid import HELD_OFFSET

RunConsole = Callable[..., str]
A4 = {"width": 794, "height": 1123, "deviceScaleFactor": 1, "mobile": False}
WET = SLOPES[0].cell.token


@pytest.mark.parametrize(
    ("language", "level", "title"),
    [
        ("ja", "レベル{}相当", "土砂災害 監視コンソール"),
        ("en", "Equivalent to level {}", "Landslide"),
    ],
)
def test_first_view_shows_the_highest_level(
    console: str, driver: Chrome, language: str, level: str, title: str
) -> None:
    """In both languages, worded "equivalent to level n" as the law requires.

    A silent cell holds the same level; the headline states the judged one, and the
    counts have a row for the held one.
    """
    shown(driver, console, language)

    assert title in text(driver, ".top h1")
    assert text(driver, ".headline .badge") == level.format(HIGHEST)
    assert len(driver.find_elements(By.CSS_SELECTOR, ".counts li")) == 8
    held = find(driver, f".counts li[data-level='{HELD_OFFSET + HIGHEST}'] b")
    assert held.text == "1"
    assert not is_side_too_wide(driver)
    assert "警戒レベル" not in driver.page_source
    picture(driver, f"map-{language}")
    no_problems(driver)


def test_level_1_is_no_headline_while_cells_are_unknown(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """One dry cell is judged; the nodes of two others have stopped."""
    slopes = [
        dry_slope("dry"),
        *(dry_slope(f"n{n}", n, is_silent=True) for n in (1, 2)),
    ]
    shutil.rmtree(workspace.data)
    write_tables(workspace.data, slopes, NOW_S)
    driver.get(f"{run_console()}?lang=en")
    wait_until(lambda: text(driver, ".counts li[data-level='0'] b") == "2")
    words = "Cells that cannot be judged: 2; silent nodes: 2"

    assert words in text(driver, ".headline")
    assert "no criterion reached" not in text(driver, ".headline").lower()
    press(driver, ".if")
    wait_until(lambda: words in text(driver, ".assumed-banner .present-level"))
    no_problems(driver)


def test_cell_panel_opens_by_keyboard(console: str, driver: Chrome) -> None:
    """It shows reasons, snake line and charts; Escape closes it."""
    shown(driver, console, "ja")
    button = find(driver, f".pick[data-token='{WET}']")
    button.send_keys(Keys.ENTER)
    wait_until(lambda: text(driver, ".panel .reasons"))

    assert "土壌雨量指数" in text(driver, ".panel .reasons")
    assert find(driver, ".snake .past").get_attribute("points")
    assert len(driver.find_elements(By.CSS_SELECTOR, ".uplot")) == 3
    picture(driver, "cell-ja")
    driver.execute_script("document.querySelector('.side').scrollTop = 760")
    picture(driver, "cell-charts-ja")
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    wait_until(lambda: text(driver, ".headline .badge"))
    no_problems(driver)


def test_files_can_be_downloaded(console: str, driver: Chrome) -> None:
    """The links of the overview return GeoJSON and a CAP draft."""
    shown(driver, console, "en")
    fetched = """
        const done = arguments[arguments.length - 1];
        const link = document.querySelector(`a[data-file='${arguments[0]}']`);
        fetch(link.href).then((answer) => answer.text()).then(done);
    """

    assert WET in driver.execute_async_script(fetched, "levels.geojson")
    assert "<msgType>Alert</msgType>" in driver.execute_async_script(
        fetched, "draft.xml"
    )
    find(driver, f".pick[data-token='{WET}']").click()
    link = ".panel a[data-rows=csv-JST]"
    find(driver, link)
    scroll = "document.querySelector(arguments[0]).scrollIntoView()"
    driver.execute_script(scroll, link)
    picture(driver, "cell-week-en")
    week = driver.execute_async_script(
        fetched.replace("data-file", "data-rows"), "csv-JST"
    )
    assert week.splitlines()[-1].startswith(f"{WET},2026-10-26T16:40:00+09:00")
    no_problems(driver)


def test_click_on_the_map_selects_the_cell(console: str, driver: Chrome) -> None:
    """A click on a polygon opens the panel of its cell."""
    shown(driver, console)
    canvas = find(driver, ".map canvas")
    driver.execute_script(
        """
        const box = arguments[0].getBoundingClientRect();
        for (let y = 20; y < box.height - 20 && !window.hit; y += 12)
          for (let x = 20; x < box.width - 80; x += 12) {
            const at = {clientX: box.left + x, clientY: box.top + y, bubbles: true};
            for (const kind of ["mousedown", "mouseup", "click"])
              arguments[0].dispatchEvent(new MouseEvent(kind, at));
            if (document.querySelector(".panel")) { window.hit = true; break; }
          }
        """,
        canvas,
    )
    wait_until(lambda: text(driver, ".panel h2"))

    assert text(driver, ".panel code") in {slope.cell.token for slope in SLOPES}


def test_slider_shows_the_past(console: str, driver: Chrome) -> None:
    """A banner says so; the button returns to the present."""
    shown(driver, console)
    # Fetched before the first move, which then has only to draw.
    fetched = "return performance.getEntriesByType('resource').map((each) => each.name)"
    wait_until(
        lambda: any("api/history" in each for each in driver.execute_script(fetched))
    )
    slider = find(driver, ".slider input")
    slider.send_keys(Keys.HOME)
    wait_until(lambda: "Showing the past" in text(driver, ".slider output"))
    wait_until(lambda: text(driver, ".headline .badge") == "No data")
    picture(driver, "past-en")
    find(driver, ".slider .now").click()
    wait_until(
        lambda: text(driver, ".headline .badge") == f"Equivalent to level {HIGHEST}"
    )


def test_new_levels_are_pushed(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """A commit to the tables appears without a reload."""
    shown(driver, run_console())
    later = Slope("otani-8", 33.56, 133.48, storm(60, 48))
    write_tables(workspace.data, [later], 1_793_000_400)

    wait_until(lambda: map_data(driver)["cells"] == str(len(SLOPES) + 1))
    wait_until(lambda: text(driver, ".headline .badge") == "Equivalent to level 5")


def test_levels_are_those_of_their_cells_after_a_restart(
    running_console: Program, driver: Chrome, workspace: Workspace
) -> None:
    """The server has as many lists of cells then, but the cells in another order."""
    shown(driver, running_console.start())
    wet = Slope("otani-8", 33.56, 133.48, storm(60, 48))
    write_tables(workspace.data, [wet], NOW_S)
    wait_until(lambda: map_data(driver)["cells"] == str(len(SLOPES) + 1))
    wait_until(lambda: f"{wet.cell.token} 5" in driver.execute_script(LISTED))
    listed = driver.execute_script(LISTED)
    running_console.stop()
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".status.alarm"))
    running_console.start()
    wait_until(lambda: not driver.find_elements(By.CSS_SELECTOR, ".status.alarm"))

    assert driver.execute_script(LISTED) == listed


@pytest.mark.long
def test_panel_keeps_the_focus_when_new_levels_arrive(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """With the keyboard alone one was back at the begin of the page each time."""
    shown(driver, run_console())
    press(driver, f".pick[data-token='{WET}']")
    css = ".panel .pick[data-node]"
    find(driver, css)
    driver.execute_script("document.querySelector(arguments[0]).focus()", css)
    mark = "document.querySelector('.panel h2').dataset.mark = 'old'"
    driver.execute_script(mark)
    later = Slope("otani-8", 33.56, 133.48, storm(60, 48))
    write_tables(workspace.data, [later], NOW_S)
    wait_until(lambda: map_data(driver)["cells"] == str(len(SLOPES) + 1))
    drawn = "return document.querySelector('.panel h2').dataset.mark !== 'old'"
    wait_until(lambda: driver.execute_script(drawn))

    focused = "return document.activeElement.matches(arguments[0])"
    assert driver.execute_script(focused, css)


@pytest.mark.long
def test_html_in_a_node_name_is_escaped(console: str, driver: Chrome) -> None:
    """In the panel of the cell and in the dialog of the node."""
    shown(driver, console)
    token = SLOPES[4].cell.token
    driver.execute_script("location.hash = arguments[0]", token)
    wait_until(lambda: HOSTILE in text(driver, ".panel"))
    find(driver, ".panel .pick[data-node]").click()
    wait_until(lambda: HOSTILE in text(driver, "dialog h2"))

    assert driver.execute_script("return window.broken") is None
    assert driver.find_elements(By.CSS_SELECTOR, "img[src='x']") == []
    picture(driver, "node-with-html")


def test_login_form_shows_a_wrong_password(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """The correct one then logs in."""
    driver.get(run_console(workspace.with_accounts()) + "?lang=en")
    find(driver, "input[name=name]").send_keys("a-chief")
    find(driver, "input[name=password]").send_keys("not my password" + Keys.ENTER)
    wait_until(lambda: "wrong" in text(driver, ".problem"))
    picture(driver, "login-en")
    find(driver, "input[name=password]").clear()
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)

    wait_until(lambda: "a-chief" in text(driver, ".account"))


@pytest.mark.long
def test_pages_fit_a_tablet(console: str, driver: Chrome) -> None:
    """In both orientations nothing overflows and no level is cut off."""
    for width, height in ((1024, 768), (800, 1280)):
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        over = "return document.documentElement.scrollWidth - window.innerWidth"
        for language in ("ja", "en"):
            shown(driver, console, language)
            assert driver.execute_script(over) <= 0
            assert cut_off(driver) == []
            assert not is_side_too_wide(driver)
            picture(driver, f"tablet-{width}-{language}")


def test_page_without_data_has_no_time(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """In an exercise it said that it is the year 1970."""
    shutil.rmtree(workspace.data)
    workspace.data.mkdir()
    driver.get(f"{run_console()}?lang=ja")
    wait_until(lambda: "データがまだありません" in text(driver, ".unjudged"))

    wait_until(lambda: text(driver, ".slider output"))
    assert text(driver, ".slider output") == "データがありません"
    titles = driver.find_elements(By.CSS_SELECTOR, ".maplibregl-ctrl button")
    assert [each.get_attribute("title") for each in titles] == [
        "地図を拡大",
        "地図を縮小",
    ]


def test_past_shows_the_present_level_beside_it(console: str, driver: Chrome) -> None:
    """Who has left the slider in a calm past must see that it is no longer calm."""
    shown(driver, console)
    assert text(driver, ".present-level") == ""
    find(driver, ".slider input[type=range]").send_keys(Keys.HOME)
    wait_until(lambda: "Highest level then" in text(driver, ".headline h2"))

    now = text(driver, ".headline .present-level")
    assert " ".join(now.split()) == f"Now: Equivalent to level {HIGHEST}"
    assert text(driver, ".headline > .badge") != f"Equivalent to level {HIGHEST}"


HIDDEN_TABS = """
const tabs = [...document.querySelectorAll(".top .tabs > *")];
return tabs.filter((tab) => {
  const { left, right, top } = tab.getBoundingClientRect();
  const row = tab.parentElement.getBoundingClientRect();
  return left < 0 || right > Math.min(row.right, innerWidth) || top > row.bottom;
}).map((tab) => tab.innerText);
"""
"""Tabs that are not wholly on the screen."""


@pytest.mark.parametrize("width", sizes(390, 1180))
@pytest.mark.parametrize("language", sizes("ja", "en"))
def test_no_tab_has_to_be_looked_for(
    console: str, driver: Chrome, width: int, language: str
) -> None:
    """On a phone four were beyond the edge, and nothing said so."""
    resize(driver, (width, 844))
    shown(driver, console, language)

    picture(driver, f"tabs-{width}-{language}")
    assert driver.execute_script(HIDDEN_TABS) == []


def test_threshold_is_changed_in_the_page(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Preview, then a version with author and reason; then the table of nodes."""
    driver.get(run_console(workspace.with_accounts()) + "?lang=ja")
    find(driver, "input[name=name]").send_keys("a-chief")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))
    find(driver, f".pick[data-token='{SLOPES[0].cell.token}']").click()
    find(driver, ".open-thresholds").click()
    warning = find(driver, "input[name=warning_mm]")
    warning.clear()
    warning.send_keys("130")
    find(driver, "input[name=why]").send_keys("2024年の崩壊を受けて")
    find(driver, ".preview").click()
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".storms tbody tr"))
    picture(driver, "thresholds-preview-ja")
    find(driver, ".thresholds .primary").click()
    wait_until(lambda: "a-chief" in text(driver, ".versions"))
    picture(driver, "thresholds-ja")
    find(driver, "[data-tab=health]").click()
    wait_until(lambda: "nishi-2" in text(driver, "tr[data-node]"))

    assert text(driver, "tr.silent td:nth-child(2)") == "途絶"
    picture(driver, "health-ja")
    no_problems(driver)


@pytest.mark.long
def test_page_that_was_left_is_not_drawn_when_its_data_arrive(
    console: str, driver: Chrome
) -> None:
    """On a slow link the thresholds appeared under the name of the nodes."""
    shown(driver, console)
    release = hold_requests(driver, "api/thresholds")
    press(driver, "[data-tab=thresholds]")
    press(driver, "[data-tab=health]")
    find(driver, "tr[data-node]")
    release()
    wait_until(lambda: driver.execute_script(ANSWERED, "api/thresholds"))
    time.sleep(0.5)  # in which it was drawn

    assert not driver.find_elements(By.CSS_SELECTOR, ".other form.thresholds")
    assert find(driver, "tr[data-node]").is_displayed()


def test_assumed_rain_is_marked_by_a_banner(console: str, driver: Chrome) -> None:
    """The banner stays above the map while the what-if is shown."""
    shown(driver, console, "en")
    find(driver, ".slider .if").click()
    wait_until(lambda: "What if" in text(driver, ".assumed-banner"))
    wait_until(lambda: text(driver, ".headline .badge") == "Equivalent to level 5")
    picture(driver, "what-if-en")
    find(driver, ".slider .if").click()
    wait_until(lambda: text(driver, ".headline .badge").endswith(str(HIGHEST)))

    assert text(driver, ".assumed-banner") == ""


@pytest.mark.parametrize(
    "control",
    [".slider .now", pytest.param(".slider .stepBack", marks=pytest.mark.long)],
)
def test_assumed_rain_ends_with_another_time(
    console: str, driver: Chrome, control: str
) -> None:
    """*Now* left the assumed levels on the map, and so did the past under its name."""
    shown(driver, console, "en")
    find(driver, ".slider .if").click()
    wait_until(lambda: "What if" in text(driver, ".assumed-banner"))
    wait_until(lambda: "level" in text(driver, ".assumed-banner .present-level"))
    find(driver, control).click()

    assert text(driver, ".assumed-banner") == ""
    assert "assumed" not in text(driver, ".headline h2")
    pressed = find(driver, ".slider .if").get_attribute("aria-pressed")
    assert pressed == "false"


def test_report_prints_on_one_page(console: str, driver: Chrome) -> None:
    """On A4, in both languages; HTML in a node name does no harm."""
    for language in ("ja", "en"):
        driver.get(f"{console}report?lang={language}")
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", A4)
        assert len(driver.find_elements(By.CSS_SELECTOR, "svg polygon")) == len(SLOPES)
        printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
        pages = base64.b64decode(printed["data"]).count(b"/Type /Page\n")
        assert pages == 1
        picture(driver, f"report-{language}")
    no_problems(driver)


@pytest.mark.long
def test_skill_of_a_season_is_shown_in_the_page(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Enter a landslide, choose the days; scores, hours and lead times appear."""
    driver.get(run_console(workspace.with_accounts()) + "?lang=ja")
    find(driver, "input[name=name]").send_keys("a-analyst")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))
    find(driver, "[data-tab=skill]").click()
    fill(driver, "time", "2026-10-26T13:00")
    fill(driver, "text", "大谷の県道")
    find(driver, ".event button").click()
    wait_until(lambda: "大谷の県道" in text(driver, ".events"))
    fill(driver, "first", "2026-10-24")
    fill(driver, "last", "2026-10-26")
    find(driver, ".season .primary").click()
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".scores tbody tr"))

    assert len(driver.find_elements(By.CSS_SELECTOR, ".hours tbody tr")) == 5
    assert len(driver.find_elements(By.CSS_SELECTOR, ".leads tbody tr")) == 1
    picture(driver, "skill-ja")
    no_problems(driver)
