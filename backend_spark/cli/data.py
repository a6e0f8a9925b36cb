"""Commands ``backend-spark export``, ``forecast``, ``plot`` and ``evaluate``."""

import json
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import click

from backend_spark.cli._options import config_option
from backend_spark.config import TABLES_FOLDER, load
from backend_spark.errors import ExportError, ForecastFileError, PlotError
from backend_spark.evaluation.inputs import read_rain, read_slides
from backend_spark.evaluation.report import Evaluation
from backend_spark.evaluation.skill import PREDICTORS, days_of, level_skill, skill
from backend_spark.rain_table import open_rain
from service_runtime.lifecycle import EXIT_USAGE_DATA
from slope_science.criteria import Criteria


def _moment(
    _context: click.Context, option: click.Parameter, text: str | None
) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise click.BadParameter(
            "must be ISO 8601 with a zone, such as 2026-07-01T09:00+09:00, "
            f"got {text!r}",
            param=option,
        )
    return moment


@click.command()
@config_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["cap", "csv", "geojson", "parquet", "sensorthings"]),
    required=True,
    help="cap and geojson: levels at one moment. csv and parquet: rows of a table. "
    "sensorthings: readings.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Instead of the screen.")
@click.option(
    "--table",
    default="levels",
    show_default=True,
    help="For csv and parquet.",
)
@click.option("--at", callback=_moment, help="The moment; the newest by default.")
@click.option("--from", "begin", callback=_moment, help="Rows from this moment on.")
@click.option("--to", "end", callback=_moment, help="Rows before this moment.")
@click.option("--sender", help="For cap: name without blanks, such as an address.")
@click.option("--sender-name", default="", help="For cap: the same for people.")
@click.option(
    "--status",
    type=click.Choice(["Draft", "Exercise", "Test"]),
    default="Draft",
    show_default=True,
    help="For cap; making it an actual one is the operator's.",
)
@click.option(
    "--min-level",
    type=click.IntRange(1, 5),
    default=2,
    show_default=True,
    help="For cap: lower levels are not mentioned.",
)
@click.option(
    "--updates",
    "updated",
    type=click.Path(path_type=Path),
    multiple=True,
    help="For cap: a message sent before, which this one takes the place of.",
)
@click.option(
    "--cancels",
    "cancelled",
    type=click.Path(path_type=Path),
    multiple=True,
    help="For cap: a message sent before, which is taken back.",
)
def export(config_path: Path, form: str, out: Path | None, **more: object) -> None:
    """Write levels, readings or a table for other people's programs."""
    settings = load(config_path)
    from backend_spark.exports.export import run  # noqa: PLC0415 - pyarrow

    try:
        run(settings.backend.data, form, out, more)
    except ExportError as error:
        raise click.UsageError(str(error)) from error


@click.group()
def forecast() -> None:
    """Take in official forecasts of rain, for the two hours to come."""


