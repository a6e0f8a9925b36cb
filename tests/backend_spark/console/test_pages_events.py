"""The page of the events, in a real browser: decisions, drafts, what others do."""

import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from browser import picture, resize
from conftest import wait_until
from console_pages import (
    ANSWERED,
    find,
    hold_requests,
    no_problems,
    press,
    press_twice,
    text,
)
from console_tables import dry_slope, write_tables
from console_workspace import NOW_S, PASSWORD, SLOPES, Workspace, add_alert
from console_workspace import log_in as log_in_client
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from sizes import sizes

RunConsole = Callable[..., str]
HOLD_SOUND = """
localStorage.setItem("yamamori-sound", "on");
localStorage.setItem("yamamori-notify", "on");
AudioContext.prototype.resume = () => new Promise(() => {});
window.Notification = class {
  static permission = "granted";
  constructor(title, { body }) { window.notified = body; }
};
"""
"""As a browser that was started again: no sound before somebody clicks."""
WATCH_MOVES = """
const body = document.querySelector(".event-list tbody");
const {x, y} = body.querySelector(".acknowledge").getBoundingClientRect();
window.atButton = () => document.elementFromPoint(x + 5, y + 5).className;
new MutationObserver(() => { window.whenMoved ??= window.atButton(); })
    .observe(body, {childList: true});
"""
"""Keep what a click hits where the first button was when rows have moved."""


def log_in(driver: Chrome, name: str = "a-analyst") -> None:
    """Log in on the page that is open."""
    find(driver, "input[name=name]").send_keys(name)
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))


def open_events(driver: Chrome, address: str, language: str = "ja") -> None:
    """Log in, and open the events."""
    driver.get(f"{address}?lang={language}")
    log_in(driver)
    find(driver, "[data-tab=events]").click()
    find(driver, "tr[data-event]")


def rows(driver: Chrome) -> int:
    """Number of events that are listed."""
    return len(driver.find_elements(By.CSS_SELECTOR, "tr[data-event]"))


def someone_else(address: str, path: str, body: dict[str, Any]) -> None:
    """Change something as the chief, from another machine."""
    with httpx.Client(base_url=address, timeout=60) as client:
        proof = log_in_client(client, "a-chief")
        assert client.post(path, headers=proof, json=body).status_code == 200


@pytest.mark.parametrize("language", sizes("ja", "en"))
def test_events_are_decided_one_by_one_and_together(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, language: str
) -> None:
    """One click acknowledges; several are chosen and judged with a remark."""
    open_events(driver, run_console(workspace.with_accounts()), language)
    count = rows(driver)
    assert driver.title.startswith(f"({count}) ")
    picture(driver, f"events-{language}")
    find(driver, ".acknowledge").click()
    wait_until(lambda: rows(driver) == count - 1)
    wait_until(lambda: driver.title.startswith(f"({count - 1}) "))
    find(driver, "thead input[type=checkbox]").click()
    find(driver, "input[name=bulk-remark]").send_keys("<b>見回り</b>")
    find(driver, ".bulk button").click()
    wait_until(lambda: rows(driver) == 0)
    find(driver, "[data-state=all]").click()
    wait_until(lambda: rows(driver) == count)
    assert "a-analyst" in text(driver, ".seen")
    assert "<b>見回り</b>" in text(driver, "tbody")
    wait_until(lambda: not driver.title.startswith("("))
    no_problems(driver)


@pytest.mark.parametrize("width", sizes(390, 1280))
def test_open_event_above_the_cells_stands_before_their_highest_level(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, width: int
) -> None:
    """A wire cut outside all cells: the page said level 4, and 5 was in another tab."""
    resize(driver, (width, 844))
    driver.get(f"{run_console()}?lang=ja")
    waiting, badge = ".headline .waiting", ".headline .badge"
    wait_until(lambda: "最高 レベル4相当" in text(driver, waiting))
    assert find(driver, waiting).location["y"] > find(driver, badge).location["y"]
    add_alert(workspace)
    wait_until(lambda: "未対応の事象 4 件、最高 レベル5相当" in text(driver, waiting))

    assert find(driver, waiting).location["y"] < find(driver, badge).location["y"]
    picture(driver, f"open-event-{width}")
    press(driver, ".slider .stepBack")
    wait_until(lambda: not find(driver, waiting).is_displayed())
    press(driver, ".slider .now")
    wait_until(lambda: find(driver, waiting).is_displayed())
    press(driver, waiting)
    find(driver, "tr[data-event]")
    no_problems(driver)


