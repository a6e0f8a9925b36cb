"""The commands ``run`` and ``manager``."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from gateway_daemon import app, config
from gateway_daemon.cli._options import (
    PROGRAM,
    config_option,
    fail,
    read_settings,
    verbose_option,
)
from gateway_daemon.manager.storage import RegistryFileError
from service_runtime import lifecycle
from service_runtime.lifecycle import Program, Supervision, serve
from service_runtime.settings import SettingsError

S = TypeVar("S")


@click.command()
@config_option
@verbose_option
def run(path: Path, verbose: bool) -> None:
    """Run a gateway."""
    _serve(app.build_gateway, read_settings(config.read_gateway, path), verbose)


@click.command()
@config_option
@verbose_option
def manager(path: Path, verbose: bool) -> None:
    """Run a Manager."""
    _serve(app.build_manager, read_settings(config.read_manager, path), verbose)


def _serve(
    build: Callable[[S], tuple[Program, Supervision]], settings: S, verbose: bool
) -> None:
    lifecycle.log_to_stderr(verbose)
    lifecycle.die_on_unknown_errors()
    try:
        program, supervision = build(settings)
    except SettingsError as error:
        raise SystemExit(lifecycle.exit_for_settings(PROGRAM, error)) from error
    except RegistryFileError as error:
        fail(error, lifecycle.EXIT_CONFIG)
    serve(program, supervision)
