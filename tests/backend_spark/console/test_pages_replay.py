"""Replay of chosen dates in a real browser."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from browser import picture
from conftest import wait_until
from console_pages import fill, find, map_data, no_problems, shown, text
from console_tables import STEP_S, Slope, storm, write_tables
from console_workspace import NOW_S, SLOPES, Workspace
from deltalake import write_deltalake
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, NODES, REVISIONS

RunConsole = Callable[..., str]
END_S = NOW_S - 30 * 86_400
OLD = Slope("yama-9", 33.70, 133.70, storm(60, 24))
CELL = OLD.cell.token
STEPS = 24 * 6 - 1


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    """A storm of a month ago; its last level was revised from 2 a day later."""
    write_tables(workspace.data, [OLD], END_S)
    row = DeltaTables(workspace.data / "tables").cell(CELL).to_pylist()[-1]
    row["at"] += timedelta(minutes=10)
    row["latest_received"] = row["at"]
    late = row["at"] + timedelta(days=1)
    now = {"level": 4, "version": 2, "revised_because": "3 late", "revised_at": late}
    then = {"level": 2, "version": 1, "superseded_at": late}
    then |= {"reasons": ["first version"], "reason_codes": None}
    for name, schema, changes in (
        ("levels", LEVELS, now),
        ("revisions", REVISIONS, then),
    ):
        rows = pa.Table.from_pylist([row | changes], schema=schema)
        write_deltalake(str(workspace.data / "tables" / name), rows, mode="append")
    return workspace


def field(at_s: float) -> str:
    """A time as the value of a datetime-local field, in Japan's time zone."""
    japan = datetime.fromtimestamp(at_s, UTC) + timedelta(hours=9)
    return f"{japan:%Y-%m-%dT%H:%M}"


def choose(
    driver: Chrome,
    known: str,
    between: tuple[int, int] = (END_S - STEPS * STEP_S, END_S + STEP_S),
) -> None:
    """Open the form, choose the storm's day or other times, and play them."""
    find(driver, ".dates").send_keys(Keys.ENTER)
    find(driver, "input[name=from]")
    fill(driver, "from", field(between[0]))
    fill(driver, "to", field(between[1]))
    find(driver, f"select[name=known] option[value={known}]").click()
    find(driver, ".replay .primary").send_keys(Keys.ENTER)
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".present-level"))


def step_of(driver: Chrome) -> int:
    """Position of the slider."""
    return int(find(driver, ".course input").get_property("value"))


@pytest.mark.long
@pytest.mark.parametrize("language", ["ja", "en"])
def test_reasons_and_snake_line_follow_the_slider(
    run_console: RunConsole, driver: Chrome, language: str
) -> None:
    """As known now: the revised level at the end, and the storm before it."""
    shown(driver, run_console(), language)
    choose(driver, "now")
    wait_until(lambda: map_data(driver)["cells"] == "1")
    find(driver, f".pick[data-token='{CELL}']").send_keys(Keys.ENTER)
    wait_until(lambda: text(driver, ".panel .badge"))
    slider = find(driver, ".course input")
    slider.send_keys(Keys.END)
    wait_until(lambda: "4" in text(driver, ".panel .badge"))
    wait_until(lambda: "3 late" in text(driver, ".panel .notes"))
    slider.send_keys(Keys.ARROW_LEFT * 40)
    wait_until(lambda: text(driver, ".panel .reasons"))
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".key .future-same"))

    length = "return document.querySelector('.snake .past').points.length"
    assert driver.execute_script(length) > 50
    assert step_of(driver) == STEPS - 39
    picture(driver, f"replay-{language}")
    no_problems(driver)


@pytest.mark.long
def test_replay_is_played_and_closed_by_keyboard(
    run_console: RunConsole, driver: Chrome
) -> None:
    """Space plays and pauses; the current level stays visible and comes back."""
    shown(driver, run_console())
    choose(driver, "now")
    slider = find(driver, ".course input")
    slider.send_keys(Keys.HOME)
    find(driver, ".stepOn").send_keys(Keys.ENTER)
    wait_until(lambda: step_of(driver) == 1)
    slider.send_keys(Keys.SPACE)
    wait_until(lambda: step_of(driver) > 1)
    slider.send_keys(Keys.SPACE)
    paused = step_of(driver)
    find(driver, ".stepBack").click()
    wait_until(lambda: step_of(driver) == paused - 1)

    assert text(driver, ".present-level .badge")
    assert driver.find_elements(By.CSS_SELECTOR, ".if[disabled]")
    find(driver, ".dates").click()
    wait_until(lambda: map_data(driver)["cells"] == str(len(SLOPES)))
    assert text(driver, ".replay") == ""
    no_problems(driver)


