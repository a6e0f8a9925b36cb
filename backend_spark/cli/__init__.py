"""Command line of ``backend-spark``; each command is imported when it is called.

``backend-spark index`` starts without Spark, Arrow or matplotlib this way.
"""

from pathlib import Path
from typing import Final

import click

from service_runtime.cli import LazyGroup

COMMANDS: Final = {
    "alerts": ("backend_spark.cli.jobs", "alerts"),
    "analysis": ("backend_spark.cli.analysis", "analysis"),
    "console": ("backend_spark.cli.console", "console"),
    "console-account": ("backend_spark.cli.console", "console_account"),
    "console-journal": ("backend_spark.cli.console", "console_journal"),
    "criteria": ("backend_spark.cli.criteria", "criteria"),
    "evaluate": ("backend_spark.cli.evaluate", "evaluate"),
    "export": ("backend_spark.cli.data", "export"),
    "forecast": ("backend_spark.cli.data", "forecast"),
    "index": ("backend_spark.cli.data", "index"),
    "ingest": ("backend_spark.cli.jobs", "ingest"),
    "judge": ("backend_spark.cli.judge", "judge"),
    "notify": ("backend_spark.cli.jobs", "notify"),
    "places": ("backend_spark.cli.console", "places"),
    "plot": ("backend_spark.cli.data", "plot"),
    "replay": ("backend_spark.cli.jobs", "replay"),
    "report": ("backend_spark.cli.console", "report"),
    "score": ("backend_spark.cli.jobs", "score"),
    "trim": ("backend_spark.cli.jobs", "trim"),
}
"""Module and name of each command."""

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    required=True,
    help="Settings file (TOML).",
)


@click.group(cls=LazyGroup, modules=COMMANDS)
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Carry landslide messages from a broker to scored tables."""
