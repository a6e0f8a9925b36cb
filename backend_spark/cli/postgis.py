"""Command ``postgis``."""

import os
import re
from pathlib import Path

import click

from backend_spark.cli import config_option
from backend_spark.config import read_settings


def _check_name(_context: click.Context, option: click.Parameter, text: str) -> str:
    if re.fullmatch(r"[a-z_][a-z0-9_-]{0,62}", text) is None:
        rule = "must be up to 63 of a-z, 0-9, _ and -, and begin with a letter"
        raise click.BadParameter(f"{rule}, got {text!r}", param=option)
    return text


@click.command()
@config_option
@click.option(
    "--service",
    required=True,
    callback=_check_name,
    help="Service of libpq (pg_service.conf): database, role and credentials.",
)
@click.option(
    "--schema",
    default="yamamori",
    show_default=True,
    callback=_check_name,
    help="Schema of the database; no other may write to it.",
)
@click.option(
    "--history-days",
    type=click.IntRange(min=1),
    help="Days of levels before the newest one to keep; all by default.",
)
def postgis(
    config_path: Path, service: str, schema: str, history_days: int | None
) -> None:
    """Bring a copy of the levels in a PostGIS database up to the tables, then end.

    Repeat it by a timer. Each pass is one transaction. The status is 75 if the database
    does not answer: the next pass continues.
    """
    settings = read_settings(config_path)
    # A password must not go to a server that did not prove its name.
    os.environ.setdefault("PGSSLMODE", "verify-full")  # noqa: TID251 - composition root
    try:
        from backend_spark.postgis import (  # noqa: PLC0415 - delta-rs is slow
            PostgisCopy,
            sync_postgis,
        )
    except ModuleNotFoundError as error:
        remedy = 'install with: pip install "yamamori[backend,postgis]"'
        raise click.ClickException(f"postgis needs {error.name}; {remedy}") from error
    from backend_spark.tables.store import tables_folder  # noqa: PLC0415 - the same

    copy = PostgisCopy(
        tables_folder(settings.backend),
        service,
        schema,
        settings.score.hold_s,
        history_days,
    )
    click.echo(sync_postgis(copy))
