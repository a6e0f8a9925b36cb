"""Reading of forecast files, and rejection of invalid ones."""

import json
import re
from pathlib import Path

import pytest

from backend_spark.errors import ForecastFileError
from backend_spark.forecast import ForecastRow, read_forecast
from slope_science.quality import Flag

NOW_S = 1_782_864_000.0  # 2026-07-01T00:00 UTC
HEAD = "source,issued_at,from,to,mm,cell,flag\n"
GOOD = {
    "source": "JMA",
    "issued_at": "2026-07-01T09:00+09:00",
    "from": "2026-07-01T09:00+09:00",
    "to": "2026-07-01T10:00+09:00",
    "mm": "12.5",
    "cell": "355a9c44",
    "flag": "",
}


def write(folder: Path, *rows: dict[str, str]) -> Path:
    """Write rows to a CSV file."""
    path = folder / "forecast.csv"
    lines = [",".join(row) for row in (rows[0], *(row.values() for row in rows))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_csv_row_is_read_with_its_time_zone(tmp_path: Path) -> None:
    """09:00 in Japan is midnight in UTC."""
    (row,) = read_forecast(write(tmp_path, GOOD), NOW_S)

    assert row == ForecastRow(
        "cell", "355a9c44", "JMA", NOW_S, NOW_S, NOW_S + 3600, 12.5, Flag.GOOD, None
    )


def test_json_gives_the_same_rows(tmp_path: Path) -> None:
    """Values may be JSON numbers, and null is missing."""
    path = tmp_path / "forecast.json"
    path.write_text(json.dumps([GOOD | {"mm": 12.5}, LATER | {"mm": None}]))
    first, second = read_forecast(path, NOW_S)

    assert first == read_forecast(write(tmp_path, GOOD), NOW_S)[0]
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
    (row,) = read_forecast(write(tmp_path, GOOD | change), NOW_S)

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
    path = write(tmp_path, GOOD | change)

    with pytest.raises(ForecastFileError, match=re.escape(problem)) as raised:
        read_forecast(path, NOW_S)
    assert len(raised.value.problems) == 1


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    """Two intervals over the same hour are an error too."""
    path = write(tmp_path, GOOD, GOOD | {"mm": "3"}, LATER | {"mm": "x"})

    with pytest.raises(ForecastFileError, match="two cover 2026-07-01T00:00") as raised:
        read_forecast(path, NOW_S)
    assert [each[:6] for each in raised.value.problems] == ["line 4", "cell 3"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.csv", "", "must hold a row"),
        ("a.csv", HEAD, "must hold a row"),
        ("a.csv", "issued_at\nnow\n", "line 2: source must be a column of the table"),
        ("a.csv", HEAD + '"x', "must be CSV"),
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
