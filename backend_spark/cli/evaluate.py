"""Commands ``evaluate`` and ``judge``: on files of rain, landslides and readings."""

import gc
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import click
import msgspec

from backend_spark.cli import parse_time_option, writing
from backend_spark.config import BackendSettings, read_settings
from backend_spark.criteria.tables import cell_at_mesh, read_criteria
from backend_spark.evaluation.calibration_file import Calibration
from backend_spark.evaluation.datasets import DATA_SETS, Nearby, read_dataset_text
from backend_spark.evaluation.inputs import (
    DateOrder,
    EvaluationRain,
    LandslideTable,
    from_starts,
    parse_zone,
    read_rain_series,
    read_slides,
)
from backend_spark.evaluation.report import SeasonEvaluation
from backend_spark.evaluation.skill import (
    PREDICTORS,
    DayBootstrap,
    DayCases,
    daily_scores,
    evaluate_levels,
    evaluate_predictor,
    group_by_day,
)
from backend_spark.rain_table import read_rain_text
from service_runtime.cli import SETTINGS_FILE
from service_runtime.errors import FieldError
from service_runtime.settings import build_settings
from slope_science.levels import Criteria
from spatial_mqtt.reading_table import read_table

DAY = click.DateTime(["%Y-%m-%d"])
MAX_LATITUDE, MAX_LONGITUDE = 90, 180


