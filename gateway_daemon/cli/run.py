"""The commands ``run``, ``manager`` and ``broker``."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from edge_agent.queue.base import QueueError
from gateway_daemon import app, config
from gateway_daemon.cli import (
    EXIT_FAILED,
    PROGRAM,
    config_option,
    fail,
    read_settings,
    verbose_option,
)
from gateway_daemon.manager.storage import RegistryFileError
from service_runtime import lifecycle
from service_runtime.errors import AlreadyRunningError
from service_runtime.files import acquire_lock
from service_runtime.lifecycle import (
    Program,
    SystemdSupervisor,
    explain_denied,
    run_service,
)
from service_runtime.settings import SettingsError

log = logging.getLogger(__name__)

S = TypeVar("S")


@click.command()
@config_option
@verbose_option
def run(path: Path, verbose: bool) -> None:
    """Run a gateway."""
    settings = read_settings(config.read_gateway_settings, path)
    _lock(settings.gateway.data, "gateway")
    _serve(app.build_gateway, settings, verbose)


@click.command()
@config_option
@verbose_option
def manager(path: Path, verbose: bool) -> None:
    """Run a Manager."""
    settings = read_settings(config.read_manager_settings, path)
    _lock(settings.manager.data, "manager")
    _serve(app.build_manager, settings, verbose)


@click.command()
@config_option
@verbose_option
def broker(path: Path, verbose: bool) -> None:
    """Announce a distributed broker to the Managers, while it runs."""
    _serve(app.build_broker, read_settings(config.read_broker_settings, path), verbose)


def _lock(folder: str, name: str) -> None:
    """Refuse to run beside another process on the same data folder.

    Two gateways would send the same messages, and end each other's connections. A disk
    that cannot be written must not stop a Manager, which goes on in memory.
    """
    try:
        acquire_lock(Path(folder) / f".lock-{name}")
    except AlreadyRunningError as error:
        fail(error, lifecycle.EXIT_BUSY)
    except OSError as error:
        log.warning("another %s on this folder would not be found: %s", name, error)


def _serve(
    build: Callable[[S], tuple[Program, SystemdSupervisor]], settings: S, verbose: bool
) -> None:
    lifecycle.log_to_stderr(verbose)
    lifecycle.exit_on_thread_error()
    try:
        program, supervision = build(settings)
    except SettingsError as error:
        raise SystemExit(lifecycle.report_settings_error(PROGRAM, error)) from error
    except RegistryFileError as error:
        fail(error, lifecycle.EXIT_CONFIG)
    except QueueError as error:
        denied = explain_denied(error.__cause__)
        fail(denied or error, lifecycle.EXIT_DENIED if denied else EXIT_FAILED)
    run_service(program, supervision)
