"""Import of JMA's files to their table, and what a cell then knows."""

import errno
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from jma_grib import AT, JmaFile, index_file, rain_file

from backend_spark.analysed_cells import cell_meshes, meshes_of_interest
from backend_spark.analysed_rain import (
    AnalysisImporter,
    AnalysisReader,
    ImportedAnalysis,
    TableAnalyses,
)
from backend_spark.config import KeepSection
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import CriteriaRow, CriteriaTable, cell_at_mesh
from backend_spark.errors import AnalysisFileError
from backend_spark.grib_files import Product, digest
from backend_spark.tables.delta_writer import append_rows
from backend_spark.tables.maintenance import compact
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import ANALYSES
from service_runtime.errors import AlreadyRunningError
from service_runtime.files import acquire_lock
from slope_science.levels import Criteria
from slope_science.official_rain import AnalysedRain, AnalysedState

AT_S = AT.timestamp()
MESHES = np.array([52354500, 52354501, 52354510])
"""In the first rows and columns of the grid below: 35 N, 135.6 E and around."""

SHAPE = (60, 90)
NAMES = {
    Product.SOIL_WATER: "Z__C_RJTD_{}_SRF_GPV_Ggis1km_Psw_Aper10min_ANAL_grib2.bin",
    Product.RAIN: "Z__C_RJTD_{}_SRF_GPV_Ggis1km_Prr60lv_ANAL_grib2.bin",
}


def place(file: JmaFile) -> JmaFile:
    """A file with a grid around the meshes."""
    return file.but(north=35.5, west=135.0)


def rain_of(mm: float, minutes: int = 0) -> JmaFile:
    """Rain of the same depth everywhere, some minutes after `AT`."""
    return place(rain_file(np.full(SHAPE, mm), AT + timedelta(minutes=minutes)))


def index_of(mm: float, minutes: int = 0) -> JmaFile:
    """The same index everywhere."""
    return place(index_file(np.full(SHAPE, mm), AT + timedelta(minutes=minutes)))


def drop(folder: Path, product: Product, file: JmaFile, age_s: float = 3600.0) -> Path:
    """Write a file under JMA's name, as one that was copied a while ago."""
    name = NAMES[product].format(file.at.strftime("%Y%m%d%H%M%S"))
    path = file.write(folder / product.value / name)
    set_age(path, age_s)
    return path


def set_age(path: Path, age_s: float) -> None:
    """Set the time of a file relative to the time of `importer`."""
    at_s = AT_S + 600 - age_s
    os.utime(path, (at_s, at_s))


def importer(
    folder: Path, later_s: float = 600.0, *, as_issued: bool = False
) -> AnalysisImporter:
    """An importer that runs some time after `AT`."""
    return AnalysisImporter(
        folder / "tables", KeepSection(), MESHES, AT_S + later_s, as_issued
    )


def folders(folder: Path) -> Mapping[Product, Path]:
    """The folder of each product."""
    for product in Product:
        (folder / product.value).mkdir(exist_ok=True)
    return {product: folder / product.value for product in Product}


def load(folder: Path, later_s: float = 600.0) -> list[object]:
    """Import everything that is there."""
    return list(importer(folder, later_s).import_folders(folders(folder)))


def analyses(folder: Path, meshes: tuple[int, ...] = (52354500,)) -> TableAnalyses:
    """Analyses of a cell, as a process of Spark has them."""
    reader = AnalysisReader(folder / "tables")
    version = reader.newest_version()
    assert version is not None
    found: TableAnalyses = pickle.loads(  # noqa: S301 - as Spark does
        pickle.dumps(reader.of_cell(map(str, meshes), version))
    )
    return found