def test_events_come_before_the_filters_on_a_phone(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Five fields pushed the first event to the edge of the screen."""
    resize(driver, (390, 844))
    open_events(driver, run_console(workspace.with_accounts()))

    assert find(driver, "tr[data-event]").location["y"] < 844 / 1.8
    find(driver, ".events-page summary").click()
    assert find(driver, ".filters input[name=text]").is_displayed()


def test_place_of_an_event_opens_its_cell(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """The window stayed open above it. What was being written is kept."""
    open_events(driver, run_console(workspace.with_accounts()))
    find(driver, ".details").click()
    find(driver, "[data-decide=acknowledged]:enabled")
    find(driver, ".event-window textarea").send_keys("見回り")
    find(driver, ".event-window a.place").click()

    wait_until(lambda: text(driver, ".panel .reasons"))
    assert not driver.find_elements(By.CSS_SELECTOR, "dialog[open]")
    find(driver, "[data-tab=events]").click()
    find(driver, ".details").click()
    kept = find(driver, ".event-window textarea").get_attribute("value")
    assert kept == "見回り"


def log_in_elsewhere(driver: Chrome, address: str, name: str) -> None:
    """Log out and in again in a second tab, and return to the first."""
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    driver.get(f"{address}?lang=ja")
    find(driver, ".logout").click()
    log_in(driver, name)
    driver.close()
    driver.switch_to.window(first)


def test_page_goes_on_after_a_login_in_another_tab(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """It said in English that it is old. What another user would sign is refused."""
    address = run_console(workspace.with_accounts())
    open_events(driver, address)
    count = rows(driver)
    log_in_elsewhere(driver, address, "a-analyst")
    find(driver, ".acknowledge").click()
    wait_until(lambda: rows(driver) == count - 1)
    log_in_elsewhere(driver, address, "a-chief")
    find(driver, ".acknowledge").click()

    wait_until(lambda: "a-chief がログインしたため" in text(driver, ".other"))
    assert rows(driver) == count - 1


@pytest.mark.parametrize("language", sizes("ja", "en"))
def test_list_follows_when_a_cell_is_no_longer_judged(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, language: str
) -> None:
    """Its events "went on" in a list that was left open while the data stopped."""
    lost = {"ja": "現在は判定不能", "en": "cannot be judged now"}[language]
    level = {"ja": "にレベル4相当", "en": ": Equivalent to level 4"}[language]
    open_events(driver, run_console(workspace.with_accounts()), language)
    css = f"tr[data-event]:has([href='#{SLOPES[0].cell.token}']) .eventWhen"
    wait_until(lambda: level in text(driver, css))
    assert lost not in text(driver, css)
    # In an exercise the newest data are the present.
    write_tables(workspace.data, [dry_slope("kita-1", 9)], NOW_S + 3 * 3600)

    wait_until(lambda: lost in text(driver, css))
    picture(driver, f"events-lost-{language}")


@pytest.mark.long
@pytest.mark.parametrize("language", ["ja", "en"])
def test_event_and_note_are_written_on_a_phone(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, language: str
) -> None:
    """Nothing is wider than the screen; the window has the history of the event."""
    resize(driver, (390, 844))
    open_events(driver, run_console(workspace.with_accounts()), language)
    find(driver, "textarea").send_keys("橋の水位に注意")
    find(driver, ".note button").click()
    wait_until(lambda: "橋の水位に注意" in text(driver, ".notes-list"))
    over = """
    const boxes = [document.documentElement, document.querySelector(".other")];
    return Math.max(...boxes.map((box) => box.scrollWidth - box.clientWidth));
    """
    picture(driver, f"events-phone-{language}")
    assert driver.execute_script(over) <= 0
    find(driver, ".details").click()
    find(driver, ".event-window textarea").send_keys("見回り")
    find(driver, "[data-decide=acknowledged]:enabled").click()
    wait_until(lambda: "見回り" in text(driver, ".event-window .history"))
    picture(driver, f"event-window-phone-{language}")
    assert driver.execute_script(over) <= 0
    no_problems(driver)


def test_nothing_is_decided_before_the_event_is_shown(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """On a slow link the window was empty, and could close an event that had risen."""
    open_events(driver, run_console(workspace.with_accounts()))
    release = hold_requests(driver, "api/events/")
    find(driver, ".details").click()
    buttons = ".event-window .decision button"
    find(driver, buttons)
    assert not driver.find_elements(By.CSS_SELECTOR, f"{buttons}:enabled")
    release()
    find(driver, "[data-decide=acknowledged]:enabled").click()
    wait_until(lambda: "a-analyst" in text(driver, ".event-window .history"))
    no_problems(driver)


def test_silence_of_a_node_outside_all_cells_is_not_called_calm(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Its event ends without a message; the flow may have taken the node."""
    add_alert(workspace, NOW_S - 7 * 3600)
    open_events(driver, run_console(workspace.with_accounts()))
    find(driver, ".filters input[name=text]").send_keys("otani-9")
    wait_until(lambda: rows(driver) == 1)

    ended = "終了（緊急通報が6時間ない。危険が去ったとは限りません）"
    assert ended in text(driver, "tr[data-event]")
    find(driver, ".details").click()
    wait_until(lambda: ended in text(driver, ".event-window .history"))
    assert "終息" not in text(driver, ".event-window")
    no_problems(driver)


@pytest.mark.long
def test_window_of_an_event_is_not_replaced_by_that_of_a_node(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """A node was clicked before, on a slow link."""
    open_events(driver, run_console(workspace.with_accounts()))
    find(driver, "[data-tab=health]").click()
    find(driver, "tr[data-node] button")
    release = hold_requests(driver, "api/node/")
    press(driver, "tr[data-node] button")
    find(driver, "[data-tab=events]").click()
    find(driver, ".details").click()
    find(driver, ".event-window textarea").send_keys("見回り")
    release()
    wait_until(lambda: driver.execute_script(ANSWERED, "api/node/"))
    time.sleep(0.5)  # in which it was drawn

    assert not driver.find_elements(By.CSS_SELECTOR, "dialog[data-node]")
    remark = find(driver, ".event-window textarea")
    assert remark.get_attribute("value") == "見回り"


def test_remark_survives_what_others_do_and_the_end_of_the_session(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Neither text, focus nor choice is lost when the list changes by itself."""
    address = run_console(workspace.with_accounts())
    open_events(driver, address)
    number = int(find(driver, "tr[data-event]").get_attribute("data-event") or 0)
    find(driver, ".details").click()
    box = ".event-window textarea"
    find(driver, box)
    # Unlike what `find` returns, this element must stay the same.
    remark = driver.find_element(By.CSS_SELECTOR, box)
    remark.send_keys("現地へ向か")
    body = {"events": [number], "state": "acknowledged", "text": "mine"}
    someone_else(address, "/api/events/state", body)
    wait_until(lambda: "a-chief" in text(driver, ".event-window .history"))
    remark.send_keys("う")
    assert driver.switch_to.active_element == remark
    someone_else(address, "/api/notes", {"text": "from the chief"})
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    find(driver, "[data-decide=acknowledged]:enabled").click()
    find(driver, "input[name=name]")
    log_in(driver)
    find(driver, "[data-tab=events]").click()
    find(driver, "[data-state=all]").click()
    wait_until(lambda: rows(driver) >= 3)
    find(driver, f"tr[data-event='{number}'] .details").click()
    kept = find(driver, box).get_attribute("value")

    assert kept == "現地へ向かう"


@pytest.mark.long
def test_event_that_is_acknowledged_leaves_the_choice_of_others(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """All boxes were empty after it."""
    open_events(driver, run_console(workspace.with_accounts()))
    count = rows(driver)
    press(driver, "tr[data-event]:nth-child(2) input")
    press(driver, "tr[data-event]:nth-child(1) .acknowledge")
    wait_until(lambda: rows(driver) == count - 1)

    assert driver.find_elements(By.CSS_SELECTOR, "tr[data-event] input:checked")
    assert find(driver, ".bulk").is_displayed()


def test_click_on_a_row_that_has_just_moved_decides_nothing(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """A new event pushed another one under the pointer, which was acknowledged."""
    open_events(driver, run_console(workspace.with_accounts()))
    count = rows(driver)
    driver.execute_script(WATCH_MOVES)
    assert "acknowledge" in driver.execute_script("return window.atButton()")
    add_alert(workspace)
    wait_until(lambda: rows(driver) == count + 1)

    assert "acknowledge" not in driver.execute_script("return window.whenMoved")
    wait_until(lambda: "acknowledge" in driver.execute_script("return atButton()"))


@pytest.mark.long
def test_sound_that_is_held_back_delays_no_notification(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Neither came, with both switched on; now the page says what to do."""
    open_events(driver, run_console(workspace.with_accounts()))
    driver.execute_script(HOLD_SOUND)
    add_alert(workspace)

    wait_until(
        lambda: "レベル5相当" in (driver.execute_script("return window.notified") or "")
    )
    wait_until(lambda: "クリック" in text(driver, ".silence"))


@pytest.mark.long
def test_new_event_rings_and_shows_in_the_title(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """On every tab, within seconds, when the sound is on."""
    address = run_console(workspace.with_accounts())
    open_events(driver, address)
    find(driver, "input[name=yamamori-sound]").click()
    wait_until(lambda: driver.execute_script("return document.body.dataset.rang"))
    count = rows(driver)
    find(driver, "[data-tab=health]").click()
    add_alert(workspace)
    wait_until(lambda: driver.title.startswith(f"({count + 1}) レベル5相当"))

    wait_until(lambda: driver.execute_script("return document.body.dataset.rang > 1"))


@pytest.mark.long
def test_decision_about_chosen_events_waits_for_what_others_decided(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Nobody overwrites unseen what another operator has recorded meanwhile."""
    address = run_console(workspace.with_accounts())
    open_events(driver, address)
    find(driver, "[data-state=all]").click()
    find(driver, "thead input[type=checkbox]").click()
    number = int(find(driver, "tr[data-event]").get_attribute("data-event") or 0)
    body = {"events": [number], "state": "checked", "text": "着手"}
    someone_else(address, "/api/events/state", body)
    wait_until(lambda: "a-chief" in text(driver, "tbody"))
    find(driver, ".bulk button").click()
    wait_until(lambda: "ほかの職員" in text(driver, ".events-page .problem"))
    assert "a-analyst" not in text(driver, "tbody")
    someone_else(address, "/api/events/state", body | {"text": "下流側も"})
    wait_until(lambda: "下流側も" in text(driver, "tbody"))
    assert "ほかの職員" in text(driver, ".events-page .problem")

    find(driver, "thead input[type=checkbox]").click()
    find(driver, ".bulk button").click()
    wait_until(lambda: "a-analyst" in text(driver, "tbody"))
    assert not text(driver, ".events-page .problem")


def test_refused_decision_is_named_until_the_next_one(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """What others did next took the sentence away, often at once."""
    address = run_console(workspace.with_accounts())
    open_events(driver, address)
    number = int(find(driver, "tr[data-event]").get_attribute("data-event") or 0)
    find(driver, f"tr[data-event='{number}'] .details").click()
    find(driver, "[data-decide=acknowledged]:enabled")
    release = hold_requests(driver, f"api/events/{number}")
    body = {"events": [number], "state": "checked", "text": "着手"}
    someone_else(address, "/api/events/state", body)
    find(driver, "[data-decide=acknowledged]").click()
    release()
    problem = ".event-window .problem"
    wait_until(lambda: "ほかの職員" in text(driver, problem))
    someone_else(address, "/api/events/state", body | {"text": "下流側も"})
    wait_until(lambda: "下流側も" in text(driver, ".event-window .history"))
    assert "ほかの職員" in text(driver, problem)

    find(driver, "[data-decide=acknowledged]").click()
    wait_until(lambda: "a-analyst" in text(driver, ".event-window .history"))
    assert not text(driver, problem)


def block(driver: Chrome, *urls: str) -> None:
    """Let requests fail, as while a server restarts behind a proxy."""
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": list(urls)})


@pytest.mark.long
def test_events_that_could_not_be_read_are_read_again(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """The list and the window stayed empty until the next change of any event."""
    driver.get(run_console(workspace.with_accounts()))
    log_in(driver)
    block(driver, "*/api/events?*", "*/api/events/*")
    press(driver, "[data-tab=events]")
    words = "サーバーにつながりません"
    wait_until(lambda: words in text(driver, ".events-page .problem ~ .problem"))
    block(driver, "*/api/events/*")
    press(driver, "tr[data-event] .details")
    wait_until(lambda: words in text(driver, ".event-window .problem ~ .problem"))
    block(driver)
    find(driver, "[data-decide=acknowledged]:enabled")

    assert not text(driver, ".event-window .problem ~ .problem")
    assert not text(driver, ".events-page .problem ~ .problem")


@pytest.mark.long
def test_refused_note_is_named_until_the_next_one(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """What others did next took the sentence away, often at once."""
    address = run_console(workspace.with_accounts())
    open_events(driver, address)
    number = int(find(driver, "tr[data-event]").get_attribute("data-event") or 0)
    note = find(driver, ".note textarea")
    note.send_keys(" ")
    find(driver, ".note button").click()
    wait_until(lambda: text(driver, ".note .problem"))
    body = {"events": [number], "state": "checked", "text": "着手"}
    count = rows(driver)
    someone_else(address, "/api/events/state", body)
    wait_until(lambda: rows(driver) == count - 1)
    assert text(driver, ".note .problem")

    note.send_keys("巡視中")
    find(driver, ".note button").click()
    wait_until(lambda: "巡視中" in text(driver, ".notes-list"))
    assert not text(driver, ".note .problem")


@pytest.mark.long
def test_what_is_written_while_a_note_is_sent_stays(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """On a slow link, its answer emptied the field; a second click sent it twice."""
    open_events(driver, run_console(workspace.with_accounts()))
    note = find(driver, ".note textarea")
    note.send_keys("巡視中")
    release = hold_requests(driver, "api/notes")
    press_twice(driver, ".note button")
    note.send_keys(" 次は橋")
    release()
    wait_until(lambda: "巡視中" in text(driver, ".notes-list"))

    assert note.get_property("value") == "巡視中 次は橋"
    driver.refresh()
    find(driver, "[data-tab=events]").click()
    wait_until(lambda: "巡視中" in text(driver, ".notes-list"))
    assert len(driver.find_elements(By.CSS_SELECTOR, ".notes-list li")) == 1
    kept = find(driver, ".note textarea").get_property("value")
    assert kept == "巡視中 次は橋"


@pytest.mark.parametrize(
    "button", [pytest.param(".acknowledge", marks=pytest.mark.long), "[data-decide]"]
)
def test_second_click_on_a_slow_link_decides_nothing(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, button: str
) -> None:
    """It was refused as the decision of somebody else."""
    open_events(driver, run_console(workspace.with_accounts()))
    find(driver, "[data-state=all]").click()
    number = find(driver, "tr[data-event]").get_attribute("data-event")
    row = f"tr[data-event='{number}']"
    if button == "[data-decide]":
        find(driver, f"{row} .details").click()
        find(driver, f"{button}:enabled")
    release = hold_requests(driver, "api/events/state")
    press_twice(driver, button if button == "[data-decide]" else f"{row} {button}")
    release()
    wait_until(lambda: "a-analyst" in text(driver, row))
    if button != "[data-decide]":
        find(driver, f"{row} .details").click()
    wait_until(lambda: "a-analyst" in text(driver, ".event-window .history"))

    assert text(driver, ".event-window .history").count("a-analyst") == 1
    assert "ほかの職員" not in text(driver, "body")


def test_link_that_dies_without_a_word_is_no_present(
    run_console: RunConsole,
    signal_console: Callable[[signal.Signals], None],
    driver: Chrome,
) -> None:
    """A stopped process keeps its sockets open; the page connects again by itself."""
    driver.get(f"{run_console()}?lang=ja")
    wait_until(lambda: text(driver, ".headline .badge"))
    signal_console(signal.SIGSTOP)
    try:
        wait_until(lambda: text(driver, ".status.alarm"))
    finally:
        signal_console(signal.SIGCONT)
    wait_until(lambda: not driver.find_elements(By.CSS_SELECTOR, ".status.alarm"))
