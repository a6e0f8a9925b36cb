"""The page of the thresholds in a real browser: scope, preview, state, return."""

import time
from collections.abc import Callable
from typing import Self

import pytest
from browser import picture, resize
from conftest import wait_until
from console_pages import find, no_problems, text
from console_workspace import PASSWORD, SLOPES, Workspace
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from backend_spark.config import read_settings
from backend_spark.criteria.cell_rules import AppliedChanges, make_cell_rules

RunConsole = Callable[..., str]
WET = SLOPES[0].cell.token
N = len(SLOPES)
IS_VALID = "return document.querySelector('form.thresholds').checkValidity()"


class ThresholdsPage:
    """The page, opened by a chief."""

    def __init__(self, driver: Chrome, address: str, language: str) -> None:
        self.driver = driver
        driver.get(f"{address}?lang={language}")
        find(driver, "input[name=name]").send_keys("a-chief")
        find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
        wait_until(lambda: text(driver, ".headline .badge"))

    def open(self, cell: str = "") -> Self:
        """Open it, from a cell or from the tab."""
        if cell:
            find(self.driver, f".pick[data-token='{cell}']").click()
            find(self.driver, ".open-thresholds").click()
        else:
            find(self.driver, "[data-tab=thresholds]").click()
        find(self.driver, "form.thresholds")
        return self

    def set(self, name: str, value: str) -> None:
        """Type a value."""
        field = find(self.driver, f"form.thresholds input[name={name}]")
        field.clear()
        field.send_keys(value)

    def save(self) -> None:
        """Press the button; nothing is sent while a field is not valid."""
        find(self.driver, ".thresholds .primary").click()

    def states(self) -> list[str]:
        """State of each version, the newest first."""
        script = (
            "return [...document.querySelectorAll('.version-state')]"
            ".map(e => e.classList[1])"
        )
        found: list[str] = self.driver.execute_script(script)
        return found


@pytest.fixture
def address(run_console: RunConsole, workspace: Workspace) -> str:
    """A console with accounts."""
    return run_console(workspace.with_accounts())


def test_whole_municipality_changes_only_after_confirmation(
    address: str, driver: Chrome
) -> None:
    """An empty cell is not all cells; the number of cells is confirmed first."""
    page = ThresholdsPage(driver, address, "ja").open()
    page.set("warning_mm", "130")
    page.set("why", "地震後の暫定基準")
    page.save()
    assert driver.execute_script(IS_VALID) is False
    find(driver, "input[value=all]").click()
    page.save()
    assert driver.execute_script(IS_VALID) is False
    assert f"{N} 区画すべて" in text(driver, ".confirm")
    picture(driver, "thresholds-confirm-ja")
    find(driver, "input[name=sure]").click()
    page.save()
    wait_until(lambda: page.states() == ["not_read"])

    assert "保存しました" in text(driver, ".other .done")
    no_problems(driver)


@pytest.mark.long
def test_page_shows_when_the_job_applies_a_version(
    address: str, driver: Chrome, workspace: Workspace
) -> None:
    """It says that the job does not read changes, then waits, then is applied."""
    page = ThresholdsPage(driver, address, "en").open(WET)
    assert "has not reported" in text(driver, ".job-state")
    page.set("line_percent", "80")
    page.set("tilt_3_deg_per_h", "0.005")
    page.set("tilt_4_deg_per_h", "0.05")
    page.set("why", "cracks above the road")
    find(driver, ".preview").click()
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".storms tbody tr"))
    assert len(driver.find_elements(By.CSS_SELECTOR, ".rises tbody tr")) == 4
    picture(driver, "thresholds-preview-en")
    page.save()
    wait_until(lambda: page.states() == ["not_read"])
    assert "CL 80 %" in text(driver, ".versions tbody tr")
    _run_job(workspace, "", [])
    wait_until(lambda: "does not read changes" in text(driver, ".job-state"), 40)
    line = f'changes = "{workspace.data}/console/criteria.csv"'
    assert text(driver, ".job-state code") == line
    picture(driver, "thresholds-not-read-en")
    _run_job(workspace, f"[criteria]\n{line}", [])
    wait_until(lambda: page.states() == ["waiting"], 40)
    _run_job(workspace, f"[criteria]\n{line}", [WET])
    wait_until(lambda: page.states() == ["applied"], 40)
    no_problems(driver)


def test_earlier_version_is_restored(address: str, driver: Chrome) -> None:
    """By its button and a reason; the last one ends the values of the scope."""
    page = ThresholdsPage(driver, address, "en").open(WET)
    for count, warning_mm in enumerate(("130", "125"), 1):
        page.set("warning_mm", warning_mm)
        page.set("why", "cracks")
        page.save()
        wait_until(lambda n=count: len(page.states()) == n)
    for count, button in ((3, 1), (4, -1)):
        driver.find_elements(By.CSS_SELECTOR, ".revert")[button].click()
        note = text(driver, ".revert-note")
        assert note.startswith(("Reverts to", "Ends the values"))
        page.set("why", "repaired")
        page.save()
        wait_until(lambda n=count: len(page.states()) == n)
    rows = [e.text for e in driver.find_elements(By.CSS_SELECTOR, ".versions tbody tr")]

    assert "those of the whole municipality, or else the prefecture's" in note
    assert "End the set values" in rows[0]
    assert "130.0" in rows[1]
    assert "125.0" in rows[2]
    picture(driver, "thresholds-reverted-en")
    no_problems(driver)


@pytest.mark.long
def test_storm_that_ends_on_another_day_has_both_dates(
    address: str, driver: Chrome
) -> None:
    """A storm of two days looked like one of some hours."""
    ThresholdsPage(driver, address, "en").open(WET)
    find(driver, ".preview").click()
    wait_until(lambda: text(driver, ".storms tbody td"))

    assert text(driver, ".storms tbody td").count("10/") == 2


@pytest.mark.long
def test_preview_fits_a_phone(address: str, driver: Chrome) -> None:
    """Nothing is wider than the screen."""
    resize(driver, (390, 844))
    page = ThresholdsPage(driver, address, "ja").open(WET)
    page.set("warning_mm", "120")
    find(driver, ".preview").click()
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".storms tbody tr"))
    script = "return document.documentElement.scrollWidth <= innerWidth"
    assert driver.execute_script(script)
    picture(driver, "thresholds-phone-ja")


def _run_job(workspace: Workspace, settings: str, cells: list[str]) -> None:
    """What the job does around a pass over some cells, by its own settings file."""
    path = workspace.folder / "job.toml"
    path.write_text(f'[backend]\ndata = "{workspace.data}"\n{settings}\n')
    rules = make_cell_rules(read_settings(path))
    applied = AppliedChanges(workspace.data, rules, time.time)
    applied.add(applied.numbers(cells))
    applied.save()
