"""Command line of the edge agent.

A command is imported when it runs: importing everything takes seconds on a Raspberry
Pi, and ``first-boot`` delays the start of sampling.
"""

import click

from service_runtime.cli import LazyGroup

COMMANDS = {
    "check": (
        "edge_agent.cli.check:check",
        "Check the settings, read every sensor, test the link.",
    ),
    "first-boot": (
        "edge_agent.cli.first_boot:first_boot",
        "Install node.toml from the card, if it is new and valid; write a report.",
    ),
    "provision": (
        "edge_agent.cli.provision:provision",
        "Make a node.toml and a label for each line of a fleet's CSV.",
    ),
    "queue": (
        "edge_agent.cli.queue:queue_commands",
        "Inspect the node's queue, also while the agent runs.",
    ),
    "run": (
        "edge_agent.cli.run:run",
        "Run the node; in safe mode when a part of the settings is wrong.",
    ),
    "send": (
        "edge_agent.cli.run:send",
        "Put messages from standard input on the node's queue and print their ids.",
    ),
    "status": (
        "edge_agent.cli.status:status_command",
        "Print the state of the running agent: link, queue and sensors.",
    ),
    "triage": (
        "edge_agent.cli.triage:triage_command",
        "Judge a table of readings as the node does ('-' reads standard input).",
    ),
}
"""Place and summary of each command."""


@click.group(cls=LazyGroup, places=COMMANDS, extra="edge")
@click.version_option(package_name="yamamori")
def cli() -> None:
    """A node on the slope: sensors to queue to uplink, urgent messages first."""
