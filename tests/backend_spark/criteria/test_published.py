"""Tables in the forms that prefectures and JMA publish, read untouched."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from backend_spark.cli.check import criteria as command
from backend_spark.criteria.tables import (
    CriteriaFile,
    CriteriaTable,
    cell_at_mesh,
    read_criteria,
)
from backend_spark.errors import CriteriaTableError
from slope_science.levels import Criteria, compute_rain_level, judge_rain
from tests.backend_spark.criteria.published_tables import (
    CITY,
    DOSHA_HEAD,
    ENCODINGS,
    FORMS,
    SyntheticMesh,
    dosha,
    dosyakei,
    encode,
    jma_line,
    prefecture,
)

DEFAULT = Criteria.assumed_from(150.0)
MESHES = prefecture(40)
UNJUDGED = next(mesh for mesh in MESHES if mesh.warning_mm is None)
FULL = MESHES[0]


def read(folder: Path, rows: list[list[object]], name: str = "c.csv") -> CriteriaTable:
    """Write a table and read it."""
    (folder / name).write_bytes(encode(rows))
    return read_criteria(folder / name, DEFAULT)


def of(table: CriteriaTable, mesh: SyntheticMesh) -> Criteria:
    """Criteria of one mesh."""
    row = table.by_mesh[mesh.code]
    return row.criteria()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_published_form_loads_untouched(
    form: str, encoding: str, tmp_path: Path
) -> None:
    """All meshes are read, with the criteria that were published."""
    path = tmp_path / f"{form}_x.csv"
    path.write_bytes(encode(FORMS[form](MESHES), encoding))
    table = read_criteria(path, DEFAULT)

    assert set(table.by_mesh) == {mesh.code for mesh in MESHES}
    for mesh in MESHES:
        found = of(table, mesh)
        has_limits, has_line = form != "2_2", form != "dosha"
        assert not found.assumed
        if has_limits:
            assert found.advisory_mm == mesh.advisory_mm
            assert found.warning_mm == (mesh.warning_mm or float("inf"))
        if has_line and mesh.line_mm:
            published = mesh.line_mm[:121]
            assert [found.critical_line_mm(r) for r in range(121)] == list(published)
        judged = {2, 3, 4, 5} if has_limits else {4, 5}
        if mesh.line_mm is None:
            judged &= {2} if has_limits else set()
        assert set(found.not_judged) == {2, 3, 4, 5} - judged


@pytest.mark.parametrize("form", FORMS)
def test_level_that_is_not_judged_is_never_given(form: str, tmp_path: Path) -> None:
    """At no rain and no index; before, such a mesh had the national default."""
    table = read(tmp_path, FORMS[form](MESHES), f"{form}_x.csv")
    highest = {"dosyakei": 2, "dosha": 2, "2_2": 1}[form]
    found = of(table, UNJUDGED)

    assert found == table.criteria_of(cell_at_mesh(UNJUDGED.code))
    for r60_mm in (0.0, 0.5, 40.0, 150.0, 400.0):
        for swi_mm in (150.0, 277.2, 600.0, 998.0, 5000.0):
            finding = judge_rain(r60_mm, swi_mm, found)
            assert (finding.level if finding else 1) == highest
            assert compute_rain_level(r60_mm, swi_mm, found) == highest


def test_prefectures_table_has_its_municipality(tmp_path: Path) -> None:
    """CITYCODE is the code of JMA's telegrams."""
    table = read(tmp_path, dosyakei(MESHES))

    assert table.municipality(cell_at_mesh(FULL.code)) == CITY


