"""Command ``judge``."""

import gc
from datetime import datetime
from pathlib import Path

import click
import msgspec

from backend_spark.cli.data import parse_time_option
from backend_spark.config import BackendSettings, read_settings
from backend_spark.rain_table import read_rain_text
from service_runtime.settings import build_settings
from spatial_mqtt.reading_table import read_table


@click.command()
@click.argument("readings_csv")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
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
    from backend_spark.judging.receipt_clock import Effort  # noqa: PLC0415 - Arrow
    from backend_spark.judging.report import (  # noqa: PLC0415 - Arrow
        format_lines,
        judge_table,
        to_json,
    )

    until_s = None if until is None else until.timestamp()
    effort = Effort(every_s, passes)
    judged = judge_table(source.name, table, settings, until_s=until_s, effort=effort)
    if as_json:
        click.echo(msgspec.json.encode(to_json(judged, with_revisions=revisions)))
        return
    for line in format_lines(judged, with_revisions=revisions):
        click.echo(line)
