"""Command line of ``gateway-daemon``.

A command's module is imported when the command is used: importing all of them takes
seconds on a Raspberry Pi.
"""

from importlib import import_module

import click

COMMANDS = {
    "admin": ("admin", "admin_commands"),
    "ca": ("ca", "ca_commands"),
    "manager": ("run", "manager"),
    "overlay": ("studies", "overlay_commands"),
    "rollout": ("rollout", "rollout"),
    "run": ("run", "run"),
    "topology": ("studies", "topology_commands"),
}
"""Module of this package and name in it, by command."""


class _LazyGroup(click.Group):
    """Group that imports each command on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(
            import_module(f"gateway_daemon.cli.{module}"), name
        )
        return command


@click.group(cls=_LazyGroup)
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Gateway and Manager: store clients' messages and forward them by priority."""
