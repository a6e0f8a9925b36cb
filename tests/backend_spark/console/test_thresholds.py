"""Versions of thresholds, their preview, and the what-if rain."""

import csv
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from console_tables import CRITERIA
from console_workspace import SLOPES, Clock, Workspace, log_in, make_test_services

from backend_spark.console.snake_line import (
    computed_futures,
    criteria_lines,
    moments_ahead,
)
from backend_spark.console.thresholds import count_highest_levels, what_if_levels
from backend_spark.criteria.tables import read_criteria
from slope_science.criteria import NO_LINE, NOT_JUDGED_MM, Criteria, CriticalLine
from slope_science.findings import judge_rain
from slope_science.rain import SoilWater, assumed_levels

OpenApp = Callable[..., httpx.Client]
DRAFT = {
    "cell": "",
    "advisory_mm": 60.0,
    "warning_mm": 80.0,
    "special_mm": 150.0,
    "why": "the slope of 2024",
}
WET = SLOPES[0].cell.token


def test_threshold_change_is_stored_as_a_version(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """With author, time and reason; the chart uses it at once, old versions stay."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    for more in ({}, {"warning_mm": 90.0, "cell": WET}):
        answer = client.post("/api/thresholds", headers=proof, json=DRAFT | more)
        assert answer.status_code == 200, answer.text
    newest, oldest = answer.json()["versions"]

    assert (newest["who"], newest["at_s"], newest["why"]) == (
        "a-chief",
        clock.now_s,
        "the slope of 2024",
    )
    assert (newest["cell"], newest["warning_mm"], oldest["warning_mm"]) == (WET, 90, 80)
    assert client.get(f"/api/cell/{WET}").json()["lines"]["warning_mm"] == 90
    other = client.get(f"/api/cell/{SLOPES[1].cell.token}").json()["lines"]
    assert other["warning_mm"] == 80
    assert not other["assumed"]


def test_thresholds_are_written_as_criteria_csv_for_the_job(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """One row for each cell with thresholds, in the columns that the job reads."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    client.post("/api/thresholds", headers=proof, json=DRAFT | {"cell": WET})
    with (workspace.data / "console" / "criteria.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    expected = {"cell": WET, "LEVEL1": "60.0", "LEVEL2": "80.0", "SPECIAL": "150.0"}
    version = "set by a-chief on 2026-10-26"
    assert rows == [expected | {"VERSION": version}]
    read = read_criteria(workspace.data / "console" / "criteria.csv", CRITERIA)
    assert read.criteria_of(WET).warning_mm == 80
    assert read.criteria_of(SLOPES[1].cell.token) == CRITERIA


def test_thresholds_for_all_cells_apply_to_new_cells(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A cell unknown when the version was set uses it too."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    client.post("/api/thresholds", headers=proof, json=DRAFT | {"cell": ""})
    mine = DRAFT | {"cell": WET, "warning_mm": 85}
    client.post("/api/thresholds", headers=proof, json=mine)
    read = read_criteria(workspace.data / "console" / "criteria.csv", CRITERIA)

    assert read.criteria_of("355a9c44").warning_mm == 80
    assert read.criteria_of(WET).warning_mm == 85


def test_prefecture_table_applies_where_no_threshold_is_set(
    workspace: Workspace, clock: Clock
) -> None:
    """The console shows the same criteria as the job uses."""
    table = workspace.folder / "prefecture.csv"
    table.write_text(f"cell,LEVEL1,LEVEL2\n{WET},70,95\n", encoding="utf-8")
    criteria = f'[criteria]\nfile = "{table}"'
    of = make_test_services(workspace, clock, criteria).thresholds.for_cell

    assert (of(WET).advisory_mm, of(WET).warning_mm) == (70, 95)
    assert of(SLOPES[1].cell.token) == CRITERIA


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"warning_mm": 50.0}, "0 < advisory <= warning <= special"),
        ({"warning_mm": 5.0}, "warning_mm must be between 10 and 998 mm, got 5"),
        ({"special_mm": "x"}, "request must be a ThresholdDraft"),
        ({"why": " "}, "why must be 1 to 500 characters long"),
        ({"cell": "../x"}, "cell must be one of the map's, got '../x'"),
        ({"colour": "red"}, "unknown field `colour`"),
    ],
)
def test_invalid_thresholds_are_rejected(
    open_app: OpenApp, workspace: Workspace, more: dict[str, Any], message: str
) -> None:
    """The error names field, rule and value; no version is stored."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    answer = client.post("/api/thresholds", headers=proof, json=DRAFT | more)

    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert client.get("/api/thresholds").json()["versions"] == []


def test_analyst_may_not_change_thresholds(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Only the role chief may change them."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    answer = client.post("/api/thresholds", headers=proof, json=DRAFT)

    assert answer.status_code == 403


def test_preview_counts_levels_before_and_after(open_app: OpenApp) -> None:
    """Lower criteria raise levels; nothing is stored."""
    client = open_app()
    preview = client.post("/api/thresholds/preview", json=DRAFT).json()

    assert (
        preview["cells"]
        == len(SLOPES)
        == sum(preview["before"])
        == sum(preview["after"])
    )
    assert sum(preview["after"][3:]) > sum(preview["before"][3:])
    assert client.get("/api/thresholds").json()["versions"] == []


def test_preview_levels_equal_judge_rain_per_cell(
    workspace: Workspace, clock: Clock
) -> None:
    """The vectorised computation equals the rule applied cell by cell."""
    parts = make_test_services(workspace, clock)
    parts.refresh()
    grid = parts.live_state.grid
    expected = [0] * 5
    for row in range(len(grid.tokens)):
        pairs = zip(
            grid.numbers["r60_mm"][row], grid.numbers["swi_mm"][row], strict=True
        )
        found = [
            judge_rain(float(np.nan_to_num(r60)), float(swi), CRITERIA)
            for r60, swi in pairs
            if not np.isnan(swi)
        ]
        expected[max(f.level if f else 1 for f in found) - 1] += 1

    assert count_highest_levels(grid, range(len(grid.tokens)), CRITERIA) == expected


@pytest.mark.parametrize("line", [NO_LINE, ()])
def test_preview_counts_levels_that_are_not_judged(
    line: CriticalLine, workspace: Workspace, clock: Clock
) -> None:
    """No cell has them; a line at infinity makes no interpolated number."""
    parts = make_test_services(workspace, clock)
    parts.refresh()
    grid = parts.live_state.grid
    only_2 = Criteria(NOT_JUDGED_MM, 1.0, NOT_JUDGED_MM, assumed=False, line=line)
    found = count_highest_levels(grid, range(len(grid.tokens)), only_2)

    assert found[1] > 0
    assert found[2:] == [0, 0, 0]


def test_levels_that_are_not_judged_stay_so_for_all_cells(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """A version for all cells leaves them out, in the console and in the job's table.

    A version for that cell is a decision about it, and counts.
    """
    table = workspace.folder / "prefecture.csv"
    table.write_text(f"cell,LEVEL1,LEVEL2\n{WET},70,999\n", encoding="utf-8")
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    settings = f'[criteria]\nfile = "{table}"'
    found = []
    for cell in ("", WET):
        sent = DRAFT | {"cell": cell}
        assert client.post("/api/thresholds", headers=proof, json=sent).is_success
        of = make_test_services(workspace, clock, settings).thresholds.for_cell
        base = read_criteria(table, CRITERIA)
        changes = read_criteria(workspace.data / "console" / "criteria.csv", CRITERIA)
        job = base.with_changes(changes).criteria_of(WET)
        assert job == of(WET)
        found.append((job.advisory_mm, job.not_judged))

    assert found == [(60.0, (3, 4, 5)), (60.0, ())]


def test_lines_of_a_chart_without_some_criteria_are_null() -> None:
    """JSON has no infinity."""
    only_2 = Criteria(NOT_JUDGED_MM, 60.0, NOT_JUDGED_MM, assumed=False, line=NO_LINE)
    lines = criteria_lines(only_2)

    assert (lines["advisory_mm"], lines["warning_mm"]) == (60.0, None)
    assert lines["special_mm"] is None
    assert set(lines["critical_mm"]) == {None}
    assert lines["not_judged"] == [3, 4, 5]
    assert [f.margin_mm for f in computed_futures(SoilWater(), 0.0, only_2)] == [
        None
    ] * 2


def test_more_assumed_rain_never_lowers_a_level(
    workspace: Workspace, clock: Clock
) -> None:
    """For 0 to 120 mm/h; silent cells stay as they are."""
    parts = make_test_services(workspace, clock)
    parts.refresh()
    by_rain = [
        what_if_levels(parts.live_state, parts.thresholds, rain, 3)["levels"]
        for rain in (0.0, 30.0, 120.0)
    ]

    now = parts.live_state.snapshot()["levels"]
    assert all(a <= b for a, b in zip(now, by_rain[0], strict=True))
    assert all(a <= b <= c for a, b, c in zip(*by_rain, strict=True))
    assert max(level for level in by_rain[2] if level <= 5) == 5
    silent = parts.live_state.grid.row_of[SLOPES[3].cell.token]
    assert {levels[silent] for levels in by_rain} == {now[silent]}


@pytest.mark.parametrize(
    "rain",
    [
        {"mm_per_h": -1, "hours": 2},
        {"mm_per_h": 1e9, "hours": 2},
        {"mm_per_h": 10, "hours": 0},
        {"mm_per_h": 10, "hours": 99},
    ],
)
def test_assumed_rain_out_of_bounds_is_rejected(
    open_app: OpenApp, rain: dict[str, float]
) -> None:
    """The error states the bounds."""
    answer = open_app().post("/api/what-if", json=rain)

    assert answer.status_code == 422
    assert "must be between" in answer.json()["detail"]


def test_assumed_rain_gives_level_5_only_in_what_if() -> None:
    """Computed futures are capped at level 4, as in gold; a what-if is not."""
    tanks, cloudburst_mm = SoilWater(120.0, 40.0, 40.0), 150.0
    _, same = computed_futures(tanks, cloudburst_mm, CRITERIA)
    moments = moments_ahead(tanks, cloudburst_mm, [25.0] * 12)

    assert same.swi_mm[-1] > CRITERIA.special_mm
    assert same.level == 4
    assert max(assumed_levels(moments, CRITERIA, max_level=5)) == 5
