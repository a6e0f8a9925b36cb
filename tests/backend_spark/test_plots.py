"""Content of the charts, read from the figure objects."""

import io
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from console_tables import CRITERIA, Slope, storm, write_tables
from matplotlib.figure import Figure
from msgspec.structs import replace
from scored_levels import make_levels_table

from backend_spark import open_tables, plots
from backend_spark.errors import PlotError
from backend_spark.scoring.observation import STEP_S
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import score_cell
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, SILVER
from slope_science.levels import NO_LINE, NOT_JUDGED_MM, Criteria
from slope_science.movement import fukuzono_displacement_mm
from slope_science.official_rain import ForecastRain

END_S = 1_793_000_400
GAP: list[float | None] = [*storm(26, 48)[:200], *[None] * 10, *storm(26, 48)[210:]]
SLOPE = Slope("otani-1", 33.575, 133.5, GAP)
TOKEN = SLOPE.cell.token


def levels(forecast_mm: float | None = None) -> pa.Table:
    """A storm with a gap in its rain, scored by the real rules."""
    mm = None if forecast_mm is None else (forecast_mm,) * 12
    rules = CellRules(CRITERIA, forecast=lambda at_s: ForecastRain("JMA", at_s, mm))
    back_s = END_S - (len(GAP) - 210) * STEP_S
    # The node was off, so that its counter does not tell the rain of the gap.
    readings = [
        replace(o, boot="after" if o.at_s > back_s else "before")
        for o in SLOPE.observations(END_S)
    ]
    return make_levels_table(TOKEN, score_cell(readings, rules).rows)


def span(hours: float, *, decelerating: bool = False) -> pa.Table:
    """An extensometer in tertiary creep that fails after 48 h, or one that slows."""
    rows = [
        {"node": "n1", "name": "span", "flag": 1, "at": (END_S + step * 600) * 10**6}
        | {"value": 10 * math.log(1 + step / 6) if decelerating else creep(step / 6)}
        for step in range(int(hours * 6) + 1)
    ]
    return pa.Table.from_pylist(rows, SILVER)


def creep(at_h: float) -> float:
    """Displacement of the worked example, in mm."""
    return fukuzono_displacement_mm(at_h, 48.0, 0.05)


