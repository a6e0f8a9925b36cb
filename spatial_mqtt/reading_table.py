"""Table of readings (CSV): the messages of nodes in the order of their receipt.

Columns: ``time,node,sensor,quantity,value,unit,latitude,longitude``, and optionally
``received``, ``flags`` and ``priority``; see docs/reference/readings.md. Rows of one
node, time and receipt that follow each other are one message.
"""

import csv
import difflib
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from service_runtime.errors import FieldError, YamamoriError
from slope_science.quality import FLAG_LABEL, Flag
from spatial_mqtt.cells import check_position
from spatial_mqtt.priority import LADDER
from spatial_mqtt.reading_quantities import (
    HUMIDITY,
    QUANTITIES,
    RAIN,
    RAIN_TOTAL,
    TEMPERATURE,
    TILT_X,
    TILT_Y,
    WIRE,
    Scale,
    parse_quantity,
    parse_unit,
)
from spatial_mqtt.senml import ABSOLUTE_TIME_S, Labels, Reading, Value
from spatial_mqtt.topics import check_node_id

REQUIRED: Final = (
    "time", "node", "sensor", "quantity", "value", "unit", "latitude", "longitude",
)  # fmt: skip
OPTIONAL: Final = ("received", "flags", "priority")
MAX_PROBLEMS: Final = 20
"""Mistakes that an error lists; it counts the others."""

_SEPARATORS: Final = (";", "\t", "|")
"""Separators that spreadsheets write in place of commas."""

UNSYNCHRONISED: Final = "unsynchronised"
_FLAGS: Final = {flag.name.casefold(): flag for flag in Flag} | {
    str(int(flag)): flag for flag in Flag
}
_BEGIN_S: Final = datetime(1960, 1, 1, tzinfo=UTC).timestamp()
"""A clock that was not set, in any time zone."""

_END_S: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""Later times are in no calendar in another time zone."""

_SENSOR = re.compile(r"[A-Za-z0-9_-]{1,32}")
_TRUTHS: Final = {"1": True, "true": True, "0": False, "false": False}


class ReadingTableError(YamamoriError, ValueError):
    """A table of readings breaks one rule or more.

    Attributes:
        source: Name of the file.
        problems: One sentence for each mistake, with its line.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        shown = [f"{source}: {each}" for each in self.problems[:MAX_PROBLEMS]]
        more = len(self.problems) - MAX_PROBLEMS
        tail = [f"{source}: {more} more mistakes"] if more > 0 else []
        super().__init__("\n".join(shown + tail))


class SensorName(NamedTuple):
    """A sensor of a node."""

    node: str
    sensor: str


@dataclass(slots=True)
class TableReading:
    """One reading of the table.

    Attributes:
        line: Line in the file; the first one, where two rows are one reading.
        sensor: Name of the sensor.
        quantity: Name in `reading_quantities.QUANTITIES`.
        reading: The reading, in the form that a node sends.
    """

    line: int
    sensor: str
    quantity: str
    reading: Reading


@dataclass(slots=True)
class TableMessage:
    """Readings of one node at one time that were received together.

    Attributes:
        node: Id of the node.
        latitude: Position of the node, in degrees.
        longitude: Position of the node, in degrees.
        at_s: Unix time of the readings, by the node's clock.
        received_s: Unix time of the receipt.
        synchronised: Whether the node's clock was set.
        priority: Priority of the message, which is the node's own level.
        readings: At least one.
    """

    node: str
    latitude: float
    longitude: float
    at_s: float
    received_s: float
    synchronised: bool = True
    priority: int = LADDER.default
    readings: list[TableReading] = field(default_factory=list)


@dataclass(frozen=True)
class ReadingTable:
    """Contents of a table.

    Attributes:
        messages: In the order of their receipt.
        refused: Mistakes of the rows that were left out.
        notes: What a reader of the results must know.
    """

    messages: Sequence[TableMessage]
    refused: Sequence[str] = ()
    notes: Sequence[str] = ()


