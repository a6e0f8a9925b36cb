"""A real chromium for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    # WebGL by the processor: test machines have no graphics card.
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
)
PICTURES = Path(__file__).parents[1] / "out" / "console"


@contextmanager
def browser(profile: Path, size: tuple[int, int] = (1366, 768)) -> Iterator[Chrome]:
    """A browser with a profile of its own, closed at the end."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service(shutil.which("chromedriver")))
    try:
        _resize(driver, size)
        yield driver
    finally:
        driver.quit()


def _resize(driver: Chrome, size: tuple[int, int]) -> None:
    """Give the page itself a size, whatever the window's frame takes."""
    width, height = size
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def picture(driver: Chrome, name: str) -> Path:
    """Keep what the browser shows, for people to look at."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    driver.save_screenshot(str(path))
    return path
