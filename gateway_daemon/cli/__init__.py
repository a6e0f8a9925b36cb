"""Command line of ``gateway-daemon``.

A command's module is imported when the command is used: importing all of them takes
seconds on a Raspberry Pi.
"""

import click

from service_runtime.cli import LazyGroup

COMMANDS = {
    "admin": ("gateway_daemon.cli.admin", "admin_commands"),
    "ca": ("gateway_daemon.cli.ca", "ca_commands"),
    "manager": ("gateway_daemon.cli.run", "manager"),
    "overlay": ("experiments.studies", "overlay_commands"),
    "rollout": ("gateway_daemon.cli.rollout", "rollout"),
    "run": ("gateway_daemon.cli.run", "run"),
    "topology": ("experiments.studies", "topology_commands"),
}
"""Module and name of each command. Studies are research code that only the source
tree contains; an installed gateway does not list them."""


@click.group(cls=LazyGroup, modules=COMMANDS)
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Gateway and Manager: store clients' messages and forward them by priority."""
