"""The helpers of the browser tests: elements that a page draws anew, tabs left open."""

from browser import forget
from console_pages import find
from selenium.webdriver import Chrome

DRAW = "document.body.innerHTML = '<a id=new>text</a>'"


def test_element_is_found_again_after_the_page_drew_it(driver: Chrome) -> None:
    """Whatever command of the driver comes after it."""
    driver.get("data:text/html,<title>drawn again</title>")
    driver.execute_script(DRAW)
    element = find(driver, "a")
    driver.execute_script(DRAW)
    assert element.text == "text"
    driver.execute_script(DRAW)
    assert element.get_attribute("id") == "new"
    driver.execute_script(DRAW)
    assert element.is_displayed()
    driver.execute_script(DRAW)
    element.click()


def test_no_tab_of_a_test_is_left(driver: Chrome) -> None:
    """A tab that a test opened besides its own."""
    driver.switch_to.new_window("tab")
    forget(driver)

    assert len(driver.window_handles) == 1
