"""Command line of the edge agent.

A command is imported when it runs: importing everything takes seconds on a Raspberry
Pi, and ``first-boot`` delays the start of sampling.
"""

from importlib import import_module

import click

COMMANDS = {
    "check": ("check", "check"),
    "first-boot": ("provision", "first_boot"),
    "provision": ("provision", "provision"),
    "queue": ("queue", "queue_commands"),
    "run": ("run", "run"),
    "send": ("run", "send"),
    "status": ("status", "status_command"),
}
"""Module of this package and name in it, by command."""


class Commands(click.Group):
    """Group of commands that are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(
            import_module(f"edge_agent.cli.{module}"), name
        )
        return command


@click.group(cls=Commands)
@click.version_option(package_name="yamamori")
def cli() -> None:
    """A node on the slope: sensors to queue to uplink, urgent messages first."""
