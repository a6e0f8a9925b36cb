from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measurements import seattle

from edge_agent.simulator.slope import (
    RainFileError,
    SimulatedRain,
    find_wettest_window,
    make_storm,
    read_rain_csv,
)

depths = st.lists(st.floats(0, 100), min_size=1, max_size=50).map(tuple)


def write_csv(folder: Path, text: str) -> Path:
    """A CSV file with this text."""
    path = folder / "rain.csv"
    path.write_text(text, encoding="utf-8")
    return path


@given(depths, st.floats(-1000, 10000), st.floats(0, 5000))
def test_cumulative_rain_never_falls(
    mm: tuple[float, ...], t: float, dt: float
) -> None:
    """The sum ends at the total."""
    series = SimulatedRain(0.0, 60.0, mm)
    assert 0 <= series.cumulative_mm(t) <= series.cumulative_mm(t + dt) + 1e-9
    assert series.cumulative_mm(series.end_s) == series.total_mm


def test_rain_is_uniform_within_a_step() -> None:
    """Half a step has half its rain; there is no rain outside the series."""
    series = SimulatedRain(1000.0, 100.0, (10.0, 20.0))
    times = (0, 1000, 1050, 1150, 1200, 9000)
    assert [series.cumulative_mm(t) for t in times] == [0, 0, 5, 20, 30, 30]


def test_peaked_storm_peaks_at_three_fifths_with_its_total() -> None:
    """A random storm keeps its total and its shape."""
    rain = make_storm("peaked", 0.0, 24, 200, seed=7)
    peak = rain.depths_mm.index(max(rain.depths_mm)) / len(rain.depths_mm)
    assert rain.total_mm == pytest.approx(200)
    assert 0.5 < peak < 0.7
    assert rain == make_storm("peaked", 0.0, 24, 200, seed=7)


def test_quiet_and_uniform_storms() -> None:
    """No rain, and the same rain in each step."""
    assert make_storm("quiet", 0.0, 5, 100).total_mm == 0
    assert set(make_storm("uniform", 0.0, 1, 6).depths_mm) == {1.0}


@pytest.mark.parametrize("storm", [("gale", 5, 1), ("peaked", 0, 1), ("peaked", 1, -1)])
def test_impossible_storm_is_refused(storm: tuple[str, float, float]) -> None:
    """A storm has a known kind, a duration, and no negative rain."""
    kind, hours, mm = storm
    with pytest.raises(ValueError, match="must be"):
        make_storm(kind, 0.0, hours, mm)


def test_wettest_window_is_found() -> None:
    """The window with the most rain, at its own time."""
    series = SimulatedRain(0.0, 3600.0, (1.0, 0.0, 5.0, 6.0, 0.0))
    assert find_wettest_window(series, 2) == SimulatedRain(7200.0, 3600.0, (5.0, 6.0))
    with pytest.raises(ValueError, match="hours must be between one step and the"):
        find_wettest_window(series, 6)


def test_file_with_gaps_counts_them_as_no_rain(tmp_path: Path) -> None:
    """A missing row and an empty value are gaps; a row has the end time of its hour."""
    path = write_csv(
        tmp_path,
        "time_local_end,A_mm\n2010-01-01 01:00:00,1.5\n2010-01-01 02:00:00,\n"
        "2010-01-01 05:00:00,2.0\n",
    )
    series = read_rain_csv(path, "A")
    assert series.depths_mm == (1.5, 0.0, 0.0, 0.0, 2.0)
    assert (series.gaps, series.step_s, series.start_s) == (3, 3600.0, 1262304000.0)


def test_dates_select_rows(tmp_path: Path) -> None:
    """A last date without a time is included completely."""
    rows = "".join(
        f"2010-01-{day:02}T{h:02}:00Z,1\n" for day in (1, 2, 3) for h in (0, 12)
    )
    path = write_csv(tmp_path, "time,mm\n" + rows)
    series = read_rain_csv(path, "mm", dates=("2010-01-01 12:00", "2010-01-02"))
    assert (len(series.depths_mm), series.start_s) == (3, 1262347200.0)
    with pytest.raises(RainFileError, match="choose other dates"):
        read_rain_csv(path, "mm", dates=("2011-01-01", None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "time,mm\n2010-01-01 00:00,x\n",
            r"row 2 column 'mm' must be a depth in mm, zero or more, got 'x'; leave",
        ),
        ("time,mm\n2010-01-01 00:00,-1\n", "zero or more, got '-1'"),
        ("time,mm\nyesterday,1\n", r"row 2 column 'time' must be an ISO time, got"),
        ("when,mm\n1,1\n", "rename its column of times; the file has when, mm"),
        ("time,inch\n1,1\n", "column 'mm' must be a column of the file"),
        ("time,mm\n2010-01-01,1\n", "give step_s"),
        (
            "time,mm\n2010-01-01 01:00,1\n2010-01-01 02:00,1\n2010-01-01 01:00,1\n",
            r"row 4 column 'time' must be later than the row before by a whole number",
        ),
    ],
)
def test_mistake_in_a_file_is_reported(tmp_path: Path, text: str, message: str) -> None:
    """File, row, column, value, remedy."""
    with pytest.raises(RainFileError, match=message):
        read_rain_csv(write_csv(tmp_path, text), "mm")


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """The message contains the path."""
    with pytest.raises(RainFileError, match=r"absent\.csv must be a file that can be"):
        read_rain_csv(tmp_path / "absent.csv", "mm")


def test_recorded_rain_of_two_years_is_read() -> None:
    """The record's own README gives 117 missing hours of 12,624 for KBFI."""
    series = read_rain_csv(seattle("nws_hourly_rain_2010_2011.csv"), "KBFI")
    assert (len(series.depths_mm), series.gaps) == (12624, 117)
    assert 1264 <= series.total_mm <= 1526
    wettest = find_wettest_window(series, 48)
    assert 60 < wettest.total_mm < 150
