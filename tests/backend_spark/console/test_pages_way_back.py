"""Notice, receipt, alarms and drill of a cell in a real browser."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import OFFICE_SCREEN, picture, resize
from conftest import wait_until
from console_axe import find_violations
from console_pages import ANSWERED, find, hold_requests, no_problems, press, text
from console_workspace import PASSWORD, SLOPES, Workspace
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from way_back_bench import BROKER, GATEWAY, accept_drill, publish_notice, report_alarms

from backend_spark.notice_state import DRILLS_FILE, DrillRequests
from spatial_mqtt.announcements import Notice

RunConsole = Callable[..., str]
SLOPE = SLOPES[0]
CELL = SLOPE.cell.token
PHONE = (390, 844)
WORDS = {
    "ja": ("作動中", "訓練中", "【訓練】", "実際の危険を知らせるものではありません"),
    "en": ("ON", "DRILL", "DRILL:", "This is not an alarm"),
}


@pytest.mark.parametrize(
    ("language", "size"),
    [
        ("ja", OFFICE_SCREEN),
        pytest.param("ja", PHONE, marks=pytest.mark.long),
        pytest.param("en", OFFICE_SCREEN, marks=pytest.mark.long),
        pytest.param("en", PHONE, marks=pytest.mark.long),
    ],
)
def test_way_back_and_drill_are_on_the_screen(
    run_console: RunConsole,
    driver: Chrome,
    workspace: Workspace,
    language: str,
    size: tuple[int, int],
) -> None:
    """A siren that is on, then a drill in its own colour beside the real notice."""
    data, problems = workspace.data, Screens(driver, f"{language}-{size[0]}")
    resize(driver, size)
    notice = publish_notice(data, CELL, 4, time.time())
    report_alarms(data, SLOPE, "siren:on lamp:drill", notice)
    on, in_drill, banner, no_alarm = WORDS[language]
    open_cell(driver, f"{run_console(workspace.with_accounts())}?lang={language}")
    wait_until(lambda: text(driver, "[data-output=siren]").endswith(on))
    assert in_drill in text(driver, "[data-output=lamp]")
    assert BROKER in text(driver, ".stages")
    assert GATEWAY in text(driver, "[data-alarm] .received")
    problems.check("way-back")
    press(driver, ".start-drill")
    problems.check("drill-form")
    press(driver, ".drill-form .start-drill")
    wait_until(lambda: text(driver, ".drill-banner").startswith(banner))
    received(data, notice)
    wait_until(lambda: GATEWAY in text(driver, ".drill .received"), 30)
    assert no_alarm in text(driver, ".drill-banner")
    assert text(driver, "[data-output=siren]").endswith(on)
    problems.check("drill")
    press(driver, ".end-drill")
    wait_until(lambda: not text(driver, ".drill-banner"))

    assert problems.found == []
    no_problems(driver)


def test_drill_is_shown_in_its_own_cell_only(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Its answer arrives, on a slow link, when the panel of another cell is open."""
    other = SLOPES[1].cell.token
    open_cell(driver, run_console(workspace.with_accounts()))
    release = hold_requests(driver, "api/drills")
    press(driver, ".start-drill")
    press(driver, ".drill-form .start-drill")
    find(driver, "body").send_keys(Keys.ESCAPE)
    press(driver, f".pick[data-token='{other}']")
    find(driver, f".panel[data-token='{other}'] .start-drill")
    release()
    wait_until(lambda: driver.execute_script(ANSWERED, "api/drills"))
    time.sleep(0.5)  # in which it was drawn

    assert not text(driver, ".drill-banner")


class Screens:
    """Checks of what is on the screen, each after a screenshot."""

    def __init__(self, driver: Chrome, name: str) -> None:
        self._driver, self._name = driver, name
        self.found: list[object] = []

    def check(self, name: str) -> None:
        """Check the part of the panel with the way back."""
        script = "document.querySelector('.way-back').scrollIntoView()"
        self._driver.execute_script(script)
        picture(self._driver, f"{name}-{self._name}")
        self.found += [(name, each) for each in find_violations(self._driver)]


def open_cell(driver: Chrome, address: str) -> None:
    """Log in as a chief and open the panel of the cell."""
    driver.get(address)
    find(driver, "input[name=name]").send_keys("a-chief")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    press(driver, f".pick[data-token='{CELL}']")


def received(data: Path, notice: Notice) -> None:
    """The answers of broker and node to the drill that the console requested."""
    drill = DrillRequests(data / "console" / DRILLS_FILE).read()[CELL]
    accept_drill(data, CELL, drill)
    report_alarms(data, SLOPE, "siren:on lamp:drill", notice, drill)
