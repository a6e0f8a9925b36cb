"""Accounts in the page, and pages after an outage, in a real browser."""

from collections.abc import Callable

import pytest
from browser import picture, resize
from conftest import wait_until
from console_axe import find_violations
from console_pages import find, no_problems, press, text
from console_workspace import PASSWORD, Workspace
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from backend_spark.console import accounts

RunConsole = Callable[..., str]
NEW = "a longer battery staple"
PHONE = (390, 844)


def log_in(driver: Chrome, address: str, name: str, password: str) -> None:
    """Log in by the form."""
    driver.get(address)
    find(driver, "input[name=name]").send_keys(name)
    find(driver, "input[name=password]").send_keys(password + Keys.ENTER)
    find(driver, "button.account")


def change_password(driver: Chrome) -> None:
    """Change one's own password in the open window."""
    find(driver, "input[name=old]").send_keys(PASSWORD)
    find(driver, "input[name=new]").send_keys(NEW + Keys.ENTER)
    wait_until(lambda: text(driver, "form.password + .done") == "保存しました")


def test_chief_changes_accounts_and_the_own_password(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Without a restart or the command line; the new account can log in at once."""
    address = run_console(workspace.with_accounts())
    log_in(driver, f"{address}?lang=ja", "a-chief", PASSWORD)
    press(driver, "button.account")
    find(driver, "tr[data-account=a-viewer]")
    find(driver, "input[name=account]").send_keys("tanaka")
    find(driver, "input[name=first]").send_keys(NEW + Keys.ENTER)
    wait_until(lambda: text(driver, "tr[data-account=tanaka]"))
    press(driver, "[data-lock=a-viewer]")
    wait_until(lambda: "停止中" in text(driver, "tr[data-account=a-viewer]"))
    found = find_violations(driver)
    picture(driver, "account-ja-1366")
    change_password(driver)
    resize(driver, PHONE)
    driver.get(f"{address}?lang=en")
    press(driver, "button.account")
    find(driver, "tr[data-account=tanaka]")
    found += find_violations(driver)
    picture(driver, "account-en-390")

    assert found == []
    assert accounts.read_accounts(workspace.folder / "accounts")["a-viewer"].is_locked
    no_problems(driver)
    driver.delete_all_cookies()
    log_in(driver, address, "tanaka", NEW)


@pytest.mark.long
def test_role_that_was_not_changed_is_not_shown(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """The list said that somebody was a chief; the account's role was as before."""
    log_in(driver, run_console(workspace.with_accounts()), "a-chief", PASSWORD)
    press(driver, "button.account")
    css = "tr[data-account=a-viewer] select"
    find(driver, css)
    driver.execute_cdp_cmd("Network.enable", {})
    urls = {"urls": ["*/api/accounts/change"]}
    driver.execute_cdp_cmd("Network.setBlockedURLs", urls)
    find(driver, f"{css} option[value=chief]").click()
    wait_until(lambda: text(driver, ".account-window .problem"))

    assert find(driver, css).get_property("value") == "viewer"


def test_page_that_failed_in_an_outage_is_drawn_after_it(
    console: str, driver: Chrome
) -> None:
    """The list of nodes is not left blank until somebody clicks again."""
    driver.get(f"{console}?lang=en")
    find(driver, ".pick")
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/api/health"]})
    press(driver, "[data-tab=health]")
    wait_until(lambda: "cannot be reached" in text(driver, ".other .problem"))
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    driver.execute_script("dispatchEvent(new Event('yamamori-online'))")

    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, "tr[data-node]"))


@pytest.mark.long
def test_search_and_filter_in_an_outage_say_so(console: str, driver: Chrome) -> None:
    """In the page's language, and without the rows of the text before."""
    words = "サーバーにつながりません"
    driver.get(f"{console}?lang=ja")
    press(driver, ".overlays summary")
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/api/search*"]})
    find(driver, ".search input").send_keys("a")
    wait_until(lambda: words in text(driver, ".found .problem"))

    press(driver, "[data-tab=health]")
    find(driver, "tr[data-node]")
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/api/health*"]})
    find(driver, ".health-page input").send_keys("zz")
    wait_until(lambda: words in text(driver, ".health-page .problem"))
    assert not driver.find_elements(By.CSS_SELECTOR, "tr[data-node]")
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    driver.execute_script("dispatchEvent(new Event('yamamori-online'))")
    wait_until(lambda: "0" in text(driver, ".health-page .hint[role=status]"))
