"""Rain and landslides as tables write them: days, zones, steps, impossible values."""

from datetime import UTC, date, datetime, timezone

import pytest

from backend_spark.errors import RainTableError
from backend_spark.evaluation.inputs import (
    DateOrder,
    EvaluationRain,
    LandslideTable,
    from_starts,
    max_depth_mm,
    parse_zone,
    read_rain_series,
    read_slides,
)
from backend_spark.rain_table import RainText
from slope_science import JST


def rain(*rows: str, zone: timezone | None = None) -> EvaluationRain:
    """Read rows of time and depth."""
    text = "\n".join(["time,rain_mm", *rows])
    return read_rain_series(RainText("r.csv", text), "time", "rain_mm", zone)


def test_date_alone_is_the_whole_day() -> None:
    """Its rain ends at the midnight after it and counts on it."""
    series = rain("2026-07-01,5", "2026-07-02,6", "2026-07-04,7")
    assert series.days == [date(2026, 7, day) for day in (1, 2, 3, 4)]
    assert series.ends[0] == datetime(2026, 7, 2, tzinfo=UTC)
    assert series.depth_mm == [5, 6, None, 7]


@pytest.mark.parametrize(
    ("first", "second", "days"),
    [
        ("2026-07-02 00:00", "2026-07-03 00:00", [1, 2]),
        ("2026-07-02 09:00", "2026-07-03 09:00", [1, 2]),
        ("2026-07-02 18:00", "2026-07-03 18:00", [2, 3]),
        ("2026-07-02 00:00", "2026-07-02 12:00", [1, 2]),
        ("2026-07-02 00:00", "2026-07-02 06:00", [1, 2]),
        ("2026-07-02 00:00", "2026-07-02 01:00", [2, 2]),
        ("2026-07-02 00:00", "2026-07-02 00:10", [2, 2]),
    ],
)
def test_step_counts_on_its_day(first: str, second: str, days: list[int]) -> None:
    """Up to an hour on the date of its row, a longer one where most of it lies."""
    found = rain(f"{first},1", f"{second},2").days
    assert [day.day for day in found] == days


@pytest.mark.parametrize(
    ("first", "second", "days"),
    [
        ("2026-07-02 00:00", "2026-07-03 00:00", [2, 3]),
        ("2026-07-02 22:00", "2026-07-02 23:00", [2, 2]),
        ("2026-07-02", "2026-07-03", [2, 3]),
    ],
)
def test_times_of_starts(first: str, second: str, days: list[int]) -> None:
    """The rain falls after its time; dates alone are whole days in any case."""
    series = from_starts(rain(f"{first},1", f"{second},2"))
    assert [day.day for day in series.days] == days


@pytest.mark.parametrize("form", ["2026/7/{}", "2026-07-{:02}", "202607{:02}"])
def test_forms_of_a_date_with_the_year_first(form: str) -> None:
    """All of them are days, with or without leading zeros."""
    series = rain(f"{form.format(1)},1", f"{form.format(2)},2")
    assert series.days == [date(2026, 7, 1), date(2026, 7, 2)]


def test_offset_is_the_zone_of_the_table() -> None:
    """Local times stay as they are written."""
    series = rain("2026-07-01T00:00+09:00,1", "2026-07-01T01:00+09:00,2")
    assert series.zone == JST
    assert series.ends[1] == datetime(2026, 7, 1, 1, tzinfo=UTC)


def test_offsets_are_converted_to_a_given_zone() -> None:
    """Daylight saving time in the table: no hour is lost or doubled."""
    rows = ("2015-11-01T01:00-07:00,1", "2015-11-01T01:00-08:00,2")
    series = rain(*rows, zone=parse_zone("-08:00"))
    assert series.ends == [
        datetime(2015, 11, 1, 0, tzinfo=UTC),
        datetime(2015, 11, 1, 1, tzinfo=UTC),
    ]
    assert series.depth_mm == [1, 2]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (("2026-07-01T00:00+09:00,1", "2026-07-01T01:00+08:00,1"), "line 3: .*--zone"),
        (("2026-07-01T00:00Z,1", "2026-07-01T01:00,1"), "line 3: .*all lines or in"),
        (("2026-07-01,1", "2026-07-02 00:00,1"), "line 3: .*time of day in all lines"),
        (("2026-07-01,1", "2026-07-01,2"), "line 3: .*repeats its time"),
        (("2026-07-01 00:00,1", "2026-07-01 00:00:20,2"), "a minute to a day"),
        (("2026-07-01,1", "2026-07-03,2"), "steps of a minute to a day"),
        (("2026-07-01,9999", "2026-07-02,2"), "line 2: rain must be at most 1909 mm"),
        (("2026-07-01,999.9", "2026-07-02,2"), "line 2: .*leave the cell empty"),
        (("2026-07-01 00:00,999", "2026-07-01 00:10,2"), "at most 180 mm"),
        (("0001-07-01,1", "0001-07-02,2"), "line 2: .*years 1700 to 2299"),
        (("9999-12-30,1", "9999-12-31,2"), "years 1700 to 2299"),
    ],
)
def test_table_of_rain_with_two_meanings_is_refused(
    rows: tuple[str, ...], problem: str
) -> None:
    """Nothing is dropped or guessed: the error names line, rule, value and remedy."""
    with pytest.raises(RainTableError, match=problem):
        rain(*rows)


