"""Replay of a table of readings through the quality flags and triage of a node."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edge_agent import quantities
from edge_agent.sensor_reader import PlausibleRange, QualityFlagger
from edge_agent.sensors.base import SensorConfig
from edge_agent.triage.engine import Triage, TriageResult
from edge_agent.triage.samples import Instant, read_flag
from service_runtime.errors import FieldError
from slope_science.quality import Flag
from spatial_mqtt.reading_quantities import QUANTITIES
from spatial_mqtt.reading_table import (
    ReadingTableError,
    TableMessage,
    TableReading,
)
from spatial_mqtt.senml import Reading


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