def test_untidy_file_loads(tmp_path: Path) -> None:
    """Full width, blanks, quotes, tabs, blank lines, totals and remarks."""
    wide = str.maketrans("0123456789", "０１２３４５６７８９")
    rows = dosha(MESHES)
    rows[2] = [f"{cell}".translate(wide) + "　 " for cell in rows[2]]
    rows[3] = [f' "{cell}"'.strip() for cell in rows[3]]
    code = f"{rows[4][2]}"
    rows[4][2] = f"{code[:4]}-{code[4:6]}-{code[6:]}"
    rows[5][4] = "—"
    rows[6][3], rows[6][4] = "95.0", "140.5"
    rows.insert(7, [""])
    rows.insert(8, ["", "", "", "", "", ""])
    rows += [["合計", "", len(MESHES), "", "", ""], ["※ 更新は毎年5月"], [""]]
    for separator in (",", "\t"):
        path = tmp_path / "dosha_x.csv"
        path.write_bytes(encode(rows, "UTF-16 LE", separator=separator) + b"\x1a\0")
        table = CriteriaFile.read(path)

        assert table.table.problems == []
        assert len(table.by_mesh) == len(MESHES)
        assert list(table.table.notes.values()) == ["合計 40", "※ 更新は毎年5月"]
        assert table.by_mesh[MESHES[3].code].warning_mm == float("inf")
        assert table.by_mesh[MESHES[4].code].warning_mm == 140.5


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        (
            "LEVEL1",
            "",
            "line 2: LEVEL1 must be a soil water index of 1 to 999 mm, got ''",
        ),
        ("LEVEL2", "－150", "got '－150'"),
        (
            "LEVEL2",
            "1500",
            "LEVEL2 must be a soil water index of 1 to 999 mm, got '1500'",
        ),
        ("LEVEL3_20", "nan", "LEVEL3_20 must be a soil water index of 0 to 999 mm"),
        ("LEVEL3_20", "1_9", "got '1_9'"),
        ("LEVEL3_20", "999", "LEVEL3_20 must be more than 0 mm before the end of the"),
        ("LEVEL3_20", "0", "only the end is beyond the table"),
        (
            "LEVEL3_20",
            "900",
            "line must be rising in r60 and never rising in the index",
        ),
        ("GRIDNO", "5135303", "line 2: mesh must be 8 digits of a third mesh in Japan"),
        (
            "GRIDNO",
            "99999999",
            "line 2: mesh must be 8 digits of a third mesh in Japan",
        ),
        ("GRIDNO", "", "line 2: mesh must be 8 digits of a third mesh in Japan"),
    ],
)
def test_row_that_cannot_be_read_is_named(
    column: str, value: str, problem: str, tmp_path: Path
) -> None:
    """With line, column, rule and value; the other rows are counted."""
    rows = dosyakei(MESHES)
    rows[1][rows[0].index(column)] = value
    path = tmp_path / "c.csv"
    path.write_bytes(encode(rows, "cp932"))
    shown = CliRunner().invoke(command, [str(path)])

    with pytest.raises(CriteriaTableError, match=r"c\.csv: line 2"):
        read_criteria(path, DEFAULT)
    assert problem in shown.stderr
    assert "c.csv: 39 meshes of 40 read" in shown.stdout
    assert shown.exit_code == 65


def test_shifted_row_is_named(tmp_path: Path) -> None:
    """A comma too many shifts each criterion by a column."""
    rows = dosyakei(MESHES)
    rows[1].insert(3, "")
    with pytest.raises(CriteriaTableError, match="must be a row of 163 columns"):
        read(tmp_path, rows)


def test_index_of_surface_water_is_no_criterion(tmp_path: Path) -> None:
    """JMA's tables of other indices have the same layout."""
    rows = dosha(MESHES)
    rows[1] = [f"{name}".replace("土壌", "表面") for name in DOSHA_HEAD]
    with pytest.raises(CriteriaTableError, match="columns of criteria"):
        read(tmp_path, rows)


def test_line_of_jma_needs_the_level_in_its_title(tmp_path: Path) -> None:
    """Levels 5, 4 and 2 have the same header; a guess could warn too late."""
    rows = jma_line(MESHES, 4)[1:]
    with pytest.raises(CriteriaTableError, match="needs JMA's title line before it"):
        read(tmp_path, rows)
    assert of(read(tmp_path, rows, "2_2_x.csv"), FULL).critical_line_mm(0.0) == 200.0


