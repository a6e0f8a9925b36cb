"""``backend-spark forecast``."""

import sys
from pathlib import Path

import click

from backend_spark.cli_options import config_option
from backend_spark.config import load
from backend_spark.errors import ForecastFileError
from spatial_mqtt.daemon import EXIT_USAGE_DATA


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
    from backend_spark.forecast import wiring  # noqa: PLC0415 - pyarrow and delta-rs

    is_well = True
    for told in wiring.loader(settings, as_issued=as_issued).load(wanted):
        is_bad = isinstance(told, ForecastFileError)
        is_well = is_well and not is_bad
        click.echo(str(told), err=is_bad)
    if not is_well:
        sys.exit(EXIT_USAGE_DATA)
