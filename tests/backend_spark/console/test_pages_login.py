"""Login form with a second factor, and the end of a session, in a real browser."""

import time
from collections.abc import Callable

import pytest
from browser import picture
from conftest import wait_until
from console_pages import find, no_problems, text
from console_workspace import PASSWORD, Workspace, code_at
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from backend_spark.console import accounts

RunConsole = Callable[..., str]
TEXTS = {
    "ja": ("認証アプリに表示されている", "認証コード", "認証コードが使用済みです"),
    "en": ("Enter the code that", "Code (six digits", "code was used before"),
}


def enter_password(driver: Chrome) -> None:
    """Fill in name and password, and send them."""
    find(driver, "input[name=name]").send_keys("a-chief")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)


@pytest.mark.parametrize("language", ["ja", pytest.param("en", marks=pytest.mark.long)])
def test_form_asks_for_the_code(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, language: str
) -> None:
    """Only when the account needs one; a used code is refused by name."""
    needed, label, used = TEXTS[language]
    address = run_console(workspace.with_second_factor()) + f"?lang={language}"
    driver.get(address)
    code = find(driver, "input[name=code]")
    assert not code.is_displayed()
    enter_password(driver)
    wait_until(code.is_displayed)
    assert needed in text(driver, ".problem")
    assert label in text(driver, ".login label:has([name=code])")
    wait_until(lambda: driver.switch_to.active_element == code)
    picture(driver, f"login-code-{language}")
    shown = code_at(time.time())
    code.send_keys(shown + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))
    no_problems(driver)

    driver.delete_all_cookies()
    driver.get(address)
    enter_password(driver)
    find(driver, "input[name=code]")
    wait_until(lambda: needed in text(driver, ".problem"))
    find(driver, "input[name=code]").send_keys(shown + Keys.ENTER)
    wait_until(lambda: used in text(driver, ".problem"))
    picture(driver, f"login-code-used-{language}")
    assert find(driver, "input[name=code]").get_attribute("value") == ""


@pytest.mark.long
def test_open_page_returns_to_the_form_when_the_account_is_removed(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Without a click: it must not look as if it showed the present."""
    more, path = workspace.with_accounts(), workspace.folder / "accounts"
    driver.get(run_console(more) + "?lang=ja")
    enter_password(driver)
    wait_until(lambda: text(driver, ".headline .badge"))
    assert not driver.find_elements("css selector", ".login")
    found = accounts.read_accounts(path)
    del found["a-chief"]
    accounts.write_accounts(path, found)

    wait_until(lambda: driver.find_elements("css selector", ".login"))