def _parse_thresholds(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> Mapping[str, float]:
    thresholds = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in PREDICTORS:
            names = ", ".join(PREDICTORS)
            raise click.BadParameter(f"must name one of {names}, got {text!r}")
        try:
            thresholds[name] = float(number)
        except ValueError as error:
            problem = f"must be written as {name}=25, got {text!r}"
            raise click.BadParameter(problem) from error
    return thresholds


def _parse_zone(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> timezone | None:
    try:
        return None if text is None else parse_zone(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _parse_place(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        latitude, longitude = map(float, text.split(","))
    except ValueError as error:
        problem = f"must be written as 44.5,11.3, got {text!r}"
        raise click.BadParameter(problem) from error
    if not (abs(latitude) <= MAX_LATITUDE and abs(longitude) <= MAX_LONGITUDE):
        raise click.BadParameter(f"must be a latitude and a longitude, got {text!r}")
    return latitude, longitude


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of the command; see their help."""

    time: str
    times_are: str
    column: str
    zone: timezone | None
    dates: str | None
    dataset: str | None
    near: tuple[float, float] | None
    within_km: float
    first: datetime | None
    last: datetime | None
    keep_empty: bool
    threshold: Mapping[str, float]
    warning_mm: float
    criteria: Path | None
    cell: str | None
    calibrate: Path | None
    predictor: tuple[str, ...]
    place: str
    diagram: Path | None
    seed: int
    as_json: bool


@click.command()
@click.argument("rain_csv")
@click.argument("events_csv")
@click.option(
    "--time",
    default="time",
    show_default=True,
    help="Column with the local time of the end of each step, ISO 8601; a date alone "
    "is the whole day.",
)
@click.option(
    "--times-are",
    type=click.Choice(["ends", "starts"]),
    default="ends",
    show_default=True,
    help="Which time of a step its row has.",
)
@click.option("--column", default="rain_mm", show_default=True, help="Rain, in mm.")
@click.option(
    "--zone",
    callback=_parse_zone,
    help="Fixed offset such as +09:00: of times without one; others are converted.",
)
@click.option(
    "--dates",
    type=click.Choice([each.value for each in DateOrder]),
    help="Order of landslides' dates such as 03/04/2010, if none of them decides.",
)
@click.option(
    "--dataset",
    type=click.Choice(list(DATA_SETS)),
    help="Read both files in the form of this open data set; italica: only EVENTS_CSV.",
)
@click.option(
    "--near",
    metavar="LAT,LON",
    callback=_parse_place,
    help="For italica: place of the gauge.",
)
@click.option(
    "--within-km",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="For italica: landslides at most so far from the gauge.",
)
@click.option("--from", "first", type=DAY, help="First day to evaluate.")
@click.option("--to", "last", type=DAY, help="Last day to evaluate.")
@click.option(
    "--keep-days-without-data",
    "keep_empty",
    is_flag=True,
    help="Count days without any rain data, with the lower bounds of the predictors.",
)
@click.option(
    "--threshold",
    multiple=True,
    metavar="NAME=MM",
    callback=_parse_thresholds,
    help="Threshold of a predictor; by default the one with the greatest TSS on the "
    "same days.",
)
@click.option(
    "--warning-mm",
    type=click.FloatRange(20, 1000),
    default=150.0,
    show_default=True,
    help="Warning criterion for the levels.",
)
@click.option(
    "--criteria",
    type=click.Path(path_type=Path),
    help="File of criteria, instead of --warning-mm.",
)
@click.option("--cell", help="For --criteria: S2 token or third mesh of the gauge.")
@click.option(
    "--calibrate",
    type=click.Path(path_type=Path),
    help="Write how many of 100 such days had landslides, for console.calibration.",
)
@click.option(
    "--predictor",
    type=click.Choice(list(PREDICTORS)),
    multiple=True,
    default=("swi",),
    show_default=True,
    help="For --calibrate; several are joined by a logistic regression.",
)
@click.option("--place", default="", help="For --calibrate: name of the area.")
@click.option(
    "--diagram",
    type=click.Path(path_type=Path),
    help="For --calibrate: reliability diagram to write, .png, .svg or .pdf.",
)
@click.option(
    "--seed", default=1, show_default=True, help="Random seed of the 95 % intervals."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(rain_csv: str, events_csv: str, **options: object) -> None:
    """Evaluate rain predictors and levels against the landslides of some years.

    RAIN_CSV has a row for each step, of a minute to a day. EVENTS_CSV has a date, or a
    date and time, for each landslide: lines of dates alone, or columns ``time`` (or
    ``date``) and ``count``.
    """
    chosen = EvaluateOptions(**options)  # type: ignore[arg-type]
    criteria, criteria_name = _criteria(chosen)
    series, landslides = _read(rain_csv, events_csv, chosen)
    found = run_evaluation(series, landslides, chosen, criteria, criteria_name)
    if chosen.as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    for line in found.format_lines():
        click.echo(line)


def run_evaluation(
    series: EvaluationRain,
    landslides: LandslideTable,
    options: EvaluateOptions,
    criteria: Criteria,
    criteria_name: str,
) -> SeasonEvaluation:
    """Evaluate, and calibrate if asked for."""
    first, last = (each and each.date() for each in (options.first, options.last))
    cases = group_by_day(series, landslides, first, last, keep_empty=options.keep_empty)
    _check_cases(cases, landslides)
    bootstrap = DayBootstrap(len(cases.days), options.seed)
    scores, left_out = daily_scores(series, cases.days)
    return SeasonEvaluation(
        cases,
        landslides,
        series,
        [
            evaluate_predictor(
                name, values, cases.events, options.threshold.get(name), bootstrap
            )
            for name, values in scores.items()
        ],
        left_out,
        evaluate_levels(series, cases.days, landslides.slides, criteria),
        criteria.warning_mm,
        criteria_name,
        _calibrate(cases, scores, bootstrap, series.step_h, options),
    )


def _read(
    rain_csv: str, events_csv: str, options: EvaluateOptions
) -> tuple[EvaluationRain, LandslideTable]:
    """Read both files; landslides are in the local time of the rain."""
    data = DATA_SETS.get(options.dataset or "")
    order = DateOrder(options.dates) if options.dates else None
    if data is not None and data.read_rain is not None:
        series = data.read_rain(read_dataset_text(rain_csv))
    else:
        text = read_rain_text(rain_csv)
        series = read_rain_series(text, options.time, options.column, options.zone)
        series = from_starts(series) if options.times_are == "starts" else series
    if data is None:
        return series, read_slides(read_rain_text(events_csv), series.zone, order)
    near = options.near and Nearby(*options.near, options.within_km)
    text = read_dataset_text(events_csv)
    return series, data.read_landslides(text, series.zone, near)


def _criteria(options: EvaluateOptions) -> tuple[Criteria, str]:
    """Criteria of the levels, and their origin."""
    default = Criteria.assumed_from(options.warning_mm)
    if options.criteria is None:
        return default, "assumed line"
    if options.cell is None:
        raise click.UsageError("--criteria needs --cell: S2 token or third mesh")
    table = read_criteria(options.criteria, default)
    try:
        is_mesh = options.cell.isdigit() and len(options.cell) == len("50330471")
        token = cell_at_mesh(options.cell) if is_mesh else options.cell
        row = table.row(token)
    except FieldError as error:
        raise click.UsageError(f"--cell: {error}") from error
    if row is None:
        raise click.UsageError(
            f"--cell must be judged by {options.criteria}, got {options.cell}"
        )
    return table.criteria_of(token), f"{options.criteria.name}, cell {options.cell}"


def _check_cases(cases: DayCases, landslides: LandslideTable) -> None:
    """Refuse an evaluation without days, or without a landslide on them."""
    if not cases.days:
        raise click.UsageError(
            "--from and --to leave no day with data of the table of rain"
        )
    if not any(cases.events):
        raise click.UsageError(
            f"{landslides.source} has no landslide on a day with rain data from "
            f"{cases.days[0]} to {cases.days[-1]}: {len(cases.outside)} lines are "
            f"outside, {len(cases.on_empty)} on days without data"
        )


def _calibrate(
    cases: DayCases,
    scores: Mapping[str, list[float]],
    bootstrap: DayBootstrap,
    step_h: float,
    options: EvaluateOptions,
) -> Calibration | None:
    """Make a calibration, and write its file and its diagram; None if not asked for."""
    if options.calibrate is None:
        return None
    from backend_spark.evaluation.calibration import (  # noqa: PLC0415 - scikit-learn is slow
        CalibrationDays,
        calibrate,
    )

    for name in options.predictor:
        if name not in scores:
            raise click.UsageError(
                f"--predictor must be one of {', '.join(scores)} here, got {name}"
            )
    values = {name: scores[name] for name in options.predictor}
    found = calibrate(
        CalibrationDays(
            cases.days,
            cases.events,
            values,
            bootstrap,
            len(cases.empty),
            step_h,
            options.place,
        )
    )
    if options.diagram is not None:
        from backend_spark.plots import draw_reliability  # noqa: PLC0415 - matplotlib is slow

        with writing("--diagram", options.diagram):
            draw_reliability(found).savefig(options.diagram, dpi=120)
    with writing("--calibrate", options.calibrate):
        found.write(options.calibrate)
    return found


@click.command()
@click.argument("readings_csv")
@click.option(
    "--config",
    "config_path",
    type=SETTINGS_FILE,
    help="Settings file (TOML); by default all settings have their defaults.",
)
@click.option(
    "--until",
    callback=parse_time_option,
    help="Let the clock run on until this time, so that silence is judged; by default "
    "it stops at the last receipt.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--revisions", is_flag=True, help="Print rows that were revised, too.")
@click.option("--skip-refused", is_flag=True, help="Leave out rows with mistakes.")
@click.option(
    "--every",
    "every_s",
    type=click.IntRange(1, 86_400),
    default=600,
    show_default=True,
    help="Shortest time between two passes where something happens, in seconds.",
)
@click.option(
    "--passes",
    type=click.IntRange(1),
    default=5000,
    show_default=True,
    help="Number of passes after which one covers up to six hours.",
)
def judge(  # noqa: PLR0913 - click gives each option by name
    readings_csv: str,
    *,
    config_path: Path | None,
    until: datetime | None,
    as_json: bool,
    revisions: bool,
    skip_refused: bool,
    every_s: int,
    passes: int,
) -> None:
    """Judge a table of readings as the pipeline does ('-' reads standard input).

    READINGS_CSV has columns time, node, sensor, quantity, value, unit, latitude and
    longitude, and optionally received, flags and priority; its rows are in the order
    of receipt.
    """
    settings = (
        build_settings(BackendSettings, {"backend": {"data": "."}})
        if config_path is None
        else read_settings(config_path)
    )
    gc.disable()  # a third of the time, with millions of readings and no cycles
    source = read_rain_text(readings_csv)
    table = read_table(source.name, source.text, skip_refused=skip_refused)
    from backend_spark.judging import (  # noqa: PLC0415 - Arrow
        format_lines,
        judge_table,
        to_json,
    )
    from backend_spark.memory_pipeline import Effort  # noqa: PLC0415 - Arrow

    until_s = None if until is None else until.timestamp()
    effort = Effort(every_s, passes)
    judged = judge_table(source.name, table, settings, until_s=until_s, effort=effort)
    if as_json:
        click.echo(msgspec.json.encode(to_json(judged, with_revisions=revisions)))
        return
    for line in format_lines(judged, with_revisions=revisions):
        click.echo(line)
