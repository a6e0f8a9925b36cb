"""What people set in the console, before the prefecture's table."""

import os
from pathlib import Path

import pytest

from backend_spark.config import RainCriteriaSection
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import cell_at_mesh
from backend_spark.i18n import render_japanese
from slope_science.criteria import Criteria
from slope_science.findings import judge_rain
from slope_science.reason_compat import parse_or_text
from slope_science.reason_text import render_english
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

MESH = "50330471"
CELL, OTHER = cell_at_mesh(MESH), "355a9c44"
LINE = [max(147.0, 220.0 - 0.8 * r60) for r60 in range(151)]
HEAD = ["mesh", "LEVEL1", "LEVEL2", *(f"LEVEL3_{mm:02d}" for mm in range(151))]
CHANGES = "cell,LEVEL1,LEVEL2,SPECIAL,VERSION\n"
SAID = "set by suzuki on 2026-11-21"


def judging(folder: Path) -> CellRuleProvider:
    """By a prefecture's table of one mesh, and a file of changes."""
    table = folder / "prefecture.csv"
    row = [MESH, 111, 150, *LINE, 290, "3920100"]
    lines = [[*HEAD, "SPECIAL", "municipality"], row]
    table.write_text("\n".join(",".join(map(str, line)) for line in lines) + "\n")
    changes = str(folder / "changes.csv")
    return CellRuleProvider.from_settings(
        RainCriteriaSection(file=str(table), changes=changes)
    )


def change(folder: Path, *rows: str) -> None:
    """As the console writes it: anew, and then in its place."""
    fresh = folder / "changes.new"
    fresh.write_text(CHANGES + "".join(f"{row}\n" for row in rows))
    os.replace(fresh, folder / "changes.csv")  # noqa: PTH105 - as it is written


def reason(criteria: Criteria, swi_mm: float) -> str:
    """Why such wet soil has its level."""
    finding = judge_rain(0.0, swi_mm, criteria)
    assert finding is not None
    return render_english(finding.reason)


def test_changes_go_before_the_table_whose_line_stays(tmp_path: Path) -> None:
    """And the reason says who set the criterion, in both languages."""
    made = judging(tmp_path)
    change(tmp_path, f"{CELL},70,90,200,{SAID}")
    rules = made.rules_of([CELL])[CELL]
    warning = reason(rules.criteria, 95.0)

    assert warning == f"soil water index 95.0 mm >= warning criterion 90.0 mm ({SAID})"
    assert render_japanese(warning).endswith("以上（suzuki が 2026-11-21 に設定）")
    assert reason(rules.criteria, 201.0).endswith(f"200.0 mm ({SAID})")
    assert rules.criteria.critical_line_mm(50.0) == 180.0
    assert "(" not in reason(Criteria(90, 70, 300, assumed=False, line=(
        (0.0, 220.0), (150.0, 147.0)), basis=parse_or_text(SAID)), 230.0)  # fmt: skip
    assert made.current_table().municipality(CELL) == "3920100"


def test_a_cell_that_no_table_has_takes_the_changes_alone(tmp_path: Path) -> None:
    """Its line follows the warning that was set, and is called assumed."""
    made = judging(tmp_path)
    change(tmp_path, f"{OTHER},70,90,200,{SAID}")
    criteria = made.rules_of([OTHER, CELL])[OTHER].criteria

    assert not criteria.assumed
    assert reason(criteria, 140.0).endswith("(assumed line)")
    assert made.rules_of([CELL])[CELL].criteria.warning_mm == 150


def test_changes_of_all_cells_hold_for_new_ones_too(tmp_path: Path) -> None:
    """A row with a star is of every cell that no other row names; the line stays."""
    made = judging(tmp_path)
    change(tmp_path, f"{OTHER},70,90,200,{SAID}", f"*,60,80,180,{SAID}")
    new = Cell.at(34.2, 133.9).parent(ANALYSIS_LEVEL).token
    rules = made.rules_of([OTHER, CELL, new])

    assert rules[OTHER].criteria.warning_mm == 90
    assert rules[new].criteria.warning_mm == 80
    assert rules[CELL].criteria.warning_mm == 80
    assert rules[CELL].criteria.critical_line_mm(50.0) == 180.0
    assert made.current_table().municipality(CELL) == "3920100"


def test_changes_are_read_again_when_they_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No restart of the job; a file that is wrong is told, and changes nothing."""
    made = judging(tmp_path)
    assert made.rules_of([CELL])[CELL].criteria.warning_mm == 150
    for warning_mm in (90, 95):
        change(tmp_path, f"{CELL},70,{warning_mm},200,{SAID}")
        assert made.rules_of([CELL])[CELL].criteria.warning_mm == warning_mm
    change(tmp_path, f"{CELL},70,wet,200,{SAID}")
    assert made.rules_of([CELL])[CELL].criteria.warning_mm == 95
    assert "LEVEL2 must be a soil water index of 1 to 999 mm, got 'wet'" in caplog.text
