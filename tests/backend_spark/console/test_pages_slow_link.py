"""Pages on a slow link: answers that are late, or come in another order."""

from conftest import wait_until
from console_pages import (
    find,
    hold_answer,
    shown,
    text,
    wait_for_held,
)
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys


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