def test_analyses_count_from_their_import(tmp_path: Path) -> None:
    """Not before it, and not when they are too old."""
    drop(tmp_path, Product.SOIL_WATER, index_of(123.0))
    drop(tmp_path, Product.RAIN, rain_of(45.0))
    done = load(tmp_path)

    assert all(isinstance(each, ImportedAnalysis) for each in done)
    assert str(done[0]).endswith("3 meshes loaded, 3 with a value")
    cell = analyses(tmp_path)
    assert cell.state(AT_S) == AnalysedState()
    assert cell.state(AT_S + 600) == AnalysedState(123.0, AT_S, 45.0, AT_S)
    assert cell.state(AT_S + 3600).index_mm == 123.0
    assert cell.state(AT_S + 3601) == AnalysedState()


def test_past_analyses_count_from_their_time(tmp_path: Path) -> None:
    """A past storm is scored with what was known then."""
    drop(tmp_path, Product.SOIL_WATER, index_of(123.0))
    list(importer(tmp_path, 9e6, as_issued=True).import_folders(folders(tmp_path)))

    assert analyses(tmp_path).state(AT_S).index_mm == 123.0


def test_missing_is_not_zero(tmp_path: Path) -> None:
    """A point without data gives nothing; the meshes beside it count."""
    mm = np.full(SHAPE, np.nan)
    mm[59, 50] = 0.0  # 52354500: 35 N, 135.625 E
    drop(tmp_path, Product.RAIN, place(rain_file(mm)))
    (done,) = load(tmp_path)

    assert isinstance(done, ImportedAnalysis)
    assert (done.added, done.known) == (3, 1)
    assert analyses(tmp_path).state(AT_S + 600).r60_mm == 0.0
    assert analyses(tmp_path, (52354501,)).state(AT_S + 600).r60_mm is None
    both = analyses(tmp_path, (52354500, 52354501))
    assert both.hours(AT_S, AT_S, AT_S + 600) == {round(AT_S): (0.0, 0.0)}


def test_same_file_is_loaded_once(tmp_path: Path) -> None:
    """Under its name or another one."""
    path = drop(tmp_path, Product.RAIN, rain_of(5.0))
    load(tmp_path)
    path.with_name(path.name.replace("Prr", "copy_Prr")).write_bytes(path.read_bytes())
    again = load(tmp_path, 1200)

    assert [str(each).partition(": ")[2] for each in again] == ["nothing new"] * 2
    assert DeltaTables(tmp_path / "tables").analyses().num_rows == len(MESHES)