@forecast.command("load")
@config_option
@click.option(
    "--as-issued",
    is_flag=True,
    help="Forecasts of the past: each counts as known since its issue, not since now.",
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
def load_files(config_path: Path, as_issued: bool, paths: tuple[Path, ...]) -> None:
    """Load CSV and JSON files, or those of folders; by default of forecast.folder.

    An issue that is in the table stays as it is, so that the same files may be given
    again. A file with a mistake is named and left out whole.
    """
    settings = load(config_path)
    folder = settings.forecast.folder
    wanted = paths or ((Path(folder),) if folder else ())
    if not wanted:
        raise click.UsageError("give PATHS, or set forecast.folder in the settings")
    # Imported here, because pyarrow and delta-rs take a second.
    from backend_spark.forecast.table import Loader  # noqa: PLC0415

    tables = Path(settings.backend.data) / TABLES_FOLDER
    loader = Loader(tables, settings.keep, time.time(), as_issued)
    is_well = True
    for told in loader.load(wanted):
        is_bad = isinstance(told, ForecastFileError)
        is_well = is_well and not is_bad
        click.echo(str(told), err=is_bad)
    if not is_well:
        sys.exit(EXIT_USAGE_DATA)


SUFFIXES = (".png", ".svg", ".pdf")


def _file(_context: click.Context, _option: click.Parameter, path: Path) -> Path:
    if path.suffix.lower() not in SUFFIXES:
        raise click.BadParameter(f"must end in {', '.join(SUFFIXES)}, got {path.name}")
    return path


@click.command()
@click.argument("kind", type=click.Choice(["snake", "rain", "velocity"]))
@config_option
@click.option("--cell", default="", help="For snake and rain: S2 token of the cell.")
@click.option("--node", default="", help="For velocity: the node.")
@click.option("--sensor", default="", help="For velocity: its extensometer.")
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M:%S%z"]),
    help="The last moment, such as 2026-07-01T09:00+09:00; the newest by default.",
)
@click.option(
    "--hours",
    type=click.FloatRange(1, 24 * 366),
    default=72.0,
    show_default=True,
    help="How much of the past.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    callback=_file,
    required=True,
    help="File to write: .png, .svg or .pdf.",
)
def plot(  # noqa: PLR0913 - click gives each option by name
    kind: str,
    *,
    config_path: Path,
    cell: str,
    node: str,
    sensor: str,
    until: datetime | None,
    hours: float,
    out: Path,
) -> None:
    """Draw the snake line of a cell, its rain and level, or an inverse velocity."""
    wanted = {"--node": node, "--sensor": sensor}
    wanted = wanted if kind == "velocity" else {"--cell": cell}
    missing = [name for name, given in wanted.items() if not given]
    if missing:
        raise click.UsageError(f"{kind} needs {' and '.join(missing)}")
    settings = load(config_path)
    # Imported here, because matplotlib takes a second.
    from backend_spark.plots import charts  # noqa: PLC0415

    try:
        figure = charts.draw(
            settings, kind, charts.Subject(cell, node, sensor, until, hours)
        )
    except PlotError as error:
        raise click.UsageError(str(error)) from error
    figure.savefig(out, dpi=120)


DAY = click.DateTime(["%Y-%m-%d"])


def _thresholds(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> Mapping[str, float]:
    given = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in PREDICTORS:
            names = ", ".join(PREDICTORS)
            raise click.BadParameter(f"must name one of {names}, got {text!r}")
        try:
            given[name] = float(number)
        except ValueError as error:
            problem = f"must be written as {name}=25, got {text!r}"
            raise click.BadParameter(problem) from error
    return given


@click.command()
@click.argument("rain_csv")
@click.argument("events_csv")
@click.option(
    "--time",
    default="time",
    show_default=True,
    help="Column with the local time of the end of each step, ISO 8601.",
)
@click.option("--column", default="rain_mm", show_default=True, help="Rain, in mm.")
@click.option("--from", "first", type=DAY, help="First day judged.")
@click.option("--to", "last", type=DAY, help="Last day judged.")
@click.option(
    "--threshold",
    multiple=True,
    metavar="NAME=MM",
    callback=_thresholds,
    help="Judge a predictor at this number; by default at the one of the greatest "
    "TSS on these very days.",
)
@click.option(
    "--warning-mm",
    type=click.FloatRange(20, 1000),
    default=150.0,
    show_default=True,
    help="Warning criterion that the levels are judged with.",
)
@click.option("--seed", default=1, show_default=True, help="Of the 95 % intervals.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(  # noqa: PLR0913 - click gives each option by name
    rain_csv: str,
    events_csv: str,
    *,
    time: str,
    column: str,
    first: datetime | None,
    last: datetime | None,
    threshold: Mapping[str, float],
    warning_mm: float,
    seed: int,
    as_json: bool,
) -> None:
    """Judge rain predictors and levels against the landslides of a season.

    RAIN_CSV has a row for each step. EVENTS_CSV has a date, or a date and time, for
    each landslide: lines of dates alone, or columns ``time`` and ``count``.
    """
    series = read_rain(open_rain(rain_csv), time, column)
    slides = read_slides(open_rain(events_csv))
    days = days_of(
        series, slides, first.date() if first else None, last.date() if last else None
    )
    if not days.days:
        raise click.UsageError("--from and --to leave no day of the table of rain")
    found = Evaluation(
        days,
        [skill(name, series, days, threshold.get(name), seed) for name in PREDICTORS],
        level_skill(series, days, slides, Criteria.assumed_from(warning_mm)),
        warning_mm,
    )
    for line in [json.dumps(found.told(), indent=2)] if as_json else found.lines():
        click.echo(line)
