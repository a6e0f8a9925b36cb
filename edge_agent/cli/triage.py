"""The command ``triage``: judges a table of readings as the node does."""

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from edge_agent.cli._options import (
    PROGRAM,
    config_option,
    json_option,
    print_error,
    read_settings,
)
from edge_agent.triage import Triage
from edge_agent.triage.table_replay import (
    ReplayedMessage,
    choose_node,
    match_all,
    replay_messages,
)
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_USAGE_DATA
from slope_science.reason_text import describe_reason
from spatial_mqtt.reading_table import (
    ReadingTable,
    ReadingTableError,
    read_table,
)

STANDARD_INPUT = "-"


@click.command("triage")
@click.argument("readings_csv")
@config_option
@click.option("--node", help="Id of the node in the table, where it has several.")
@json_option
@click.option("--skip-refused", is_flag=True, help="Leave out rows with mistakes.")
def triage_command(
    readings_csv: str,
    path: Path,
    node: str | None,
    *,
    as_json: bool,
    skip_refused: bool,
) -> None:
    """Judge a table of readings as the node does ('-' reads standard input)."""
    settings = read_settings(path)
    try:
        name, raw = _read(readings_csv)
        text = _decode(name, raw)
        table = read_table(name, text, skip_refused=skip_refused)
        chosen = choose_node(table.messages, node, settings.settings.node.id)
        messages = [m for m in table.messages if m.node == chosen]
        match_all(name, messages, settings.sensors)
    except (ReadingTableError, FieldError, OSError) as error:
        print_error(error)
        sys.exit(EXIT_USAGE_DATA)
    criteria = settings.settings.criteria.criteria()
    triage = Triage(settings.sensors, settings.settings.triage, criteria)
    steps = replay_messages(messages, settings.sensors, triage)
    if as_json:
        click.echo(json.dumps(_to_json(chosen, table, list(steps), triage)))
        return
    for note in (*table.notes, *table.refused):
        click.echo(f"{PROGRAM}: {note}", err=True)
    for line in _changes(steps):
        click.echo(line)


def _read(path: str) -> tuple[str, bytes]:
    if path == STANDARD_INPUT:
        return "standard input", sys.stdin.buffer.read()
    return path, Path(path).read_bytes()


def _decode(name: str, raw: bytes) -> str:
    """Text of a table, with Windows line ends and a byte-order mark accepted."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReadingTableError(
            name, [f"must be UTF-8: {error}; save it as CSV UTF-8"]
        ) from error


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")


def _to_json(
    node: str, table: ReadingTable, steps: Iterable[ReplayedMessage], triage: Triage
) -> dict[str, Any]:
    return {
        "node": node,
        "notes": list(table.notes),
        "refused": list(table.refused),
        "steps": [
            {
                "at": _time(step.at_s),
                "level": step.result.level,
                "alarm_level": step.result.own_alarm_level(is_judged=True),
                "priority": step.result.priority,
                "why": step.result.why,
                "reasons": list(map(describe_reason, step.result.reasons)),
                "flags": {name: int(flag) for name, flag in step.flags.items()},
            }
            for step in steps
        ],
        "diagnostics": triage.diagnostics(),
    }


def _changes(steps: Iterable[ReplayedMessage]) -> Iterator[str]:
    """A line for each change of level or flags."""
    before: object = None
    for step in steps:
        flags = sorted((n, flag.name.casefold()) for n, flag in step.flags.items())
        now = step.result.level, flags
        if now != before:
            doubts = "".join(f"; {name} {flag}" for name, flag in flags)
            why = step.result.why or "-"
            yield f"{_time(step.at_s)} level {step.result.level}: {why}{doubts}"
        before = now
