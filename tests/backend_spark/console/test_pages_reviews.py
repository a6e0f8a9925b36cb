"""The page of the reviews of readings in a browser: accept, reject, mark, revert."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import picture, resize
from conftest import wait_until
from console_pages import (
    find,
    hold_answer,
    hold_requests,
    no_problems,
    text,
    wait_for_held,
)
from console_workspace import PASSWORD, SLOPES, Workspace
from doubtful_slope import DOUBTFUL, write_doubtful
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from backend_spark.scoring.reviews import AppliedReviews

RunConsole = Callable[..., str]
PHONE = (390, 844)
RAIN = f"tr[data-span='{DOUBTFUL.node} rain']"
TILT = f"tr[data-span='{DOUBTFUL.node} tilt/x']"
FITS = "return document.documentElement.scrollWidth <= innerWidth"


class ReviewsPage:
    """The page, by its clicks.

    Attributes:
        clicks: Number of clicks since the last count.
    """

    def __init__(self, driver: Chrome, address: str, language: str) -> None:
        self.driver, self.clicks = driver, 0
        driver.get(f"{address}?lang={language}")
        self.log_in()

    def log_in(self) -> None:
        """Log in on the page that is open."""
        find(self.driver, "input[name=name]").send_keys("a-chief")
        find(self.driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
        wait_until(lambda: text(self.driver, ".headline .badge"))

    def click(self, css: str) -> None:
        """Click on an element as a person does."""
        wait_until(lambda: find(self.driver, css).is_enabled())
        find(self.driver, css).click()
        self.clicks += 1

    def write(self, why: str) -> None:
        """Type a reason."""
        find(self.driver, ".review-form textarea").send_keys(why)

    def save(self) -> None:
        """Save, which waits for the preview."""
        self.click(".review-form .primary")

    def saved(self) -> None:
        """Wait until the window has closed."""
        wait_until(lambda: not self.driver.find_elements(By.CSS_SELECTOR, "dialog"))

    def spans(self) -> list[str]:
        """The readings that wait for a decision."""
        rows = self.driver.find_elements(By.CSS_SELECTOR, "tr[data-span]")
        return [row.get_attribute("data-span") or "" for row in rows]

    def states(self) -> list[str]:
        """State of each decision, the newest first."""
        script = (
            "return [...document.querySelectorAll('.version-state')]"
            ".map(e => e.classList[1])"
        )
        found: list[str] = self.driver.execute_script(script)
        return found


@pytest.fixture
def address(run_console: RunConsole, workspace: Workspace) -> str:
    """A console with accounts and a slope with doubtful readings."""
    write_doubtful(workspace.data)
    return run_console(workspace.with_accounts())


def run_job(data: Path, name: str = "reviews.json") -> None:
    """What the job does around a pass."""
    job = AppliedReviews(data, data / "console" / name, lambda: 1000.0)
    job.finish(job.changes())


def test_doubt_is_accepted_in_three_clicks(address: str, driver: Chrome) -> None:
    """From the map; the readings leave the list, and no level changes."""
    page = ReviewsPage(driver, address, "en")
    page.click("[data-tab=reviews]")
    page.click(f"{TILT} .accept")
    assert "No level changes" in (find(driver, ".no-change").text)
    page.save()
    page.saved()
    assert page.clicks == 3
    assert page.spans() == ["kita-1 rain", "kita-1 tilt/y"]
    assert page.states() == ["recorded"]


def test_doubt_is_rejected_in_four_clicks(
    address: str, driver: Chrome, workspace: Workspace
) -> None:
    """From the map. A level of 4 needs consent; the job's state follows."""
    run_job(workspace.data)
    page = ReviewsPage(driver, address, "en")
    page.click("[data-tab=reviews]")
    page.click(f"{RAIN} .reject")
    wait_until(lambda: text(driver, ".review-form .raises"))
    assert "notices and sirens follow" in text(driver, ".review-form .raises")
    picture(driver, "review-raises-en")
    page.write("the gauge of the road office has as much")
    page.click(".review-form input[name=sure]")
    page.save()
    page.saved()
    assert page.clicks == 4
    assert page.spans() == ["kita-1 tilt/x", "kita-1 tilt/y"]
    assert page.states() == ["waiting"]
    assert "raised the cell to level 4" in text(driver, ".decisions tbody tr")
    picture(driver, "reviews-en")
    run_job(workspace.data)
    wait_until(lambda: page.states() == ["applied"], 40)
    no_problems(driver)


