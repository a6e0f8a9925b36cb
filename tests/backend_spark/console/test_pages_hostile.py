"""Hostile, malformed and missing data in the console's pages, in a real browser."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from browser import picture
from conftest import wait_until
from console_pages import (
    fill,
    find,
    is_side_too_wide,
    map_data,
    no_problems,
    shown,
    text,
)
from console_workspace import HOSTILE, NOW_S, PASSWORD, SLOPES, Workspace
from deltalake import write_deltalake
from doubtful_slope import write_doubtful
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from backend_spark.console.event_detector import MESSAGE_COLUMNS
from backend_spark.tables.schemas import LEVELS, SILVER
from spatial_mqtt import senml
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic

RunConsole = Callable[..., str]
CELL = SLOPES[0].cell.token
MICRO = 1_000_000
LOGIN_ERRORS = {
    "ja": ("違います", "秒待ってください"),
    "en": ("is wrong", "Too many tries: wait"),
}
HOSTILE_LOADED = (
    "return window.broken ?? document.querySelectorAll('img[src=x]').length"
)
"""True or above 0 if the script of `HOSTILE` ran or its image was created."""


def append(
    workspace: Workspace, name: str, schema: pa.Schema, row: dict[str, Any]
) -> None:
    """Add a row to a table."""
    rows = pa.Table.from_pylist([row], schema=schema)
    path = str(workspace.data / "tables" / name)
    write_deltalake(path, rows, mode="append", schema_mode="merge")


@pytest.fixture
def hostile(workspace: Workspace) -> Workspace:
    """Tables with HTML as node name, gateway, health, text of a rule and reason."""
    at_us = (NOW_S + 30) * MICRO
    message = {"node": HOSTILE, "boot": "b", "seq": 9, "pri": 5, "cell": CELL}
    append(
        workspace,
        "alerts",
        MESSAGE_COLUMNS,
        message | {"why": HOSTILE, "received_at": at_us},
    )
    gateway = {"name": senml.STATUS_GATEWAY, "value_text": HOSTILE}
    place = {"topic": cell_topic(Cell.from_token(CELL))}
    times = {"at": at_us, "received_at": at_us, "synchronised": True}
    append(workspace, "silver", SILVER, message | gateway | place | times)
    fault = {"name": "tilt/health", "value_text": f"no answer: {HOSTILE}"}
    append(workspace, "silver", SILVER, message | fault | place | times)
    level = {"cell": CELL, "at": (NOW_S + 600) * MICRO, "level": 4}
    append(workspace, "levels", LEVELS, level | {"reasons": [HOSTILE]})
    return workspace


def log_in(driver: Chrome, address: str) -> None:
    """Log in as a chief."""
    driver.get(address + "?lang=ja")
    find(driver, "input[name=name]").send_keys("a-chief")
    find(driver, "input[name=password]").send_keys(PASSWORD + Keys.ENTER)
    wait_until(lambda: text(driver, ".headline .badge"))


def open_tab(driver: Chrome, name: str, css: str) -> None:
    """Open a tab and wait until the hostile text appears in an element."""
    find(driver, f"[data-tab={name}]").click()
    wait_until(lambda: HOSTILE in text(driver, css))
    assert not driver.execute_script(HOSTILE_LOADED)


def test_html_in_messages_is_escaped(
    run_console: RunConsole, driver: Chrome, hostile: Workspace
) -> None:
    """In reasons, events, the tables of nodes and gateways, and the report."""
    address = run_console(hostile.with_accounts())
    log_in(driver, address)
    find(driver, f".pick[data-token='{CELL}']").click()
    wait_until(lambda: HOSTILE in text(driver, ".panel .reasons"))
    open_tab(driver, "events", "tr[data-event]")
    open_tab(driver, "health", "tr[data-gateway]")
    remarks = f"tr[data-node='{HOSTILE}'] [data-fault='tilt/health']"
    assert text(driver, remarks) == f"傾斜計: 応答なし (no answer: {HOSTILE})"
    picture(driver, "hostile-health")
    find(driver, f"tr[data-node='{HOSTILE}'] button").click()
    wait_until(lambda: HOSTILE in text(driver, ".node-window [data-fault]"))
    assert not driver.execute_script(HOSTILE_LOADED)
    picture(driver, "hostile-node")
    driver.get(f"{address}report?lang=ja")

    assert HOSTILE in text(driver, "body")
    assert not driver.execute_script(HOSTILE_LOADED)
    no_problems(driver)


def test_html_in_user_input_is_escaped(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """In notes, reasons of thresholds, landslides and the report."""
    address = run_console(workspace.with_accounts())
    log_in(driver, address)
    find(driver, "[data-tab=events]").click()
    find(driver, "textarea").send_keys(HOSTILE)
    find(driver, ".note button").click()
    open_tab(driver, "events", ".notes-list")
    find(driver, "[data-tab=thresholds]").click()
    fill(driver, "cell", CELL)
    find(driver, "input[name=why]").send_keys(HOSTILE)
    find(driver, ".thresholds .primary").click()
    wait_until(lambda: "a-chief" in text(driver, ".versions"))
    open_tab(driver, "thresholds", ".versions")
    find(driver, "[data-tab=skill]").click()
    fill(driver, "time", "2026-10-26T13:00")
    fill(driver, "text", HOSTILE)
    find(driver, ".event button").click()
    open_tab(driver, "skill", ".events")
    driver.get(f"{address}report?lang=ja")

    assert HOSTILE in text(driver, "body")
    assert not driver.execute_script(HOSTILE_LOADED)
    no_problems(driver)


def test_html_in_a_decision_about_readings_is_escaped(
    run_console: RunConsole, driver: Chrome, workspace: Workspace
) -> None:
    """In its reason, on the page of the reviews."""
    write_doubtful(workspace.data)
    log_in(driver, run_console(workspace.with_accounts()))
    find(driver, "[data-tab=reviews]").click()
    find(driver, "tr[data-span$='tilt/x'] .accept").click()
    find(driver, ".review-form textarea").send_keys(HOSTILE)
    find(driver, ".review-form .primary:enabled").click()
    # The window closes with the answer; until then it covers the tabs.
    wait_until(lambda: not driver.find_elements(By.CSS_SELECTOR, ".review-form"))
    open_tab(driver, "reviews", ".decisions")

    no_problems(driver)


def test_missing_cells_are_shown_as_missing(console: str, driver: Chrome) -> None:
    """A silent cell shows a held level and its receipt; a foreign token is no cell."""
    shown(driver, console, "ja")
    silent = SLOPES[3].cell.token
    driver.execute_script("location.hash = arguments[0]", silent)
    wait_until(lambda: "最終受信" in text(driver, ".panel .warn"))
    badge = text(driver, ".panel .badge")
    assert badge.startswith("判定不能（最終 レベル4相当 10/26")
    assert badge.endswith("14:40、以後データなし）")
    assert not is_side_too_wide(driver)
    picture(driver, "held-ja")
    driver.execute_script("location.hash = '../../etc/passwd'")
    wait_until(lambda: text(driver, ".panel .warn") == "この区画はありません")

    assert map_data(driver)["cells"] == str(len(SLOPES))


@pytest.mark.parametrize("language", ["ja", pytest.param("en", marks=pytest.mark.long)])
def test_login_form_shows_the_waiting_time(
    run_console: RunConsole, driver: Chrome, workspace: Workspace, language: str
) -> None:
    """After five wrong passwords the form says how long to wait."""
    wrong, wait = LOGIN_ERRORS[language]
    driver.get(run_console(workspace.with_accounts()) + f"?lang={language}")
    find(driver, "input[name=name]").send_keys("a-chief")
    post = """
        const done = arguments[0], body = '{"name": "a-chief", "password": "guess"}';
        const headers = {"Content-Type": "application/json"};
        const once = () => fetch("api/login", {method: "POST", headers, body});
        once().then(once).then(once).then(once).then((answer) => done(answer.status));
    """
    assert driver.execute_async_script(post) == 401
    find(driver, "input[name=password]").send_keys("guess" + Keys.ENTER)
    wait_until(lambda: wrong in text(driver, ".problem"))
    find(driver, ".login button").click()
    wait_until(lambda: wait in text(driver, ".problem"))

    assert not driver.find_elements(By.CSS_SELECTOR, ".headline")


def test_malformed_criteria_table_prevents_the_start(workspace: Workspace) -> None:
    """The exit code is 78 and the error names line, field and value."""
    table = workspace.folder / "criteria.csv"
    table.write_text("cell,LEVEL1,LEVEL2\n355a9c44,120,wet\n", encoding="utf-8")
    config = workspace.config()
    with config.open("a", encoding="utf-8") as file:
        file.write(f'[criteria]\nfile = "{table}"\n')
    command = [sys.executable, "-m", "backend_spark", "console", "--config"]
    ended = subprocess.run(
        [*command, str(config)], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 78
    assert "line 2" in ended.stderr
    assert "LEVEL2" in ended.stderr
    assert "'wet'" in ended.stderr
    assert "Traceback" not in ended.stderr
