"""Commands ``backup`` and ``restore``."""

from datetime import UTC, datetime
from pathlib import Path

import click

from backend_spark.cli import config_option
from backend_spark.config import read_settings


@click.command()
@config_option
@click.argument("target")
def backup(config_path: Path, target: str) -> None:
    """Write a backup of log, tables and console to TARGET; nothing has to stop.

    TARGET is a new folder, or a new prefix of an object store by its URL.
    """
    section = read_settings(config_path).backend
    from backend_spark.exports.backup import write_backup  # noqa: PLC0415 - delta-rs is slow
    from backend_spark.tables.store import parse_folder  # noqa: PLC0415 - the same

    now = datetime.now(UTC)  # noqa: TID251 - composition root of the command
    click.echo(write_backup(section, parse_folder(target), now))


@click.command()
@config_option
@click.argument("source")
def restore(config_path: Path, source: str) -> None:
    """Restore the backup at SOURCE to the empty places of the settings.

    SOURCE is a folder, or a prefix of an object store by its URL. No program of the
    backend may run. Each file and the number of rows are checked.
    """
    section = read_settings(config_path).backend
    from backend_spark.exports.backup import restore_backup  # noqa: PLC0415 - delta-rs is slow
    from backend_spark.tables.store import parse_folder  # noqa: PLC0415 - the same

    click.echo(restore_backup(section, parse_folder(source)))
