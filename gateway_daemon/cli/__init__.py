"""Command line of ``gateway-daemon``.

A command's module is imported when the command is used: importing all of them takes
seconds on a Raspberry Pi.
"""

import sys
from importlib import import_module
from pathlib import Path

import click

STUDIES = "experiments.studies"
ROOT = Path(__file__).parents[2]
COMMANDS = {
    "admin": ("gateway_daemon.cli.admin", "admin_commands"),
    "ca": ("gateway_daemon.cli.ca", "ca_commands"),
    "manager": ("gateway_daemon.cli.run", "manager"),
    "overlay": (STUDIES, "overlay_commands"),
    "rollout": ("gateway_daemon.cli.rollout", "rollout"),
    "run": ("gateway_daemon.cli.run", "run"),
    "topology": (STUDIES, "topology_commands"),
}
"""Module and name of each command. Studies are research code that only the source
tree contains; an installed gateway does not list them."""


class _LazyGroup(click.Group):
    """Group that imports each command on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        has_studies = (ROOT / "experiments" / "studies.py").is_file()
        return [c for c, (at, _) in COMMANDS.items() if at != STUDIES or has_studies]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.list_commands(ctx):
            raise click.UsageError(f"{cmd_name} must be run in a clone of the source")
        module, name = COMMANDS[cmd_name]
        if module == STUDIES and str(ROOT) not in sys.path:
            sys.path.append(str(ROOT))
        command: click.Command = getattr(import_module(module), name)
        return command


@click.group(cls=_LazyGroup)
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Gateway and Manager: store clients' messages and forward them by priority."""
