"""Helpers for tests of the console's pages in a browser."""

from typing import Any

from conftest import wait_until
from console_workspace import SLOPES
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement


def find(driver: Chrome, css: str) -> WebElement:
    """Wait for an element; returns the first one."""
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, css))
    return driver.find_element(By.CSS_SELECTOR, css)


def press(driver: Chrome, css: str) -> None:
    """Wait for an element and click on it; a panel may be drawn anew in between."""
    find(driver, css)
    driver.execute_script("document.querySelector(arguments[0]).click()", css)


def text(driver: Chrome, css: str) -> str:
    """Text of the first element; empty if there is none."""
    return str(
        driver.execute_script(
            "return document.querySelector(arguments[0])?.innerText ?? ''", css
        )
    )


def fill(driver: Chrome, name: str, value: str) -> None:
    """Set the value of a field without simulating keys."""
    field = find(driver, f"input[name={name}]")
    driver.execute_script("arguments[0].value = arguments[1]", field, value)


def shown(driver: Chrome, address: str, language: str = "en") -> None:
    """Open the page and wait until the map has drawn all cells."""
    driver.get(f"{address}?lang={language}")
    wait_until(lambda: map_data(driver).get("shownMs"))
    assert map_data(driver)["cells"] == str(len(SLOPES))


def map_data(driver: Chrome) -> dict[str, Any]:
    """Data attributes of the map."""
    script = "return {...document.querySelector('.map')?.dataset}"
    found: dict[str, Any] = driver.execute_script(script)
    return found


def is_side_too_wide(driver: Chrome) -> bool:
    """Whether the side panel has to be scrolled sideways."""
    script = """
    const side = document.querySelector(".side");
    return side.scrollWidth > side.clientWidth;
    """
    return bool(driver.execute_script(script))


def cut_off(driver: Chrome) -> list[str]:
    """Level badges whose text is cut off; the number comes last in the text."""
    script = """
    return [...document.querySelectorAll(".badge")]
      .filter((b) => b.offsetParent && b.scrollWidth > b.clientWidth)
      .map((b) => b.innerText);
    """
    found: list[str] = driver.execute_script(script)
    return found


def no_problems(driver: Chrome) -> None:
    """Check that the browser logged no error, such as a blocked resource."""
    severe = [
        entry
        for entry in driver.get_log("browser")
        # The page requests cells before the user has logged in.
        if entry["level"] == "SEVERE" and "401" not in entry["message"]
    ]
    assert severe == [], severe
