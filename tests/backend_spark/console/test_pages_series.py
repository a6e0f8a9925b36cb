"""The page of the series in a real browser."""

from collections.abc import Callable

import pytest
from browser import picture, resize
from conftest import wait_until
from console_axe import find_violations
from console_pages import find, no_problems, press, text
from creeping_slope import CREEP
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

RunConsole = Callable[..., str]
PHONE = (390, 844)
CAPTIONS = (
    "return [...document.querySelectorAll('.series-page figcaption')]"
    ".map((each) => each.textContent).join('\\n')"
)

LIMITS = """
const titled = (chart, words) =>
  chart.querySelector("figcaption").textContent.startsWith(words);
const chart = [...document.querySelectorAll(".series-page figure")]
  .find((each) => titled(each, "変位の速さ"));
return [...chart.querySelectorAll(".u-legend th")]
  .map((each) => each.textContent.trim())
  .filter((label) => label.startsWith("レベル"));
"""
"""Labels of the lines of levels in the chart of speeds."""


def look_at_all(driver: Chrome) -> list[object]:
    """Pictures of the page; what is wrong in the office and on a phone."""
    found = find_violations(driver)
    picture(driver, "series-ja-1366")
    driver.execute_script("document.querySelector('.doubts').scrollIntoView()")
    picture(driver, "series-doubts-ja")
    driver.execute_script("document.querySelector('.other').scrollTop -= 1100")
    picture(driver, "series-movement-ja")
    resize(driver, PHONE)
    found += find_violations(driver)
    picture(driver, "series-ja-390")
    return found


def test_cumulative_rain_ends_with_the_data(console: str, driver: Chrome) -> None:
    """It went on flat while nothing arrived, as if it had stopped raining.

    Nothing is chosen: the first is of the highest level that is judged, not held.
    """
    driver.get(f"{console}?lang=ja")
    wait_until(lambda: text(driver, ".headline .badge"))
    press(driver, "[data-tab=series]")
    find(driver, ".totals tr[data-node=otani-1]")
    find(driver, "input[name=series-node]").send_keys("nishi-2")
    wait_until(lambda: "nishi-2" in text(driver, ".totals"))

    cumulative = text(driver, ".totals tr[data-node=nishi-2] td:last-child")
    assert cumulative.startswith("≥ ")
    wait_until(lambda: "累加雨量: 最新" in text(driver, ".series-found"))
    lines = text(driver, ".series-found").splitlines()
    newest = [line for line in lines if line.startswith("累加雨量: 最新")]
    assert ["14:40" in line.split("最大")[0] for line in newest] == [False, True]


@pytest.mark.usefixtures("creep")
def test_series_of_a_slope_and_of_another_node(
    run_console: RunConsole, driver: Chrome
) -> None:
    """Two clicks from the list; names, totals and doubts in the page's language."""
    address = run_console()
    driver.get(f"{address}?lang=ja#{CREEP.cell.token}")
    press(driver, ".panel .open-series")
    wait_until(lambda: "累加雨量" in text(driver, ".series-page .totals"))
    wait_until(lambda: driver.execute_script(LIMITS))
    captions = driver.execute_script(CAPTIONS)

    assert "速度の逆数 (h/mm)" in captions
    assert "接線角 (°)" in captions
    assert "体積含水率（soil） (m³/m³)" in captions
    assert driver.execute_script(LIMITS) == [
        "レベル2相当 2",
        "レベル4相当 4",
        "レベル5相当 10",
    ]
    assert "範囲" in text(driver, "tr[data-doubt='creep-1 soil']")
    field = find(driver, "input[name=series-node]")
    field.send_keys("otani-1")
    wait_until(lambda: find(driver, ".totals tr[data-node=otani-1]"))
    assert len(driver.find_elements(By.CSS_SELECTOR, ".totals tbody tr")) == 2
    press(driver, "[data-hours='168']")
    wait_until(lambda: "1時間雨量:" in text(driver, ".series-found"))
    links = driver.find_elements(By.CSS_SELECTOR, ".series-page a[data-rows=csv-JST]")
    assert "node=creep-1&node=otani-1" in (links[0].get_attribute("href") or "")
    found = look_at_all(driver)
    assert found == []
    no_problems(driver)
