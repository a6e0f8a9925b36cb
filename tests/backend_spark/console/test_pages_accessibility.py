"""Accessibility and width of the console's pages, checked in a real browser."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from browser import OFFICE_SCREEN, picture, resize
from conftest import wait_until
from console_axe import find_violations
from console_contrast import hard_to_read
from console_pages import find, press, text
from console_workspace import NOW_S, PASSWORD, Workspace
from deltalake import write_deltalake
from doubtful_slope import write_doubtful
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from backend_spark.tables.schemas import LEVELS
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

RunConsole = Callable[..., str]
LISTED = (
    "return [...document.querySelectorAll('.pick .badge')].map(b => b.dataset.level)"
)
PHONE = (390, 844)


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    """The slopes, one more cell of each level, one without, and doubtful readings."""
    write_doubtful(workspace.data)
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


class Tour:
    """Visits every page and window; each must be accessible and fit the screen.

    Args:
        driver: The browser, at the form of the login.
        name: End of the names of the screenshots in out/console.

    Attributes:
        problems: Violations found so far, by page.
    """

    def __init__(self, driver: Chrome, name: str) -> None:
        self._driver, self._name = driver, name
        self.problems: dict[str, list[object]] = {}

    def check(self, page: str) -> None:
        """Check what is on the screen by axe-core and by its width."""
        picture(self._driver, f"{page}-{self._name}")
        if problems := find_violations(self._driver):
            self.problems[page] = problems

    def press(self, css: str, wait_for: str) -> None:
        """Click on an element; wait until another one has text."""
        press(self._driver, css)
        wait_until(lambda: text(self._driver, wait_for))

    def visit_map(self) -> None:
        """The list, the forms above it, and the panel of a cell."""
        self.check("levels")
        self.press(".dates", ".replay form")
        self.check("replay-form")
        self.press("details.cap summary", "details.cap button")
        self.press("details.overlays summary", "details.overlays > div")
        self.check("forms")
        self.press("details.overlays summary", "body")
        self.press(".pick", ".panel .reasons")
        self.check("panel")

    def visit_preview(self) -> None:
        """The confirmation for all cells, and the effect of a change."""
        self.press("input[value=all]", ".thresholds .confirm")
        self.press("input[name=sure]", ".thresholds .confirm")
        self.press(".thresholds .preview", ".effect .rises")
        self.check("thresholds-preview")

    def visit_review(self) -> None:
        """The windows of decisions, one with the consent to level 4."""
        for button, wait_for in (
            ("tr[data-span$=rain] .reject", ".review-form .raises"),
            (".mark-bad", ".review-form .form"),
        ):
            self.press(button, wait_for)
            self.check(f"review{button.split('.')[-1]}")
            self.press(".review-form .close", "body")

    def visit_tabs(self) -> None:
        """The other pages, and the window of an event and of a node."""
        for tab in ("series", "reviews", "thresholds", "skill", "health", "events"):
            self.press(f"[data-tab={tab}]", ".other h2")
            self.check(tab)
            if tab == "thresholds":
                self.visit_preview()
            if tab == "reviews":
                self.visit_review()
            if tab == "health":
                self.press("tr[data-node] button", "dialog[data-node] h2")
                self.check("node")
                self.press("dialog[data-node] button", "body")
        self.press("tr[data-event] .details", "dialog.event-window .head")
        self.check("event")
        self.press("dialog.event-window .head button", "body")


@pytest.mark.parametrize(
    ("language", "size"),
    [
        ("ja", OFFICE_SCREEN),
        pytest.param("ja", PHONE, marks=pytest.mark.long),
        pytest.param("en", OFFICE_SCREEN, marks=pytest.mark.long),
        pytest.param("en", PHONE, marks=pytest.mark.long),
    ],
)
def test_every_page_is_accessible_and_fits_the_screen(
    run_console: RunConsole,
    driver: Chrome,
    workspace: Workspace,
    language: str,
    size: tuple[int, int],
) -> None:
    """No violation of axe-core; text has WCAG's contrast on the official colours."""
    address = run_console(workspace.with_accounts())
    resize(driver, size)
    driver.get(f"{address}?lang={language}")
    find(driver, "input[name=name]").send_keys("a-chief")
    tour = Tour(driver, f"{language}-{size[0]}")
    tour.check("login")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: len(driver.find_elements(By.CSS_SELECTOR, ".pick")) >= 4)
    assert {"5", "4", "3", "2"} <= set(driver.execute_script(LISTED))
    tour.visit_map()
    tour.visit_tabs()
    for page in ("report", "handover"):
        driver.get(f"{address}{page}?lang={language}")
        tour.check(page)

    assert tour.problems == {}


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