def names(figure: Figure) -> list[str]:
    """Texts of its legends."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return [text.get_text() for each in legends if each for text in each.get_texts()]


def test_snake_line_shows_past_present_and_futures() -> None:
    """The forecast only if one is used; levels are those of gold."""
    rows = levels(6.0)
    figure, without = (plots.snake_line(r, CRITERIA) for r in (rows, levels()))
    last = rows.to_pylist()[-1]
    axes = figure.axes[0]

    assert f"2 h, official forecast: level {last['level_forecast']}" in names(figure)
    assert not [name for name in names(without) if "forecast" in name]
    assert [n for n in names(without) if "goes on" in n]
    assert axes.get_title().endswith(f"level {last['level']} (criteria assumed)")
    x, y = axes.lines[0].get_data()
    assert (x[-1], y[-1]) == pytest.approx((last["swi_mm"], last["r60_mm"]))


def test_criteria_of_the_prefecture_are_not_labelled_assumed() -> None:
    """With a critical line nothing is assumed; without it, only the line is."""
    line = ((0.0, 220.0), (100.0, 150.0))
    sure = Criteria(150.0, 110.0, 275.0, assumed=False, line=line)
    half = Criteria(150.0, 110.0, 275.0, assumed=False)
    titles = [
        plots.snake_line(levels(), each).axes[0].get_title() for each in (sure, half)
    ]

    assert "assumed" not in titles[0]
    assert titles[1].endswith("(critical line assumed)")


def test_unknown_rain_is_drawn_as_a_gap() -> None:
    """One grey patch per unknown step, and no zero rain."""
    rows = levels()
    rain, _, level = plots.rain_and_levels(rows, CRITERIA).axes
    unknown = rows["rain_known"].to_pylist().count(False)

    assert unknown == 10 + 1  # and the first step, before the first report
    assert len(rain.patches) == unknown
    assert len(level.patches) == rows.num_rows


def test_failure_time_is_drawn_with_its_interval() -> None:
    """Six hours ahead it is usable; for deceleration there is none."""
    fails, slowing = (
        plots.inverse_velocity(rows) for rows in (span(42), span(42, decelerating=True))
    )
    failure = datetime.fromtimestamp(END_S + 48 * 3600, UTC)

    assert "failure, 90 %" in names(fails)
    title = fails.get_suptitle()
    assert f"{failure:%Y-%m-}" in title
    assert "R2 1.00" in title
    assert "no time of failure" in slowing.get_suptitle()
    assert names(slowing) == ["speed of 3 h"]


@pytest.mark.parametrize("draw", [plots.snake_line, plots.rain_and_levels])
def test_criterion_that_is_not_judged_is_not_drawn(draw: Callable[..., Figure]) -> None:
    """The title names the levels; a line at infinity would break the axes."""
    only_2 = Criteria(NOT_JUDGED_MM, 60.0, NOT_JUDGED_MM, assumed=False, line=NO_LINE)
    figure = draw(levels(), only_2)
    figure.savefig(io.BytesIO(), format="png")
    title = figure.get_suptitle() or figure.axes[0].get_title()

    assert "(level 3, 4, 5 not judged by the prefecture)" in title
    assert "advisory" in names(figure)
    assert not {"warning", "critical line", "special warning"} & set(names(figure))


def test_early_failure_time_names_the_failed_gate() -> None:
    """The line has no interval."""
    early = plots.inverse_velocity(span(6))

    assert "not usable: " in early.get_suptitle()
    assert "failure, 90 %" not in names(early)


@pytest.mark.parametrize(
    ("draw", "problem"),
    [
        (lambda: plots.snake_line(LEVELS.empty_table(), CRITERIA), "levels must be"),
        (lambda: plots.rain_and_levels(LEVELS.empty_table(), CRITERIA), "levels must"),
        (lambda: plots.inverse_velocity(span(0.2)), "readings must be 4 displacements"),
    ],
)
def test_chart_without_data_is_rejected(draw: object, problem: str) -> None:
    """The error states the rule."""
    with pytest.raises(PlotError, match=problem):
        draw()  # type: ignore[operator]


@pytest.fixture
def tables(tmp_path: Path) -> DeltaTables:
    """The storm in a data folder."""
    write_tables(tmp_path, [SLOPE, Slope("b", 33.7, 133.6, storm(4, 24))], END_S)
    return open_tables(tmp_path)  # type: ignore[no-any-return]


def test_tables_are_read_by_cell_and_sensor(tables: DeltaTables) -> None:
    """All rows, or from and until a time, sorted by time."""
    all_rows = tables.cell(TOKEN)
    middle = all_rows["at"][100].as_py()

    assert all_rows.num_rows == 288
    assert tables.cell(TOKEN, middle).num_rows == 188
    assert tables.cell(TOKEN, None, middle).num_rows == 101
    assert tables.sensor("otani-1", "rain").num_rows == 278
    assert tables.sensor("otani-1", "tilt/x").num_rows == 0


def test_newest_level_of_each_cell(tables: DeltaTables) -> None:
    """One row per cell, however old."""
    newest = tables.newest()

    assert newest["cell"].to_pylist() == sorted(newest["cell"].to_pylist())
    assert newest.num_rows == 2
    assert {at.timestamp() for at in newest["at"].to_pylist()} == {END_S}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["snake", "--out", "a.png"], "snake needs --cell"),
        (["velocity", "--node", "n", "--out", "a.png"], "velocity needs --sensor"),
        (["snake", "--cell", "x", "--out", "a.txt"], "must end in .png, .svg, .pdf"),
        (["snake", "--cell", "x", "--out", "a.png"], "snake must be of something that"),
        (["snake", "--cell", TOKEN, "--out", "no/a.png"], "writable, got no/a.png; No"),
    ],
)
def test_command_reports_missing_options(
    tables: DeltaTables, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    """The error names the option."""
    config = tmp_path / "backend.toml"
    config.write_text(f'[backend]\ndata = "{tables.folder.parent}"\n')
    command = [sys.executable, "-m", "backend_spark", "plot", "--config", str(config)]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 2
    assert problem in " ".join(done.stderr.split())