def read_table(source: str, text: str, *, skip_refused: bool = False) -> ReadingTable:
    """Read a table of readings.

    Args:
        source: Name of the file, for errors.
        text: Its contents.
        skip_refused: Whether rows with mistakes are left out instead of an error.

    Raises:
        ReadingTableError: The table, or a row of it, breaks a rule.
    """
    rows = _RowReader()
    lines = _rows(source, text)
    rows.choose_columns(source, next(lines, (1, []))[1])
    for line, row in lines:
        rows.add(line, row)
    if rows.problems and not skip_refused:
        raise ReadingTableError(source, rows.problems)
    if not rows.messages:
        raise ReadingTableError(source, ["the table must have a row, got none"])
    unpaired = list(_unpaired_axes(rows.messages))
    if unpaired:
        raise ReadingTableError(source, unpaired)
    messages = _name_temperatures(rows.messages)
    ordered = sorted(messages, key=lambda m: m.received_s)
    return ReadingTable(ordered, rows.problems, [*_notes(rows, ordered)])


def rename_rain(source: str, messages: Iterable[TableMessage]) -> None:
    """Name rain by `name_for_backend`.

    Raises:
        ReadingTableError: A sensor cannot be named.
    """
    problems = list(name_for_backend(messages))
    if problems:
        raise ReadingTableError(source, problems)


def name_for_backend(messages: Iterable[TableMessage]) -> Iterator[str]:
    """Name rain as the backend expects it, ``rain``; yields what cannot be named.

    The backend has one gauge for each node; its reading is ``rain`` by any name of the
    sensor, and no other reading may be called so.
    """
    gauges: dict[str, str] = {}
    for message in messages:
        for each in message.readings:
            is_rain = each.quantity in {RAIN, RAIN_TOTAL}
            if is_rain and gauges.setdefault(message.node, each.sensor) != each.sensor:
                rule = f"{gauges[message.node]}, the node's only gauge"
                remedy = "give the other gauge a node of its own"
                error = FieldError("sensor", rule, each.sensor, remedy)
                yield f"line {each.line}: {error}"
            elif each.reading.name == RAIN and not is_rain:
                error = FieldError("sensor", "another name than rain", each.sensor)
                yield f"line {each.line}: {error}"
            elif is_rain and each.reading.name != RAIN:
                each.reading = replace(each.reading, name=RAIN)


