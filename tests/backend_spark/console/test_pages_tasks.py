"""The tasks of a night, done in a real browser with at most four clicks each."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from browser import picture, resize
from conftest import free_port, wait_until
from console_pages import find, text
from console_tables import Slope, storm, write_tables
from console_workspace import NOW_S, PASSWORD, SLOPES, Workspace
from selenium.common.exceptions import ElementClickInterceptedException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from sizes import sizes
from way_back_bench import BROKER, GATEWAY, publish_notice, report_alarms
from webhook_receiver import receiver

RunConsole = Callable[..., str]
MOST_CLICKS = 4
WORST = Slope("yama-5", 33.68, 133.58, storm(60, 48))
"""A storm of level 5, which comes after the others."""


@dataclass
class Analyst:
    """Somebody who clicks with the mouse; keys are not counted.

    Attributes:
        driver: The browser.
        address: Of the console, with its language.
        clicks: Number of clicks of each task.
    """

    driver: Chrome
    address: str
    clicks: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        """Do a task, beginning with the map."""
        self.driver.get("about:blank")
        self.driver.get(self.address)
        wait_until(lambda: self.see(f".pick[data-token='{WORST.cell.token}']"))
        self._count = 0
        yield
        picture(self.driver, f"task-{name.replace(' ', '-')}")
        self.clicks[name] = self._count

    def click(self, css: str) -> None:
        """Click on the first element that is on the screen."""
        wait_until(lambda: self._clicked(css))
        self._count += 1

    def _clicked(self, css: str) -> bool:
        try:
            find(self.driver, css).click()
        except ElementClickInterceptedException:
            return False  # it moved in between
        return True

    def see(self, css: str, words: str = "") -> bool:
        """Whether an element is there, with some words."""
        return (
            words in text(self.driver, css)
            if words
            else bool(self.driver.find_elements(By.CSS_SELECTOR, css))
        )

    def type(self, name: str, words: str) -> None:
        """Replace the contents of a field."""
        box = find(self.driver, f"input[name={name}]")
        box.send_keys(Keys.CONTROL + "a")
        box.send_keys(words)


def read_slope(analyst: Analyst) -> None:
    """The worst slope, and its rain."""
    with analyst.task("worst slope and why"):
        analyst.click(".overview .pick")
        wait_until(lambda: analyst.see(".panel .reasons", "土壌雨量指数"))
        assert analyst.see(".panel header", "レベル5相当")
        assert analyst.see(".panel header", WORST.cell.token)
    with analyst.task("rain of 24 hours"):
        analyst.click(".overview .pick")
        analyst.click(".panel .open-series")
        row = f".totals tr[data-node={WORST.node}]"
        wait_until(lambda: analyst.see(row))
        rain = f"{sum(mm or 0 for mm in WORST.rain_mm[-144:]):.1f} mm"
        assert analyst.see(f"{row} td[data-column='24時間雨量']", rain)


def read_nodes_and_report(analyst: Analyst) -> None:
    """The nodes, and the report."""
    with analyst.task("batteries and late nodes"):
        analyst.click("[data-tab=health]")
        wait_until(lambda: analyst.see("tr[data-node]"))
        assert analyst.see("tr[data-node]", "途絶")
        assert analyst.see("tr[data-node] td[data-column='電源']")
    with analyst.task("page of the mayor"):
        analyst.click(".tabs .report")
        first, second = analyst.driver.window_handles
        analyst.driver.switch_to.window(second)
        wait_until(lambda: analyst.see("section.top", "レベル5相当"))
        analyst.driver.close()
        analyst.driver.switch_to.window(first)


def export(analyst: Analyst) -> None:
    """A file of a cell for a week."""
    with analyst.task("CSV of a cell for a week"):
        analyst.click(".overview .pick")
        link = ".panel a[data-rows=csv-JST]"
        found = find(analyst.driver, link)
        fetched = "fetch(arguments[0]).then((a) => a.text()).then(arguments[1])"
        lines = analyst.driver.execute_async_script(
            fetched, found.get_attribute("href")
        ).splitlines()
        analyst.click(link)
        assert len(lines) == 1 + len(WORST.rain_mm)


def decide(analyst: Analyst) -> None:
    """Tasks that change something."""
    with analyst.task("threshold with reason and effect"):
        analyst.click("[data-tab=thresholds]")
        find(analyst.driver, "input[name=why]")
        analyst.type("cell", SLOPES[2].cell.token)
        analyst.type("warning_mm", "120")
        analyst.type("why", "前回の崩壊")
        analyst.click(".preview")
        wait_until(lambda: analyst.see(".effect td[data-column='いまの基準']"))
        analyst.click("form.thresholds .primary")
        wait_until(lambda: analyst.see(".versions", "前回の崩壊"))
    with analyst.task("acknowledge and judge"):
        analyst.click("[data-tab=events]")
        analyst.click("tr[data-event] .details")
        find(analyst.driver, "dialog textarea").send_keys("道路側に亀裂なし")
        analyst.click("dialog [data-decide=acknowledged]:enabled")
        wait_until(lambda: analyst.see("dialog .seen", "a-chief"))
        analyst.click("dialog [data-decide=checked]:enabled")
        wait_until(lambda: analyst.see("dialog .state", "現地確認済み"))
    with analyst.task("last night as known then"):
        analyst.click(".dates")
        analyst.click("select[name=known] option[value=then]")
        analyst.click(".replay .primary")
        wait_until(lambda: analyst.see(".replay", "当時分かっていたレベル"))


def read_siren(analyst: Analyst) -> None:
    """Whether the siren of the worst slope sounds, and how its node got the notice."""
    with analyst.task("siren sounds"):
        analyst.click(".overview .pick")
        wait_until(lambda: analyst.see("[data-output=siren]", "作動中"))
        assert analyst.see(".stages", BROKER)
        assert analyst.see("[data-alarm] .received", GATEWAY)


def told(analyst: Analyst, requests: list[object]) -> None:
    """A rule of level 4 has told somebody."""
    with analyst.task("told at level 4"):
        analyst.click("[data-tab=events]")
        analyst.click("details.notifications summary")
        wait_until(lambda: analyst.see("[data-delivery=delivered]", "duty"))
        assert requests


@pytest.mark.parametrize("width", sizes(1366, 390))
def test_tasks_of_a_night_need_four_clicks_at_most(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, width: int
) -> None:
    """Ten tasks, without the command line, at the office and on a phone."""
    with receiver(free_port()) as hook:
        rule = f'name = "duty"\nto = ["{hook.url}"]\nfrom_level = 4\nexercises = true'
        accounts = workspace.with_accounts()
        address = run_console(f"{accounts}\n[[console.notifications]]\n{rule}")
        driver.get(f"{address}?lang=ja")
        find(driver, "input[name=name]").send_keys("a-chief")
        find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
        find(driver, ".pick")
        write_tables(workspace.data, [WORST], NOW_S)
        notice = publish_notice(workspace.data, WORST.cell.token, 4, time.time())
        report_alarms(workspace.data, WORST, "siren:on", notice)
        analyst = Analyst(driver, f"{address}?lang=ja")
        resize(driver, (width, 844))
        read_slope(analyst)
        read_nodes_and_report(analyst)
        export(analyst)
        decide(analyst)
        read_siren(analyst)
        told(analyst, [*hook.requests])

    assert max(analyst.clicks.values()) <= MOST_CLICKS, analyst.clicks
    assert len(analyst.clicks) == 10
