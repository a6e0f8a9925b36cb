"""The commands ``run`` and ``send``."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from gpiozero.exc import BadPinFactory

from edge_agent import app, config
from edge_agent.cli._options import (
    PROGRAM,
    config_option,
    find_queue_file,
    print_error,
    read_settings,
)
from edge_agent.clock import Clock
from edge_agent.config import NodeSettings
from edge_agent.queue.base import MessageDraft, QueueError
from edge_agent.safe_mode import (
    RecoveredSettings,
    recover_last_settings,
    recover_settings,
    save_last_settings,
)
from edge_agent.sampler import make_draft
from service_runtime import lifecycle
from service_runtime.errors import FieldError
from service_runtime.lifecycle import run_service
from service_runtime.settings import SettingsError
from spatial_mqtt.cells import Cell
from spatial_mqtt.errors import EnvelopeError, PriorityError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId, Pack, decode_pack

log = logging.getLogger(__name__)

KEYS = frozenset({"pri", "e", "why"})


def parse_drafts(
    lines: Iterable[str], node: str, cell: Cell, clock: Clock
) -> Iterator[MessageDraft | str]:
    """Yield a draft for each good line, an error for each bad one; skip blank ones."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield make_draft(_pack(line, node, clock), cell)
        except FieldError as error:
            yield f"line {number}: {error}"


def _pack(line: str, node: str, clock: Clock) -> Pack:
    message = _object(line)
    records = message.get("e")
    if not isinstance(records, list) or not records or not isinstance(records[0], dict):
        raise EnvelopeError("e", "a list of SenML records", records)
    try:
        priority = LADDER.check(message.get("pri", LADDER.default))
    except PriorityError as error:
        raise EnvelopeError("pri", error.rule, error.value) from error
    head = {
        "bn": f"{node}/",
        "bt": clock.wall_s(),
        "boot": "-",
        "seq": 0,
        "pri": priority,
    }
    if "why" in message:
        head["why"] = message["why"]
    # The decoder checks every record, so that the next store can read the pack.
    pack = decode_pack(json.dumps([head | records[0], *records[1:]]).encode())
    return Pack(
        MessageId(node, "-", 0),
        priority,
        pack.time_s,
        pack.readings,
        clock.is_synchronised(),
        round(clock.mono_s(), 3),
        pack.why,
    )


def _object(line: str) -> Mapping[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EnvelopeError("line", f"a JSON object ({error})", line.strip()) from error
    if not isinstance(message, dict):
        raise EnvelopeError("line", "a JSON object", message)
    unknown = message.keys() - KEYS
    if unknown:
        known = ", ".join(sorted(KEYS))
        raise EnvelopeError(
            "keys", f"among {known}", sorted(unknown), "remove the others"
        )
    return message


@click.command()
@config_option
@click.option("--verbose", is_flag=True, help="Log every step.")
def run(path: Path, verbose: bool) -> None:
    """Run the node; in safe mode when a part of the settings is wrong."""
    state = app.find_state_folder()
    found = _settings_or_safe(path, state)
    lifecycle.log_to_stderr(verbose)
    lifecycle.exit_on_thread_error()
    try:
        if isinstance(found, RecoveredSettings):
            node, supervision = app.build_safe_node(found)
        else:
            node, supervision = app.build_node(found)
            _save_last(path, state)
    except (QueueError, app.SimulationError, BadPinFactory) as error:
        raise SystemExit(print_error(error)) from error
    run_service(node, supervision)


@click.command()
@config_option
def send(path: Path) -> None:
    """Put messages from standard input on the node's queue and print their ids.

    One JSON object a line, such as
    {"pri": 1, "e": [{"n": "test", "vs": "by hand"}]}
    Good lines are queued even when others are bad; then the status is 65.
    """
    settings = read_settings(path)
    try:
        find_queue_file(settings, may_be_new=True)
        queue = app.open_queue(settings)
    except QueueError as error:
        raise SystemExit(print_error(error)) from error
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
            raise SystemExit(print_error(error)) from error
    queue.close()
    raise SystemExit(lifecycle.EXIT_USAGE_DATA if bad else 0)


def _settings_or_safe(
    path: Path, state: Path | None
) -> NodeSettings | RecoveredSettings:
    raw = b""
    found: SettingsError | OSError
    try:
        raw = path.read_bytes()
        return config.read_node_settings(path)
    except (SettingsError, OSError) as error:
        found = error
    safe = recover_settings(raw, str(path))
    if safe is None and state is not None:
        safe = recover_last_settings(raw, found, state)
    if safe is None:
        raise SystemExit(lifecycle.report_settings_error(PROGRAM, found)) from found
    return safe


def _save_last(path: Path, state: Path | None) -> None:
    """Save the settings for a start at which the file is unusable."""
    if state is None:
        return
    try:
        save_last_settings(path, state)
    except OSError as error:
        log.warning("these settings are not saved for a later start: %s", error)


def _lines() -> Iterator[str]:
    yield from sys.stdin