@pytest.mark.long
def test_reason_survives_the_end_of_the_session(address: str, driver: Chrome) -> None:
    """It was lost with the page. Of a window that was closed, none is kept."""
    page = ReviewsPage(driver, address, "ja")
    page.click("[data-tab=reviews]")
    page.click(f"{TILT} .reject")
    page.write("現地で確認、変状なし")
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    page.save()
    page.log_in()
    page.click("[data-tab=reviews]")
    page.click(f"{TILT} .reject")
    kept = find(driver, ".review-form textarea").get_attribute("value")
    page.click(".review-form .close")
    page.click(f"{TILT} .reject")

    assert kept == "現地で確認、変状なし"
    assert find(driver, ".review-form textarea").get_attribute("value") == ""


def test_nothing_is_saved_without_reason_and_consent(
    address: str, driver: Chrome
) -> None:
    """The form stays open until both are there."""
    page = ReviewsPage(driver, address, "ja")
    page.click("[data-tab=reviews]")
    page.click(f"{RAIN} .reject")
    is_valid = "return document.querySelector('.review-form').checkValidity()"
    page.save()
    assert driver.execute_script(is_valid) is False
    page.write("道路の雨量計も同じ値")
    page.save()
    assert driver.execute_script(is_valid) is False
    assert "レベル4相当に上がる" in text(driver, ".review-form .confirm")
    picture(driver, "review-consent-ja")
    page.click(".review-form .close")
    page.saved()
    assert page.states() == []


def test_readings_are_marked_as_bad_and_the_decision_is_reverted(
    address: str, driver: Chrome
) -> None:
    """Of any sensor in any range; the levels change back."""
    page = ReviewsPage(driver, address, "en")
    page.click("[data-tab=reviews]")
    page.click(".mark-bad")
    find(driver, ".review-form input[name=node]").send_keys(DOUBTFUL.node + Keys.TAB)
    wait_until(lambda: len(Select(find(driver, "select[name=reading]")).options) > 1)
    Select(find(driver, "select[name=reading]")).select_by_value("rain")
    wait_until(lambda: text(driver, ".levels-now tbody tr"))
    page.write("the gauge was washed")
    page.save()
    page.saved()
    assert page.states() == ["not_read"]
    assert "has not reported" in text(driver, ".job-state")
    page.click(".decisions .revert")
    wait_until(lambda: text(driver, ".levels-now tbody tr"))
    page.write("it was rain")
    page.save()
    page.saved()
    assert page.states() == ["reverted"]
    assert "Reverted by a-chief" in text(driver, ".decisions tbody tr")
    assert "it was rain" in text(driver, ".decisions tbody tr")
    no_problems(driver)


@pytest.mark.long
def test_range_of_readings_ends_at_the_present(address: str, driver: Chrome) -> None:
    """Before the first answer of a slow link the form opened with a day of 1970."""
    page = ReviewsPage(driver, address, "en")
    release = hold_requests(driver, "api/reviews")
    page.click("[data-tab=reviews]")
    assert not find(driver, ".reviews-page > .mark-bad").is_enabled()
    release()
    page.click(".reviews-page > .mark-bad")

    until = find(driver, ".review-form input[name=to]").get_attribute("value")
    assert str(until).startswith("2026-10-26")


def choose_node(driver: Chrome, node: str) -> None:
    """Type the name of a node over that which is there."""
    field = find(driver, ".review-form input[name=node]")
    field.clear()
    field.send_keys(node + Keys.TAB)


