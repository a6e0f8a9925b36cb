"""Command line of the edge agent.

A command is imported when it runs: importing everything takes seconds on a Raspberry
Pi, and ``first-boot`` delays the start of sampling.
"""

import click

from service_runtime.cli import LazyGroup

COMMANDS = {
    "check": ("edge_agent.cli.check", "check"),
    "first-boot": ("edge_agent.cli.provision", "first_boot"),
    "provision": ("edge_agent.cli.provision", "provision"),
    "queue": ("edge_agent.cli.queue", "queue_commands"),
    "run": ("edge_agent.cli.run", "run"),
    "send": ("edge_agent.cli.run", "send"),
    "status": ("edge_agent.cli.status", "status_command"),
    "triage": ("edge_agent.cli.triage", "triage_command"),
}
"""Module and name of each command."""


@click.group(cls=LazyGroup, modules=COMMANDS)
@click.version_option(package_name="yamamori")
def cli() -> None:
    """A node on the slope: sensors to queue to uplink, urgent messages first."""
