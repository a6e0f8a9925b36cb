"""Versions of thresholds, their preview, and the what-if rain."""

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
from console_tables import CRITERIA
from console_workspace import (
    NOW_S,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
)

from backend_spark.config import read_settings
from backend_spark.console.snake_line import (
    computed_futures,
    criteria_lines,
    moments_ahead,
)
from backend_spark.console.thresholds import count_highest_levels, what_if_levels
from backend_spark.criteria.cell_rules import AppliedChanges, make_cell_rules
from backend_spark.criteria.tables import read_criteria
from backend_spark.scoring.rules import CellRules
from backend_spark.tables.reader import DeltaTables
from slope_science.evidence.settings import with_tilt_rates
from slope_science.levels import (
    NO_LINE,
    NOT_JUDGED_MM,
    Criteria,
    CriticalLine,
    judge_rain,
)
from slope_science.rain_and_soil_water import SoilWater, assumed_levels

OpenApp = Callable[..., httpx.Client]
VERSION: dict[str, Any] = {
    "advisory_mm": 60.0,
    "warning_mm": 80.0,
    "special_mm": 150.0,
    "why": "the slope of 2024",
}


def draft(cell: str, **more: object) -> dict[str, Any]:
    """Body of new thresholds; for all cells without one."""
    scope = {"cell": cell, "all_cells": not cell}
    return scope | {"confirmed_cells": len(SLOPES), "version": VERSION | more}


WET = SLOPES[0].cell.token
DRY = SLOPES[2].cell.token


def test_threshold_change_is_stored_as_a_version(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """With author, time and reason; the chart uses it at once, old versions stay."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    for sent in (draft(""), draft(WET, warning_mm=90.0)):
        answer = client.post("/api/thresholds", headers=proof, json=sent)
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
    client.post("/api/thresholds", headers=proof, json=draft(WET))
    with (workspace.data / "console" / "criteria.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    expected = {"cell": WET, "LEVEL1": "60.0", "LEVEL2": "80.0", "SPECIAL": "150.0"}
    more = {"LINE_PERCENT": "", "TILT3_DEG_PER_H": "", "TILT4_DEG_PER_H": ""}
    version = "set by a-chief on 2026-10-26"
    assert rows == [expected | {"VERSION": version} | more]
    read = read_criteria(workspace.data / "console" / "criteria.csv", CRITERIA)
    assert read.criteria_of(WET).warning_mm == 80
    assert read.criteria_of(SLOPES[1].cell.token) == CRITERIA


def test_thresholds_for_all_cells_apply_to_new_cells(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """A cell unknown when the version was set uses it too."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    client.post("/api/thresholds", headers=proof, json=draft(""))
    mine = draft(WET, warning_mm=85)
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
    ("sent", "message"),
    [
        (draft(WET, warning_mm=50.0), "0 < advisory <= warning <= special"),
        (draft(WET, warning_mm=5.0), "warning_mm must be between 10 and 998 mm, got 5"),
        (draft(WET, special_mm="x"), "request must be a ThresholdDraft"),
        (draft(WET, why=" "), "why must be 1 to 500 characters long"),
        (draft("../x"), "cell must be one of the map's"),
        (draft(WET) | {"colour": "red"}, "unknown field `colour`"),
        (draft(WET, line_percent=20), "line_percent must be between 30 and 150 %"),
        (draft(WET, tilt_3_deg_per_h=0.02), "must be given both, or neither"),
        (
            draft(WET, tilt_3_deg_per_h=0.2, tilt_4_deg_per_h=0.1),
            "level_4_deg_per_h must be more than level_3_deg_per_h",
        ),
    ],
)
def test_invalid_thresholds_are_rejected(
    open_app: OpenApp, workspace: Workspace, sent: dict[str, Any], message: str
) -> None:
    """The error names field, rule and value; no version is stored."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    answer = client.post("/api/thresholds", headers=proof, json=sent)

    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert client.get("/api/thresholds").json()["versions"] == []


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"all_cells": False}, 422),
        ({"confirmed_cells": 0}, 409),
        ({"confirmed_cells": len(SLOPES) + 1}, 409),
    ],
)
def test_empty_cell_alone_changes_nothing(
    open_app: OpenApp, workspace: Workspace, more: dict[str, Any], status: int
) -> None:
    """All cells are changed only on demand, and after their number was confirmed."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    answer = client.post("/api/thresholds", headers=proof, json=draft("") | more)

    assert answer.status_code == status
    assert client.get("/api/thresholds").json()["versions"] == []


def test_analyst_may_not_change_thresholds(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Only the role chief may change them."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-analyst")
    answer = client.post("/api/thresholds", headers=proof, json=draft(WET))

    assert answer.status_code == 403


def test_preview_counts_levels_before_and_after(open_app: OpenApp) -> None:
    """Lower criteria raise levels; nothing is stored."""
    client = open_app()
    preview = client.post("/api/thresholds/preview", json=draft("")).json()

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
        sent = draft(cell)
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


def test_past_is_judged_as_the_pipeline_judged_it(
    open_app: OpenApp, workspace: Workspace, clock: Clock
) -> None:
    """With the thresholds in force the levels equal gold; lower ones rise earlier."""
    client = open_app()
    answer = client.post("/api/thresholds/preview", json=draft(WET)).json()
    parts = make_test_services(workspace, clock)
    parts.refresh()
    rows = DeltaTables(parts.tables).cell(WET)["level"].to_pylist()
    gold = [level for level in rows if level is not None]
    past = answer["past"]
    (storm,) = past["storms"]

    assert storm["before"] == max(gold)
    assert storm["after"] == 5
    assert storm["after_s"] < storm["before_s"]
    assert [each["level"] for each in past["rises"]] == [5, 4, 3, 2]
    reached = [sum(1 for a, b in pairwise(gold) if a < n <= b) for n in (5, 4, 3, 2)]
    assert [each["before"] for each in past["rises"]] == reached
    assert past["rises"][0]["after"] == 1
    assert answer["changed"]["warning_mm"] == 80
    assert answer["lines"]["warning_mm"] == CRITERIA.warning_mm