def test_tables_of_a_folder_complete_each_other(tmp_path: Path) -> None:
    """JMA's levels 2 and 3, and its lines of levels 4 and 5: nothing is assumed."""
    tables = {
        "dosha_x.csv": dosha(MESHES),
        "2_1_x.csv": jma_line(MESHES, 5, 1.2),
        "2_2_x.csv": jma_line(MESHES, 4),
    }
    for name, rows in tables.items():
        (tmp_path / name).write_bytes(encode(rows, "cp932"))
    table = read_criteria(tmp_path, DEFAULT)
    full = of(table, FULL)
    shown = CliRunner().invoke(command, [str(tmp_path)]).stdout

    assert (full.advisory_mm, full.warning_mm) == (90, 130)
    assert [full.limit_mm(4, r) for r in (0.0, 60.0, 150.0)] == [200, 140, 132]
    assert [full.limit_mm(5, r) for r in (0.0, 60.0, 150.0)] == [240, 168, 158]
    assert not full.special_assumed
    assert judge_rain(60.0, 170.0, full).level == 5  # type: ignore[union-attr]
    assert judge_rain(0.0, 170.0, full).level == 3  # type: ignore[union-attr]
    assert of(table, UNJUDGED).not_judged == (3, 4, 5)
    assert "together: 40 meshes; 36 judged at level 5, 4 not judged at level 5" in shown


def test_mesh_of_two_prefectures_takes_the_lower_criteria(tmp_path: Path) -> None:
    """A mesh on a border is in both tables; one that judges counts."""
    lower = SyntheticMesh(UNJUDGED.code, 80, 120, FULL.line_mm)
    for name, meshes in (("a.csv", MESHES), ("b.csv", [lower])):
        (tmp_path / name).write_bytes(encode(dosyakei(meshes)))
    found = of(read_criteria(tmp_path, DEFAULT), UNJUDGED)

    assert (found.advisory_mm, found.warning_mm, found.not_judged) == (80, 120, ())


def test_command_counts_meshes_as_published(tmp_path: Path) -> None:
    """One line for each file; no row is lost."""
    path = tmp_path / "dosyakei_x.csv"
    path.write_bytes(encode(dosyakei(MESHES), "cp932"))
    shown = CliRunner().invoke(command, [str(path)])

    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0] == (
        "dosyakei_x.csv: 40 meshes of 40 read; 36 judged at level 5, 4 not judged at "
        "level 5 by the prefecture"
    )


def test_look_ahead_of_a_mesh_is_a_column(tmp_path: Path) -> None:
    """LOOK_AHEAD_H: 2 or 3; otherwise the settings' default."""
    rows = [["mesh", "LEVEL1", "LEVEL2", "LOOK_AHEAD_H"]]
    rows += [
        [mesh.code, "90", "130", hours]
        for mesh, hours in zip(MESHES, ("3", "", "2"), strict=False)
    ]
    table = read(tmp_path, list(rows))
    cells = [cell_at_mesh(mesh.code) for mesh in MESHES[:3]]
    three = CriteriaTable(
        Criteria(look_ahead_h=3), table.by_cell, table.by_mesh, table.others
    )

    assert [table.criteria_of(cell).look_ahead_h for cell in cells] == [3, 2, 2]
    assert [three.criteria_of(cell).look_ahead_h for cell in cells] == [3, 3, 2]
    with pytest.raises(CriteriaTableError, match="LOOK_AHEAD_H must be 2 or 3 hours"):
        read(tmp_path, [rows[0], [FULL.code, 90, 130, 6]])


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_prefecture_of_15000_meshes(form: str, encoding: str, tmp_path: Path) -> None:
    """All of them, and exactly those judged at level 5 that the table judges."""
    path = tmp_path / f"{form}_x.csv"
    path.write_bytes(encode(FORMS[form](prefecture(15_000)), encoding))
    shown = CliRunner().invoke(command, [str(path)])

    assert shown.stdout.splitlines()[0] == (
        f"{form}_x.csv: 15000 meshes of 15000 read; 13500 judged at level 5, 1500 not "
        "judged at level 5 by the prefecture"
    )
