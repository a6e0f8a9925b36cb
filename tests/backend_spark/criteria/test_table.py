"""Tables of criteria by mesh, valid ones and every kind of error."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_spark.config import RainCriteriaSection
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import (
    CriteriaRow,
    CriteriaTable,
    cell_at_mesh,
    mesh_center,
    mesh_code_at,
    read_criteria,
)
from backend_spark.errors import CriteriaTableError
from service_runtime.errors import FieldError
from slope_science import ScienceError
from slope_science.levels import NOT_JUDGED_MM, Criteria, compute_rain_level, judge_rain
from slope_science.reasons import render_english
from spatial_mqtt.cells import Cell
from tests.backend_spark.criteria.published_tables import (
    SyntheticMesh,
    encode,
    jma_line,
)

DEFAULT = Criteria.assumed_from(150.0)
LINE = [max(147.0, 220.0 - 0.8 * r60) for r60 in range(151)]
HEAD = ["mesh", "LEVEL1", "LEVEL2", *(f"LEVEL3_{mm:02d}" for mm in range(151))]
MESH = "50330471"
PAIR = ("51330018", "51330028")
"""Two meshes whose centres lie in one cell."""


def write(path: Path, *rows: list[object], head: list[str] | None = None) -> Path:
    """Write a table as a spreadsheet on Windows does: UTF-8 with BOM and CRLF."""
    lines = [",".join(map(str, row)) for row in (head or HEAD, *rows)]
    path.write_bytes(("\ufeff" + "\r\n".join(lines) + "\r\n").encode())
    return path


def test_full_table_gives_criteria_without_assumptions(tmp_path: Path) -> None:
    """Advisory, warning, all 151 points of the line and the special criterion."""
    head = [*HEAD, "SPECIAL", "municipality"]
    row = [MESH, 111, 150, *LINE, 290, "3920100"]
    table = read_criteria(write(tmp_path / "c.csv", row, head=head), DEFAULT)
    token = cell_at_mesh(MESH)
    criteria = table.criteria_of(token)

    assert (criteria.advisory_mm, criteria.warning_mm) == (111, 150)
    assert criteria.special_mm == 290
    assert not criteria.assumed
    assert not criteria.special_assumed
    assert [criteria.critical_line_mm(r) for r in (0, 50, 150)] == [220, 180, 147]
    assert criteria.critical_line_mm(0.5) == pytest.approx(219.6)
    assert table.municipality(token) == "3920100"
    assert table.criteria_of("355a9c44") == DEFAULT


def test_missing_special_criterion_is_assumed(tmp_path: Path) -> None:
    """1.25 times the line at zero rain; its reason says "assumed criterion"."""
    path = write(tmp_path / "c.csv", [MESH, 111, 150, *LINE])
    criteria = read_criteria(path, DEFAULT).criteria_of(cell_at_mesh(MESH))
    special = judge_rain(0.0, 275.0, criteria)
    line = judge_rain(0.0, 230.0, criteria)

    assert criteria.special_mm == pytest.approx(275.0)
    assert special is not None
    assert render_english(special.reason).endswith(
        "criterion 275.0 mm (assumed criterion)"
    )
    assert line is not None
    assert "assumed" not in render_english(line.reason)


def test_zeros_at_the_end_of_the_line_are_ignored(tmp_path: Path) -> None:
    """The line is constant from there on."""
    cut = [*LINE[:60], *[0] * 91]
    path = write(tmp_path / "c.csv", [MESH, 111, 150, *cut])
    criteria = read_criteria(path, DEFAULT).criteria_of(cell_at_mesh(MESH))

    assert criteria.critical_line_mm(150) == LINE[59]


def test_mesh_that_is_not_judged_does_not_use_the_default(tmp_path: Path) -> None:
    """999 means that the prefecture does not judge the level: no rain reaches it."""
    path = write(tmp_path / "c.csv", [MESH, 999, 999, *[999] * 151])
    criteria = read_criteria(path, DEFAULT).criteria_of(cell_at_mesh(MESH))

    assert criteria.not_judged == (2, 3, 4, 5)
    assert not criteria.assumed
    assert judge_rain(150.0, 998.0, criteria) is None


def test_cell_with_two_meshes_uses_the_lower_criteria() -> None:
    """The cell must not be warned later than either mesh."""
    one, two = (
        CriteriaRow(100, 150, (220, 200), 280),
        CriteriaRow(110, 140, (210, 205), None),
    )

    assert one.lower_of(two) == CriteriaRow(100, 140, (210, 200), 280)


def test_cell_is_in_order_where_each_file_has_another_of_its_meshes(
    tmp_path: Path,
) -> None:
    """At a border, only JMA's level 5 has the softer mesh beyond it."""
    assert cell_at_mesh(PAIR[0]) == cell_at_mesh(PAIR[1]) != cell_at_mesh(MESH)
    head = ["mesh", "LEVEL1", "LEVEL2"]
    rows = [PAIR[0], 150, 210], [MESH, 150, 210]
    write(tmp_path / "prefecture.csv", *map(list, rows), head=head)
    special_mm = dict(zip(PAIR, (260, 200), strict=True))
    meshes = [
        SyntheticMesh(code, None, None, (mm,) * 151) for code, mm in special_mm.items()
    ]
    (tmp_path / "2_1_x.csv").write_bytes(encode(jma_line(meshes, 5)))
    rules = CellRuleProvider(read_criteria(tmp_path, DEFAULT)).rules_of(
        map(cell_at_mesh, (PAIR[0], MESH))
    )
    found, other = (rules[cell_at_mesh(code)].criteria for code in (PAIR[0], MESH))

    assert (found.advisory_mm, found.warning_mm, found.special_mm) == (150, 200, 200)
    assert not found.special_assumed
    assert other.warning_mm == 210


