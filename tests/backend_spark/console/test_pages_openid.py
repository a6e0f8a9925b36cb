"""Sign-in by a real OpenID provider in a real browser."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import picture
from conftest import free_port, wait_until
from console_pages import find, no_problems, press, text
from console_workspace import PASSWORD, Workspace
from openid_provider import run_provider
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

RunConsole = Callable[..., str]
WORDS = {
    "ja": ("職員認証 でログイン", "権限がありません", "コンソールのアカウントで"),
    "en": ("Log in with 職員認証", "You have no role", "an account of this console"),
}
NAME = 'name = "職員認証"\n'


def sign_in(driver: Chrome, user: str) -> None:
    """Fill in the provider's forms; the second asks for consent."""
    press(driver, "a.provider")
    find(driver, "input[name=login]").send_keys(user)
    find(driver, "input[name=password]").send_keys("any" + Keys.ENTER)
    find(driver, "input[name=prompt][value=consent]")
    press(driver, "button[type=submit]")


@pytest.mark.parametrize("language", ["ja", pytest.param("en", marks=pytest.mark.long)])
def test_user_of_the_provider_sees_the_console(
    run_console: RunConsole,
    driver: Chrome,
    workspace: Workspace,
    tmp_path: Path,
    language: str,
) -> None:
    """From the link to the map: the browser keeps both cookies on the way."""
    link, no_role, _ = WORDS[language]
    accounts = f'{workspace.with_accounts()}\nlanguage = "{language}"\n'
    with run_provider(workspace.port, tmp_path / "provider.log") as provider:
        more = provider.settings(tmp_path, workspace.port, NAME)
        driver.get(run_console(accounts + more))
        wait_until(lambda: text(driver, "a.provider") == link)
        picture(driver, f"login-provider-{language}")
        sign_in(driver, "chief")
        wait_until(lambda: text(driver, ".headline .badge"))
        assert text(driver, "button.account") == "chief"
        assert "login=" not in driver.current_url
        no_problems(driver, f":{workspace.port}/")

        driver.execute_cdp_cmd("Network.clearBrowserCookies", {})  # of both
        driver.get(f"http://127.0.0.1:{workspace.port}/")
        sign_in(driver, "stranger")
        wait_until(lambda: no_role in text(driver, ".problem"))
        picture(driver, f"login-provider-refused-{language}")


@pytest.mark.parametrize("language", ["ja", pytest.param("en", marks=pytest.mark.long)])
def test_account_logs_in_while_the_provider_is_away(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, language: str
) -> None:
    """The page says what to do instead, on the same form."""
    more = (
        f'{workspace.with_accounts()}\naddress = "http://127.0.0.1:{workspace.port}/"\n'
        f'language = "{language}"\n[console.oidc]\n'
        f'issuer = "http://127.0.0.1:{free_port()}"\nclient_id = "console"\n'
        f'chiefs = ["x"]\n{NAME}'
    )
    driver.get(run_console(more))
    press(driver, "a.provider")
    wait_until(lambda: WORDS[language][2] in text(driver, ".problem"))
    picture(driver, f"login-provider-away-{language}")
    find(driver, "input[name=name]").send_keys("a-chief")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))
    assert "login=" not in driver.current_url
