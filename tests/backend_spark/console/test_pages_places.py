"""Names, begins and order of cells in a real browser, on screen and on paper."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from browser import picture, resize
from conftest import wait_until
from console_pages import find, map_data, no_problems, text
from console_tables import Slope, write_tables
from console_workspace import NOW_S, SLOPES, Workspace
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

RunConsole = Callable[..., str]
PLACES = """市町村名,地区名,斜面名,世帯数,避難所,連絡先,緯度,経度
大谷町,大谷,一ノ沢,42,大谷小学校,区長 0887-00-0001,33.575,133.500
大谷町,大谷,二ノ沢,7,大谷小学校,区長 0887-00-0001,33.590,133.520
大谷町,西谷,堂の上,15,西谷集会所,区長 0887-00-0002,33.610,133.540
大谷町,西谷,奥,3,西谷集会所,,33.630,133.560
"""
ONE = Slope("one-1", 33.57, 133.53, [1.0])


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    """The five slopes with places, and a node that has sent once."""
    write_tables(workspace.data, [ONE], NOW_S)
    table = workspace.folder / "places.csv"
    table.write_bytes(PLACES.encode("cp932"))
    command = [sys.executable, "-m", "backend_spark", "places", "load", "--config"]
    subprocess.run([*command, str(workspace.config()), str(table)], check=True)
    return workspace


def opened(driver: Chrome, address: str) -> None:
    """Open the page in Japanese; wait for the map and the names."""
    driver.get(f"{address}?lang=ja")
    wait_until(lambda: map_data(driver).get("shownMs"))
    wait_until(lambda: map_data(driver).get("names") == "4")


def test_names_begins_and_districts_are_shown_and_printed(
    run_console: RunConsole, driver: Chrome
) -> None:
    """The list is ordered by urgency; paper has title, time and map."""
    opened(driver, run_console())
    items = driver.find_elements(By.CSS_SELECTOR, ".overview .pick")
    lines = [item.get_property("innerText") for item in items]
    names = ("大谷 一ノ沢", "西谷 奥", "大谷 二ノ沢")
    for name, line in zip(names, lines, strict=True):
        assert name in str(line)
    assert "06:50から（9時間50分）" in str(lines[0])
    assert "土砂災害危険警報の基準" in str(lines[0])
    assert "42世帯" in str(lines[0])
    assert "以後データなし" in str(lines[1])
    assert "大谷" in text(driver, ".districts li")
    assert "06:50から（9時間50分）" in text(driver, ".headline")
    assert "レベル1相当" not in text(driver, ".overview")
    picture(driver, "places-ja")
    check_paper(driver)

    find(driver, f".pick[data-token='{SLOPES[0].cell.token}']").send_keys(Keys.ENTER)
    wait_until(lambda: "大谷小学校" in text(driver, ".panel .place"))
    assert "06:50から（9時間50分）" in text(driver, ".panel header")
    picture(driver, "places-cell-ja")
    no_problems(driver)


def test_events_have_names_where_the_page_is_opened_at_them(
    run_console: RunConsole, driver: Chrome
) -> None:
    """After a reload they had tokens, which mean nothing to people, until the next."""
    opened(driver, run_console())
    find(driver, "[data-tab=events]").click()
    wait_until(lambda: "tab=events" in driver.current_url)
    driver.refresh()

    wait_until(lambda: "西谷 奥" in text(driver, ".event-list tbody"), 20)


def check_paper(driver: Chrome) -> None:
    """What the page shows while it is printed."""
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    resize(driver, (794, 1123))
    picture(driver, "print-ja")
    assert "大谷町 土砂災害 監視コンソール" in text(driver, ".top h1")
    assert "現在 10/26" in text(driver, ".slider output")
    assert "大谷 一ノ沢" in text(driver, ".overview .pick")
    assert not find(driver, ".keys").is_displayed()
    colours = driver.execute_script(
        """
        const copy = document.querySelector(".print-map");
        const {width, height} = copy;
        const {data} = copy.getContext("2d").getImageData(0, 0, width, height);
        const seen = new Set();
        for (let at = 0; at < data.length; at += 4)
          seen.add(`${data[at]},${data[at + 1]},${data[at + 2]}`);
        return [copy.getBoundingClientRect().height > 100, seen.has("233,238,242"),
          seen.size > 20];
        """
    )
    assert colours == [True, True, True]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    resize(driver)


@pytest.mark.long
def test_single_value_is_written_and_not_plotted(
    run_console: RunConsole, driver: Chrome
) -> None:
    """Axes around one point would be made up."""
    opened(driver, run_console())
    driver.execute_script("location.hash = arguments[0]", ONE.cell.token)
    find(driver, ".panel .pick[data-node='one-1']").send_keys(Keys.ENTER)
    wait_until(lambda: text(driver, "dialog .chart"))

    assert "この期間の値は1つだけです：1 mm" in text(driver, "dialog .chart .single")
    assert driver.find_elements(By.CSS_SELECTOR, "dialog .uplot") == []
    no_problems(driver)


@pytest.mark.long
def test_page_of_stale_data_cannot_judge(
    run_console: RunConsole, driver: Chrome
) -> None:
    """The present is weeks after the data: nothing says that all is calm."""
    opened(driver, run_console(exercise=False))

    assert "現在の状況は判定できません。最後のデータ：" in text(driver, ".unjudged")
    assert text(driver, ".headline .badge") == "判定不能（最終 レベル4相当）"
    assert "基準に達した区画はありません" not in driver.page_source
    picture(driver, "stale-ja")
    no_problems(driver)
