"""Nodes and gateways: newest readings, state and place of each, and their table.

Nodes come from the tables. Gateways come from the Managers' lists, and from the status
reports of nodes, which name the gateway in use.
"""

import heapq
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.tables.node_rows import (
    HealthText,
    HealthTexts,
    add_health_text,
    decode_health_texts,
    is_health_name,
    list_faults,
)
from service_runtime.tls import Endpoint
from spatial_mqtt import senml
from spatial_mqtt.cells import Cell
from spatial_mqtt.directory import BrokerEntry, decode_gateway_location, decode_gateways
from spatial_mqtt.errors import BrokerError, DirectoryError, PositionError, TopicError
from spatial_mqtt.topics import GATEWAY_INFO, parse_cell_topic

SILVER_COLUMNS: Final = (
    "node",
    "cell",
    "topic",
    "name",
    "unit",
    "value",
    "value_text",
    "sum",
    "at",
    "received_at",
    "synchronised",
    "age_s",
    "pri",
    "boot",
    "flag",
)
REPORT_COLUMNS: Final = (
    (senml.STATUS_QUEUED, None, "queued"),
    (senml.STATUS_OLDEST, "s", "oldest_s"),
    (senml.STATUS_GATEWAY, None, "gateway"),
    (senml.STATUS_DROPPED, "count", "dropped"),
    (senml.STATUS_BATTERY, "V", "battery_v"),
)
"""Readings of a node's status report: name, unit, and column of the node table."""

SILENT_AFTER_S: Final = 1800
LATE_AFTER_S: Final = 600
AHEAD_AFTER_S: Final = 60
SUSPECT: Final = 3
_MICRO: Final = 1e6
ROWS_AT_ONCE: Final = 4096
WORST_FIRST: Final = (4, 3, 9, 2, 1)
"""QARTOD: fail, suspect, missing, not evaluated, good."""

NODE_STATES: Final = ("silent", "suspect", "late", "clock", "well")
_RANKS: Final = {state: rank for rank, state in enumerate(NODE_STATES)}
MAX_TABLE_ROWS: Final = 300
"""Nodes in the table at most: its size does not grow with their number."""

MAX_ROW_FAULTS: Final = 5
"""Faults in a row of the table at most; the node's window has all."""

BATTERY: Final = ("battery", "voltage", "supply")
MACHINE: Final = ("under-voltage", "throttled", "disk-free", "life-used", "rssi")
"""Last parts of the names of readings about the node's hardware."""

REPORT_READINGS: Final = {
    "queued": senml.STATUS_QUEUED,
    "oldest_s": senml.STATUS_OLDEST,
    "gateway": senml.STATUS_GATEWAY,
    "dropped": senml.STATUS_DROPPED,
}


@dataclass(slots=True)
class NewestReading:
    """The newest reading of a name.

    Attributes:
        at_s: Unix time.
        value: Number; 1 or 0 for a Boolean.
        text: Value that is not a number.
        unit: SenML unit.
        flag: QARTOD flag; None if no test was made.
    """

    at_s: float
    value: float | None
    text: str | None
    unit: str | None
    flag: int | None = None


@dataclass(slots=True)
class NodeState:
    """State of one node, from the tables.

    Attributes:
        id: Node id.
        cell: Token of its analysis cell.
        topic: Topic of its last message.
        at_s: Unix time of its newest reading.
        received_s: Unix time at which its last message arrived.
        synchronised: Whether its clock was set then.
        age_s: Delay of that message in seconds; None if not late.
        boot: Boot id of its last message.
        readings: Newest reading of each name.
        health: Newest health texts.
    """

    id: str
    cell: str | None = None
    topic: str = ""
    at_s: float = 0.0
    received_s: float = 0.0
    synchronised: bool = True
    age_s: int | None = None
    boot: str = ""
    readings: dict[str, NewestReading] = field(default_factory=dict)
    health: HealthTexts = field(default_factory=dict)

    def place(self) -> tuple[float, float] | None:
        """Latitude and longitude of the centre of its cell; None if unknown."""
        return topic_center(self.topic) or cell_center(self.cell)

    def worst_flag(self) -> int | None:
        """Most serious QARTOD flag of its sensors, in the order of `WORST_FIRST`."""
        flags = {reading.flag for reading in self.readings.values()}
        return next((flag for flag in WORST_FIRST if flag in flags), None)

    def faults(self) -> list[dict[str, str]]:
        """What it reports as wrong: sensors, rules, settings and disk."""
        found = list_faults(self.health, self.boot) if self.health else {}
        return [{"name": name, "text": text} for name, text in found.items()]

    def state(self, now_s: float) -> str:
        """One of ``silent``, ``suspect``, ``late``, ``clock`` and ``well``."""
        if now_s - self.at_s > SILENT_AFTER_S:
            return "silent"
        if (self.worst_flag() or 0) >= SUSPECT or self.faults():
            return "suspect"
        if (self.age_s or 0) > LATE_AFTER_S:
            return "late"
        if not self.synchronised or self.at_s - self.received_s > AHEAD_AFTER_S:
            return "clock"
        return "well"


