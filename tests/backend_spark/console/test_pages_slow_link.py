"""Pages on a slow link: answers that are late, or come in another order."""

from collections.abc import Callable

import pytest
from conftest import wait_until
from console_pages import (
    fill,
    find,
    hold_answer,
    hold_requests,
    press,
    press_twice,
    shown,
    text,
    wait_for_held,
)
from console_workspace import PASSWORD, SLOPES, Workspace
from doubtful_slope import DOUBTFUL, write_doubtful
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

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
