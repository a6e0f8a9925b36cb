"""Every state of the pages, in both languages, in the office and on a phone.

The screenshots in out/console are for people to look at; what a program can see of
cut-off, mixed or wrong words is checked.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import OFFICE_SCREEN, picture, resize
from conftest import free_port, wait_until
from console_pages import COUNT_RINGS, find, map_data, press, stored, text
from console_tables import Slope, storm, write_tables
from console_workspace import (
    NOW_S,
    PASSWORD,
    Clock,
    Workspace,
    add_alert,
    make_test_services,
    serve,
)
from deltalake import DeltaTable
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from soak.disk import fill, mounted

RunConsole = Callable[..., str]
PHONE = (390, 844)
PLACES = """市町村名,地区名,斜面名,世帯数,避難所,連絡先,緯度,経度
大谷町,大谷,一ノ沢,42,大谷小学校,区長 0887-00-0001,33.575,133.500
大谷町,大谷,二ノ沢,7,大谷小学校,区長 0887-00-0001,33.590,133.520
大谷町,西谷,堂の上,15,西谷集会所,区長 0887-00-0002,33.610,133.540
大谷町,西谷,奥,3,西谷集会所,,33.630,133.560
"""
RULE = """
[[console.notifications]]
name = "当直"
to = ["http://127.0.0.1:1/"]
from_level = 3
"""
NEW = Slope("yama-5", 33.68, 133.58, storm(60, 48))
NAMES = re.compile(
    r"\b(CSV|Parquet|UTC|GeoJSON|JSON|XML|CAP|PDF|OpenID|Webhook|English|QARTOD|GNSS|EDuMaP"
    r"|Fukuzono|MQTT|ID|TOTP)\b|https?://\S+|\S*[-_/.]\S+|\b[0-9a-f]{7}\b"
)
"""Names, addresses, tokens of cells and settings, which are the same in Japanese."""

WORD = re.compile(r"\b(?!rod|img|src|JST)[A-Za-z]{3,}")
WRONG = ("警報", "メッシュ", "レベル1相当")
RIGHT = re.compile(
    "土砂災害警報|特別警報|危険警報|警報基準|警報装置|注意報 / 警報"
    "|警報や避難情報ではありません"
)
"""Criteria of JMA, and the sirens on the slope, whose words contain a wrong one."""

CUT_OFF = """
return [...document.querySelectorAll("body *")].filter((e) => {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const style = getComputedStyle(e);
  return own && e.checkVisibility() && style.overflowX !== "visible"
    && style.overflowX !== "auto" && e.scrollWidth > e.clientWidth + 1;
}).map((e) => `${e.className || e.tagName}: ${e.innerText}`);
"""
OPEN_TAB = """
const before = document.querySelector(".other").firstElementChild;
document.querySelector(`[data-tab=${arguments[0]}]`).click();
return before.isConnected;
"""
"""Opens a tab; whether the page before is still shown, under the name of this one."""
IS_LEVEL_FIRST = """
const top = (css) => document.querySelector(css).getBoundingClientRect().top;
return top(".headline") < top(".map");
"""
TABS_CUT_OFF = """
const tabs = document.querySelector(".tabs");
return tabs !== null && tabs.scrollWidth > tabs.clientWidth;
"""
TOO_WIDE = (
    "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
)

every_screen = pytest.mark.parametrize(
    ("language", "size"),
    [
        ("ja", OFFICE_SCREEN),
        pytest.param("ja", PHONE, marks=pytest.mark.long),
        pytest.param("en", OFFICE_SCREEN, marks=pytest.mark.long),
        pytest.param("en", PHONE, marks=pytest.mark.long),
    ],
)


class Camera:
    """Takes a screenshot of each state and checks its words.

    Args:
        driver: The browser.
        language: ``ja`` or ``en``.
        size: Of the screen.

    Attributes:
        problems: What was found, by state.
    """

    def __init__(self, driver: Chrome, language: str, size: tuple[int, int]) -> None:
        self._driver, self._language, self._size = driver, language, size
        self.problems: dict[str, list[str]] = {}
        resize(driver, size)

    def open(self, address: str, anchor: str = "") -> None:
        """Open an address in the language."""
        self._driver.get(f"{address}?lang={self._language}{anchor}")

    def take(self, state: str) -> None:
        """Take a screenshot, and check the words."""
        picture(self._driver, f"state-{state}-{self._language}-{self._size[0]}")
        found = [f"cut off: {t}" for t in self._driver.execute_script(CUT_OFF)]
        if self._size == OFFICE_SCREEN and self._driver.execute_script(TABS_CUT_OFF):
            found.append("cut off: tabs")
        if self._driver.execute_script(TOO_WIDE):
            found.append("wider than the screen")
        words = text(self._driver, "body")
        if self._language == "ja":
            found += [f"English: {each}" for each in WORD.findall(NAMES.sub("", words))]
            plain = RIGHT.sub("", words)
            found += [f"wrong: {each}" for each in WRONG if each in plain]
        if found:
            self.problems[state] = found

    def scroll(self, css: str) -> None:
        """Scroll to an element."""
        script = "document.querySelector(arguments[0]).scrollIntoView()"
        find(self._driver, css)
        self._driver.execute_script(script, css)


@pytest.fixture
def night(workspace: Workspace, creep: None) -> Workspace:
    """Slopes with the names of their places, one of them creeping."""
    table = workspace.folder / "places.csv"
    table.write_bytes(PLACES.encode("cp932"))
    command = [sys.executable, "-m", "backend_spark", "places", "load", "--config"]
    subprocess.run([*command, str(workspace.config()), str(table)], check=True)
    return workspace


def visit_map(
    driver: Chrome, camera: Camera, language: str, size: tuple[int, int]
) -> None:
    """The list, the panel of a cell, the past, and assumed rain."""
    wait_until(lambda: map_data(driver).get("nodes"))
    wait_until(lambda: text(driver, ".districts li"))
    separator = "、" if language == "ja" else ", "
    assert text(driver, ".headline .where") == f"大谷 一ノ沢{separator}creep-1"
    if size == PHONE:
        assert driver.execute_script(IS_LEVEL_FIRST)
    camera.take("map")
    camera.scroll(".overview .cells")
    camera.take("list")
    press(driver, ".slider .if")
    wait_until(lambda: text(driver, ".assumed-banner"))
    camera.take("what-if")
    press(driver, ".slider .if")
    find(driver, ".slider input").send_keys(Keys.ARROW_LEFT * 30)
    wait_until(lambda: find(driver, ".slider.past"))
    camera.take("past")
    press(driver, ".slider .now")
    press(driver, ".pick")
    wait_until(lambda: text(driver, ".panel .reasons"))
    find(driver, ".panel .uplot")
    camera.take("panel")
    for name, css in (("snake", ".snake"), ("charts", ".panel .uplot")):
        camera.scroll(css)
        camera.take(f"panel-{name}")


def visit_tabs(driver: Chrome, camera: Camera) -> None:
    """The other pages and their windows."""
    press(driver, ".panel .open-series")
    wait_until(lambda: text(driver, ".series-page .totals"))
    camera.take("series")
    for tab in ("thresholds", "skill", "health", "events"):
        assert not driver.execute_script(OPEN_TAB, tab)
        sign = {"events": "tr[data-event]", "health": "tr[data-node]"}.get(tab, "h2")
        find(driver, f".other {sign}")
        if tab == "thresholds":
            press(driver, ".thresholds .preview")
            wait_until(lambda: text(driver, ".effect .rises"))
        camera.take({"health": "nodes"}.get(tab, tab))
        if tab == "health":
            press(driver, "tr[data-node] button")
            wait_until(lambda: text(driver, "dialog[data-node] h2"))
            camera.take("node")
            press(driver, "dialog[data-node] button")
    press(driver, "tr[data-event] .details")
    wait_until(lambda: text(driver, "dialog.event-window .head"))
    camera.take("event")
    press(driver, "dialog.event-window .head button")
    press(driver, ".notifications summary")
    camera.scroll(".notifications")
    camera.take("notifications")


def visit_replay(driver: Chrome, camera: Camera) -> None:
    """The form of the replay, and a day of it."""
    press(driver, "[data-tab=map]")
    press(driver, ".dates")
    wait_until(lambda: text(driver, ".replay form"))
    camera.take("replay-form")
    press(driver, ".replay .primary")
    wait_until(lambda: text(driver, ".present-level"))
    camera.take("replay")


@every_screen
def test_states_of_a_night(
    run_console: RunConsole,
    driver: Chrome,
    night: Workspace,
    language: str,
    size: tuple[int, int],
) -> None:
    """From the login to the report: words fit, and are of one language."""
    address = run_console(night.with_accounts() + RULE)
    camera = Camera(driver, language, size)
    camera.open(address)
    find(driver, "input[name=name]").send_keys("a-chief")
    camera.take("login")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    visit_map(driver, camera, language, size)
    visit_tabs(driver, camera)
    visit_replay(driver, camera)
    for page in ("report", "handover"):
        camera.open(f"{address}{page}")
        camera.take(page)

    assert camera.problems == {}


@every_screen
def test_states_without_a_present(
    run_console: RunConsole,
    driver: Chrome,
    night: Workspace,
    language: str,
    size: tuple[int, int],
) -> None:
    """A provider that is away, and data of weeks ago."""
    more = (
        f'{night.with_accounts()}\naddress = "http://127.0.0.1:{night.port}/"\n'
        f'language = "{language}"\n[console.oidc]\n'
        f'issuer = "http://127.0.0.1:{free_port()}"\nclient_id = "console"\n'
        'chiefs = ["x"]\nname = "職員認証"\n'
    )
    address = run_console(more, exercise=False)
    camera = Camera(driver, language, size)
    camera.open(address)
    find(driver, "a.provider")
    camera.take("login-provider")
    press(driver, "a.provider")
    wait_until(lambda: text(driver, ".problem"))
    camera.take("login-provider-away")
    find(driver, "input[name=name]").send_keys("a-viewer")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".unjudged"))
    wait_until(lambda: map_data(driver).get("nodes"))
    camera.take("stale")
    days = [
        re.findall(r"(\d+)(?:日| d)", text(driver, css))
        for css in (".status", ".unjudged")
    ]
    assert days[0][-1] == days[1][-1]

    assert camera.problems == {}


@every_screen
def test_state_without_data(
    run_console: RunConsole,
    driver: Chrome,
    workspace: Workspace,
    language: str,
    size: tuple[int, int],
) -> None:
    """Tables without a row, as on the first day."""
    for table in (workspace.data / "tables").iterdir():
        DeltaTable(str(table)).delete()
    camera = Camera(driver, language, size)
    camera.open(run_console(exercise=False))
    wait_until(lambda: text(driver, ".unjudged"))
    camera.take("no-data")

    assert camera.problems == {}


@pytest.fixture
def disk(workspace: Workspace) -> Iterator[Path]:
    """The console's folder on a disk of four megabytes."""
    with mounted(workspace.data / "console", "4m") as disk:
        if disk is None:
            pytest.skip("only root may mount a small disk")
        yield disk