@dataclass
class NodeStates:
    """All nodes.

    Attributes:
        by_id: Nodes by id.
    """

    by_id: dict[str, NodeState] = field(default_factory=dict)

    def add_summaries(self, rows: pa.Table) -> None:
        """Add nodes, status reports and health texts from rows of the node table."""
        for row in _rows_of(rows):
            if row["node"] not in self.by_id:
                self.by_id[row["node"]] = NodeState(
                    row["node"],
                    cell=row["cell"],
                    topic=row["topic"] or "",
                    at_s=row["at"].timestamp(),
                    received_s=row["received_at"].timestamp(),
                    synchronised=row["synchronised"] is not False,
                    age_s=row["age_s"],
                    boot=row["boot"] or "",
                )
            _add_report(self.by_id[row["node"]], row)
            for name, text in decode_health_texts(row["health"]).items():
                add_health_text(self.by_id[row["node"]].health, name, text)

    def add_readings(self, rows: pa.Table) -> None:
        """Add rows of silver; only the newest of each node and name is kept."""
        if not rows.num_rows:
            return
        for row in _rows_of(_with_unix_times(newest_readings(rows))):
            node = self.by_id.setdefault(row["node"], NodeState(row["node"]))
            _renew(node, row)

    def worst_rows(self, part: str, now_s: float) -> list[dict[str, Any]]:
        """Rows of the table: at most `MAX_TABLE_ROWS` nodes, the worst first.

        Args:
            part: Part of their ids, in any case; empty for all nodes.
            now_s: Unix time.
        """
        part = part.lower()
        found = [
            (_RANKS[node.state(now_s)], name)
            for name, node in self.by_id.items()
            if part in name.lower()
        ]
        worst = heapq.nsmallest(MAX_TABLE_ROWS, found)
        return [_table_row(self.by_id[name], now_s) for _, name in worst]


def newest_readings(rows: pa.Table) -> pa.Table:
    """Newest row of each node and name."""
    rows = rows.combine_chunks()
    node, name = (
        rows[column].combine_chunks().dictionary_encode() for column in ("node", "name")
    )
    codes = (each.indices.to_numpy().astype(np.int64) for each in (node, name))
    sensor = next(codes) * len(name.dictionary) + next(codes)
    times = rows["at"].cast(pa.int64()).to_numpy()
    newest_first = np.argsort(times, kind="stable")[::-1]
    _, first = np.unique(sensor[newest_first], return_index=True)
    return rows.take(pa.array(newest_first[first]))