@pytest.mark.long
def test_readings_of_another_node_are_not_saved_before_their_effect_is_shown(
    address: str, driver: Chrome
) -> None:
    """The form could save them while it showed what the node before would change."""
    page = ReviewsPage(driver, address, "en")
    page.click("[data-tab=reviews]")
    page.click(".reviews-page > .mark-bad")
    choose_node(driver, DOUBTFUL.node)
    wait_until(lambda: text(driver, ".review-form .effect table"))
    page.write("the gauge was washed")
    release = hold_requests(driver, "api/node/")
    choose_node(driver, SLOPES[0].node)

    assert not find(driver, ".review-form .primary").is_enabled()
    assert not text(driver, ".review-form .effect table")
    release()
    wait_until(lambda: text(driver, ".review-form .effect table, .no-change"))
    assert find(driver, ".review-form .primary").is_enabled()


@pytest.mark.long
def test_readings_to_choose_are_those_of_the_node_that_was_typed_last(
    address: str, driver: Chrome
) -> None:
    """The answer about the node before comes later."""
    page = ReviewsPage(driver, address, "en")
    page.click("[data-tab=reviews]")
    page.click(".reviews-page > .mark-bad")
    deliver = hold_answer(driver, "api/node/")
    choose_node(driver, DOUBTFUL.node)
    wait_for_held(driver)
    choose_node(driver, SLOPES[1].node)
    wait_until(lambda: Select(find(driver, "select[name=reading]")).options)
    deliver()

    assert len(Select(find(driver, "select[name=reading]")).options) == 1


REFUSED_ONCE = """
const real = window.fetch;
let isFirst = true;
window.fetch = async (path, options) => {
  const isSave = path === "api/reviews" && options?.method === "POST";
  if (!isSave || !isFirst) return real(path, options);
  isFirst = false;
  return Response.json({ detail: "confirmed_level must be 5" }, { status: 409 });
};
"""


@pytest.mark.long
def test_decision_that_is_refused_says_so(address: str, driver: Chrome) -> None:
    """New readings changed its effect; the form only took away the tick."""
    page = ReviewsPage(driver, address, "ja")
    page.click("[data-tab=reviews]")
    page.click(f"{RAIN} .reject")
    wait_until(lambda: text(driver, ".review-form .raises"))
    page.write("道路の雨量計も同じ値")
    page.click(".review-form input[name=sure]")
    driver.execute_script(REFUSED_ONCE)
    page.save()
    wait_until(lambda: not find(driver, "input[name=sure]").is_selected())
    wait_until(lambda: text(driver, ".levels-now tbody tr"))
    assert "保存していません" in text(driver, ".review-form .problem")

    page.click(".review-form input[name=sure]")
    page.save()
    page.saved()


BUSY_ONCE = """
const real = window.fetch;
window.busy = 0;
window.fetch = (path, options) => String(path).endsWith("/preview") && !window.busy++
  ? Promise.resolve(new Response('{"detail": "try again"}', {status: 503}))
  : real(path, options);
"""


@pytest.mark.long
def test_preview_that_waits_for_another_one_is_computed_then(
    address: str, driver: Chrome
) -> None:
    """That of an earlier choice may take long; the form could not be saved any more."""
    page = ReviewsPage(driver, address, "en")
    page.click("[data-tab=reviews]")
    driver.execute_script(BUSY_ONCE)
    page.click(f"{RAIN} .reject")
    wait_until(lambda: text(driver, ".levels-now tbody tr"))

    assert driver.execute_script("return window.busy") == 2
    assert not text(driver, ".review-form .problem")


@pytest.mark.long
def test_page_and_window_fit_a_phone(address: str, driver: Chrome) -> None:
    """Nothing is wider than the screen."""
    resize(driver, PHONE)
    page = ReviewsPage(driver, address, "ja")
    page.click("[data-tab=reviews]")
    find(driver, RAIN)
    assert driver.execute_script(FITS)
    picture(driver, "reviews-phone-ja")
    page.click(f"{RAIN} .reject")
    wait_until(lambda: text(driver, ".review-form .raises"))
    window = find(driver, "dialog.review-window")
    picture(driver, "review-phone-ja")

    assert window.rect["x"] >= 0
    assert window.rect["x"] + window.rect["width"] <= PHONE[0]
    labels = find(driver, ".levels-now td + td")
    assert labels.get_attribute("data-column") == "いま"
    wide = "return arguments[0].scrollWidth <= arguments[0].clientWidth"
    assert driver.execute_script(wide, window)