def test_preview_of_all_cells_shows_the_wettest(open_app: OpenApp) -> None:
    """Storms are of one cell; the counts are of all."""
    client = open_app()
    answer = client.post("/api/thresholds/preview", json=draft("")).json()

    assert answer["example"] in {SLOPES[0].cell.token, SLOPES[3].cell.token}
    assert answer["cells"] == len(SLOPES)


def test_line_and_tilt_of_a_version_reach_the_rules_of_the_job(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """The job's rules of the cell have the lower line and rates, others have not."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    tilts = {"tilt_3_deg_per_h": 0.005, "tilt_4_deg_per_h": 0.05}
    sent = draft(WET, line_percent=70, **tilts)
    assert client.post("/api/thresholds", headers=proof, json=sent).is_success
    changes = workspace.data / "console" / "criteria.csv"
    settings = workspace.config(f'[criteria]\nchanges = "{changes}"')
    rules = make_cell_rules(read_settings(settings)).rules_of([WET, DRY])
    panel = client.get(f"/api/cell/{WET}").json()

    plain = Criteria(80.0, 60.0, 150.0, assumed=False)
    for r60 in (0.0, 33.5, 90.0):
        line = 0.7 * plain.critical_line_mm(r60)
        assert rules[WET].criteria.critical_line_mm(r60) == pytest.approx(line, 0.01)
    assert rules[WET].evidence.rules.tilt.thresholds == ((4, 0.05), (3, 0.005))
    assert rules[DRY].evidence.rules.tilt.thresholds == ((4, 0.1), (3, 0.01))
    assert panel["tilt_limits"] == [[3, 0.005], [4, 0.05]]
    assert panel["lines"]["critical_mm"][0] == pytest.approx(0.7 * 1.478 * 80, 0.01)


def test_rules_of_another_tilt_are_no_rules_of_a_hot_state(
    workspace: Workspace,
) -> None:
    """A hot state that was made with other rates of tilt is not used."""
    rules = CellRules(CRITERIA)
    lower = replace(rules, evidence=with_tilt_rates(rules.evidence, 0.005, 0.05))

    assert rules.digest(NOW_S) != lower.digest(NOW_S)


def test_withdrawn_version_returns_to_the_values_before(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Of a cell to those of all cells, of all cells to the prefecture's."""
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    table = workspace.data / "console" / "criteria.csv"
    found = []
    ended = {"withdrawn": True, "why": "checked"}
    for sent in (
        draft("", warning_mm=90),
        draft(WET, warning_mm=100),
        draft(WET) | {"version": ended},
        draft("") | {"version": ended},
    ):
        assert client.post("/api/thresholds", headers=proof, json=sent).is_success
        lines = client.get(f"/api/cell/{WET}").json()["lines"]
        rows = len(table.read_text().splitlines()) - 1
        found.append((lines["warning_mm"], rows))

    assert found == [(90, 1), (100, 2), (90, 1), (150, 0)]


@dataclass
class VersionBench:
    """The console beside a job that scores cells by its own settings."""

    client: httpx.Client
    workspace: Workspace
    now_s: float = 2000.0

    def run_job(self, changes: str, *cells: str) -> None:
        """What the job does around a pass over some cells."""
        rules = make_cell_rules(read_settings(self.workspace.config(changes)))
        applied = AppliedChanges(self.workspace.data, rules, lambda: self.now_s)
        applied.add(applied.numbers(cells))
        applied.save()

    def save(self, sent: dict[str, Any]) -> None:
        """Save a version as a chief."""
        proof = log_in(self.client, "a-chief")
        answer = self.client.post("/api/thresholds", headers=proof, json=sent)
        assert answer.is_success, answer.text

    def state(self, version: int = 0) -> tuple[str, str, int, float | None]:
        """State of the job, and of a version, newest first."""
        view = self.client.get("/api/thresholds").json()
        found = view["versions"][version]
        state, n_applied, applied_s = (
            found[name] for name in ("state", "n_applied", "applied_s")
        )
        return view["job"]["state"], state, n_applied, applied_s


def test_state_of_a_version_follows_the_report_of_the_job(
    open_app: OpenApp, workspace: Workspace
) -> None:
    """Not read, then waiting, then applied with its time, then replaced."""
    bench = VersionBench(open_app(workspace.with_accounts()), workspace)
    ours = f'[criteria]\nchanges = "{workspace.data}/console/criteria.csv"'
    bench.save(draft(""))
    assert bench.state() == ("unreported", "not_read", 0, None)
    bench.run_job("", WET)
    assert bench.state() == ("reads_none", "not_read", 0, None)
    bench.run_job('[criteria]\nchanges = "/elsewhere.csv"', WET)
    assert bench.state() == ("reads_other", "not_read", 0, None)
    bench.run_job(ours, WET)
    assert bench.state() == ("reads", "waiting", 1, None)
    bench.now_s = 2600.0
    bench.run_job(ours, *(slope.cell.token for slope in SLOPES))
    assert bench.state() == ("reads", "applied", len(SLOPES), 2600.0)
    bench.save(draft(WET, warning_mm=85))
    assert bench.state() == ("reads", "waiting", 0, None)
    assert bench.state(1) == ("reads", "applied", len(SLOPES) - 1, 2600.0)
    bench.save(draft(""))
    assert bench.state(1)[1] == "replaced"
