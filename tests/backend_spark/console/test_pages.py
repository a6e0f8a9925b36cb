"""The pages in a real browser, with the program itself behind them."""

import base64
from collections.abc import Callable

import pytest
from browser import picture
from conftest import wait_until
from console_house import HIGHEST, HOSTILE, PASSWORD, SLOPES, House
from console_pages import cut_off, fill, find, map_data, no_problems, shown, text
from console_tables import Slope, storm, write_tables
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

Run = Callable[..., str]
A4 = {"width": 794, "height": 1123, "deviceScaleFactor": 1, "mobile": False}
WET = SLOPES[0].cell.token


@pytest.mark.parametrize(
    ("language", "level", "title"),
    [
        ("ja", "レベル{}相当", "土砂災害 監視コンソール"),
        ("en", "Equivalent to level {}", "Landslide"),
    ],
)
def test_first_view_tells_the_highest_level(
    run_console: Run, driver: Chrome, language: str, level: str, title: str
) -> None:
    """The level in words that the law allows, in both languages."""
    shown(driver, run_console(), language)

    assert title in text(driver, ".top h1")
    assert text(driver, ".headline .badge") == level.format(HIGHEST)
    assert len(driver.find_elements(By.CSS_SELECTOR, ".counts li")) == 7
    assert "警戒レベル" not in driver.page_source
    picture(driver, f"map-{language}")
    no_problems(driver)


def test_a_cell_opens_its_panel_by_click_and_by_keyboard(
    run_console: Run, driver: Chrome
) -> None:
    """Reasons, snake line and charts; Escape leads back."""
    shown(driver, run_console(), "ja")
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


def test_files_are_taken_along(run_console: Run, driver: Chrome) -> None:
    """The links of the overview give a map and a draft."""
    shown(driver, run_console(), "en")
    fetched = """
        const done = arguments[arguments.length - 1];
        const link = document.querySelector(`a[data-file='${arguments[0]}']`);
        fetch(link.href).then((answer) => answer.text()).then(done);
    """

    assert WET in driver.execute_async_script(fetched, "levels.geojson")
    assert "<msgType>Alert</msgType>" in driver.execute_async_script(
        fetched, "draft.xml"
    )
    no_problems(driver)


def test_a_click_on_the_map_chooses_the_cell(run_console: Run, driver: Chrome) -> None:
    """The polygon under the pointer is the one whose panel opens."""
    shown(driver, run_console())
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


def test_the_slider_shows_the_past_and_says_so(
    run_console: Run, driver: Chrome
) -> None:
    """The arrow keys move it; the button leads back to now."""
    shown(driver, run_console())
    slider = find(driver, ".slider input")
    slider.send_keys(Keys.HOME)
    wait_until(lambda: "Showing the past" in text(driver, ".slider output"))
    wait_until(lambda: text(driver, ".headline .badge") == "No data")
    picture(driver, "past-en")
    find(driver, ".slider .now").click()
    wait_until(
        lambda: text(driver, ".headline .badge") == f"Equivalent to level {HIGHEST}"
    )


def test_new_levels_are_pushed(run_console: Run, driver: Chrome, house: House) -> None:
    """A commit to the tables shows without a reload."""
    shown(driver, run_console())
    later = Slope("otani-8", 33.56, 133.48, storm(60, 48))
    write_tables(house.data, [later], 1_793_000_400)

    wait_until(lambda: map_data(driver)["cells"] == str(len(SLOPES) + 1))
    wait_until(lambda: text(driver, ".headline .badge") == "Equivalent to level 5")


def test_html_in_a_nodes_name_is_only_text(run_console: Run, driver: Chrome) -> None:
    """In the panel and in the node's window."""
    shown(driver, run_console())
    token = SLOPES[4].cell.token
    driver.execute_script("location.hash = arguments[0]", token)
    wait_until(lambda: HOSTILE in text(driver, ".panel"))
    find(driver, ".panel .pick[data-node]").click()
    wait_until(lambda: HOSTILE in text(driver, "dialog h2"))

    assert driver.execute_script("return window.broken") is None
    assert driver.find_elements(By.CSS_SELECTOR, "img[src='x']") == []
    picture(driver, "node-with-html")


