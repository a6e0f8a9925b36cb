"""Criteria set in the console override the prefecture's table."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from backend_spark.config import RainCriteriaSection
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import CriteriaRow, CriteriaTable, cell_at_mesh
from backend_spark.i18n import render_japanese
from slope_science.levels import NOT_JUDGED_MM, Criteria, judge_rain
from slope_science.reason_compat import parse_or_text
from slope_science.reasons import render_english
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

MESH = "50330471"
CELL, OTHER = cell_at_mesh(MESH), "355a9c44"
LINE = [max(147.0, 220.0 - 0.8 * r60) for r60 in range(151)]
HEAD = ["mesh", "LEVEL1", "LEVEL2", *(f"LEVEL3_{mm:02d}" for mm in range(151))]
CHANGES = "cell,LEVEL1,LEVEL2,SPECIAL,VERSION\n"
SET_BY = "set by suzuki on 2026-11-21"


def make_provider(folder: Path) -> CellRuleProvider:
    """Provider with a prefecture's table of one mesh and a file of changes."""
    table = folder / "prefecture.csv"
    row = [MESH, 111, 150, *LINE, 290, "3920100"]
    lines = [[*HEAD, "SPECIAL", "municipality"], row]
    table.write_text("\n".join(",".join(map(str, line)) for line in lines) + "\n")
    changes = str(folder / "changes.csv")
    return CellRuleProvider.from_settings(
        RainCriteriaSection(file=str(table), changes=changes)
    )


def change(folder: Path, *rows: str) -> None:
    """Write the file of changes as the console does: to a new file, then rename."""
    fresh = folder / "changes.new"
    fresh.write_text(CHANGES + "".join(f"{row}\n" for row in rows))
    os.replace(fresh, folder / "changes.csv")  # noqa: PTH105 - as it is written


def reason(criteria: Criteria, swi_mm: float) -> str:
    """Reason of the level at a soil water index."""
    finding = judge_rain(0.0, swi_mm, criteria)
    assert finding is not None
    return render_english(finding.reason)


def test_changes_override_the_table_but_not_its_line(tmp_path: Path) -> None:
    """The reason has the author of the criterion, in both languages."""
    provider = make_provider(tmp_path)
    change(tmp_path, f"{CELL},70,90,200,{SET_BY}")
    rules = provider.rules_of([CELL])[CELL]
    warning = reason(rules.criteria, 95.0)

    assert (
        warning == f"soil water index 95.0 mm >= warning criterion 90.0 mm ({SET_BY})"
    )
    assert render_japanese(warning).endswith("以上（suzuki が 2026-11-21 に設定）")
    assert reason(rules.criteria, 201.0).endswith(f"200.0 mm ({SET_BY})")
    assert rules.criteria.critical_line_mm(50.0) == 180.0
    assert "(" not in reason(Criteria(90, 70, 300, assumed=False, line=(
        (0.0, 220.0), (150.0, 147.0)), basis=parse_or_text(SET_BY)), 230.0)  # fmt: skip
    assert provider.current_table().municipality(CELL) == "3920100"


@pytest.mark.parametrize(
    ("change", "at_rest_mm", "at_80_mm"),
    [
        (CriteriaRow(120, 150, special_mm=320, line_percent=80), (120, 320), (60, 200)),
        (CriteriaRow(90, 150, special_mm=288), (90, 288), (45, 180)),
        (CriteriaRow(120, 150), (120, 320), (60, 200)),
        (CriteriaRow(120, 320, special_mm=320), (120, 320), (60, 200)),
        (CriteriaRow(NOT_JUDGED_MM, 150, special_mm=288), (NOT_JUDGED_MM, 288),
         (NOT_JUDGED_MM, 180)),
    ],
)  # fmt: skip
def test_changes_keep_how_a_criterion_depends_on_rain(
    change: CriteriaRow, at_rest_mm: tuple[float, ...], at_80_mm: tuple[float, ...]
) -> None:
    """The numbers that are set are those without rain; the lines are scaled to them."""
    advisory, special = (
        tuple(high - slope * r60 for r60 in range(81))
        for high, slope in ((120, 0.75), (320, 1.5))
    )
    published = CriteriaRow(
        None, 150.0, tuple(LINE), advisory_line_mm=advisory, special_line_mm=special
    )
    table = CriteriaTable(Criteria(), {CELL: published}).with_changes(
        CriteriaTable(Criteria(), {CELL: change})
    )
    criteria = table.criteria_of(CELL)

    for r60_mm, limits_mm in ((0.0, at_rest_mm), (80.0, at_80_mm)):
        found = tuple(criteria.limit_mm(level, r60_mm) for level in (2, 5))
        assert found == pytest.approx(limits_mm)
    assert not criteria.special_assumed


