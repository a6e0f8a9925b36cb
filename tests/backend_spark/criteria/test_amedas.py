"""Reading of JMA's download of hourly rain (AMeDAS)."""

from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from backend_spark.cli import cli
from backend_spark.errors import RainTableError
from backend_spark.rain_table import AmedasHour, read_amedas, split_hours
from slope_science import JST
from slope_science.quality import Flag
from slope_science.rain_and_soil_water import soil_water_series

HEAD = """ダウンロードした時刻：2026/06/02 12:31:33

,高知,高知,高知,高知,高知,高知,安芸,安芸,安芸
年月日時,気温(℃),気温(℃),気温(℃),降水量(mm),降水量(mm),降水量(mm),降水量(mm),降水量(mm),降水量(mm)
,,品質情報,均質番号,,品質情報,均質番号,,品質情報,均質番号
"""
NOTHING_SEEN = """ダウンロードした時刻：2026/06/02 12:31:33

,高知,高知,高知,高知
年月日時,降水量(mm),降水量(mm),降水量(mm),降水量(mm)
,,,,
,,現象なし情報,品質情報,均質番号
2026/6/1 1:00:00,0,1,8,1
2026/6/1 2:00:00,2.5,0,5,1
"""


def write(path: Path, text: str) -> str:
    """Write a file in JMA's encoding (cp932) with CRLF line ends."""
    path.write_bytes(text.replace("\n", "\r\n").encode("cp932"))
    return str(path)


def rows(*lines: str) -> str:
    """A table of Kochi and Aki from lines with time, rain and quality of Kochi."""
    return HEAD + "".join(f"{row.format(k='20.1,8,1', a='0.0,8,1')}\n" for row in lines)


def test_station_is_read_with_its_quality(tmp_path: Path) -> None:
    """Quality becomes a flag; missing rain is None, not zero."""
    lines = [
        "2026/6/1 22:00:00,{k},3.5,8,1,{a}",
        "2026/6/1 23:00:00,{k},1.0,4,1,{a}",
        "2026/6/1 24:00:00,{k},,1,1,{a}",
        "2026/6/2 1:00:00,{k},12.0,2,1,{a}",
    ]
    path = write(tmp_path / "data.csv", rows(*lines))
    midnight = datetime(2026, 6, 2, tzinfo=JST)
    hours = read_amedas(path, "高知")

    assert [hour.rain_mm for hour in hours] == [3.5, 1.0, None, 12.0]
    assert [int(hour.flag) for hour in hours] == [1, 3, 9, 3]
    assert hours[2].end == midnight
    assert [h.rain_mm for h in read_amedas(path, "安芸")] == [0.0] * 4


def test_column_of_no_phenomenon_is_not_read_as_quality(tmp_path: Path) -> None:
    """Columns are found by the header, so an extra column does not shift them."""
    hours = read_amedas(write(tmp_path / "data.csv", NOTHING_SEEN), "高知")

    assert [(h.rain_mm, h.flag) for h in hours] == [(0.0, Flag.GOOD), (2.5, Flag.GOOD)]


def test_hour_counts_as_six_equal_steps() -> None:
    """Criteria apply to ten-minute steps; a missing hour stays missing."""
    end = datetime(2026, 6, 1, tzinfo=JST)
    hours = [AmedasHour(end, 6.0, Flag.GOOD), AmedasHour(end, None, Flag.MISSING)]

    assert list(split_hours(hours)) == [1.0] * 6 + [None] * 6


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("2026/6/1 23:00:00,{k},x,8,1,{a}", r"line 7: 降水量\(mm\) must be a number"),
        (
            "2026/6/1 23:00:00,{k},1.0,7,1,{a}",
            "line 7: 品質情報 must be one of 8, 5, 4",
        ),
        ("2026/6/1 24:00:00,{k},1.0,8,1,{a}", "line 7: time must be an hour after"),
        ("2026/6/31 23:00:00,{k},1.0,8,1,{a}", "line 7: time must be a day of the"),
        ("2026/6/1 25:00:00,{k},1.0,8,1,{a}", "line 7: time must be between 0:00 and"),
        ('"2026/6/1 23:00:00,{k},1.0,8,1,{a}', "line 7: must be CSV: unexpected end"),
        (
            "合計,{k},1.0,8,1,{a}",
            "line 7: time must be like 2024/4/1 1:00:00, got '合計'",
        ),
    ],
)
def test_error_names_line_field_rule_and_value(
    row: str, problem: str, tmp_path: Path
) -> None:
    """For every kind of malformed row."""
    text = rows("2026/6/1 22:00:00,{k},3.5,8,1,{a}", row)
    with pytest.raises(RainTableError, match=problem):
        read_amedas(write(tmp_path / "data.csv", text), "高知")


def test_file_of_another_format_is_rejected_with_a_remedy(tmp_path: Path) -> None:
    """Unknown station, other columns, or an encoding changed by a spreadsheet."""
    path = write(tmp_path / "data.csv", NOTHING_SEEN)
    with pytest.raises(RainTableError, match=r"no rain of '東京'; present: \['高知'\]"):
        read_amedas(path, "東京")
    with pytest.raises(RainTableError, match="download hourly rain from JMA"):
        read_amedas(write(tmp_path / "other.csv", "a,b\n1,2\n"), "高知")
    (tmp_path / "utf8.csv").write_text(NOTHING_SEEN, encoding="utf-8")
    with pytest.raises(RainTableError, match="do not save it anew"):
        read_amedas(str(tmp_path / "utf8.csv"), "高知")


def test_index_of_a_station(tmp_path: Path) -> None:
    """It equals `soil_water_series`; a missing hour needs `--missing skip-rain`."""
    path = write(tmp_path / "data.csv", NOTHING_SEEN)
    output = CliRunner().invoke(cli, ["index", path, "--amedas", "高知"]).output
    expected = list(soil_water_series([0.0] * 6 + [2.5 / 6] * 6))[-1].index_mm
    gap = tmp_path / "gap.csv"
    write(gap, NOTHING_SEEN + "2026/6/1 3:00:00,,,1,1\n")
    refused = CliRunner().invoke(cli, ["index", str(gap), "--amedas", "高知"])
    passed = CliRunner().invoke(
        cli, ["index", str(gap), "--amedas", "高知", "--missing", "skip-rain"]
    )

    assert len(output.splitlines()) == 13
    assert float(output.splitlines()[-1].split(",")[-1]) == pytest.approx(expected)
    assert "2026-06-01 03:00 is missing, never zero" in str(refused.exception)
    assert len(passed.output.splitlines()) == 19
