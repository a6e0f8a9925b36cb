"""Command line of ``backend-spark``; each command is imported when it is called.

``backend-spark index`` starts without Spark, Arrow or matplotlib this way.
"""

from importlib import import_module
from typing import Final

import click

COMMANDS: Final = {
    "alerts": ("jobs", "alerts"),
    "console": ("console", "console"),
    "console-account": ("console", "console_account"),
    "evaluate": ("data", "evaluate"),
    "export": ("data", "export"),
    "forecast": ("data", "forecast"),
    "index": ("data", "index"),
    "ingest": ("jobs", "ingest"),
    "notify": ("jobs", "notify"),
    "plot": ("data", "plot"),
    "replay": ("jobs", "replay"),
    "report": ("console", "report"),
    "score": ("jobs", "score"),
    "trim": ("jobs", "trim"),
}
"""Command name: module of this package, and function in it."""


class LazyGroup(click.Group):
    """Command group that imports a command's module on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, without importing them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name]
        command: click.Command = getattr(
            import_module(f"backend_spark.cli.{module}"), function
        )
        return command


@click.group(cls=LazyGroup)
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Carry landslide messages from a broker to scored tables."""
