"""The commands ``run`` and ``send``."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from gpiozero.exc import BadPinFactory

from edge_agent import app, config
from edge_agent.cli._options import PROGRAM, config_option, read_settings, say
from edge_agent.config import NodeSettings
from edge_agent.manual_send import parse_drafts
from edge_agent.queue.base import QueueError
from edge_agent.safe_mode import RecoveredSettings, recover_settings
from service_runtime import lifecycle
from service_runtime.lifecycle import run_service
from service_runtime.settings import SettingsError


@click.command()
@config_option
@click.option("--verbose", is_flag=True, help="Log every step.")
def run(path: Path, verbose: bool) -> None:
    """Run the node; in safe mode when a part of the settings is wrong."""
    found = _settings_or_safe(path)
    lifecycle.log_to_stderr(verbose)
    lifecycle.exit_on_thread_error()
    try:
        if isinstance(found, RecoveredSettings):
            node, supervision = app.build_safe_node(found)
        else:
            node, supervision = app.build_node(found)
    except (QueueError, app.SimulationError, BadPinFactory) as error:
        raise SystemExit(say(error)) from error
    run_service(node, supervision)


@click.command()
@config_option
def send(path: Path) -> None:
    """Put messages from standard input on the node's queue and print their ids.

    One JSON object a line, such as
    {"pri": 5, "e": [{"n": "test", "u": "mm", "v": 1.0}]}
    Good lines are queued even when others are bad; then the status is 65.
    """
    settings = read_settings(path)
    try:
        queue = app.open_queue(settings)
    except QueueError as error:
        raise SystemExit(say(error)) from error
    bad = 0
    clock = app.make_node_clock(settings)
    for draft in parse_drafts(
        _lines(), settings.settings.node.id, app.find_node_cell(settings), clock
    ):
        if isinstance(draft, str):
            bad += 1
            click.echo(f"{PROGRAM}: {draft}", err=True)
            continue
        try:
            click.echo(str(queue.put([draft])[0]))
        except QueueError as error:
            raise SystemExit(say(error)) from error
    queue.close()
    raise SystemExit(lifecycle.EXIT_USAGE_DATA if bad else 0)


def _settings_or_safe(path: Path) -> NodeSettings | RecoveredSettings:
    try:
        return config.read_node_settings(path)
    except SettingsError as error:
        safe = recover_settings(path.read_bytes())
        if safe is None:
            raise SystemExit(lifecycle.report_settings_error(PROGRAM, error)) from error
        return safe
    except OSError as error:
        raise SystemExit(lifecycle.report_settings_error(PROGRAM, error)) from error


def _lines() -> Iterator[str]:
    yield from sys.stdin
