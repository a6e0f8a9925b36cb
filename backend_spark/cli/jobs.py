"""Commands ``ingest``, ``alerts``, ``score``, ``notify``, ``replay`` and ``trim``."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from backend_spark.cli import config_option
from backend_spark.config import read_settings, select_shard
from service_runtime.lifecycle import log_to_stderr

TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"])
MICROSECOND = timedelta(microseconds=1)


@click.command()
@config_option
@click.option(
    "--standby",
    is_flag=True,
    help="Wait until the running ingester stops or hangs.",
)
@click.option("--shard", help="Id of the [[shard]] to read.")
def ingest(config_path: Path, standby: bool, shard: str | None) -> None:
    """Write messages to the log, then acknowledge them; until SIGTERM."""
    settings = select_shard(read_settings(config_path), shard)
    _set_up_logging()
    from backend_spark.ingest import process  # noqa: PLC0415 - paho and pyarrow

    process.run(settings, standby=standby)


@click.command()
@config_option
def alerts(config_path: Path) -> None:
    """Write urgent messages of the log into the alerts table; until SIGTERM."""
    settings = read_settings(config_path)
    _set_up_logging()
    from backend_spark.alerts import run  # noqa: PLC0415 - pyarrow and delta-rs

    run(settings)


@click.command()
@config_option
@click.option("--once", is_flag=True, help="Score what is in the log, then end.")
@click.option("--master", help="Spark master; overrides score.master.")
@click.option("--standby", is_flag=True, help="Wait until the running job ends.")
def score(config_path: Path, once: bool, master: str | None, standby: bool) -> None:
    """Score the log into the tables; until SIGTERM, or once."""
    settings = read_settings(config_path)
    _set_up_logging()
    from backend_spark.streaming import job  # noqa: PLC0415 - Spark takes a second to import

    job.run_job(settings, once=once, master=master, standby=standby)


@click.command()
@config_option
def notify(config_path: Path) -> None:
    """Publish the levels of cells as notices for their nodes; until SIGTERM."""
    settings = read_settings(config_path)
    _set_up_logging()
    from backend_spark import notices  # noqa: PLC0415 - paho and pyarrow

    notices.run(settings)


@click.command()
@config_option
@click.option("--from", "from_time", type=TIME, help="First time of receipt, UTC.")
@click.option("--to", "to_time", type=TIME, help="End, exclusive, UTC.")
@click.option("--master", help="Spark master; overrides score.master.")
def replay(
    config_path: Path,
    from_time: datetime | None,
    to_time: datetime | None,
    master: str | None,
) -> None:
    """Rebuild silver and gold from bronze; the scoring job must not run."""
    settings = read_settings(config_path)
    _set_up_logging()
    from backend_spark.streaming import job  # noqa: PLC0415 - Spark takes a second to import

    span = job.ReceiptInterval(_to_unix_us(from_time), _to_unix_us(to_time))
    click.echo(f"replayed {job.run_replay(settings, span, master)} slices")


@click.command()
@config_option
def trim(config_path: Path) -> None:
    """Delete rows older than the settings allow; the job must not run."""
    settings = read_settings(config_path)
    _set_up_logging()
    from backend_spark.streaming import job  # noqa: PLC0415 - Spark takes a second to import

    for table, rows in job.run_trim(settings).items():
        click.echo(f"{table}: {rows} rows")


def _to_unix_us(time: datetime | None) -> int | None:
    if time is None:
        return None
    return (time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // MICROSECOND


def _set_up_logging() -> None:
    log_to_stderr()
    # py4j logs every call at INFO.
    logging.getLogger("py4j").setLevel(logging.ERROR)
