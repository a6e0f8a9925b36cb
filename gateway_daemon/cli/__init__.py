"""Command line of ``gateway-daemon``.

A command's module is imported when the command is used: importing all of them takes
seconds on a Raspberry Pi.
"""

import click

from service_runtime.cli import LazyGroup

COMMANDS = {
    "admin": (
        "gateway_daemon.cli.admin:admin_commands",
        "Inspect and change a running system.",
    ),
    "broker": (
        "gateway_daemon.cli.run:broker",
        "Announce a distributed broker to the Managers, while it runs.",
    ),
    "ca": (
        "gateway_daemon.cli.ca:ca_commands",
        "Issue and revoke certificates, and write the brokers' access rules.",
    ),
    "check": (
        "gateway_daemon.cli.check:check",
        "Check what a gateway, Manager, signer or broker needs on this machine.",
    ),
    "manager": (
        "gateway_daemon.cli.run:manager",
        "Run a Manager.",
    ),
    "overlay": (
        "experiments.studies:overlay_commands",
        "Simulate the overlay among gateways.",
    ),
    "rollout": (
        "gateway_daemon.cli.rollout:rollout",
        "Roll BUNDLE out to the nodes in AREAS, such as /1/2/2.",
    ),
    "run": (
        "gateway_daemon.cli.run:run",
        "Run a gateway.",
    ),
    "topology": (
        "experiments.studies:topology_commands",
        "Evaluate federations of brokers and choose one.",
    ),
}
"""Place and summary of each command. Studies are research code that only the source
tree contains; an installed gateway does not list them."""


@click.group(cls=LazyGroup, places=COMMANDS, extra="gateway")
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Gateway and Manager: store clients' messages and forward them by priority."""