MM = st.sampled_from([60.0, 100.0, 140.0, 180.0, 220.0, NOT_JUDGED_MM])
LINES = st.lists(MM, min_size=2, max_size=4).map(
    lambda mm: tuple(sorted(mm, reverse=True))
)
CONSTANT = st.builds(CriteriaRow, MM, MM, LINES, MM)
BY_RAIN = st.builds(
    CriteriaRow, st.none(), MM, LINES, advisory_line_mm=LINES, special_line_mm=LINES
)


def has_order(row: CriteriaRow) -> bool:
    """Whether a file may have the row."""
    try:
        row.criteria()
    except ScienceError:
        return False
    return True


@given(
    st.sampled_from([CONSTANT, BY_RAIN]).flatmap(
        lambda rows: st.tuples(*[rows.filter(has_order)] * 2)
    )
)
def test_any_two_meshes_of_a_cell_are_in_order(
    meshes: tuple[CriteriaRow, CriteriaRow],
) -> None:
    """No level is later than in either of them."""
    found = meshes[0].lower_of(meshes[1]).in_order().criteria()

    for each in meshes:
        for r60_mm in (0.0, 1.0, 2.5, 9.0):
            for swi_mm in (59.0, 60.0, 100.0, 140.0, 180.0, 220.0):
                at_least = compute_rain_level(r60_mm, swi_mm, each.criteria())
                assert compute_rain_level(r60_mm, swi_mm, found) >= at_least


def test_cell_without_a_mesh_uses_the_mesh_at_its_centre(tmp_path: Path) -> None:
    """In some places there are more S2 cells than meshes."""
    code = mesh_code_at(33.56, 133.53)
    neighbours = {Cell.at(33.56 + d, 133.53, 13).token for d in (-0.004, 0, 0.004)}
    path = write(tmp_path / "c.csv", [code, 111, 155, *LINE])
    table = read_criteria(path, DEFAULT)
    row = CriteriaRow(111, 155, tuple(LINE))
    other = CriteriaTable(DEFAULT, {}, {code: row})
    inside = [
        t for t in neighbours if mesh_code_at(*Cell.from_token(t).center()) == code
    ]

    assert table.criteria_of(cell_at_mesh(code)).warning_mm == 155
    assert all(other.criteria_of(token).warning_mm == 155 for token in inside)
    assert other.criteria_of(Cell.at(-33.0, 18.0, 13).token) == DEFAULT


@given(st.floats(24.1, 45.9), st.floats(122.1, 148.9))
def test_mesh_contains_its_position(latitude: float, longitude: float) -> None:
    """Code and centre of a mesh agree."""
    code = mesh_code_at(latitude, longitude)
    center = mesh_center(code)

    assert mesh_code_at(*center) == code
    assert abs(center[0] - latitude) <= 15.01 / 3600
    assert abs(center[1] - longitude) <= 22.51 / 3600