def _rows_of(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as objects, some at a time: those of all nodes take 200 MB."""
    for batch in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _with_unix_times(rows: pa.Table) -> pa.Table:
    """Rows with times in seconds, which need no object each."""
    for name in ("at", "received_at"):
        seconds = pc.divide(rows[name].cast(pa.int64()).cast(pa.float64()), _MICRO)
        rows = rows.set_column(rows.column_names.index(name), name, seconds)
    return rows


@lru_cache(maxsize=65536)
def topic_center(topic: str) -> tuple[float, float] | None:
    """Centre of the cell of a topic, in degrees; None if it has no cell."""
    try:
        return parse_cell_topic(topic).center()
    except (TopicError, PositionError):
        return None


@lru_cache(maxsize=65536)
def cell_center(cell: str | None) -> tuple[float, float] | None:
    """Centre of an analysis cell, in degrees; None without one."""
    return None if cell is None else Cell.from_token(cell).center()


def _add_report(node: NodeState, row: dict[str, Any]) -> None:
    """Add the status report of a node, unless a newer one is known."""
    if row["reported_at"] is None or senml.STATUS_QUEUED in node.readings:
        return
    at_s = row["reported_at"].timestamp()
    for name, unit, column in REPORT_COLUMNS:
        reported = row[column]
        value = reported if isinstance(reported, float) else None
        text = reported if isinstance(reported, str) else None
        if reported is not None:
            node.readings[name] = NewestReading(at_s, value, text, unit)


def _renew(node: NodeState, row: dict[str, Any]) -> None:
    at_s, received_s = row["at"], row["received_at"]
    name, unit = sys.intern(row["name"]), row["unit"] and sys.intern(row["unit"])
    known = node.readings.get(name)
    if known is None or at_s >= known.at_s:
        node.readings[name] = NewestReading(
            at_s, row["value"], row["value_text"], unit, row["flag"]
        )
    if row["value_text"] is not None and is_health_name(name):
        text = HealthText(round(at_s * _MICRO), row["boot"] or "", row["value_text"])
        add_health_text(node.health, name, text)
    if (at_s, received_s) >= (node.at_s, node.received_s):
        node.at_s = at_s
        node.cell, node.topic = row["cell"], row["topic"]
        node.boot = row["boot"] or ""
        node.synchronised, node.age_s = bool(row["synchronised"]), row["age_s"]
    node.received_s = max(node.received_s, received_s)


def _table_row(node: NodeState, now_s: float) -> dict[str, Any]:
    doubts = [
        {"name": name, "flag": reading.flag}
        for name, reading in sorted(node.readings.items())
        if reading.flag in {3, 4, 9}
    ]
    faults = node.faults()
    return {
        "id": node.id,
        "cell": node.cell,
        "state": node.state(now_s),
        "at_s": node.at_s,
        "received_s": node.received_s,
        "lag_s": max(0.0, node.received_s - node.at_s),
        "age_s": node.age_s,
        "synchronised": node.synchronised,
        "battery": _first_reading(node, BATTERY),
        "machine": [
            _as_json(name, reading)
            for name, reading in sorted(node.readings.items())
            if name.rpartition("/")[2] in MACHINE
        ],
        "doubts": doubts,
        "faults": faults[:MAX_ROW_FAULTS],
        "more_faults": len(faults[MAX_ROW_FAULTS:]),
        **status_report(node),
    }


def status_report(node: NodeState) -> dict[str, Any]:
    """Status report of a node; values that it never reported are None.

    Attributes:
        reported_s: Unix time of the report.
        queued: Messages in its queue, by priority, such as ``5:1 3:13``.
        oldest_s: Age of the oldest message without a receipt, in seconds.
        gateway: Gateway in use, ``host:port``, or ``none``.
        dropped: Number of messages ever evicted.
        alarms: State of each alarm output by name.
    """
    queued = node.readings.get(senml.STATUS_QUEUED)
    readings = {key: node.readings.get(name) for key, name in REPORT_READINGS.items()}
    values = {key: reading and _value(reading) for key, reading in readings.items()}
    alarms = alarm_states(node.readings)
    return {"reported_s": queued and queued.at_s, **values, "alarms": alarms}


def _value(reading: NewestReading) -> float | str | None:
    return reading.value if reading.text is None else reading.text


def _first_reading(
    node: NodeState, last_parts: tuple[str, ...]
) -> dict[str, Any] | None:
    for name, reading in sorted(node.readings.items()):
        if name.rpartition("/")[2] in last_parts:
            return _as_json(name, reading)
    return None


def _as_json(name: str, reading: NewestReading) -> dict[str, Any]:
    return {"name": name, "value": reading.value, "unit": reading.unit}


def alarm_states(readings: Mapping[str, NewestReading]) -> dict[str, str] | None:
    """State of each alarm output of a node; None if it never reported any."""
    text = reported_text(readings.get(senml.STATUS_ALARMS))
    if text is None:
        return None
    pairs = (part.rpartition(":") for part in text.split())
    return {name: state for name, _, state in pairs if name}


def reported_text(reading: NewestReading | None) -> str | None:
    """Text of a reading of the status report; None if it has none."""
    if reading is None or reading.text in {None, senml.STATUS_NO_VALUE}:
        return None
    return reading.text


log = logging.getLogger(__name__)

GATEWAY_STATES: Final = ("gone", "silent", "well")
FETCH_INTERVAL_S: Final = 15.0
LIST_VALID_S: Final = 60.0
"""Age from which a list does not describe the present."""

MIN_S2_LEVEL: Final = 5
"""Larger cells, about 300 km wide, are too large to show at their centre."""

Fetch = Callable[[Endpoint], dict[str, bytes]]
"""Reads the retained messages of a Manager's broker, by topic, including the list."""


@dataclass
class GatewayList:
    """Gateways of the last list that a Manager gave.

    Attributes:
        areas: Areas of each gateway that was ever listed, by ``host:port``.
        listed: Gateways of the newest list.
        listed_at_s: Unix time of that list; None if no Manager ever answered.
        problem: Why the last request failed.
        places: Latitude and longitude of gateways that published them.
    """

    areas: dict[str, tuple[str, ...]] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    listed_at_s: float | None = None
    problem: str | None = None
    places: dict[str, tuple[float, float]] = field(default_factory=dict)

    def fetch_list(
        self, managers: Iterable[Endpoint], fetch: Fetch, now_s: float
    ) -> None:
        """Fetch the list of the first Manager that answers.

        Args:
            managers: Managers in the order of preference.
            fetch: Reads the retained messages of one.
            now_s: Unix time.
        """
        problems = []
        for manager in managers:
            try:
                retained = fetch(manager)
                self._update_places(retained)
                return self.replace_list(decode_gateways(retained[GATEWAY_INFO]), now_s)
            except (BrokerError, DirectoryError) as error:
                problems.append(f"{manager}: {error}")
        self.problem = "; ".join(problems) or None
        if problems:
            log.warning("cannot fetch the list of gateways: %s", self.problem)
        return None

    def replace_list(self, entries: Sequence[BrokerEntry], now_s: float) -> None:
        """Replace the list."""
        areas: dict[str, tuple[str, ...]] = {}
        for entry in entries:
            name = str(Endpoint(entry.broker_info.host, entry.broker_info.port))
            areas[name] = (*areas.get(name, ()), entry.topic)
        self.areas = self.areas | areas
        self.listed, self.listed_at_s, self.problem = frozenset(areas), now_s, None

    def _update_places(self, retained: dict[str, bytes]) -> None:
        places = {}
        for topic, payload in retained.items():
            try:
                place = (
                    None if topic == GATEWAY_INFO else decode_gateway_location(payload)
                )
            except DirectoryError as error:
                log.warning("%s: %s", topic, error)
                continue
            if place is None or place.latitude is None or place.longitude is None:
                continue
            name = str(Endpoint(place.broker_info.host, place.broker_info.port))
            places[name] = (place.latitude, place.longitude)
        self.places = places  # in one step: request threads read it

    def rows(self, nodes: Iterable[NodeState], now_s: float) -> list[dict[str, Any]]:
        """One row per gateway that is or was listed or used, worst first."""
        served: dict[str, list[NodeState]] = {name: [] for name in self.areas}
        for node in nodes:
            used = reported_text(node.readings.get(senml.STATUS_GATEWAY))
            if used is not None:
                served.setdefault(used, []).append(node)
        rows = [self._row(name, its, now_s) for name, its in served.items()]
        return sorted(
            rows, key=lambda row: (GATEWAY_STATES.index(row["state"]), row["id"])
        )

    def _row(
        self, name: str, nodes: Sequence[NodeState], now_s: float
    ) -> dict[str, Any]:
        received_s = max((node.at_s for node in nodes), default=None)
        areas = self.areas.get(name, ())
        return {
            "id": name,
            "state": self._state(name, received_s, now_s),
            "areas": areas,
            "place": self.places.get(name) or center_of_areas(areas),
            "exact": name in self.places,
            "nodes": len(nodes),
            "received_s": received_s,
        }

    def _state(self, name: str, received_s: float | None, now_s: float) -> str:
        """``gone`` if it is no longer listed, else ``silent`` or ``well``.

        Without a recent list, the messages of its nodes decide.
        """
        if self.listed_at_s is not None and now_s - self.listed_at_s <= LIST_VALID_S:
            return "well" if name in self.listed else "gone"
        is_active = received_s is not None and now_s - received_s <= SILENT_AFTER_S
        return "well" if is_active else "silent"


def center_of_areas(areas: Iterable[str]) -> tuple[float, float] | None:
    """Centre of the smallest area, in degrees; None if all areas are too large."""
    cells = [cell for area in areas if (cell := _cell(area)) is not None]
    smallest = max(cells, key=lambda cell: cell.level, default=None)
    if smallest is None or smallest.level < MIN_S2_LEVEL:
        return None
    return smallest.center()


def _cell(area: str) -> Cell | None:
    try:
        return parse_cell_topic(area)
    except (TopicError, PositionError):
        return None