def test_files_that_stay_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later runs do not open them; one that was written anew is read again."""
    read: list[bytes] = []

    def count(data: bytes) -> str:
        read.append(data)
        return digest(data)

    monkeypatch.setattr("backend_spark.analysed_rain.digest", count)
    for minutes in (0, 10, 20):
        path = drop(tmp_path, Product.RAIN, rain_of(5.0, minutes))
    load(tmp_path, 1500)
    first = len(read)
    load(tmp_path, 1620)
    again = len(read) - first
    path.write_bytes(rain_of(6.0, 20).to_bytes())
    results = load(tmp_path, 1740)

    assert (first, again, len(read)) == (3, 0, 4)
    assert [each.added for each in results] == [0, 0, 3]  # type: ignore[attr-defined]


def test_files_are_read_again_after_an_older_table_was_restored(tmp_path: Path) -> None:
    """Its rows are gone, though the file was read."""
    tables, backup = tmp_path / "tables" / "analyses", tmp_path / "backup"
    drop(tmp_path, Product.RAIN, rain_of(5.0))
    load(tmp_path)
    shutil.copytree(tables, backup)
    drop(tmp_path, Product.RAIN, rain_of(6.0, 10))
    load(tmp_path, 1200)
    shutil.rmtree(tables)
    backup.rename(tables)
    results = load(tmp_path, 1800)

    assert [each.added for each in results] == [0, 3]  # type: ignore[attr-defined]


def test_memory_of_an_import_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """A table of weeks has 100 million rows."""
    load(tmp_path)
    day, rows = rain_of(1.0, -1440).at, 500_000
    same = {"at": day, "received_at": day, "issue": "0123456789abcdef", "product": "x"}
    old = {
        field.name: pa.repeat(pa.scalar(same.get(field.name), field.type), rows)
        for field in ANALYSES
    }
    append_rows(tmp_path / "tables" / "analyses", pa.table(old))
    drop(tmp_path, Product.RAIN, rain_of(5.0))
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    try:
        (done,) = load(tmp_path)
    finally:
        pa.set_memory_pool(before)

    assert str(done).endswith("3 meshes loaded, 3 with a value")
    assert counted.max_memory() < rows


def test_file_that_is_older_than_the_kept_rows_is_not_loaded(tmp_path: Path) -> None:
    """Also after its rows were deleted, and if it has been copied since."""
    path = drop(tmp_path, Product.RAIN, GOOD)
    load(tmp_path)
    later = replace(importer(tmp_path, 3 * 86_400), keep=KeepSection(analyses_days=2))
    list(later.import_folders({}))
    path.write_bytes(GOOD.to_bytes())
    (done,) = later.import_folders({Product.RAIN: path.parent})

    assert isinstance(done, ImportedAnalysis)
    assert (done.added, path.exists()) == (0, True)
    assert DeltaTables(tmp_path / "tables").analyses().num_rows == 0


def test_issue_that_replaces_another_counts_from_its_own_import(tmp_path: Path) -> None:
    """The quick version comes first; judgements before the better one stay."""
    path = drop(tmp_path, Product.RAIN, rain_of(5.0))
    load(tmp_path)
    path.unlink()
    drop(tmp_path, Product.RAIN, rain_of(9.0))
    load(tmp_path, 1500)
    cell = analyses(tmp_path)

    assert cell.state(AT_S + 600).r60_mm == 5.0
    assert cell.state(AT_S + 1500).r60_mm == 9.0
    assert DeltaTables(tmp_path / "tables").analyses().num_rows == 2 * len(MESHES)


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("later_min", [0, 10])
def test_of_two_issues_of_one_run_the_later_counts(
    tmp_path: Path, later_min: int, is_compacted: bool
) -> None:
    """By their reference times, else by the order of loading; in any order of files."""
    for name, mm, reference_min in (("a", 5.0, later_min), ("b", 9.0, 0)):
        path = tmp_path / Product.RAIN.value / f"{name}_Prr.bin"
        rain_of(mm).but(ahead_min=-reference_min).write(path)
    load(tmp_path)
    if is_compacted:
        compact(tmp_path / "tables" / "analyses")

    assert analyses(tmp_path).state(AT_S + 600).r60_mm == (5.0 if later_min else 9.0)


def test_rain_of_a_step(tmp_path: Path) -> None:
    """Of the clock hour that contains it, else of the first hour, else of the last."""
    for minutes in (0, 20, 60):
        drop(tmp_path, Product.RAIN, rain_of(6.0 + minutes, minutes))
    list(importer(tmp_path, 9000, as_issued=True).import_folders(folders(tmp_path)))
    cell, end_s = analyses(tmp_path), round(AT_S) + 600

    late_s = AT_S + 7200
    assert cell.step_rain(end_s, late_s) == AnalysedRain(11.0, end_s + 3000, 0)
    in_between = cell.step_rain(end_s, AT_S + 1200)
    assert in_between == AnalysedRain(26 / 6, end_s + 600, 0)
    before = cell.step_rain(end_s, AT_S + 600)
    assert before == AnalysedRain(1.0, end_s - 600, 600)
    assert cell.step_rain(end_s, AT_S - 1) is None
    assert cell.step_rain(end_s + 9 * 3600, late_s) is None


def edited(file: JmaFile, at: int, value: int) -> bytes:
    """A file with one octet changed, counted from its end if negative."""
    data = bytearray(file.to_bytes())
    data[at] = value
    return bytes(data)


GOOD = rain_of(5.0)
INDEX = index_of(50.0)
FAR = GOOD.but(north=43.5, west=141.0)
REFUSED = {
    "text": (Product.RAIN, b"no such thing", "file must be GRIB2"),
    "empty": (Product.RAIN, b"", "file must be GRIB2"),
    "truncated": (Product.RAIN, GOOD.to_bytes()[:-40], "file must be complete"),
    "damaged": (Product.RAIN, edited(GOOD, -5, 77), "section 7 must be runs of"),
    "area": (Product.RAIN, FAR.to_bytes(), "area must be around one of the 3 meshes"),
    "5 km": (
        Product.RAIN,
        GOOD.but(steps=(1 / 24, 1 / 16)).to_bytes(),
        "grid must be third meshes",
    ),
    "index": (Product.RAIN, INDEX.to_bytes(), "number of fields must be one|parameter"),
    "rain": (Product.SOIL_WATER, GOOD.to_bytes(), "parameter must be 0, 1 and 200"),
    "future": (
        Product.RAIN,
        rain_of(5.0, 30).to_bytes(),
        "time must be in the past, got .2026-07-01T01:30:00",
    ),
    "forecast": (
        Product.SOIL_WATER,
        INDEX.but(ahead_min=60).to_bytes(),
        "time must be at its reference time",
    ),
    "10 min": (Product.RAIN, GOOD.but(minutes=10).to_bytes(), "of 60 minutes, got '10"),
    "test": (
        Product.RAIN,
        GOOD.but(status=1).to_bytes(),
        "production status must be 0",
    ),
    "odd time": (Product.RAIN, rain_of(5.0, -3).to_bytes(), "a full ten minutes"),
    "centre": (Product.RAIN, GOOD.but(centre=98).to_bytes(), "centre must be 34"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_file_is_put_aside_and_stops_nothing(tmp_path: Path, case: str) -> None:
    """Reported with field, rule and value; the file beside it is loaded."""
    product, data, problem = REFUSED[case]
    bad = drop(tmp_path, product, GOOD.but(at=AT - timedelta(minutes=10)))
    bad.write_bytes(data)
    set_age(bad, 3600)
    good = {Product.RAIN: GOOD, Product.SOIL_WATER: INDEX}[product]
    drop(tmp_path, product, good)
    error, done = load(tmp_path)

    assert isinstance(error, AnalysisFileError)
    with pytest.raises(AnalysisFileError, match=problem):
        raise error
    assert isinstance(done, ImportedAnalysis)
    assert not bad.exists()
    aside = bad.parent / "refused" / bad.name
    assert aside.read_bytes() == data
    assert str(error) in aside.with_name(f"{aside.name}.why.txt").read_text("utf-8")
    assert len(load(tmp_path, 1200)) == 1


def test_read_only_folder_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid file that cannot be moved is reported; the others are loaded."""

    def refuse(folder: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), folder)

    monkeypatch.setattr("backend_spark.analysed_rain.make_folder", refuse)
    bad = drop(tmp_path, Product.RAIN, GOOD.but(at=AT - timedelta(minutes=10)))
    bad.write_bytes(b"no such thing")
    set_age(bad, 3600)
    drop(tmp_path, Product.RAIN, GOOD)
    error, done = load(tmp_path)

    assert isinstance(done, ImportedAnalysis)
    assert "file must be GRIB2" in str(error)
    assert f"cannot be moved to {bad.parent}/refused: Read-only file" in str(error)


