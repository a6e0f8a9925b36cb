"""Landslide days of the past beside the level of a cell, in both languages."""

from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from conftest import wait_until
from console_pages import find, no_problems, shown, text
from console_workspace import NOW_S, SLOPES, Workspace
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from backend_spark.console.panels import utc_time
from backend_spark.evaluation.calibration_file import Calibration, DayClass, YearlySkill
from backend_spark.tables.reader import DeltaTables
from service_runtime.settings import SettingsError

OpenApp = Callable[..., httpx.Client]
WET = SLOPES[0].cell.token
SKILL = YearlySkill(0.2, 0.1, 0.3, 0.25, (), ())
MADE = Calibration(
    place="大谷町",
    first_day="2001-01-01",
    last_day="2020-12-31",
    step_h=1.0,
    days=7000,
    days_with_landslide=21,
    days_without_data=30,
    predictors=("swi",),
    log_odds=None,
    highest_score=10_000.0,
    classes=(
        DayClass(0.0, 100.0, 6900, 7, 0.1, 0.0, 0.3),
        DayClass(100.0, None, 100, 14, 14.0, 7.0, 25.0),
    ),
    each_year_left_out=SKILL,
)


def setting(folder: Path, made: Calibration = MADE) -> str:
    """Write a calibration; returns the line of settings for it."""
    path = folder / "calibration.json"
    made.write(path)
    return f'calibration = "{path}"'


def panel(client: httpx.Client, token: str) -> list[dict[str, str]]:
    """Sentences about a cell."""
    chance: list[dict[str, str]] = client.get(f"/api/cell/{token}").json()["chance"]
    return chance


def test_sentence_has_the_counts_of_the_class(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """By the index in gold; in both languages, with interval, days and place."""
    at = utc_time(NOW_S)
    tables = DeltaTables(workspace.data / "tables")
    (row,) = tables.of("levels", "cell", WET, at, at).to_pylist()
    (sentence,) = panel(open_app(setting(workspace.folder)), WET)
    assert row["swi_mm"] >= 100
    assert sentence["en"] == (
        "Of 100 days with a highest soil water index of 100 mm or more, 14 had "
        "landslides in 大谷町 (95 %: 7 to 25; 14 of 100 days, 2001-01-01 to "
        "2020-12-31)."
    )
    assert sentence["ja"] == (
        "土壌雨量指数の最高が100 mm以上の日100日のうち、大谷町で土砂災害が"
        "あったのは14日（95 %の範囲 7～25日。"
        "2001-01-01～2020-12-31の100日中14日）。"
    )


def test_doubt_is_said(open_app: OpenApp, workspace: Workspace) -> None:
    """Beyond all days, and without skill in the years left out."""
    skill = msgspec.structs.replace(SKILL, skill_score=-0.01)
    made = msgspec.structs.replace(MADE, highest_score=101.0, each_year_left_out=skill)
    told = [s["en"] for s in panel(open_app(setting(workspace.folder, made)), WET)]
    assert told[1] == "It is higher now than on any of these days."
    assert "no better than the mean of 0.3 of 100 days" in told[2]


def test_nothing_is_said_of_unknown_rain(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A node that has been silent for two hours."""
    client = open_app(setting(workspace.folder))
    assert panel(client, SLOPES[3].cell.token) == []


def test_nothing_is_said_without_a_calibration(open_app: OpenApp) -> None:
    """The setting is optional."""
    assert panel(open_app(), WET) == []


def test_unusable_file_stops_the_start(open_app: OpenApp, workspace: Workspace) -> None:
    """The error names the setting, the rule and the remedy."""
    daily = setting(workspace.folder, msgspec.structs.replace(MADE, step_h=24.0))
    with pytest.raises(SettingsError, match=r"console.calibration.*steps of an hour"):
        open_app(daily)


@pytest.mark.long
def test_page_shows_the_sentence(
    run_console: Callable[..., str], workspace: Workspace, driver: Chrome
) -> None:
    """Beside the reasons of the cell."""
    address = run_console(setting(workspace.folder))
    shown(driver, address, "ja")
    find(driver, f".pick[data-token='{WET}']").send_keys(Keys.ENTER)
    wait_until(lambda: text(driver, ".panel .chance"))
    assert "100日のうち、大谷町で土砂災害があったのは14日" in text(
        driver, ".panel .chance"
    )
    no_problems(driver)
