"""The command line of the gateway daemon."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from gateway_daemon import config, wiring
from gateway_daemon.admin_cli import admin_commands
from gateway_daemon.ca_cli import ca_commands
from gateway_daemon.manager.store import RegistryFileError
from gateway_daemon.overlay_cli import overlay_commands
from gateway_daemon.rollout_cli import rollout
from gateway_daemon.topology_cli import topology_commands
from spatial_mqtt import daemon
from spatial_mqtt.settings import SettingsError
from spatial_mqtt.supervision import serve

T = TypeVar("T")
S = TypeVar("S")
PROGRAM = "gateway-daemon"

config_option = click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="Settings in TOML.",
)


@click.group()
@click.version_option(package_name="yamamori")
def cli() -> None:
    """Gateway and Manager: what clients publish goes to disk, then on by priority."""


@cli.command()
@config_option
@click.option("--verbose", is_flag=True, help="Log every step.")
def run(path: Path, verbose: bool) -> None:
    """Run a gateway."""
    settings = _settings(config.read_gateway, path)
    daemon.log_to_stderr(verbose)
    daemon.die_on_unknown_errors()
    serve(*_made(wiring.gateway, settings))


@cli.command()
@config_option
@click.option("--verbose", is_flag=True, help="Log every step.")
def manager(path: Path, verbose: bool) -> None:
    """Run a Manager."""
    settings = _settings(config.read_manager, path)
    daemon.log_to_stderr(verbose)
    daemon.die_on_unknown_errors()
    serve(*_made(wiring.manager, settings))


cli.add_command(admin_commands)
cli.add_command(ca_commands)
cli.add_command(overlay_commands)
cli.add_command(rollout)
cli.add_command(topology_commands)


def _made(make: Callable[[S], T], settings: S) -> T:
    try:
        return make(settings)
    except SettingsError as error:
        raise SystemExit(daemon.exit_for_settings(PROGRAM, error)) from error
    except RegistryFileError as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        raise SystemExit(daemon.EXIT_CONFIG) from error


def _settings(reader: Callable[[Path], T], path: Path) -> T:
    try:
        return reader(path)
    except (SettingsError, OSError) as error:
        raise SystemExit(daemon.exit_for_settings(PROGRAM, error)) from error