def test_impossible_depth_is_refused(tmp_path: Path) -> None:
    """50 mm with a damaged scale are 500 mm in an hour."""
    drop(tmp_path, Product.RAIN, rain_of(50.0).but(scale=0))
    (error,) = load(tmp_path)

    assert "values must be from 0 to 300 mm, got 500.0" in str(error)


def test_file_that_is_being_copied_stays(tmp_path: Path) -> None:
    """It is reported now and loaded when it is complete."""
    path = drop(tmp_path, Product.RAIN, GOOD)
    path.write_bytes(GOOD.to_bytes()[:-40])
    set_age(path, 5)
    (error,) = load(tmp_path)
    GOOD.write(path)
    (done,) = load(tmp_path)

    assert "file must be complete" in str(error)
    assert isinstance(done, ImportedAnalysis)


@pytest.mark.parametrize("other", ["Pfpi_Aper10min", "Jdosha", "Psw_Fper10min_FH01-06"])
def test_other_product_is_refused_by_its_name(tmp_path: Path, other: str) -> None:
    """Indices on the same grid, whose parameters no published table names."""
    path = drop(tmp_path, Product.SOIL_WATER, INDEX)
    path.rename(path.with_name(path.name.replace("Psw_Aper10min", other)))
    (error,) = load(tmp_path)

    assert "file name must be that of" in str(error)


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    """And the other folder is read."""
    drop(tmp_path, Product.SOIL_WATER, INDEX)
    both = {**folders(tmp_path), Product.RAIN: tmp_path / "none"}
    done, error = importer(tmp_path).import_folders(both)

    assert isinstance(done, ImportedAnalysis)
    assert "must be a folder: No such file or directory" in str(error)


