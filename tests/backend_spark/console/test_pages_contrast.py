"""Contrast of all text on the console's pages, measured in a real browser."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from browser import picture
from conftest import wait_until
from console_contrast import hard_to_read
from console_pages import find, text
from console_workspace import NOW_S, PASSWORD, Workspace
from deltalake import write_deltalake
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from sizes import sizes

from backend_spark.tables.schemas import LEVELS
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

RunConsole = Callable[..., str]
LISTED = (
    "return [...document.querySelectorAll('.pick .badge')].map(b => b.dataset.level)"
)
TABS = ("events", "health", "thresholds", "skill")


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    """The slopes, one more cell of each level, and one without a level."""
    rows = [
        {
            "cell": Cell.at(33.50 + at * 0.02, 133.4).parent(ANALYSIS_LEVEL).token,
            "at": NOW_S * 1_000_000,
            "level": level,
            "rain_known": True,
            "reasons": [f"reason of level {level}"],
        }
        for at, level in enumerate((5, 4, 3, 2, 1, None))
    ]
    table = pa.Table.from_pylist(rows, schema=LEVELS)
    write_deltalake(str(workspace.data / "tables" / "levels"), table, mode="append")
    return workspace


@pytest.mark.parametrize("language", sizes("ja", "en"))
def test_text_of_every_page_has_enough_contrast(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, language: str
) -> None:
    """At least 4.5 to 1, for large text 3 to 1, also on the official colours."""
    address = run_console(workspace.with_accounts())
    driver.get(f"{address}?lang={language}")
    find(driver, "input[name=name]").send_keys("a-chief")
    assert hard_to_read(driver) == []
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: len(driver.find_elements(By.CSS_SELECTOR, ".pick")) >= 4)
    assert {"5", "4", "3", "2"} <= set(driver.execute_script(LISTED))
    find(driver, ".dates").click()
    find(driver, "input[name=from]")
    picture(driver, f"levels-{language}")
    assert hard_to_read(driver) == []
    find(driver, ".pick").click()
    wait_until(lambda: text(driver, ".panel .reasons"))
    assert hard_to_read(driver) == []
    for tab in TABS:
        find(driver, f"[data-tab={tab}]").click()
        wait_until(lambda: text(driver, ".other h2"))
        assert hard_to_read(driver) == [], tab
        picture(driver, f"{tab}-{language}")
    driver.get(f"{address}report?lang={language}")
    picture(driver, f"report-levels-{language}")
    assert hard_to_read(driver) == []


def test_contrast_check_finds_unreadable_text(console: str, driver: Chrome) -> None:
    """White on the official red is 3.8 to 1: enough for large text only."""
    driver.get(console + "?lang=en")
    find(driver, ".headline .badge")
    driver.execute_script(
        """
        for (const px of [16, 24]) {
          const words = document.createElement("p");
          words.textContent = `white on red ${px}`;
          Object.assign(words.style, {background: "rgb(255,40,0)", color: "#fff"});
          words.style.fontSize = `${px}px`;
          document.body.append(words);
        }
        """
    )
    found = hard_to_read(driver)

    assert [each["words"] for each in found] == ["white on red 16"]
    assert found[0]["value"] == pytest.approx(3.8, abs=0.05)


def test_each_level_has_its_own_pattern(console: str, driver: Chrome) -> None:
    """Seven looks and a held one differ without colour; badges have patterns too."""
    driver.get(console + "?lang=en")
    wait_until(lambda: len(driver.find_elements(By.CSS_SELECTOR, ".swatch")) == 8)
    script = """
    return [...document.querySelectorAll(".swatch")].map((canvas) => {
      const {data} = canvas.getContext("2d").getImageData(0, 0, 16, 16);
      const at = (n) => [0, 1, 2].some((c) => data[n * 4 + c] !== data[c]);
      return [...Array(256).keys()].map((n) => Number(at(n))).join("");
    });
    """
    patterns = driver.execute_script(script)
    blocks = driver.execute_script(
        "return [...document.querySelectorAll('.badge i')]"
        ".map((block) => getComputedStyle(block).backgroundImage)"
    )

    assert len(set(patterns)) == 8
    assert blocks
    assert all(block.startswith("url(") for block in blocks)
