"""``backend-spark evaluate``."""

import json
from collections.abc import Mapping
from datetime import datetime

import click

from backend_spark.evaluation.predictors import PREDICTORS
from backend_spark.evaluation.report import Evaluation
from backend_spark.evaluation.skill import days_of, level_skill, skill
from backend_spark.evaluation.tables import read_rain, read_slides
from backend_spark.rain_table import open_rain
from slope_science.criteria import Criteria

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
