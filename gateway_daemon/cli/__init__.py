"""Command line of ``gateway-daemon``, with the options that its commands share.

A command's module is imported when the command is used: importing all of them takes
seconds on a Raspberry Pi.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import click

from service_runtime import lifecycle
from service_runtime.cli import SETTINGS_FILE, LazyGroup
from service_runtime.settings import SettingsError

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
        "gateway_daemon.cli.admin:rollout",
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

T = TypeVar("T")
PROGRAM = "gateway-daemon"
EXIT_FAILED, EXIT_USAGE, EXIT_NO_INPUT = 1, 64, 66

config_option = click.option(
    "--config",
    "path",
    required=True,
    type=SETTINGS_FILE,
    help="Settings in TOML.",
)
tls_option = click.option(
    "--config",
    "path",
    type=SETTINGS_FILE,
    help="Settings whose [tls] names the certificates for mqtts://.",
)
json_option = click.option(
    "--json", "is_json", is_flag=True, help="JSON instead of a table."
)
verbose_option = click.option("--verbose", is_flag=True, help="Log every step.")


@click.group(cls=LazyGroup, places=COMMANDS, extra="gateway")
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Gateway and Manager: store clients' messages and forward them by priority."""


def read_settings(read: Callable[[Path], T], path: Path) -> T:
    """Read a settings file; exits with the list of mistakes if it is not valid."""
    try:
        return read(path)
    except (SettingsError, OSError) as error:
        raise SystemExit(lifecycle.report_settings_error(PROGRAM, error)) from error


def fail(error: object, code: int = EXIT_FAILED) -> NoReturn:
    """Print an error and exit."""
    click.echo(f"{PROGRAM}: {error}", err=True)
    raise SystemExit(code)
