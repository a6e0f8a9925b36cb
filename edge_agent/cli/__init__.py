"""The command line of the edge agent.

A command is imported when it is asked for. On a Raspberry Pi importing everything takes
seconds, and the settings on a card are taken up, by ``first-boot``, before sampling may
begin.
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
"""Where each command is: module of this package, name in it."""


class Commands(click.Group):
    """The commands, each imported alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, if there is one of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        found: click.Command = getattr(import_module(f"edge_agent.cli.{module}"), name)
        return found


@click.group(cls=Commands)
@click.version_option(package_name="yamamori")
def cli() -> None:
    """A node on the slope: sensors to queue to uplink, the urgent message first."""
