"""The command ``triage``: judges a table of readings as the node does.

The replay runs the readings of one node through its quality flags and triage.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from edge_agent import quantities
from edge_agent.cli._options import (
    PROGRAM,
    config_option,
    json_option,
    print_error,
    read_settings,
)
from edge_agent.clock import Instant
from edge_agent.quantities import read_flag
from edge_agent.sensor_reader import PlausibleRange, QualityFlagger
from edge_agent.sensors.base import SensorConfig
from edge_agent.triage.engine import Triage, TriageResult
from service_runtime.errors import FieldError
from service_runtime.lifecycle import EXIT_USAGE_DATA
from slope_science.quality import Flag
from slope_science.reasons import describe_reason
from spatial_mqtt.reading_quantities import QUANTITIES
from spatial_mqtt.reading_table import (
    ReadingTable,
    ReadingTableError,
    TableMessage,
    TableReading,
    read_table,
)
from spatial_mqtt.senml import Reading

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class ReplayedMessage:
    """Result of triage for one message.

    Attributes:
        at_s: Unix time of the readings.
        result: Level, priority and reasons.
        flags: Flags of the readings that are not good, by name.
    """

    at_s: float
    result: TriageResult
    flags: Mapping[str, Flag]


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


def choose_node(messages: Iterable[TableMessage], wanted: str | None, own: str) -> str:
    """The node to replay: the wanted one, else the settings', else the only one.

    Raises:
        FieldError: The table has no such node, or several.
    """
    nodes = sorted({message.node for message in messages})
    chosen = wanted or (nodes[0] if len(nodes) == 1 else own)
    if chosen not in nodes:
        rule = f"one of the table's nodes, {', '.join(nodes)}"
        raise FieldError("--node", rule, chosen)
    return chosen


def match_all(
    source: str, messages: Iterable[TableMessage], sensors: Sequence[SensorConfig]
) -> None:
    """Convert all readings by `match_sensors`.

    Raises:
        ReadingTableError: Some do not match.
    """
    problems = list(match_sensors(messages, sensors))
    if problems:
        raise ReadingTableError(source, problems)


def match_sensors(
    messages: Iterable[TableMessage], sensors: Sequence[SensorConfig]
) -> Iterator[str]:
    """Convert readings to the units of the sensors; yields what does not match.

    A reading of a sensor that the settings lack would be ignored by triage.
    """
    known = {sensor.name: sensor for sensor in sensors}
    for message in messages:
        for each in message.readings:
            try:
                each.reading = _matched(each, known)
            except FieldError as error:
                yield f"line {each.line}: {error}"


def _matched(each: TableReading, known: Mapping[str, SensorConfig]) -> Reading:
    sensor, form = known.get(each.sensor), QUANTITIES[each.quantity]
    if sensor is None:
        rule = f"one of the settings' sensors, {', '.join(known)}"
        raise FieldError("sensor", rule, each.sensor, "add it, or rename it")
    quantity = quantities.judged_quantity(sensor.quantity)
    is_part = form.part is not None or "/" in each.reading.name
    if form.measures is not None and not is_part and form.measures != quantity:
        rule = f"{quantity}, as in the settings of {sensor.name}"
        raise FieldError("quantity", rule, each.quantity)
    if is_part or sensor.senml_unit == form.unit:
        return each.reading
    if sensor.senml_unit is None or sensor.senml_unit not in form.scales:
        rule = f"convertible to {sensor.senml_unit}, the unit of {sensor.name}"
        raise FieldError("unit", rule, form.unit)
    factor, offset = form.scales[sensor.senml_unit]
    value, total = each.reading.value, each.reading.sum
    return replace(
        each.reading,
        unit=sensor.senml_unit,
        value=(value - offset) / factor if isinstance(value, float) else value,
        sum=None if total is None else total / factor,
    )


def replay_messages(
    messages: Iterable[TableMessage], sensors: Sequence[SensorConfig], triage: Triage
) -> Iterator[ReplayedMessage]:
    """Judge the messages of a node in the order of time.

    Args:
        messages: Messages of one node with matching readings.
        sensors: Sensors of its settings.
        triage: Triage with these sensors.
    """
    flaggers = {
        s.name: QualityFlagger(
            PlausibleRange(s.senml_unit, *s.range, s.largest_step, s.is_noisy)
        )
        for s in sensors
    }
    for message in sorted(messages, key=lambda m: m.at_s):
        readings = [
            reading
            for each in message.readings
            for reading in _flagged(each.reading, message.at_s, flaggers[each.sensor])
        ]
        instant = Instant(message.at_s, is_synchronised=message.synchronised)
        result = triage.assess(readings, instant)
        flags = {r.name: read_flag(r) for r in readings}
        doubtful = {name: flag for name, flag in flags.items() if flag != Flag.GOOD}
        yield ReplayedMessage(message.at_s, result, doubtful)


def _flagged(
    reading: Reading, at_s: float, flagger: QualityFlagger
) -> Sequence[Reading]:
    """The reading with the node's flag; one that the table flags keeps it."""
    return [reading] if reading.extra else flagger.flag([reading], at_s)
