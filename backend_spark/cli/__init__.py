"""Command line of ``backend-spark``; each command is imported when it is called.

``backend-spark index`` starts without Spark, Arrow or matplotlib this way.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from backend_spark.errors import ExportError
from service_runtime.cli import SETTINGS_FILE, LazyGroup

COMMANDS: Final = {
    "alerts": (
        "backend_spark.cli.jobs:alerts",
        "Write urgent messages of the log into the alerts table; until SIGTERM.",
    ),
    "analysis": (
        "backend_spark.cli.data:analysis",
        "Load JMA's analysed rain and soil water index on the 1 km grid.",
    ),
    "backup": (
        "backend_spark.cli.data:backup",
        "Write a backup of log, tables and console to TARGET; nothing has to stop.",
    ),
    "check": (
        "backend_spark.cli.check:check",
        "Check what SERVICES need on this machine; by default all of a backend.",
    ),
    "console": (
        "backend_spark.cli.console:console",
        "Show the tables as web pages for analysts; until SIGTERM.",
    ),
    "console-account": (
        "backend_spark.cli.console:console_account",
        "Add, list and remove console accounts; a running console follows at once.",
    ),
    "console-journal": (
        "backend_spark.cli.console:console_journal",
        "Check the console's journal, and show the logins in it.",
    ),
    "console-notifications": (
        "backend_spark.cli.console:notifications",
        "Test the rules of the notifications, and show the delivery log.",
    ),
    "criteria": (
        "backend_spark.cli.check:criteria",
        "Check tables of criteria: files as published, or folders of them.",
    ),
    "evaluate": (
        "backend_spark.cli.evaluate:evaluate",
        "Evaluate rain predictors and levels against the landslides of some years.",
    ),
    "export": (
        "backend_spark.cli.data:export",
        "Write levels, readings or a table for other programs.",
    ),
    "forecast": (
        "backend_spark.cli.data:forecast",
        "Load official rain forecasts for the next two hours.",
    ),
    "index": (
        "backend_spark.cli.data:index",
        "Print the soil water index of a table of rain ('-' reads standard input).",
    ),
    "ingest": (
        "backend_spark.cli.jobs:ingest",
        "Write messages to the log, then acknowledge them; until SIGTERM.",
    ),
    "joint": (
        "backend_spark.cli.data:joint",
        "Answer a QUERY in SQL on the newest levels of several backends.",
    ),
    "judge": (
        "backend_spark.cli.evaluate:judge",
        "Judge a table of readings as the pipeline does ('-' reads standard input).",
    ),
    "map-pack": (
        "backend_spark.cli.data:map_pack",
        "Make and check tile packs for the console's map; nothing is fetched.",
    ),
    "notify": (
        "backend_spark.cli.jobs:notify",
        "Publish the levels of cells as notices for their nodes; until SIGTERM.",
    ),
    "places": (
        "backend_spark.cli.console:places",
        "Name the cells: districts and slopes, their households, shelter and contact.",
    ),
    "plot": (
        "backend_spark.cli.data:plot",
        "Draw the snake line of a cell, its rain and level, or an inverse velocity.",
    ),
    "postgis": (
        "backend_spark.cli.data:postgis",
        "Bring a copy of the levels in a PostGIS database up to the tables, then end.",
    ),
    "replay": (
        "backend_spark.cli.jobs:replay",
        "Rebuild silver and gold from bronze; the scoring job must not run.",
    ),
    "report": (
        "backend_spark.cli.console:report",
        "Write a one-page situation report: levels, reasons, missing data.",
    ),
    "restore": (
        "backend_spark.cli.data:restore",
        "Restore the backup at SOURCE to the empty places of the settings.",
    ),
    "score": (
        "backend_spark.cli.jobs:score",
        "Score the log into the tables; until SIGTERM, or once.",
    ),
    "sql": (
        "backend_spark.cli.data:sql",
        "Answer a QUERY in SQL on the tables, by DuckDB; nothing can be changed.",
    ),
    "trim": (
        "backend_spark.cli.jobs:trim",
        "Delete rows older than the settings allow; the job must not run.",
    ),
}
"""Place and summary of each command."""

config_option = click.option(
    "--config",
    "config_path",
    type=SETTINGS_FILE,
    required=True,
    help="Settings file (TOML).",
)

answer_format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="table: shortened above 1000 rows. csv and json: all rows.",
)


def parse_time_option(
    _context: click.Context, option: click.Parameter, text: str | None
) -> datetime | None:
    """Callback of an option with a time.

    Raises:
        click.BadParameter: The text is no ISO time with a zone.
    """
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise click.BadParameter(
            "must be ISO 8601 with a zone, such as 2026-07-01T09:00+09:00, "
            f"got {text!r}",
            param=option,
        )
    return time


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Turn an error of writing a file into a usage error that names it.

    Args:
        option: That names the file.
        path: The file.
    """
    try:
        yield
    except OSError as error:
        problem = ExportError.of_writing(option, path, error)
        raise click.UsageError(str(problem)) from error


@contextmanager
def usage_errors(kind: type[Exception]) -> Iterator[None]:
    """Turn an error of a kind, which names what the user gave, into a usage error."""
    try:
        yield
    except kind as error:
        raise click.UsageError(str(error)) from error


@click.group(cls=LazyGroup, places=COMMANDS, extra="backend")
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Carry landslide messages from a broker to scored tables."""
