"""Login form with a second factor, and the end of a session, in a real browser."""

import time
from collections.abc import Callable, Iterator

import pytest
from browser import picture
from conftest import wait_until
from console_pages import COUNT_RINGS, find, no_problems, press, stored, text
from console_workspace import (
    PASSWORD,
    Clock,
    Workspace,
    code_at,
    make_test_services,
    serve,
)
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from backend_spark.console import accounts
from backend_spark.console.auth import SESSION_S

NEW = "a new password of a chief"
AHEAD = "const now = Date.now; Date.now = () => now() + 1000 * arguments[0]"
"""Sets the browser's clock ahead."""

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


@pytest.fixture
def shift(driver: Chrome, workspace: Workspace) -> Iterator[Clock]:
    """A page with a session of `SESSION_S` and sound; yields the server's clock."""
    clock = Clock()
    services = make_test_services(workspace, clock, workspace.with_accounts())
    services.refresh()
    with serve(services, workspace.port):
        driver.get(f"http://127.0.0.1:{workspace.port}/?lang=ja")
        enter_password(driver)
        wait_until(lambda: text(driver, ".headline .badge"))
        find(driver, "[data-tab=health]").click()  # now it may sound
        driver.execute_script(COUNT_RINGS)
        yield clock


def test_end_of_the_session_is_stated_before_it(driver: Chrome, shift: Clock) -> None:
    """Half an hour before, with sound and notification."""
    assert not text(driver, ".ending")
    passed_s = SESSION_S - 1700
    shift.now_s += passed_s
    driver.execute_script(AHEAD, passed_s)
    wait_until(lambda: "ログインし直してください" in text(driver, ".ending"))

    assert stored(driver, "notified") == text(driver, ".ending")
    wait_until(lambda: stored(driver, "tones"))
    press(driver, ".logout")
    find(driver, ".login")
    assert not driver.find_elements("css selector", ".login .ended")
    assert stored(driver, "rings") == "1"


@pytest.mark.long
def test_banner_follows_the_session_of_a_new_password(
    driver: Chrome, shift: Clock
) -> None:
    """It goes with the old one, and the end of the new one is stated, too."""
    passed_s = SESSION_S - 1700
    shift.now_s += passed_s
    driver.execute_script(AHEAD, passed_s)
    wait_until(lambda: text(driver, ".ending"))
    press(driver, ".account")
    find(driver, "input[name=old]").send_keys(PASSWORD)
    find(driver, "input[name=new]").send_keys(NEW + Keys.ENTER)
    wait_until(lambda: not text(driver, ".ending"))
    assert stored(driver, "rings") == "1"

    shift.now_s += passed_s
    driver.execute_script(AHEAD, passed_s)
    wait_until(lambda: text(driver, ".ending"))
    assert stored(driver, "rings") == "2"


@pytest.mark.long
def test_login_form_states_that_the_session_has_ended(
    driver: Chrome, shift: Clock
) -> None:
    """It took the place of the page without a sound, and from then on none came."""
    shift.now_s += SESSION_S
    wait_until(lambda: "切れました" in text(driver, ".login .ended"))

    assert "切れました" in stored(driver, "notified")
    assert stored(driver, "tones")
    assert driver.title.startswith("⚠ ")
    enter_password(driver)
    wait_until(lambda: text(driver, ".headline .badge"))
    assert not text(driver, ".ending")