def test_only_one_process_imports(tmp_path: Path) -> None:
    """Two would both find a file missing."""
    (tmp_path / "tables").mkdir()
    acquire_lock(tmp_path / "tables" / ".lock-analyses")

    with pytest.raises(AlreadyRunningError, match="lock-analyses"):
        load(tmp_path)


def test_old_rows_are_deleted(tmp_path: Path) -> None:
    """At the next import, by the time when they were known."""
    drop(tmp_path, Product.RAIN, GOOD)
    load(tmp_path)
    keep = KeepSection(analyses_days=2)
    later = AnalysisImporter(tmp_path / "tables", keep, MESHES, AT_S + 3 * 86_400)
    list(later.import_folders({}))

    assert DeltaTables(tmp_path / "tables").analyses().num_rows == 0


def test_meshes_of_criteria_and_nodes(tmp_path: Path) -> None:
    """Those that the table names, and those of each cell with a node."""
    row, cell = CriteriaRow(100.0, 150.0), "355a9c44"
    table = CriteriaTable(Criteria.assumed_from(150.0), by_mesh={"52354500": row})
    meshes = meshes_of_interest(table, [cell]).tolist()

    assert {cell_at_mesh(mesh) for mesh in cell_meshes(cell)} <= {cell}
    assert meshes == sorted({52354500, *map(int, cell_meshes(cell))})
    assert cell_meshes("0000001") == ()
    provider = CellRuleProvider(table, analyses=AnalysisReader(tmp_path / "tables"))
    assert provider.rules_of([cell])[cell].analyses is None


def test_command_loads_the_configured_folders(
    make_data: Callable[..., Any], tmp_path: Path
) -> None:
    """Valid files are loaded; an invalid one gives an error and exit code 65."""
    there = folders(tmp_path)
    drop(tmp_path, Product.RAIN, GOOD)
    criteria = tmp_path / "criteria.csv"
    criteria.write_text("mesh,LEVEL1,LEVEL2\n52354500,100,150\n", encoding="utf-8")
    text = f'[criteria]\nfile = "{criteria}"\n[analysis]\n'
    text += f'rain_folder = "{there[Product.RAIN]}"\n'
    text += f'soil_water_folder = "{there[Product.SOIL_WATER]}"'
    data = make_data(text)
    command = [sys.executable, "-m", "backend_spark", "analysis", "load", "--config"]
    done = subprocess.run(
        [*command, str(data.config), "--as-issued"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "1 meshes loaded, 1 with a value" in done.stdout

    (there[Product.RAIN] / "b_Prr.bin").write_bytes(GOOD.to_bytes()[:-9])
    done = subprocess.run(
        [*command, str(data.config)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 65
    assert "file must be complete" in done.stderr
    assert "nothing new" in done.stdout