def test_known_then_shows_the_first_version(
    run_console: RunConsole, driver: Chrome
) -> None:
    """Level 2 and its reasons from before the revision; the page says so."""
    shown(driver, run_console())
    choose(driver, "then")
    find(driver, ".course input").send_keys(Keys.END)
    wait_until(lambda: text(driver, ".headline .badge") == "Equivalent to level 2")
    driver.execute_script("location.hash = arguments[0]", CELL)
    wait_until(lambda: "first version" in text(driver, ".panel .reasons"))

    assert "as known then" in text(driver, ".replay")
    assert "3 late" not in text(driver, ".panel")
    no_problems(driver)


def test_replay_without_data_does_not_show_the_present_as_the_past(
    run_console: RunConsole, driver: Chrome
) -> None:
    """The map is empty, and the headline states that there are no data."""
    shown(driver, run_console())
    find(driver, ".dates").send_keys(Keys.ENTER)
    find(driver, "input[name=from]")
    fill(driver, "from", field(END_S + 5 * 86_400))
    fill(driver, "to", field(END_S + 6 * 86_400))
    find(driver, "select[name=known] option[value=then]").click()
    find(driver, ".replay .primary").send_keys(Keys.ENTER)
    wait_until(lambda: driver.find_elements(By.CSS_SELECTOR, ".present-level"))
    wait_until(lambda: map_data(driver)["cells"] == "0")

    assert text(driver, ".headline .badge") == "No data"
    assert "No cell has reached a criterion" not in text(driver, ".overview")
    picture(driver, "replay-empty")
    no_problems(driver)


@pytest.mark.long
def test_invalid_dates_are_rejected_with_a_message(
    run_console: RunConsole, driver: Chrome
) -> None:
    """The form stays open and shows the rule."""
    shown(driver, run_console())
    find(driver, ".dates").click()
    find(driver, "input[name=from]")
    fill(driver, "from", field(NOW_S))
    fill(driver, "to", field(NOW_S - 7200))
    find(driver, ".replay .primary").click()
    wait_until(lambda: "not after to_s" in text(driver, ".replay .problem"))

    assert map_data(driver)["cells"] == str(len(SLOPES))


@pytest.mark.parametrize("known", ["now", "then"])
def test_held_level_of_a_long_silent_cell_stays_in_the_past(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, known: str
) -> None:
    """On the map, on its slider, and in a replay of the days after its last level.

    As known then, its level was 2, which is held for a day.
    """
    at = datetime.fromtimestamp(END_S, UTC)
    node = dict.fromkeys(NODES.names) | {"node": OLD.node, "cell": CELL}
    rows = pa.Table.from_pylist([node | {"at": at, "received_at": at}], NODES)
    write_deltalake(str(workspace.data / "tables" / "nodes"), rows, mode="append")
    driver.get(f"{run_console()}?lang=en")
    held, pick = "Unknown (last level 4)", f".pick[data-token='{CELL}']"
    wait_until(lambda: "Unknown (last judged level 4 at" in text(driver, pick))
    find(driver, ".course input").send_keys(Keys.ARROW_LEFT * 2)
    wait_until(lambda: held in text(driver, pick))
    choose(driver, known, (NOW_S - 86_400, NOW_S))

    cells = len(SLOPES) + (known == "now")
    wait_until(lambda: map_data(driver)["cells"] == str(cells))
    for key in (Keys.HOME, Keys.END):
        find(driver, ".course input").send_keys(key)
        wait_until(lambda: (held in text(driver, pick)) == (known == "now"))
    no_problems(driver)


def test_held_level_2_ends_on_the_slider_a_day_after_its_judgement(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """Not a day after the last row in which it was held."""
    row = DeltaTables(workspace.data / "tables").cell(CELL).to_pylist()[-1]
    judged, last = (datetime.fromtimestamp(NOW_S - h * 3600, UTC) for h in (40, 18))
    values = {"level": 2, "state": "judged", "at": judged, "version": 1}
    held = {"state": "held", "known_until": judged}
    steps = (last - judged) // timedelta(seconds=STEP_S) + 1
    times = (judged + at * timedelta(seconds=STEP_S) for at in range(1, steps))
    rows = [row | values, *(row | values | held | {"at": at} for at in times)]
    table = pa.Table.from_pylist(rows, schema=LEVELS)
    write_deltalake(str(workspace.data / "tables/levels"), table, mode="append")
    driver.get(f"{run_console()}?lang=en")
    pick = f".pick[data-token='{CELL}']"

    def is_held() -> bool:
        found = driver.find_elements(By.CSS_SELECTOR, pick)
        return any("Unknown (last level 2)" in each.text for each in found)

    slider = find(driver, ".course input")
    slider.send_keys(Keys.ARROW_LEFT * (18 * 6))
    wait_until(is_held)
    slider.send_keys(Keys.ARROW_RIGHT * (17 * 6))
    wait_until(lambda: not is_held())
    no_problems(driver)