def test_wrong_password_is_told_and_the_right_one_opens(
    run_console: Run, driver: Chrome, house: House
) -> None:
    """The form says why not."""
    driver.get(run_console(house.with_accounts()) + "?lang=en")
    find(driver, "input[name=name]").send_keys("a-chief")
    find(driver, "input[name=password]").send_keys("not my password" + Keys.ENTER)
    wait_until(lambda: "wrong" in text(driver, ".problem"))
    picture(driver, "login-en")
    find(driver, "input[name=password]").clear()
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)

    wait_until(lambda: "a-chief" in text(driver, ".logout"))


def test_it_fits_a_tablet(run_console: Run, driver: Chrome) -> None:
    """Nothing hangs over the edge, held either way, and each level is whole."""
    address = run_console()
    for width, height in ((1024, 768), (800, 1280)):
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        over = "return document.documentElement.scrollWidth - window.innerWidth"
        for language in ("ja", "en"):
            shown(driver, address, language)
            assert driver.execute_script(over) <= 0
            assert cut_off(driver) == []
            picture(driver, f"tablet-{width}-{language}")


def test_an_alert_is_acknowledged_in_the_page(
    run_console: Run, driver: Chrome, house: House
) -> None:
    """One click and a remark; the log says who; a note is kept beside it."""
    driver.get(run_console(house.with_accounts()) + "?lang=ja")
    find(driver, "input[name=name]").send_keys("a-analyst")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))
    find(driver, "[data-tab=alerts]").click()
    find(driver, "tr[data-alert] input").send_keys("<b>確認</b>")
    find(driver, "tr[data-alert] button").click()
    wait_until(lambda: "a-analyst" in text(driver, ".seen"))
    find(driver, "textarea").send_keys("橋の水位に注意")
    find(driver, ".note button").click()
    wait_until(lambda: "橋の水位に注意" in text(driver, ".notes-list"))

    assert "<b>確認</b>" in text(driver, ".seen")
    picture(driver, "alerts-ja")
    no_problems(driver)


def test_a_threshold_is_changed_in_the_page(
    run_console: Run, driver: Chrome, house: House
) -> None:
    """Preview first, then a version with who and why; then the health board."""
    driver.get(run_console(house.with_accounts()) + "?lang=ja")
    find(driver, "input[name=name]").send_keys("a-chief")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))
    find(driver, "[data-tab=thresholds]").click()
    warning = find(driver, "input[name=warning_mm]")
    warning.clear()
    warning.send_keys("130")
    find(driver, "input[name=why]").send_keys("2024年の崩壊を受けて")
    find(driver, ".preview").click()
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".effect tbody tr"))
    find(driver, ".thresholds .primary").click()
    wait_until(lambda: "a-chief" in text(driver, ".versions"))
    picture(driver, "thresholds-ja")
    find(driver, "[data-tab=health]").click()
    wait_until(lambda: "nishi-2" in text(driver, "tr[data-node]"))

    assert text(driver, "tr.silent td:nth-child(2)") == "途絶"
    picture(driver, "health-ja")
    no_problems(driver)


def test_assumed_rain_is_never_taken_for_the_present(
    run_console: Run, driver: Chrome
) -> None:
    """A banner stands over the map as long as it is shown."""
    shown(driver, run_console(), "en")
    find(driver, ".slider .if").click()
    wait_until(lambda: "What if" in text(driver, ".assumed-banner"))
    wait_until(lambda: text(driver, ".headline .badge") == "Equivalent to level 5")
    picture(driver, "what-if-en")
    find(driver, ".slider .if").click()
    wait_until(lambda: text(driver, ".headline .badge").endswith(str(HIGHEST)))

    assert text(driver, ".assumed-banner") == ""


def test_the_report_is_one_printed_page(run_console: Run, driver: Chrome) -> None:
    """A4 takes it whole, in both languages; a node's name cannot bite it."""
    address = run_console()
    for language in ("ja", "en"):
        driver.get(f"{address}report?lang={language}")
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", A4)
        assert len(driver.find_elements(By.CSS_SELECTOR, "svg polygon")) == len(SLOPES)
        printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
        pages = base64.b64decode(printed["data"]).count(b"/Type /Page\n")
        assert pages == 1
        picture(driver, f"report-{language}")
    no_problems(driver)


def test_skill_of_a_season_in_the_page(
    run_console: Run, driver: Chrome, house: House
) -> None:
    """Enter a landslide, choose the days, read hits, hours and lead times."""
    driver.get(run_console(house.with_accounts()) + "?lang=ja")
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
