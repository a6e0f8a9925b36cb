"""Helpers for tests of the console's pages in a browser."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from conftest import wait_until
from console_workspace import SLOPES
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")

DRAWN_S: Final = 20.0
"""How long an element may be drawn anew again and again."""


class PageElement(WebElement):
    """First element of a selector; found again if the page draws it anew meanwhile.

    Args:
        driver: The browser.
        css: The selector, for whose element the constructor waits.
    """

    def __init__(self, driver: Chrome, css: str) -> None:
        super().__init__(driver, _find_first(driver, css).id)
        self._css = css

    def _execute(
        self, command: str, params: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return self._again(partial(super()._execute, command, params))

    def get_attribute(self, name: str) -> str | None:
        """Attribute or property."""
        return self._again(partial(super().get_attribute, name))

    def is_displayed(self) -> bool:
        """Whether a user sees it."""
        return self._again(super().is_displayed)

    def _again(self, act: Callable[[], T]) -> T:
        deadline_s = time.monotonic() + DRAWN_S
        while True:
            try:
                return act()
            except StaleElementReferenceException:
                if time.monotonic() > deadline_s:
                    raise
                self._id = _find_first(self._parent, self._css).id


def _find_first(driver: Chrome, css: str) -> WebElement:
    found: list[WebElement] = []
    wait_until(
        lambda: found.extend(driver.find_elements(By.CSS_SELECTOR, css)) or found
    )
    return found[0]


def find(driver: Chrome, css: str) -> WebElement:
    """Wait for an element; returns the first one."""
    return PageElement(driver, css)


def press(driver: Chrome, css: str) -> None:
    """Wait for an element and click on it; a panel may be drawn anew in between."""
    find(driver, css)
    driver.execute_script("document.querySelector(arguments[0]).click()", css)


HOLD = """
const real = window.fetch, begin = arguments[0];
const released = new Promise((resolve) => { window.release = resolve; });
window.fetch = async (path, options) => {
  if (String(path).startsWith(begin)) {
    window.asked = 1 + (window.asked ?? 0);
    await released;
  }
  return real(path, options);
};
"""


HOLD_ANSWER = """
const real = window.fetch, [begin, status] = arguments;
let isFirst = true;
const released = new Promise((resolve) => { window.release = resolve; });
window.fetch = async (path, options) => {
  const isHeld = isFirst && String(path).startsWith(begin);
  if (isHeld) isFirst = false;
  const answer = await real(path, options);
  if (!isHeld) return answer;
  const { headers } = answer;
  const late = new Response(await answer.arrayBuffer(), { status, headers });
  window.held = true;
  await released;
  return late;
};
"""
DELIVER = """
window.release();
setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])), 100);
"""
"""Deliver the held answer, and wait until the page has had time to draw it."""


ANSWERED = """
const entries = performance.getEntriesByType("resource");
return entries.some((e) => e.name.includes(arguments[0]) && e.responseEnd > 0);
"""
"""Whether a request whose address has some text was answered."""


def hold_requests(driver: Chrome, begin: str) -> Callable[[], None]:
    """Let requests wait, as on a slow link; returns what sends them.

    Args:
        driver: Browser.
        begin: Begin of their paths.
    """
    driver.execute_script(HOLD, begin)
    return lambda: driver.execute_script("window.release()")


def hold_answer(driver: Chrome, begin: str, status: int = 200) -> Callable[[], None]:
    """Let the answer to the next request wait; returns what delivers it.

    The answers to later requests come before it, as on a link that lost a packet.

    Args:
        driver: Browser.
        begin: Begin of the request's path.
        status: Status of the answer.
    """
    driver.execute_script(HOLD_ANSWER, begin, status)
    return lambda: driver.execute_async_script(DELIVER)


def wait_for_held(driver: Chrome) -> None:
    """Wait until the server has answered what `hold_answer` holds."""
    wait_until(lambda: driver.execute_script("return window.held"))


def press_twice(driver: Chrome, css: str) -> None:
    """Click on an element twice before any answer can come."""
    find(driver, css)
    script = "const found = document.querySelector(arguments[0]);"
    driver.execute_script(f"{script} found.click(); found.click();", css)


def text(driver: Chrome, css: str) -> str:
    """Text of the first element; empty if there is none."""
    return str(
        driver.execute_script(
            "return document.querySelector(arguments[0])?.innerText ?? ''", css
        )
    )


def fill(driver: Chrome, name: str, value: str) -> None:
    """Set the value of a field without simulating keys."""
    css = f"input[name={name}]"
    find(driver, css)
    script = "document.querySelector(arguments[0]).value = arguments[1]"
    driver.execute_script(script, css, value)


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


def no_problems(driver: Chrome, origin: str = "") -> None:
    """Check that the browser logged no error, such as a blocked resource.

    Args:
        driver: The browser.
        origin: Part of the addresses that count; empty for all.
    """
    severe = [
        entry
        for entry in driver.get_log("browser")
        # The page requests cells before the user has logged in.
        if entry["level"] == "SEVERE"
        and "401" not in entry["message"]
        and origin in entry["message"]
    ]
    assert severe == [], severe


COUNT_RINGS = """
localStorage.setItem("yamamori-notify", "on");
localStorage.setItem("yamamori-sound", "on");
const count = (name) => {
  localStorage.setItem(name, 1 + Number(localStorage.getItem(name)));
};
const make = AudioContext.prototype.createOscillator;
AudioContext.prototype.createOscillator = function () {
  count("tones");
  return make.call(this);
};
window.Notification = class {
  static permission = "granted";
  constructor(title, { body }) {
    count("rings");
    localStorage.setItem("notified", body);
  }
  close() { localStorage.removeItem("notified"); }
};
"""
"""Switches sound and notification on, and counts both for all tabs."""


def stored(driver: Chrome, name: str) -> str:
    """What a tab has stored for all tabs; empty if nothing."""
    return str(driver.execute_script("return localStorage[arguments[0]] ?? ''", name))


LISTED = """
const rows = [...document.querySelectorAll(".pick[data-token]")];
return rows.map((e) => `${e.dataset.token} ${e.querySelector(".badge").dataset.level}`);
"""
"""Cells of the list with their levels."""


class Program(Protocol):
    """The console, which a test starts and stops."""

    def start(self) -> str:
        """Start it; returns its address."""

    def stop(self) -> None:
        """Stop it."""