def test_changes_apply_to_a_cell_without_a_table_row(tmp_path: Path) -> None:
    """Its line follows the warning criterion that was set and counts as assumed."""
    provider = make_provider(tmp_path)
    change(tmp_path, f"{OTHER},70,90,200,{SET_BY}")
    criteria = provider.rules_of([OTHER, CELL])[OTHER].criteria

    assert not criteria.assumed
    assert reason(criteria, 140.0).endswith("(assumed line)")
    assert provider.rules_of([CELL])[CELL].criteria.warning_mm == 150


def test_changes_for_all_cells_apply_to_new_cells(tmp_path: Path) -> None:
    """A row with `*` applies to every cell without its own row; the line stays."""
    provider = make_provider(tmp_path)
    change(tmp_path, f"{OTHER},70,90,200,{SET_BY}", f"*,60,80,180,{SET_BY}")
    new = Cell.at(34.2, 133.9).parent(ANALYSIS_LEVEL).token
    rules = provider.rules_of([OTHER, CELL, new])

    assert rules[OTHER].criteria.warning_mm == 90
    assert rules[new].criteria.warning_mm == 80
    assert rules[CELL].criteria.warning_mm == 80
    assert rules[CELL].criteria.critical_line_mm(50.0) == 180.0
    assert provider.current_table().municipality(CELL) == "3920100"


@pytest.mark.parametrize(("cell", "warning_mm"), [("*", 320), (CELL, 330)])
def test_changes_without_level_5_are_below_that_of_the_table(
    tmp_path: Path, cell: str, warning_mm: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its 290 mm count for a higher warning, too; logged once for each change."""
    provider = make_provider(tmp_path)
    for _ in range(2):
        change(tmp_path, f"{cell},60,{warning_mm},,{SET_BY}")
        criteria = provider.rules_of([OTHER, CELL])[CELL].criteria
        found = criteria.advisory_mm, criteria.warning_mm, criteria.special_mm

        assert found == (60, 290, 290)
        assert provider.rules_of([CELL])[CELL].criteria == criteria
        assert caplog.text.count(f"got (60.0, {warning_mm}.0, 290.0); the lower") == 1
        assert f"criteria.changes, cell {CELL}: must be" in caplog.text


def test_changed_file_is_reloaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a restart of the job; an invalid file is logged and ignored."""
    provider = make_provider(tmp_path)
    assert provider.rules_of([CELL])[CELL].criteria.warning_mm == 150
    for warning_mm in (90, 95):
        change(tmp_path, f"{CELL},70,{warning_mm},200,{SET_BY}")
        assert provider.rules_of([CELL])[CELL].criteria.warning_mm == warning_mm
    change(tmp_path, f"{CELL},70,wet,200,{SET_BY}")
    assert provider.rules_of([CELL])[CELL].criteria.warning_mm == 95
    assert "LEVEL2 must be a soil water index of 1 to 999 mm, got 'wet'" in caplog.text


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_lost_file_changes_no_criterion(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in a job that runs, nor in one that starts without the file."""
    copy = tmp_path / "last.csv"
    running = replace(make_provider(tmp_path), last_changes=copy)
    assert running.rules_of([CELL])[CELL].criteria.warning_mm == 150
    assert "criteria stay" not in caplog.text  # nothing was changed yet
    change(tmp_path, f"{CELL},70,90,200,{SET_BY}")
    assert running.rules_of([CELL])[CELL].criteria.warning_mm == 90
    if fault == "missing":
        (tmp_path / "changes.csv").unlink()
    else:
        change(tmp_path, f"{CELL},70,wet,200,{SET_BY}")
    started = replace(make_provider(tmp_path), last_changes=copy)

    for provider in (running, started):
        caplog.clear()
        assert provider.rules_of([CELL])[CELL].criteria.warning_mm == 90
        assert provider.rules_of([CELL])[CELL].criteria.warning_mm == 90
        assert caplog.text.count("criteria stay as they were") == 1

    change(tmp_path)  # the console ended the last version
    restarted = replace(make_provider(tmp_path), last_changes=copy)
    for provider in (running, started, restarted):
        assert provider.rules_of([CELL])[CELL].criteria.warning_mm == 150
    (tmp_path / "changes.csv").unlink()
    assert restarted.rules_of([CELL])[CELL].criteria.warning_mm == 150
