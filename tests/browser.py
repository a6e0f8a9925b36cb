"""A real Chromium for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    # WebGL in software: test machines have no graphics card.
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
    # The browser's own frame is drawn, too: a new tab costs a third less without.
    "--animation-duration-scale=0",
    "--wm-window-animations-disabled",
    # A new process for each tab would compile the console's scripts anew.
    "--process-per-site",
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
    "--disable-features=SpareRendererForSitePerProcess",
)
OFFICE_SCREEN = (1366, 768)
PICTURES = Path(__file__).parents[1] / "out" / "console"


@contextmanager
def browser(profile: Path, size: tuple[int, int] = OFFICE_SCREEN) -> Iterator[Chrome]:
    """A browser with its own profile, closed at the end."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service(shutil.which("chromedriver")))
    try:
        resize(driver, size)
        yield driver
    finally:
        driver.quit()


def resize(driver: Chrome, size: tuple[int, int] = OFFICE_SCREEN) -> None:
    """Set the size of the page itself, without the window's frame."""
    width, height = size
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def forget(driver: Chrome) -> None:
    """Drop what the pages of a test left: cookies, storage, log, size, tab."""
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    origin = driver.execute_script("return location.origin")
    if origin.startswith("http"):
        stored = {"origin": origin, "storageTypes": "all"}
        driver.execute_cdp_cmd("Storage.clearDataForOrigin", stored)
    used = driver.window_handles
    driver.switch_to.new_window("tab")
    fresh = driver.current_window_handle
    for each in used:
        driver.switch_to.window(each)
        driver.get("about:blank")  # a busy page would delay the closing
        with suppress(WebDriverException):  # of the window: 20 s at most
            driver.close()
    driver.switch_to.window(fresh)
    driver.get_log("browser")


def picture(driver: Chrome, name: str) -> Path:
    """Save a screenshot for inspection."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    driver.save_screenshot(str(path))
    return path
