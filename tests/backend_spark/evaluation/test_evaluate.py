"""The command `evaluate` on small tables and on the Mukilteo season."""

import json
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from measurements import seattle

from backend_spark.cli import cli
from backend_spark.errors import RainTableError
from backend_spark.evaluation.inputs import read_rain_series, read_slides
from backend_spark.rain_table import RainText
from slope_science.rain_and_soil_water import soil_water_series


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
    25 mm 10, 60, 1, 433; the line of Chleborad et al. 4, 25, 7, 468. They count 14
    April 2011, the one day without any rain data, with its lower bounds.
    """
    result = run(
        seattle("nws_hourly_rain_2010_2011.csv"), seattle("raw/dates2011Muk.txt"),
        "--time", "time_local_end", "--column", "KPAE_mm",
        "--from", "2010-08-15", "--to", "2011-12-31",
        "--threshold", "swi=25", "--threshold", "seattle=0", "--json",
        "--keep-days-without-data",
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
    assert by_predictor["swi"]["auc_interval"] == pytest.approx(
        [0.803, 0.989], abs=5e-4
    )
    assert report["days_without_data"] == ["2011-04-14"]


def test_day_without_rain_data_is_excluded_and_named() -> None:
    """Of the season of Mukilteo one quiet day, and no other number."""
    result = run(
        seattle("nws_hourly_rain_2010_2011.csv"), seattle("raw/dates2011Muk.txt"),
        "--time", "time_local_end", "--column", "KPAE_mm",
        "--from", "2010-08-15", "--to", "2011-12-31", "--threshold", "swi=25",
    )  # fmt: skip
    assert "503 days, 2010-08-15 to 2011-12-31; 11 with a landslide" in result.output
    assert "1 days have no rain data at all and are excluded: 2011-04-14" in (
        result.output
    )
    swi = next(line for line in result.output.splitlines() if line.startswith("swi"))
    assert swi.split()[1] == "0.928"
    assert swi.split()[4:8] == ["10", "60", "1", "432"]


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
    table = read_slides(RainText("s.txt", "12/19/2010\n2010-12-12\n"))
    assert [s.to_s - s.from_s for s in table.slides] == [86400, 86400]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("07-01 01:00,1|07-01 00:00,1", "later than the row"),
        ("07-01 01:00,1", "two rows or more"),
        ("07-32,1|07-01 00:00,1", "line 2: time must be a time"),
        ("07-01 00:00,-1", "line 2: rain_mm must be a number of mm"),
        ("07-01 00:00,1|07-01 01:00,1|07-01 02:30,1", "must lie on a grid of 1:00:00"),
        ("07-01 00:00,1|07-01 00:01,1\n2226-07-01 00:00,1", "look at the years"),
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


def daily(folder: Path, *, years: int = 3) -> tuple[Path, Path]:
    """Files with days of rain, and a landslide on each day of 60 mm or more."""
    first = date(1984, 1, 1)
    days = [first + timedelta(days=at) for at in range(365 * years)]
    depths = [60 if at % 97 == 50 else at % 7 for at in range(len(days))]
    rows = [f"{day},{depth}" for day, depth in zip(days, depths, strict=True)]
    slides = [str(d) for d, depth in zip(days, depths, strict=True) if depth == 60]
    rain, events = folder / "days.csv", folder / "slides.csv"
    rain.write_text("\n".join(["time,rain_mm", *rows]), encoding="utf-8")
    events.write_text("\n".join(slides), encoding="utf-8")
    return rain, events


def test_daily_rain_lands_on_its_day(tmp_path: Path) -> None:
    """With the rain of the day itself every landslide is told from every quiet day."""
    report = json.loads(run(*daily(tmp_path), "--json").output)
    areas = {each["name"]: each["auc"] for each in report["predictors"]}
    assert areas["rain24"] == 1.0
    assert "1984-01-01 00:00 to 1984-01-02 00:00 counts on 1984-01-01" in (
        run(*daily(tmp_path)).output
    )
    assert set(areas) == {
        "swi", "effective72", "rain72", "rain24", "antecedent", "seattle",
    }  # fmt: skip
    assert report["left_out"] == {
        "effective1.5": "needs steps of at most 1.5 h",
        "rain1": "needs steps of at most 1 h",
    }
    assert report["hours_by_level_and_class"] is None


@pytest.mark.parametrize("minutes", [5, 7, 45, 60, 90, 1440])
def test_any_step_has_the_predictors_that_fit_it(tmp_path: Path, minutes: int) -> None:
    """From a minute to a day: the soil water index is there and finds the storm."""
    begin = datetime(2026, 7, 1, tzinfo=UTC)
    count = 4 * 1440 // minutes
    ends = [begin + timedelta(minutes=minutes * (at + 1)) for at in range(count)]
    storm = [begin + timedelta(hours=h) for h in (24, 48)]
    rows = [
        f"{end:%Y-%m-%d %H:%M},{minutes / 10 if storm[0] < end <= storm[1] else 0}"
        for end in ends
    ]
    rain, slides = tmp_path / "rain.csv", tmp_path / "slides.csv"
    rain.write_text("\n".join(["time,rain_mm", *rows]), encoding="utf-8")
    slides.write_text("2026-07-02\n", encoding="utf-8")
    result = run(rain, slides, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    by_name = {each["name"]: each for each in report["predictors"]}
    # 144 mm in a day of even rain, whatever the step; the last one of an hour or less
    # counts on the next day.
    *_, after = soil_water_series([1.0] * 144)
    assert by_name["swi"]["safe_mm"] == pytest.approx(after.index_mm, abs=3)
    assert ("rain1" in by_name) == (60 % minutes == 0)
    assert (report["hours_by_level_and_class"] is None) == (minutes > 60)


def test_landslides_that_do_not_count_are_named(tmp_path: Path) -> None:
    """Outside the days, on a day without data, and twice."""
    rain, slides = daily(tmp_path)
    text = rain.read_text(encoding="utf-8").replace("1984-02-20,60", "1984-02-20,")
    rain.write_text(text, encoding="utf-8")
    with slides.open("a", encoding="utf-8") as file:
        file.write("\n1983-12-31\n1984-05-27\n2001-01-01\n")
    output = run(rain, slides).output
    assert "2 lines of" in output
    assert "line 12, 1983-12-31; line 14, 2001-01-01" in output
    assert "1 lines are on days without rain data: line 1, 1984-02-20" in output
    assert "1 lines repeat a time" in output
    assert "line 13 as line 2" in output


def test_landslides_all_outside_are_refused(tmp_path: Path) -> None:
    """An evaluation without an event has no skill to show."""
    rain, slides = daily(tmp_path)
    slides.write_text("2001-01-01\n", encoding="utf-8")
    result = run(rain, slides)
    assert result.exit_code == 2
    assert "1 lines are outside, 0 on days without data" in result.output


def test_criteria_of_a_file_judge_the_levels(tmp_path: Path) -> None:
    """By mesh or cell; a cell that the file does not judge is refused."""
    table = tmp_path / "criteria.csv"
    table.write_text("mesh,LEVEL1,LEVEL2\n50330471,40,60\n", encoding="utf-8")
    files = season(tmp_path)
    judged = json.loads(
        run(*files, "--criteria", table, "--cell", "50330471", "--json").output
    )
    assert judged["warning_mm"] == 60
    assert judged["criteria"] == "criteria.csv, cell 50330471"
    # 30 mm an hour from hour 30 ends: 40 mm (advisory) in the second hour.
    assert judged["lead_times"][0]["leads"][0]["least_s"] == 7 * 3600
    refused = run(*files, "--criteria", table, "--cell", "50330472")
    assert refused.exit_code == 2
    assert "--cell must be judged by" in refused.output
    assert "needs --cell" in run(*files, "--criteria", table).output


@pytest.mark.long
def test_37_years_of_days_take_less_than_half_a_minute(tmp_path: Path) -> None:
    """Processor time, as other processes may share the machine."""
    files = daily(tmp_path, years=37)
    begin = time.process_time()
    assert run(*files, "--calibrate", tmp_path / "c.json").exit_code == 0
    assert time.process_time() - begin < 30
