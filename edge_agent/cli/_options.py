"""Options and errors that the commands of the edge agent share."""

from pathlib import Path

import click
from gpiozero.exc import BadPinFactory

from edge_agent import config
from edge_agent.config import NodeSettings
from edge_agent.queue.base import QueueFileError
from edge_agent.queue.recovery import has_only_its_log
from service_runtime import lifecycle
from service_runtime.cli import SETTINGS_FILE
from service_runtime.settings import SettingsError

PROGRAM = "edge-agent"
EXIT_FAILED = 1

config_option = click.option(
    "--config",
    "path",
    required=True,
    type=SETTINGS_FILE,
    help="The node's settings in TOML.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs."
)


def read_settings(path: Path) -> NodeSettings:
    """Read the settings; end the program when they are wrong."""
    try:
        return config.read_node_settings(path)
    except (SettingsError, OSError) as error:
        raise SystemExit(lifecycle.report_settings_error(PROGRAM, error)) from error


def find_queue_file(node: NodeSettings, *, may_be_new: bool = False) -> Path:
    """The queue file of the agent, which must exist, or its log.

    Args:
        node: The node's settings.
        may_be_new: Whether an absolute path may have no file yet. A relative one must:
            the agent may run in another folder, and would never send from a new file.

    Raises:
        QueueFileError: There is no such file.
    """
    file = Path(node.settings.queue.path)
    if file.is_file() or has_only_its_log(file):
        return file
    if may_be_new and file.is_absolute():
        return file
    reason = "there is no such file; has the agent run yet?"
    if not file.is_absolute():
        reason += " queue.path is relative: use the folder in which the agent runs"
    raise QueueFileError(str(file.absolute()), reason)


def print_error(error: Exception) -> int:
    """Print an error; returns the exit status to use."""
    message = no_pins(error) if isinstance(error, BadPinFactory) else str(error)
    click.echo(f"{PROGRAM}: {message}", err=True)
    return EXIT_FAILED


def no_pins(error: BadPinFactory) -> str:
    """The error on a machine that is no Raspberry Pi."""
    return (
        f"this machine has no pins ({' '.join(str(error).split())}); run this on the "
        "Raspberry Pi, where yamamori[pi] is installed"
    )
