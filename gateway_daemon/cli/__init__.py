"""The command line of the gateway daemon."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from gateway_daemon import app, config
from gateway_daemon.cli.admin import admin_commands
from gateway_daemon.cli.ca import ca_commands
from gateway_daemon.cli.rollout import rollout
from gateway_daemon.cli.studies import overlay_commands, topology_commands
from gateway_daemon.manager.storage import RegistryFileError
from service_runtime import lifecycle
from service_runtime.lifecycle import serve
from service_runtime.settings import SettingsError

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
    lifecycle.log_to_stderr(verbose)
    lifecycle.die_on_unknown_errors()
    serve(*_made(app.gateway, settings))


@cli.command()
@config_option
@click.option("--verbose", is_flag=True, help="Log every step.")
def manager(path: Path, verbose: bool) -> None:
    """Run a Manager."""
    settings = _settings(config.read_manager, path)
    lifecycle.log_to_stderr(verbose)
    lifecycle.die_on_unknown_errors()
    serve(*_made(app.manager, settings))


cli.add_command(admin_commands)
cli.add_command(ca_commands)
cli.add_command(overlay_commands)
cli.add_command(rollout)
cli.add_command(topology_commands)


def _made(make: Callable[[S], T], settings: S) -> T:
    try:
        return make(settings)
    except SettingsError as error:
        raise SystemExit(lifecycle.exit_for_settings(PROGRAM, error)) from error
    except RegistryFileError as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        raise SystemExit(lifecycle.EXIT_CONFIG) from error


def _settings(reader: Callable[[Path], T], path: Path) -> T:
    try:
        return reader(path)
    except (SettingsError, OSError) as error:
        raise SystemExit(lifecycle.exit_for_settings(PROGRAM, error)) from error