def _rows(source: str, text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if any(row):
                yield reader.line_num, row
    except csv.Error as error:
        line = reader.line_num
        raise ReadingTableError(source, [f"line {line} must be CSV: {error}"]) from None


class _RowReader:
    """Reads rows; collects messages and mistakes."""

    def __init__(self) -> None:
        self.messages: list[TableMessage] = []
        self.problems: list[str] = []
        self.late_without_receipt = 0
        self.repeated = 0
        self._width = 0
        self._required = itemgetter(*range(len(REQUIRED)))
        self._optional_places: list[int | None] = []
        self._last_key: tuple[object, ...] = ()
        self._last_s = -math.inf

    def choose_columns(self, source: str, header: Sequence[str]) -> None:
        """Find the columns by the header."""
        names = [name.strip().casefold() for name in header]
        used = [each for each in _SEPARATORS if any(each in name for name in names)]
        if used:
            rule, remedy = "separated by commas", "save the table as CSV with commas"
            error = FieldError("columns", rule, used[0], remedy)
            raise ReadingTableError(source, [f"line 1: {error}"])
        known = (*REQUIRED, *OPTIONAL)
        problems = [
            f"line 1: column {name} must be given, got {', '.join(names) or 'nothing'}"
            for name in REQUIRED
            if name not in names
        ]
        for name in dict.fromkeys(names):
            if name not in known or names.count(name) > 1:
                others = [each for each in known if each not in names]
                near = difflib.get_close_matches(name, others, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                rule = f"one of {', '.join(known)}, each once"
                given = " and ".join([repr(name)] * names.count(name))
                problems.append(f"line 1: a column must be {rule}, got {given}{hint}")
        if problems:
            raise ReadingTableError(source, problems)
        self._width = len(names)
        self._required = itemgetter(*map(names.index, REQUIRED))
        self._optional_places = [
            names.index(name) if name in names else None for name in OPTIONAL
        ]

    def add(self, line: int, row: Sequence[str]) -> None:
        """Read one row."""
        try:
            self._check_width(row)
            self._add(line, *self._required(row), *self._optional(row))
        except FieldError as error:
            self.problems.append(f"line {line}: {error}")

    def _check_width(self, row: Sequence[str]) -> None:
        if len(row) != self._width:
            raise FieldError("row", f"{self._width} fields", len(row))

    def _optional(self, row: Sequence[str]) -> list[str]:
        return ["" if at is None else row[at] for at in self._optional_places]

    def _add(  # noqa: PLR0913, PLR0917 - the columns
        self,
        line: int,
        time: str,
        node: str,
        sensor: str,
        quantity: str,
        value: str,
        unit: str,
        latitude: str,
        longitude: str,
        received: str,
        flags: str,
        priority: str,
    ) -> None:
        at_s = _parse_time("time", time)
        received_s = self._received(received, time, at_s)
        flag, synchronised = _parse_flags(flags)
        place = _parse_place(node, latitude, longitude)
        kind = _parse_kind(sensor, quantity, unit)
        reading = TableReading(
            line, kind.sensor, kind.quantity, kind.read(value.strip(), flag)
        )
        level = _parse_priority(priority)
        key = (*place, at_s, received_s)
        if self._last_key != key:
            self.messages.append(TableMessage(*key))
            self._last_key = key
        message = self.messages[-1]
        message.synchronised &= synchronised and at_s >= ABSOLUTE_TIME_S
        message.priority = max(message.priority, level)
        self.repeated += not _add_reading(message, reading)
        self._last_s = received_s

    def _received(self, text: str, time: str, at_s: float) -> float:
        if not text:
            self.late_without_receipt += at_s < self._last_s
        at_s = max(at_s, self._last_s)
        received_s = _parse_time("received", text) if text else at_s
        if received_s < ABSOLUTE_TIME_S:
            # smaller times are relative in a message, RFC 8428 4.5.3
            rule, remedy = "after July 1978", "give the time of receipt in the column"
            raise FieldError("received", rule, text or time, remedy)
        return received_s


def _add_reading(message: TableMessage, new: TableReading) -> bool:
    """Add a reading; the depth and the counter of a gauge are one reading.

    Returns:
        False if it repeats one of the message.
    """
    for known in message.readings:
        if known.sensor != new.sensor or known.reading.name != new.reading.name:
            continue
        one, other = known.reading, new.reading
        value = one.value if other.value is None else other.value
        total = one.sum if other.sum is None else other.sum
        joined = replace(
            one, value=value, sum=total, extra={**one.extra, **other.extra}
        )
        if joined == one:
            return False
        if {known.quantity, new.quantity} != {RAIN, RAIN_TOTAL}:
            rule = f"given once for each time, as in line {known.line}"
            given = f"{new.sensor} {new.quantity}"
            remedy = "leave the repeated row out, or give its own time of receipt"
            raise FieldError("sensor and quantity", rule, given, remedy)
        known.reading, known.quantity = joined, RAIN
        return True
    message.readings.append(new)
    return True


def _parse_time(name: str, text: str) -> float:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        rule = "ISO 8601 with an offset, such as 2026-07-01T09:00:00+09:00"
        raise FieldError(name, rule, text)
    at_s = time.timestamp()
    if not _BEGIN_S <= at_s < _END_S:
        remedy = "correct the clock's time, or leave the row out"
        raise FieldError(name, "between the years 1960 and 9998", text, remedy)
    return at_s


@lru_cache(maxsize=1024)
def _parse_flags(text: str) -> tuple[Flag | None, bool]:
    """Parse the flag of the node, and whether its clock was set."""
    flag, synchronised = None, True
    for word in re.findall(r"[^;| ]+", text.casefold()):
        if word == UNSYNCHRONISED:
            synchronised = False
        elif word in _FLAGS:
            flag = _FLAGS[word]
        else:
            names = ", ".join(flag.name.casefold() for flag in Flag)
            rule = f"a QARTOD flag ({names}, or its number) or {UNSYNCHRONISED}"
            raise FieldError("flags", rule, word)
    return flag, synchronised


@lru_cache(maxsize=64)
def _parse_priority(text: str) -> int:
    text = text.strip()
    if not text:
        return LADDER.default
    if not text.isdigit():
        raise FieldError("priority", "a whole number from 1 to 5", text)
    return LADDER.check(int(text))


@lru_cache(maxsize=4096)
def _parse_place(node: str, latitude: str, longitude: str) -> tuple[str, float, float]:
    node = check_node_id(node.strip())
    place = _number("latitude", latitude), _number("longitude", longitude)
    check_position(*place)
    return node, *place


def _number(name: str, text: str, remedy: str | None = None) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    # Python reads 1_0 as 10 and digits of other scripts; no sensor writes them
    if not math.isfinite(number) or "_" in text or not text.isascii():
        raise FieldError(name, "a finite number", text, remedy)
    return number


@dataclass(frozen=True)
class _Kind:
    """Sensor, quantity and unit of rows."""

    sensor: str
    quantity: str
    scale: Scale

    def read(self, text: str, flag: Flag | None) -> Reading:
        form = QUANTITIES[self.quantity]
        name = self.sensor if form.part is None else f"{self.sensor}/{form.part}"
        extra: Labels = {}
        if flag is not None and flag is not Flag.GOOD:
            extra = {FLAG_LABEL: int(flag)}
        if not text:
            if flag is not Flag.MISSING:
                remedy = "leave the row out, or flag it as missing"
                raise FieldError("value", "given", text, remedy)
            return Reading(name, form.unit, extra=extra)
        value = self._value(text)
        if form.is_sum:
            return Reading(name, form.unit, sum=value, extra=extra)  # type: ignore[arg-type]
        return Reading(name, form.unit, value, extra=extra)

    def _value(self, text: str) -> Value:
        if self.quantity == WIRE:
            if text.casefold() not in _TRUTHS:
                raise FieldError("value", "1 (cut) or 0 (whole)", text)
            return _TRUTHS[text.casefold()]
        remedy = "leave the row out, or leave the value empty and flag it as missing"
        factor, offset = self.scale
        return _number("value", text, remedy) * factor + offset


@lru_cache(maxsize=4096)
def _parse_kind(sensor: str, quantity: str, unit: str) -> _Kind:
    base, _, part = sensor.strip().partition("/")
    if not _SENSOR.fullmatch(base):
        raise FieldError("sensor", "1 to 32 of A-Z a-z 0-9 _ -", sensor)
    is_tilt = quantity.strip().casefold() == "tilt"
    name = parse_quantity(f"tilt_{part}" if is_tilt and part else quantity)
    expected = "temp" if name == TEMPERATURE else QUANTITIES[name].part
    if part and part != expected:
        rule = f"the sensor alone, or with /{expected}, for {name}"
        raise FieldError("sensor", rule, sensor)
    return _Kind(base, name, parse_unit(name, unit.strip()))


def _sensors_with(
    messages: Iterable[TableMessage], quantities: set[str]
) -> dict[SensorName, set[str]]:
    """For each sensor, which of some quantities it has."""
    found: dict[SensorName, set[str]] = {}
    for message in messages:
        for each in message.readings:
            if each.quantity in quantities:
                key = SensorName(message.node, each.sensor)
                found.setdefault(key, set()).add(each.quantity)
    return found


def _unpaired_axes(messages: Iterable[TableMessage]) -> Iterator[str]:
    """Tilt meters with one axis only, which no rule would judge."""
    for (node, sensor), axes in _sensors_with(messages, {TILT_X, TILT_Y}).items():
        if len(axes) == 1:
            missing = TILT_Y if TILT_X in axes else TILT_X
            yield (
                f"sensor {sensor} of node {node} must have both axes, got "
                f"{axes.pop()}; add rows of {missing}, 0 for a meter with one axis"
            )


def _name_temperatures(messages: Sequence[TableMessage]) -> Sequence[TableMessage]:
    """Name the temperature of a sensor with other quantities as its part."""
    owners = _sensors_with(messages, {TILT_X, TILT_Y, HUMIDITY})
    for message in messages:
        for each in message.readings:
            is_part = (message.node, each.sensor) in owners
            if each.quantity == TEMPERATURE and is_part:
                each.reading = replace(each.reading, name=f"{each.sensor}/temp")
    return messages


def _notes(rows: _RowReader, messages: Sequence[TableMessage]) -> Iterator[str]:
    if rows.late_without_receipt:
        yield (
            f"{rows.late_without_receipt} rows are older than a row before them and "
            "count as received with it; give the column received if that is wrong"
        )
    if rows.repeated:
        yield f"{rows.repeated} rows repeat a row of the same message, and count once"
    if any(a.received_s > b.received_s for a, b in pairwise(rows.messages)):
        yield "rows were not in the order of their receipt, and were sorted by it"
    alone = sum(_count_unpaired(message) for message in messages)
    if alone:
        yield f"{alone} tilt readings lack the other axis at that time and do not count"


def _count_unpaired(message: TableMessage) -> int:
    axes = [e.sensor for e in message.readings if e.quantity in {TILT_X, TILT_Y}]
    return sum(axes.count(sensor) == 1 for sensor in axes)