def test_one_row_off_the_grid_is_named() -> None:
    """It does not halve the step, which would make every other hour unknown."""
    times = ("00:00", "01:00", "01:30", "02:00", "03:00", "04:00", "05:00")
    with pytest.raises(RainTableError, match=r"line 4: .*grid of 1:00:00"):
        rain(*(f"2026-07-01 {time},1" for time in times))


def test_missing_cells_are_unknown() -> None:
    """As spreadsheets, R and pandas write them."""
    days = enumerate(("", "NA", "nan", "NULL", "0"), start=1)
    series = rain(*(f"2026-07-0{day},{text}" for day, text in days))
    assert series.depth_mm == [None, None, None, None, 0]


@pytest.mark.parametrize(
    ("hours", "record_mm"), [(1 / 60, 38), (0.25, 198), (1, 401), (24, 1825)]
)
def test_record_rain_is_accepted(hours: float, record_mm: float) -> None:
    """The limit lies above the world's point records, within a factor of 1.6."""
    assert record_mm < max_depth_mm(hours) < 1.6 * record_mm


def slides(
    *lines: str, zone: timezone | None = None, order: str | None = None
) -> LandslideTable:
    """Read lines of landslides."""
    text = "\n".join(lines)
    return read_slides(
        RainText("e.csv", text), zone, DateOrder(order) if order else None
    )


def test_dates_decide_their_order_together() -> None:
    """One date with a number above 12 shows the order of all."""
    by_month = slides("03/04/2010", "01/13/2011").slides[0]
    by_day = slides("03/04/2010", "13/01/2011").slides[0]
    assert datetime.fromtimestamp(by_month.from_s, UTC) == datetime(
        2010, 3, 4, tzinfo=UTC
    )
    assert datetime.fromtimestamp(by_day.from_s, UTC) == datetime(
        2010, 4, 3, tzinfo=UTC
    )
    given = slides("03/04/2010", order="day-first").slides[0]
    assert given == by_day


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (("03/04/2010",), "line 1: .*no date of the table decides.*--dates"),
        (("13/01/2010", "01/13/2010"), "line 1: .*order of line 2"),
        (("2010-02-30",), "line 1: time must be a time such as"),
        (("12/09/10",), "must be a time such as"),
        (("2010-07-01T00:00+09:00",), "no offset from UTC, as the times of the rain"),
        (("day,count", "2010-07-01,1"), "needs a column time or date"),
        (("time,count", f"2010-07-01,{'9' * 5000}"), "whole number from 1"),
    ],
)
def test_table_of_landslides_with_two_meanings_is_refused(
    lines: tuple[str, ...], problem: str
) -> None:
    """The error names line, rule, value and remedy."""
    with pytest.raises(RainTableError, match=problem):
        slides(*lines)


def test_offset_of_a_landslide_is_converted_to_the_zone_of_the_rain() -> None:
    """A slide in the night of Japan is on the day before in UTC."""
    (slide,) = slides("2010-07-01T16:00Z", zone=JST).slides
    assert slide.from_s == datetime(2010, 7, 2, 1, tzinfo=UTC).timestamp()


def test_repeated_times_are_named() -> None:
    """Each is a further landslide; line numbers are those of the file."""
    table = slides("date,count", "2010-07-01,1", "2010-07-02,1", "2010-07-01,2")
    assert table.repeats == [(4, 2)]
    assert [slide.count for slide in table.slides] == [1, 1, 2]


@pytest.mark.parametrize("text", ["Asia/Tokyo", "9", "+9", ""])
def test_zone_is_a_fixed_offset(text: str) -> None:
    """A zone with daylight saving time has days of 23 and 25 hours."""
    with pytest.raises(ValueError, match="fixed offset such as"):
        parse_zone(text)
