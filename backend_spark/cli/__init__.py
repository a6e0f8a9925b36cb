"""Commands of ``backend-spark``."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from backend_spark import rain_table
from backend_spark.cli._options import config_option
from backend_spark.cli.console import console, console_account, report
from backend_spark.cli.data import evaluate, export, forecast, plot
from backend_spark.config import load, shard_of
from service_runtime.lifecycle import log_to_stderr

TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"])
MICRO = timedelta(microseconds=1)


@click.group()
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Carry landslide messages from a broker to scored tables."""


@cli.command()
@config_option
@click.option("--standby", is_flag=True, help="Wait while another one works.")
@click.option("--shard", help="Id of the [[shard]] to read.")
def ingest(config_path: Path, standby: bool, shard: str | None) -> None:
    """Write messages to the log, then acknowledge them; until SIGTERM."""
    settings = shard_of(load(config_path), shard)
    _log_to_stderr()
    from backend_spark.ingest import process as wiring  # noqa: PLC0415 - paho and pyarrow

    wiring.run(settings, standby=standby)


@cli.command()
@config_option
def alerts(config_path: Path) -> None:
    """Write urgent messages of the log into the alerts table; until SIGTERM."""
    settings = load(config_path)
    _log_to_stderr()
    from backend_spark.alerts import process as wiring  # noqa: PLC0415 - pyarrow and delta-rs

    wiring.run(settings)


@cli.command()
@config_option
@click.option("--once", is_flag=True, help="Score what is in the log, then end.")
@click.option("--master", help="Spark master; overrides score.master.")
def score(config_path: Path, once: bool, master: str | None) -> None:
    """Score the log into the tables; until SIGTERM, or once."""
    settings = load(config_path)
    _log_to_stderr()
    from backend_spark.streaming import job  # noqa: PLC0415 - Spark takes a second to import

    job.run(settings, once=once, master=master)


@cli.command()
@config_option
def notify(config_path: Path) -> None:
    """Publish the levels of cells as notices for their nodes; until SIGTERM."""
    settings = load(config_path)
    _log_to_stderr()
    from backend_spark.notices import publisher as wiring  # noqa: PLC0415 - paho and pyarrow

    wiring.run(settings)


@cli.command()
@config_option
@click.option("--from", "from_time", type=TIME, help="First time of receipt, UTC.")
@click.option("--to", "to_time", type=TIME, help="The first one beyond, UTC.")
@click.option("--master", help="Spark master; overrides score.master.")
def replay(
    config_path: Path,
    from_time: datetime | None,
    to_time: datetime | None,
    master: str | None,
) -> None:
    """Rebuild silver and gold from bronze, while nothing scores."""
    settings = load(config_path)
    _log_to_stderr()
    from backend_spark.streaming import job  # noqa: PLC0415 - Spark takes a second to import
    from backend_spark.streaming.replay import Span  # noqa: PLC0415 - the same

    span = Span(_micros(from_time), _micros(to_time))
    click.echo(f"replayed {job.run_replay(settings, span, master)} slices")


@cli.command()
@config_option
def trim(config_path: Path) -> None:
    """Delete rows older than the settings allow, while nothing scores."""
    settings = load(config_path)
    _log_to_stderr()
    from backend_spark.streaming import job  # noqa: PLC0415 - Spark takes a second to import

    for table, rows in job.run_trim(settings).items():
        click.echo(f"{table}: {rows} rows")


@cli.command()
@click.argument("rain_csv")
@click.option("--column", default="rain_mm", show_default=True, help="Rain, in mm.")
@click.option(
    "--step",
    default="10min",
    show_default=True,
    help="Length of a row's step: a whole fraction of an hour, such as 10min or 1h. "
    "Official criteria belong to 10min.",
)
@click.option(
    "--missing",
    type=click.Choice(["error", "skip-rain"]),
    default="error",
    show_default=True,
    help="What an empty cell does. Missing is never zero: skip-rain drains the tanks "
    "and leaves the row's rain empty, so that the index is a lower bound from there.",
)
@click.option(
    "--amedas",
    metavar="STATION",
    help="The table is JMA's download of hourly rain; each hour counts as six equal "
    "steps, and --column and --step do not matter.",
)
def index(
    rain_csv: str, column: str, step: str, missing: str, amedas: str | None
) -> None:
    """Print the soil water index of a table of rain ('-' reads standard input)."""
    if amedas is not None:
        for line in rain_table.amedas_lines(
            rain_csv, amedas, may_miss=missing == "skip-rain"
        ):
            click.echo(line)
        return
    for line in rain_table.index_lines(
        rain_table.open_rain(rain_csv),
        column=column,
        step_h=rain_table.parse_step_h(step),
        may_miss=missing == "skip-rain",
    ):
        click.echo(line)


cli.add_command(evaluate)
cli.add_command(console)
cli.add_command(console_account)
cli.add_command(export)
cli.add_command(forecast)
cli.add_command(plot)
cli.add_command(report)


def _micros(time: datetime | None) -> int | None:
    if time is None:
        return None
    return (time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // MICRO


def _log_to_stderr() -> None:
    log_to_stderr()
    # py4j tells of every call at INFO.
    logging.getLogger("py4j").setLevel(logging.ERROR)
