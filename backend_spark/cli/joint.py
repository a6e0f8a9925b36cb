"""Command ``joint``."""

import sys
import time
from pathlib import Path

import click

from backend_spark.cli import answer_format_option, config_option
from backend_spark.errors import SqlError

EXIT_NOT_CURRENT = 75
"""EX_TEMPFAIL of sysexits.h: a backend is stale, ahead, empty or unreachable."""


@click.command()
@config_option
@answer_format_option
@click.argument("query", required=False)
def joint(config_path: Path, form: str, query: str | None) -> None:
    """Answer a QUERY in SQL on the newest levels of several backends.

    Without QUERY a line for each backend. A backend that is stale, ahead, empty or
    unreachable is named on standard error, and the status is 75.
    """
    from backend_spark.exports import joint as view  # noqa: PLC0415 - DuckDB

    settings = view.read_joint_settings(config_path)
    try:
        now_s = time.time()  # noqa: TID251 - composition root of the command
        is_complete = view.run_joint(settings, query, form, now_s)
    except SqlError as error:
        raise click.UsageError(str(error)) from error
    if not is_complete:
        sys.exit(EXIT_NOT_CURRENT)
