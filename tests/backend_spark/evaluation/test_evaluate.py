"""The command `evaluate` on small tables and on the Mukilteo season."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from measurements import seattle

from backend_spark.cli import cli
from backend_spark.errors import RainTableError
from backend_spark.evaluation.inputs import read_rain_series, read_slides
from backend_spark.rain_table import RainText


def run(*words: object) -> Result:
    """Run the command with arguments."""
    return CliRunner().invoke(cli, ["evaluate", *map(str, words)])


def season(folder: Path) -> tuple[Path, Path]:
    """Files with two days of hourly rain, a storm and a slide on the second."""
    rain, slides = folder / "rain.csv", folder / "slides.csv"
    rows = [
        f"2026-07-0{1 + hour // 24} {hour % 24:02}:00,{30 if 30 <= hour < 36 else 0}"
        for hour in range(48)
    ]
    rain.write_text("\n".join(["time,rain_mm", *rows]), encoding="utf-8")
    slides.write_text("time,count\n2026-07-02 14:00,2\n", encoding="utf-8")
    return rain, slides


def test_mukilteo_season_has_the_published_skill() -> None:
    """The area under the curve of each predictor, and the tables at two thresholds.

    Computed independently: SWI 0.928, 72-hour effective rain 0.924; SWI at
    25 mm 10, 60, 1, 433; the line of Chleborad et al. 4, 25, 7, 468.
    """
    result = run(
        seattle("nws_hourly_rain_2010_2011.csv"), seattle("raw/dates2011Muk.txt"),
        "--time", "time_local_end", "--column", "KPAE_mm",
        "--from", "2010-08-15", "--to", "2011-12-31",
        "--threshold", "swi=25", "--threshold", "seattle=0", "--json",
    )  # fmt: skip
    report = json.loads(result.output)
    by_predictor = {each["name"]: each for each in report["predictors"]}
    assert (report["days"], report["event_days"], report["incomplete_days"]) == (
        504,
        11,
        38,
    )
    areas = {name: round(each["auc"], 3) for name, each in by_predictor.items()}
    assert areas["swi"] == 0.928
    assert areas["effective72"] == 0.924
    assert areas["rain72"] == 0.915
    assert areas["seattle"] == 0.885
    assert list(by_predictor["swi"]["cases"].values()) == [10, 60, 1, 433]
    assert list(by_predictor["seattle"]["cases"].values()) == [4, 25, 7, 468]
    assert by_predictor["swi"]["scores"]["tss"] == pytest.approx(0.787, abs=5e-4)
    low, high = by_predictor["swi"]["auc_interval"]
    assert low < 0.928 < high


def test_text_report_has_lead_times(tmp_path: Path) -> None:
    """The text output has days, events and the lead time of the levels."""
    result = run(*season(tmp_path), "--warning-mm", "60")
    assert result.exit_code == 0
    assert "2 days, 2026-07-01 to 2026-07-02; 1 with a landslide" in result.output
    row = next(
        line for line in result.output.splitlines() if "2026-07-02 14:00" in line
    )
    # 30 mm an hour from hour 30 ends: 45 mm (advisory) in the second hour.
    assert row.split()[2] == "2"
    assert float(row.split()[3]) == 7.0


def test_gap_in_the_rain_is_reported(tmp_path: Path) -> None:
    """A missing row is not a dry hour: the day is marked."""
    rain, slides = season(tmp_path)
    lines = rain.read_text(encoding="utf-8").splitlines()
    rain.write_text("\n".join(lines[:5] + lines[7:]), encoding="utf-8")
    assert "1 days have hours without rain data" in run(rain, slides).output


def test_dates_without_header_are_events() -> None:
    """A plain list of dates needs no header."""
    slides = read_slides(RainText("s.txt", "12/09/2010\n2010-12-12\n"))
    assert [s.to_s - s.from_s for s in slides] == [86400, 86400]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("07-01 01:00,1|07-01 00:00,1", "later than the row"),
        ("07-01 01:00,1", "two rows or more"),
        ("07-32,1|07-01 00:00,1", "line 2: time must be a time"),
        ("07-01 00:00,-1", "line 2: rain_mm must be a number of mm"),
        ("07-01 00:00,1|07-01 01:00,1|07-01 02:30,1", "must lie on a grid of 1:00:00"),
        ("07-01 00:00,1|07-01 00:01,1\n9026-07-01 00:00,1", "look at the years"),
    ],
)  # fmt: skip
def test_invalid_table_of_rain_is_rejected(rows: str, problem: str) -> None:
    """The error names file, line, rule and value."""
    text = "\n2026-".join(["time,rain_mm", *rows.split("|")])
    with pytest.raises(RainTableError, match=f"r.csv: .*{problem}"):
        read_rain_series(RainText("r.csv", text), "time", "rain_mm")


def test_table_without_the_column_lists_its_columns() -> None:
    """The error names the missing and the existing columns."""
    with pytest.raises(RainTableError, match=r"no column 'time'.*present: when"):
        read_rain_series(RainText("r.csv", "when,rain_mm\n"), "time", "rain_mm")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "one landslide or more"),
        ("time,count\n2026-07-01,none\n", "line 2: count must be a whole number"),
        ("2026-07-01\nsoon\n", "line 2: time must be a time"),
    ],
)
def test_invalid_table_of_events_is_rejected(text: str, problem: str) -> None:
    """The error names file, line, rule and value."""
    with pytest.raises(RainTableError, match=f"e.csv: .*{problem}"):
        read_slides(RainText("e.csv", text))


def test_unknown_predictor_is_rejected(tmp_path: Path) -> None:
    """The error lists the predictors."""
    result = run(*season(tmp_path), "--threshold", "swl=25")
    assert result.exit_code == 2
    assert "must name one of swi, effective72" in result.output