def test_mesh_of_tokyo_station_matches_the_published_code() -> None:
    """Third mesh 53394611 holds Tokyo station."""
    assert mesh_code_at(35.681236, 139.767125) == "53394611"
    with pytest.raises(FieldError, match="mesh must be 8 digits of a third mesh"):
        mesh_center("5339461")


WRONG = {
    "no number": (
        [[MESH, "abc", 150, *LINE]],
        "line 2: LEVEL1 must be a soil water index of 1 to 999 mm, got 'abc'",
    ),
    "empty": (
        [[MESH, 111, "", *LINE]],
        "line 2: LEVEL2 must be a soil water index of 1 to 999 mm, got ''; write 999",
    ),
    "order": (
        [[MESH, 160, 150, *LINE]],
        "line 2: criteria must be 0 < advisory <= warning <= special, got (160.0",
    ),
    "rising line": (
        [[MESH, 111, 150, *LINE[:5], 400, *LINE[6:]]],
        "line 2: line must be rising in r60 and never rising in the index",
    ),
    "hole in the line": (
        [[MESH, 111, 150, *LINE[:5], 0, *LINE[6:]]],
        "line 2: LEVEL3_05 must be more than 0 mm before the end of the line, got 0",
    ),
    "twice": (
        [[MESH, 111, 150, *LINE], [MESH, 111, 150, *LINE]],
        "line 3: mesh or cell must be given once, line 2 has it too, got '50330471'",
    ),
    "mesh": (
        [["5033047", 111, 150, *LINE]],
        (
            "line 2: mesh must be 8 digits of a third mesh in Japan such as 50330471, "
            "got '5033047'; a spreadsheet may have cut zeros"
        ),
    ),
    "nothing": ([], "line 2: must hold a row of criteria, there is none"),
}


@pytest.mark.parametrize("name", WRONG)
def test_error_names_line_field_rule_and_value(name: str, tmp_path: Path) -> None:
    """So that the file can be corrected without a search."""
    rows, problem = WRONG[name]
    path = write(tmp_path / "c.csv", *rows)
    with pytest.raises(CriteriaTableError, match=r"c\.csv: line") as caught:
        read_criteria(path, DEFAULT)

    assert caught.value.problems[0].startswith(problem)


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    """So that one round of corrections is enough."""
    rows = [[MESH, -1, 150, *LINE], ["1", 111, 150, *LINE]]
    with pytest.raises(CriteriaTableError, match="line 3: mesh must be") as caught:
        read_criteria(write(tmp_path / "c.csv", *rows), DEFAULT)

    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (["a", "LEVEL1", "LEVEL2"], "line 1: needs a column mesh or cell"),
        (["mesh", "LEVEL1"], "line 1: needs a column LEVEL2"),
        (["mesh", "LEVEL1", "LEVEL2", "LEVEL1"], "there once, got LEVEL1 twice"),
        (['"mesh', "LEVEL1"], "must be CSV: unexpected end of data"),
        (
            HEAD[:-1],
            "line 1: needs LEVEL3_00 to LEVEL3_150 in order or none, LEVEL3_150",
        ),
    ],
)
def test_header_must_have_the_required_columns(
    head: list[str], problem: str, tmp_path: Path
) -> None:
    """For example, a line needs all 151 points."""
    with pytest.raises(CriteriaTableError, match=problem):
        read_criteria(write(tmp_path / "c.csv", head=head), DEFAULT)


def test_error_of_a_missing_file_names_the_setting(tmp_path: Path) -> None:
    """The remedy is to check the settings key `criteria.file`."""
    settings = RainCriteriaSection(file=str(tmp_path / "none.csv"))
    with pytest.raises(
        CriteriaTableError, match=r"No such file.*; check criteria\.file"
    ):
        CellRuleProvider.from_settings(settings)


def test_table_in_cp932_by_cells_without_a_line(tmp_path: Path) -> None:
    """A list of cells is enough; the line is then the planning default."""
    path = tmp_path / "c.csv"
    path.write_bytes("cell,LEVEL1,LEVEL2,備考\n355a9c44,90,120,高知\n".encode("cp932"))
    criteria = read_criteria(path, DEFAULT).criteria_of("355a9c44")

    assert criteria.warning_mm == 120
    assert criteria.line == ()
    assert (
        CellRuleProvider
        .from_settings(RainCriteriaSection(file=str(path)))
        .rules_of(["355a9c44"])["355a9c44"]
        .criteria
        == criteria
    )
