"""Options and error exits shared by the commands of ``gateway-daemon``."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import click

from service_runtime import lifecycle
from service_runtime.settings import SettingsError

T = TypeVar("T")
PROGRAM = "gateway-daemon"
EXIT_FAILED, EXIT_USAGE, EXIT_NO_INPUT = 1, 64, 66

config_option = click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="Settings in TOML.",
)
tls_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Settings whose [tls] names the certificates for mqtts://.",
)
json_option = click.option(
    "--json", "is_json", is_flag=True, help="JSON instead of a table."
)
verbose_option = click.option("--verbose", is_flag=True, help="Log every step.")


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
