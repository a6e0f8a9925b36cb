"""The index command against the worked example."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from backend_spark.cli import cli
from backend_spark.errors import RainTableError
from backend_spark.rain_table import (
    RainText,
    parse_step_h,
    read_rain_text,
    soil_water_lines,
)

HOURLY_MM = (0, 5, 10, 20, 30, 50, 60, 40, 20, 10, 5, 0, 0, 0, 0, 0, 0, 0)

# hour: S1, S2, S3, SWI, all mm
ONE_HOUR_STEPS = {
    2: (5.000, 0.000, 0.000, 5.000),
    3: (14.400, 0.600, 0.000, 15.000),
    4: (32.672, 2.298, 0.030, 35.000),
    5: (56.984, 6.104, 0.145, 63.233),
    6: (95.948, 12.637, 0.448, 109.033),
    7: (130.947, 23.519, 1.076, 155.541),
    8: (132.997, 37.630, 2.241, 172.868),
    9: (114.288, 50.577, 4.100, 168.965),
    10: (92.501, 59.984, 6.588, 159.073),
    12: (56.979, 68.855, 12.718, 138.552),
    18: (18.114, 59.302, 31.181, 108.597),
}
TEN_MINUTE_STEPS = {
    2: (4.757, 0.241, 0.003, 5.000),
    3: (13.727, 1.242, 0.031, 15.000),
    4: (30.576, 3.663, 0.135, 34.374),
    5: (53.186, 8.243, 0.401, 61.831),
    6: (88.081, 15.934, 0.952, 104.967),
    7: (120.605, 26.971, 1.953, 149.530),
    8: (125.647, 39.251, 3.534, 168.432),
    9: (111.929, 49.948, 5.687, 167.564),
    10: (93.986, 57.819, 8.293, 160.099),
    12: (61.873, 65.722, 14.296, 141.891),
    18: (21.152, 58.708, 31.723, 111.583),
}


def table(*cells: object, column: str = "rain_mm") -> RainText:
    """A table of one column."""
    return RainText("rain.csv", "\n".join(map(str, (column, *cells))) + "\n")


def rows(lines: object) -> list[dict[str, str]]:
    """Rows of the printed table."""
    return list(csv.DictReader(io.StringIO("\n".join(lines))))  # type: ignore[call-overload]


@pytest.mark.parametrize(("hour", "tanks"), ONE_HOUR_STEPS.items())
def test_index_in_hour_steps_gives_the_worked_example(
    hour: int, tanks: tuple[float, ...]
) -> None:
    """Every printed row of the example in 1-hour steps agrees to 0.001 mm."""
    printed = rows(soil_water_lines(table(*HOURLY_MM), column="rain_mm", step_h=1.0))
    row = printed[hour - 1]
    shown = [float(row[name]) for name in ("s1_mm", "s2_mm", "s3_mm", "swi_mm")]

    assert shown == pytest.approx(tanks, abs=1e-3)


@pytest.mark.parametrize(("hour", "tanks"), TEN_MINUTE_STEPS.items())
def test_index_in_ten_minute_steps_gives_the_worked_example(
    hour: int, tanks: tuple[float, ...]
) -> None:
    """Every printed row in 10-minute steps agrees to 0.001 mm."""
    sixths = [depth / 6 for depth in HOURLY_MM for _ in range(6)]
    printed = rows(soil_water_lines(table(*sixths), column="rain_mm", step_h=1 / 6))
    row = printed[6 * hour - 1]
    shown = [float(row[name]) for name in ("s1_mm", "s2_mm", "s3_mm", "swi_mm")]

    assert shown == pytest.approx(tanks, abs=1e-3)
    assert float(row["r60_mm"]) == pytest.approx(HOURLY_MM[hour - 1], abs=1e-5)


def test_last_hour_in_hour_steps_is_the_rain_of_the_row() -> None:
    """In 1-hour steps `r60_mm` equals `rain_mm`."""
    printed = rows(soil_water_lines(table(*HOURLY_MM), column="rain_mm", step_h=1.0))

    assert [row["r60_mm"] for row in printed] == [row["rain_mm"] for row in printed]
    assert [int(row["step"]) for row in printed] == list(range(1, 19))


@pytest.mark.parametrize(
    ("step", "hours"), [("10min", 1 / 6), ("30min", 0.5), ("60min", 1.0), ("1h", 1.0)]
)
def test_step_is_parsed_to_hours(step: str, hours: float) -> None:
    """Units are minutes and hours."""
    assert parse_step_h(step) == pytest.approx(hours)


@pytest.mark.parametrize("step", ["7min", "2h", "10", "0min", "ten", "90min"])
def test_step_that_does_not_divide_an_hour_is_rejected(step: str) -> None:
    """An hour must be a whole number of steps."""
    with pytest.raises(RainTableError, match="whole fraction of an hour"):
        parse_step_h(step)


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        ((1, "wet"), r"row 2 \(line 3\): rain_mm must be a number of mm.*'wet'"),
        ((1, -2), r"row 2 .*zero or more, got '-2'"),
        (("nan",), r"row 1 .*got 'nan'"),
        ((1, '""', 3), r"row 2 .*missing is never zero.*--missing skip-rain"),
        ((1, "", 3), r"row 2 .*missing is never zero"),
    ],
)
def test_bad_cell_names_its_row_and_value(
    cells: tuple[object, ...], match: str
) -> None:
    """A cell that is no depth of rain, or empty, is rejected."""
    with pytest.raises(RainTableError, match=match):
        soil_water_lines(table(*cells), column="rain_mm", step_h=1.0)


def test_missing_column_error_suggests_the_nearest_column() -> None:
    """It also lists the existing columns."""
    source = table(1, column="time,rain_mm")
    with pytest.raises(RainTableError, match=r"'rain_m'; did you mean 'rain_mm'.*time"):
        soil_water_lines(source, column="rain_m", step_h=1.0)


def test_skipped_empty_cell_drains_the_tanks_and_stays_empty() -> None:
    """With `skip-rain` an unknown step is not printed as zero rain."""
    lines = soil_water_lines(
        table(30, '""', 0), column="rain_mm", step_h=1.0, allow_missing=True
    )
    printed = rows(lines)

    assert [row["rain_mm"] for row in printed] == ["30.000000", "", "0.000000"]
    assert float(printed[1]["s1_mm"]) < 30


def test_table_from_windows_reads_the_same(tmp_path: Path) -> None:
    """Byte-order mark, CRLF, other columns and blank last lines are accepted."""
    path = tmp_path / "rain.csv"
    path.write_bytes(b"\xef\xbb\xbftime,rain_mm\r\na,5\r\nb,10\r\n\r\n")
    printed = rows(
        soil_water_lines(read_rain_text(str(path)), column="rain_mm", step_h=1.0)
    )

    assert [row["swi_mm"] for row in printed] == ["5.000000", "15.000000"]


def test_command_reads_standard_input() -> None:
    """A dash means standard input."""
    result = CliRunner().invoke(
        cli, ["index", "-", "--step", "1h"], input="rain_mm\n5\n10\n"
    )

    assert result.exit_code == 0
    assert result.output.splitlines()[-1].endswith(",15.000000")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["index", "nowhere.csv"], 65, "backend-spark: nowhere.csv: cannot be read"),
        (["score", "--config", "nowhere.toml"], 78, "nowhere.toml must be a file"),
    ],
)
def test_command_ends_with_its_exit_code(
    arguments: list[str], code: int, message: str
) -> None:
    """65 for invalid data, 78 for invalid settings, with one line on standard error."""
    command = [sys.executable, "-m", "backend_spark", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert message in done.stderr
    assert not done.stdout


def test_index_command_starts_without_spark() -> None:
    """Importing the command line loads neither Spark, Arrow nor matplotlib."""
    code = (
        "import sys, backend_spark.cli;"
        "print({'pyspark','pyarrow','matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"