@every_screen
def test_states_of_a_full_disk_and_a_dead_server(
    disk: Path,
    night: Workspace,
    driver: Chrome,
    language: str,
    size: tuple[int, int],
) -> None:
    """The page says what it cannot do, above the levels."""
    clock = Clock()
    services = make_test_services(night, clock)
    services.refresh()
    camera = Camera(driver, language, size)
    with serve(services, night.port):
        camera.open(f"http://127.0.0.1:{night.port}/")
        wait_until(lambda: map_data(driver).get("nodes"))
        fill(disk)
        write_tables(night.data, [NEW], NOW_S)
        services.refresh()
        clock.now_s += 1
        wait_until(lambda: text(driver, ".status.alarm"))
        camera.take("full-disk")
        before = text(driver, ".status.alarm")
    wait_until(lambda: text(driver, ".status.alarm") not in {"", before})
    camera.take("dead-server")

    assert camera.problems == {}


ROWS = "return document.querySelectorAll('tr[data-event]').length"


def in_each_tab(driver: Chrome, script: str) -> Iterator[object]:
    """Show each tab and run a script in it; the last one stays shown."""
    for handle in driver.window_handles:
        driver.switch_to.window(handle)
        yield driver.execute_script(script)


@pytest.mark.long
def test_seventh_tab_acknowledges_while_hidden_ones_share_a_stream(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Six streams took all connections of the browser, and a click waited for ever."""
    address = run_console(workspace.with_accounts()) + "?lang=ja"
    driver.get(address)
    find(driver, "input[name=name]").send_keys("a-analyst")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))
    for _ in range(6):
        driver.switch_to.new_window("tab")
        driver.get(address)
        wait_until(lambda: text(driver, ".headline .badge"))
    press(driver, "[data-tab=events]")
    find(driver, "tr[data-event]")
    count = driver.execute_script(ROWS)
    press(driver, ".acknowledge")
    wait_until(lambda: driver.execute_script(ROWS) == count - 1)
    assert list(in_each_tab(driver, COUNT_RINGS)) == [None] * 7
    time.sleep(3.0)  # in which the hidden ones close their streams
    add_alert(workspace)
    wait_until(lambda: stored(driver, "rings"))
    wait_until(lambda: driver.execute_script(ROWS) == count)
    shown = f"return document.title.startsWith('({count}) レベル5相当')"

    wait_until(lambda: all(in_each_tab(driver, shown)))
    time.sleep(2.0)  # in which the last one listens again
    # The tab with the login may sound, the others only when they were clicked on.
    assert int(stored(driver, "rings")) <= 2


FAST_MINUTE = """
const real = window.setTimeout;
window.setTimeout = (act, ms, ...rest) => real(act, ms === 60000 ? 1000 : ms, ...rest);
"""
STORE_TITLE = """
new MutationObserver(() => localStorage.setItem("title", document.title))
    .observe(document.querySelector("title"), {childList: true});
"""


@pytest.mark.long
def test_lost_link_rings_in_one_tab(
    run_console: RunConsole,
    signal_console: Callable[[signal.Signals], None],
    driver: Chrome,
) -> None:
    """The title stayed that of the last event, and silence looked like calm."""
    address = run_console() + "?lang=ja"
    driver.get(address)
    wait_until(lambda: text(driver, ".headline .badge"))
    driver.execute_script(COUNT_RINGS + FAST_MINUTE + STORE_TITLE)
    driver.switch_to.new_window("tab")
    driver.get(address)
    wait_until(lambda: text(driver, ".headline .badge"))
    driver.execute_script(COUNT_RINGS + FAST_MINUTE)
    before = driver.title
    find(driver, "[data-tab=events]").click()  # now it may sound
    time.sleep(3.0)  # in which the other one closes its stream
    signal_console(signal.SIGSTOP)
    try:
        wait_until(lambda: driver.title.startswith("⚠ 接続なし"))
        wait_until(lambda: "音も通知も出ません" in stored(driver, "notified"))
        wait_until(lambda: stored(driver, "tones"))
        wait_until(lambda: stored(driver, "title").startswith("⚠ 接続なし"))
        time.sleep(2.0)  # in which the other one would ring
        assert stored(driver, "rings") == "1"
    finally:
        signal_console(signal.SIGCONT)
    wait_until(lambda: driver.title == before)

    assert not stored(driver, "notified")
