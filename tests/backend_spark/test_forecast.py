"""Forecasts: reading of their files, import to the table, and what a cell uses."""

import json
import os
import pickle
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from backend_spark.config import KeepSection
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import CriteriaRow, CriteriaTable
from backend_spark.errors import ForecastFileError
from backend_spark.forecast import (
    ForecastImporter,
    ForecastReader,
    ForecastRow,
    ImportedFile,
    find_places,
    read_forecast,
)
from backend_spark.tables.delta_writer import append_rows, create_tables
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import FORECASTS
from backend_spark.tables.store import Folder
from service_runtime.errors import AlreadyRunningError
from service_runtime.files import acquire_lock
from slope_science.levels import Criteria
from slope_science.official_rain import NO_FORECAST, ForecastRain
from slope_science.quality import Flag

NOW_S = 1_782_864_000.0  # 2026-07-01T00:00 UTC
FILE_HEAD = "source,issued_at,from,to,mm,cell,flag\n"
GOOD = {
    "source": "JMA",
    "issued_at": "2026-07-01T09:00+09:00",
    "from": "2026-07-01T09:00+09:00",
    "to": "2026-07-01T10:00+09:00",
    "mm": "12.5",
    "cell": "355a9c44",
    "flag": "",
}


def write_rows(folder: Path, *rows: dict[str, str]) -> Path:
    """Write rows to a CSV file."""
    path = folder / "forecast.csv"
    lines = [",".join(row) for row in (rows[0], *(row.values() for row in rows))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_csv_row_is_read_with_its_time_zone(tmp_path: Path) -> None:
    """09:00 in Japan is midnight in UTC."""
    (row,) = read_forecast(write_rows(tmp_path, GOOD), NOW_S)

    assert row == ForecastRow(
        "cell", "355a9c44", "JMA", NOW_S, NOW_S, NOW_S + 3600, 12.5, Flag.GOOD, None
    )


def test_json_gives_the_same_rows(tmp_path: Path) -> None:
    """Values may be JSON numbers, and null is missing."""
    path = tmp_path / "forecast.json"
    path.write_text(json.dumps([GOOD | {"mm": 12.5}, LATER | {"mm": None}]))
    first, second = read_forecast(path, NOW_S)

    assert first == read_forecast(write_rows(tmp_path, GOOD), NOW_S)[0]
    assert (second.mm, second.flag, second.why) == (
        None,
        Flag.MISSING,
        "missing: no number",
    )


LATER = GOOD | {"from": "2026-07-01T10:00+09:00", "to": "2026-07-01T11:00+09:00"}


@pytest.mark.parametrize(
    ("change", "flag", "why"),
    [
        ({"flag": "1"}, Flag.GOOD, None),
        ({"mm": ""}, Flag.MISSING, "missing: no number"),
        ({"flag": "3"}, Flag.SUSPECT, "source: flag 3"),
        ({"flag": "4"}, Flag.FAIL, "source: flag 4"),
        ({"mm": "250"}, Flag.SUSPECT, "range: 250 mm within 60 min > 200 mm"),
        ({"mm": "2500"}, Flag.FAIL, "range: 2500 is not within 0 to 990"),
    ],
)
def test_flag_is_the_worse_of_source_and_range_check(
    tmp_path: Path, change: dict[str, str], flag: Flag, why: str | None
) -> None:
    """High but possible rain is only suspect."""
    (row,) = read_forecast(write_rows(tmp_path, GOOD | change), NOW_S)

    assert (row.flag, row.why) == (flag, why)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"source": ""}, "line 2: source must be the name of the issuer"),
        ({"issued_at": "2026-07-01T09:00"}, "line 2: issued_at must be ISO 8601 with"),
        ({"issued_at": "2026-07-01T11:00+09:00"}, "line 2: issued_at must be in the"),
        ({"to": "2026-07-01T08:00+09:00"}, "line 2: to must be later than from"),
        ({"to": "2026-07-03T08:00+09:00"}, "line 2: to must be later than from"),
        ({"mm": "-1"}, "line 2: mm must be mm of rain, zero or more, got '-1'; leave"),
        ({"mm": "nan"}, "line 2: mm must be mm of rain"),
        ({"flag": "7"}, "line 2: flag must be one of 1, 2, 3, 4, 9, or empty, got '7'"),
        ({"cell": ""}, "line 2: cell, mesh or municipality must be given"),
        ({"cell": "355a9c4404"}, "line 2: cell must be the token of an S2 cell of lev"),
        ({"cell": "zz"}, "line 2: token must be the token of an S2 cell"),
        ({"mesh": "50330471"}, "line 2: cell, mesh or municipality must be given, one"),
        ({"cell": "", "mesh": "503"}, "line 2: mesh must be 8 digits"),
    ],
)
def test_error_names_line_field_rule_and_value(
    tmp_path: Path, change: dict[str, str], problem: str
) -> None:
    """So that the feed can be corrected."""
    path = write_rows(tmp_path, GOOD | change)

    with pytest.raises(ForecastFileError, match=re.escape(problem)) as raised:
        read_forecast(path, NOW_S)
    assert len(raised.value.problems) == 1


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    """Two intervals over the same hour are an error too."""
    path = write_rows(tmp_path, GOOD, GOOD | {"mm": "3"}, LATER | {"mm": "x"})

    with pytest.raises(ForecastFileError, match="two cover 2026-07-01T00:00") as raised:
        read_forecast(path, NOW_S)
    assert [each[:6] for each in raised.value.problems] == ["line 4", "cell 3"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.csv", "", "must hold a row"),
        ("a.csv", FILE_HEAD, "must hold a row"),
        ("a.csv", "issued_at\nnow\n", "line 2: source must be a column of the table"),
        ("a.csv", FILE_HEAD + '"x', "must be CSV"),
        ("a.json", "{}", "must be JSON: a list of objects"),
        ("a.json", "[", "must be JSON: "),
    ],
)
def test_file_without_a_forecast_is_rejected(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    """Empty, without the columns, truncated, or of another structure."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ForecastFileError, match=problem):
        read_forecast(path, NOW_S)


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    """Missing, or in another encoding."""
    (tmp_path / "sjis.csv").write_bytes("気象庁".encode("cp932"))

    with pytest.raises(ForecastFileError, match="cannot be read: No such file"):
        read_forecast(tmp_path / "none.csv", NOW_S)
    with pytest.raises(ForecastFileError, match="must be UTF-8"):
        read_forecast(tmp_path / "sjis.csv", NOW_S)


CELL = "355a9c44"
ISSUED = datetime(2026, 7, 1, tzinfo=UTC)
ISSUED_S = ISSUED.timestamp()
HEAD = "source,issued_at,from,to,mm"
TABLE = CriteriaTable(Criteria.assumed_from(150.0))


def write(path: Path, mm: float, place: str = f"cell,{CELL}", hour: int = 0) -> Path:
    """Write a forecast of four hours, issued on a full hour."""
    kind, _, name = place.partition(",")
    issued = ISSUED.replace(hour=hour).isoformat()
    hours = [ISSUED.replace(hour=hour + n).isoformat() for n in range(5)]
    rows = [f"JMA,{issued},{hours[n]},{hours[n + 1]},{mm},{name}" for n in range(4)]
    path.write_text("\n".join([f"{HEAD},{kind}", *rows]), encoding="utf-8")
    return path


def importer(
    folder: Path, later_s: float = 300.0, *, as_issued: bool = False
) -> ForecastImporter:
    """An importer that runs `later_s` seconds after the first issue."""
    return ForecastImporter(
        folder / "tables", KeepSection(), ISSUED_S + later_s, as_issued
    )


def forecast_of(folder: Path, later_s: float, cell: str = CELL) -> ForecastRain:
    """Forecast of a cell `later_s` seconds after the first issue, in a new process."""
    provider = CellRuleProvider(TABLE, feed=ForecastReader(folder / "tables"))
    rules = pickle.loads(pickle.dumps(provider.rules_of([cell])))  # noqa: S301 - as Spark does
    return rules[cell].forecast_rain(ISSUED_S + later_s)  # type: ignore[no-any-return]


def test_cell_uses_forecasts_imported_by_then(tmp_path: Path) -> None:
    """From the import until the forecast is stale; before the first there is none."""
    assert forecast_of(tmp_path, 600) == NO_FORECAST

    (done,) = importer(tmp_path).import_files([write(tmp_path / "a.csv", 12.0)])

    assert isinstance(done, ImportedFile)
    assert str(done).endswith("a.csv: 4 rows loaded, 0 were there")
    assert forecast_of(tmp_path, 0) == NO_FORECAST
    assert forecast_of(tmp_path, 600).depths_mm == pytest.approx((2.0,) * 12)
    assert (
        forecast_of(tmp_path, 3 * 3600).why == "stale: issued 3.0 h before, 2 h at most"
    )
    assert forecast_of(tmp_path, 3 * 86_400) == NO_FORECAST


def test_past_forecast_imported_as_issued_counts_from_its_issue(tmp_path: Path) -> None:
    """A past event is scored with the forecasts known at that time."""
    path = write(tmp_path / "a.csv", 12.0)
    list(importer(tmp_path, 9e6, as_issued=True).import_files([path]))

    assert forecast_of(tmp_path, 0).depths_mm == pytest.approx((2.0,) * 12)


def test_imported_issue_is_not_replaced(tmp_path: Path) -> None:
    """The same files may be imported again; the rows used for scoring are kept."""
    folder = tmp_path / "feed"
    folder.mkdir()
    write(folder / "a.csv", 12.0)
    list(importer(tmp_path).import_files([folder]))
    write(folder / "a.csv", 99.0)
    write(folder / "b.csv", 6.0, hour=1)
    again = [str(each) for each in importer(tmp_path, 4000).import_files([folder])]

    assert [each.partition(": ")[2] for each in again] == [
        "4 rows loaded, 0 were there",
        "0 rows loaded, 4 were there",
    ]
    assert forecast_of(tmp_path, 3600).depths_mm == pytest.approx((2.0,) * 12)
    assert forecast_of(tmp_path, 4200).depths_mm == pytest.approx((1.0,) * 12)
    assert DeltaTables(tmp_path / "tables").forecasts().num_rows == 8


def test_files_that_stay_are_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest comes first; later runs parse only what is new or has changed."""
    parsed: list[str] = []

    def count(path: Path, now_s: float) -> list[ForecastRow]:
        parsed.append(path.name)
        return read_forecast(path, now_s)

    monkeypatch.setattr("backend_spark.forecast.read_forecast", count)
    folder = tmp_path / "feed"
    folder.mkdir()
    for hour, name in enumerate(("c", "a", "b")):
        path = write(folder / f"{name}.csv", 12.0, hour=hour)
        os.utime(path, (hour, hour))
    list(importer(tmp_path, 9000).import_files([folder]))
    list(importer(tmp_path, 9300).import_files([folder]))
    os.utime(write(folder / "d.csv", 6.0, hour=2), (8, 8))
    os.utime(write(folder / "a.csv", 6.0, "mesh,51325379", hour=2), (9, 9))
    list(importer(tmp_path, 9600).import_files([folder]))

    assert parsed == ["b.csv", "a.csv", "c.csv", "a.csv", "d.csv"]


def test_past_files_are_loaded_by_name(tmp_path: Path) -> None:
    """Of two files with one issue the first counts, whenever they were copied."""
    for name, mm, written_s in (("a", 12.0, 0), ("b", 6.0, 1)):
        path = write(tmp_path / f"{name}.csv", mm)
        os.utime(path, (written_s, written_s))
    list(importer(tmp_path, 9e6, as_issued=True).import_files([tmp_path]))

    assert forecast_of(tmp_path, 0).depths_mm == pytest.approx((2.0,) * 12)


def test_table_is_created_once_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It recovers and syncs the table each time."""
    calls: list[object] = []

    def count(folder: Folder, names: Iterable[str]) -> None:
        calls.append(names)
        create_tables(folder, names)

    monkeypatch.setattr("backend_spark.tables.read_files.create_tables", count)
    paths = [write(tmp_path / f"{n}.csv", 12.0, hour=n) for n in range(3)]
    list(importer(tmp_path, 9000).import_files(paths))

    assert len(calls) == 1


def test_memory_of_an_old_file_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """Only the names of the file's own issues are compared."""
    rows = 30_000
    list(importer(tmp_path).import_files([]))
    later = ISSUED + timedelta(hours=1)
    same = {"kind": "mesh", "source": "JMA", "issued_at": later, "received_at": later}
    newer = {
        field.name: pa.repeat(pa.scalar(same.get(field.name), field.type), rows)
        for field in FORECASTS
    }
    newer["place"] = pa.array(map(str, range(rows)))
    append_rows(tmp_path / "tables" / "forecasts", pa.table(newer))
    path = write(tmp_path / "a.csv", 12.0)
    tracemalloc.start()
    try:
        (done,) = importer(tmp_path, 4000).import_files([path])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert str(done).endswith("4 rows loaded, 0 were there")
    assert peak_bytes < 50 * rows


def test_invalid_file_does_not_block_others(tmp_path: Path) -> None:
    """It is reported, and none of its rows is imported."""
    folder = tmp_path / "feed"
    folder.mkdir()
    write(folder / "a.csv", -1.0)
    write(folder / "b.csv", 6.0)
    (folder / "notes.txt").write_text("no forecast")
    good, bad = importer(tmp_path).import_files([folder])

    assert isinstance(bad, ForecastFileError)
    assert isinstance(good, ImportedFile)
    assert forecast_of(tmp_path, 600).depths_mm == pytest.approx((1.0,) * 12)


@pytest.mark.parametrize(
    ("place", "is_used"),
    [
        (f"cell,{CELL}", True),
        ("cell,355a9c", True),  # a parent cell
        ("cell,355a94", False),
        ("mesh,51325379", True),
        ("mesh,51325378", False),
        ("municipality,3410000", True),
        ("municipality,3420200", False),
    ],
)
def test_forecast_applies_to_the_cells_of_its_area(
    tmp_path: Path, place: str, is_used: bool
) -> None:
    """By cell, a parent cell, the mesh at its centre, or its municipality."""
    list(importer(tmp_path).import_files([write(tmp_path / "a.csv", 12.0, place)]))
    row = CriteriaRow(100.0, 150.0, municipality="3410000")
    provider = CellRuleProvider(
        CriteriaTable(TABLE.default, {CELL: row}),
        feed=ForecastReader(tmp_path / "tables"),
    )
    coming = provider.rules_of([CELL])[CELL].forecast_rain(ISSUED_S + 600)

    assert (coming.depths_mm is not None) == is_used


def test_smallest_area_comes_first() -> None:
    """Of forecasts issued together the finest is used; outside Japan too."""
    kinds = [kind for kind, _ in find_places(CELL, "3410000")]

    assert kinds == ["cell", "mesh", *["cell"] * 13, "municipality"]
    assert {kind for kind, _ in find_places("0000001", None)} == {"cell"}


def test_only_one_process_imports(tmp_path: Path) -> None:
    """Two processes would both find an issue missing."""
    (tmp_path / "tables").mkdir()
    acquire_lock(tmp_path / "tables" / ".lock-forecasts")

    with pytest.raises(AlreadyRunningError, match="lock-forecasts"):
        list(importer(tmp_path).import_files([]))


def test_old_rows_are_deleted(tmp_path: Path) -> None:
    """At the next import, by the time when they were known."""
    list(importer(tmp_path).import_files([write(tmp_path / "a.csv", 12.0)]))
    keep = KeepSection(forecasts_days=2)
    later = ForecastImporter(tmp_path / "tables", keep, ISSUED_S + 3 * 86_400)
    list(later.import_files([]))

    assert DeltaTables(tmp_path / "tables").forecasts().num_rows == 0
    assert forecast_of(tmp_path, 600) == NO_FORECAST


def test_command_imports_the_configured_folder(
    make_data: Callable[..., "object"], tmp_path: Path
) -> None:
    """Valid files are imported; an invalid one gives an error and exit code 65."""
    feed = tmp_path / "feed"
    feed.mkdir()
    write(feed / "a.csv", 12.0)
    data = make_data(f'[forecast]\nfolder = "{feed}"')
    command = [sys.executable, "-m", "backend_spark", "forecast", "load", "--config"]
    done = subprocess.run(
        [*command, str(data.config), "--as-issued"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "4 rows loaded" in done.stdout

    write(feed / "b.csv", -1.0)
    done = subprocess.run(
        [*command, str(data.config)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 65
    assert "line 2: mm must be mm of rain" in done.stderr
    assert "a.csv: nothing new" in done.stdout
