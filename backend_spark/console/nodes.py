"""What the tables tell of each node: where it is, what it last read, and how late.

Gateways: whom the Managers list, and what nodes tell of the one they use.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from service_runtime.tls import Endpoint
from spatial_mqtt import node_status
from spatial_mqtt.cells import Cell
from spatial_mqtt.directory import Entry, decode_gateways, decode_place
from spatial_mqtt.errors import BrokerError, DirectoryError, PositionError, TopicError
from spatial_mqtt.topics import GATEWAY_INFO, cell_of

COLUMNS: Final = (
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
REPORT: Final = (
    (node_status.QUEUED, None, "queued"),
    (node_status.OLDEST, "s", "oldest_s"),
    (node_status.GATEWAY, None, "gateway"),
    (node_status.DROPPED, "count", "dropped"),
    (node_status.BATTERY, "V", "battery_v"),
)
"""What a node tells of itself: name, unit, and column of the table of nodes."""

SILENT_AFTER_S: Final = 1800
LATE_AFTER_S: Final = 600
AHEAD_AFTER_S: Final = 60
SUSPECT: Final = 3
WORST_FIRST: Final = (4, 3, 9, 2, 1)
"""QARTOD: fail, suspect, missing, not evaluated, good."""


@dataclass
class Reading:
    """The newest reading of a name.

    Attributes:
        at_s: Unix time.
        value: A number; 1 or 0 for a truth.
        text: What is no number.
        unit: SenML unit.
        flag: QARTOD's; None where no test was made.
    """

    at_s: float
    value: float | None
    text: str | None
    unit: str | None
    flag: int | None = None


@dataclass
class Node:
    """One node, as the tables know it.

    Attributes:
        id: Its name, as it calls itself.
        cell: Token of its analysis cell.
        topic: Of its last message.
        at_s: Unix time of its newest reading.
        received_s: When its last message came.
        synchronised: Whether its clock was set then.
        age_s: How long that message had waited on its way; None: not late.
        boot: Of its last message.
        readings: Newest of each name.
    """

    id: str
    cell: str | None = None
    topic: str = ""
    at_s: float = 0.0
    received_s: float = 0.0
    synchronised: bool = True
    age_s: int | None = None
    boot: str = ""
    readings: dict[str, Reading] = field(default_factory=dict)

    def place(self) -> tuple[float, float] | None:
        """Latitude and longitude of its cell; None when its topic is no cell's."""
        return place_of(self.topic) or middle_of(self.cell)

    def worst_flag(self) -> int | None:
        """The most serious QARTOD flag of its sensors; missing (9) counts last."""
        flags = {reading.flag for reading in self.readings.values()}
        return next((flag for flag in WORST_FIRST if flag in flags), None)

    def state(self, now_s: float) -> str:
        """In one word: ``silent``, ``suspect``, ``late``, ``clock`` or ``well``."""
        if now_s - self.at_s > SILENT_AFTER_S:
            return "silent"
        if (self.worst_flag() or 0) >= SUSPECT:
            return "suspect"
        if (self.age_s or 0) > LATE_AFTER_S:
            return "late"
        if not self.synchronised or self.at_s - self.received_s > AHEAD_AFTER_S:
            return "clock"
        return "well"


@dataclass
class Nodes:
    """All nodes.

    Attributes:
        by_id: By their names.
    """

    by_id: dict[str, Node] = field(default_factory=dict)

    def meet(self, rows: pa.Table) -> None:
        """Take rows of the table of nodes: who ever spoke, and told what of itself."""
        for row in rows.to_pylist():
            if row["node"] not in self.by_id:
                self.by_id[row["node"]] = Node(
                    row["node"],
                    cell=row["cell"],
                    topic=row["topic"] or "",
                    at_s=row["at"].timestamp(),
                    received_s=row["received_at"].timestamp(),
                    synchronised=row["synchronised"] is not False,
                    age_s=row["age_s"],
                    boot=row["boot"] or "",
                )
            _recall(self.by_id[row["node"]], row)

    def put(self, rows: pa.Table) -> None:
        """Take rows of silver; only the newest of each node and name counts."""
        if not rows.num_rows:
            return
        for row in newest(rows).to_pylist():
            node = self.by_id.setdefault(row["node"], Node(row["node"]))
            _renew(node, row)


def newest(rows: pa.Table) -> pa.Table:
    """The newest row of each node and name."""
    rows = rows.sort_by([("at", "ascending")])
    numbered = rows.select(["node", "name"]).append_column(
        "row", pa.array(range(rows.num_rows), pa.int64())
    )
    last = numbered.group_by(["node", "name"]).aggregate([("row", "max")])
    return rows.take(last["row_max"])


@lru_cache(maxsize=65536)
def place_of(topic: str) -> tuple[float, float] | None:
    """Centre of the cell of a topic, in degrees."""
    try:
        return cell_of(topic).center()
    except (TopicError, PositionError):
        return None


@lru_cache(maxsize=65536)
def middle_of(cell: str | None) -> tuple[float, float] | None:
    """Centre of an analysis cell, in degrees; None without one."""
    return None if cell is None else Cell.from_token(cell).center()


def _recall(node: Node, row: dict[str, Any]) -> None:
    """Put what a node told of itself where nothing newer is known."""
    if row["reported_at"] is None or node_status.QUEUED in node.readings:
        return
    at_s = row["reported_at"].timestamp()
    for name, unit, column in REPORT:
        said = row[column]
        value = said if isinstance(said, float) else None
        text = said if isinstance(said, str) else None
        if said is not None:
            node.readings[name] = Reading(at_s, value, text, unit)


def _renew(node: Node, row: dict[str, Any]) -> None:
    at_s = row["at"].timestamp()
    known = node.readings.get(row["name"])
    if known is None or at_s >= known.at_s:
        node.readings[row["name"]] = Reading(
            at_s, row["value"], row["value_text"], row["unit"], row["flag"]
        )
    received_s = row["received_at"].timestamp()
    if (at_s, received_s) >= (node.at_s, node.received_s):
        node.at_s = at_s
        node.cell, node.topic, node.boot = row["cell"], row["topic"], row["boot"]
        node.synchronised, node.age_s = bool(row["synchronised"]), row["age_s"]
    node.received_s = max(node.received_s, received_s)


log = logging.getLogger(__name__)

ORDER: Final = ("gone", "silent", "well")
EVERY_S: Final = 15.0
OLD_S: Final = 60.0
"""An older list says nothing of now."""

LEAST_LEVEL: Final = 5
"""The centre of a larger area, some 300 km wide, is no place."""

Fetch = Callable[[Endpoint], dict[str, bytes]]
"""What a Manager's broker retains, by topic; the list is always there."""


@dataclass
class Gateways:
    """What the Managers told last.

    Attributes:
        areas: Areas of each gateway that was ever listed, by ``host:port``.
        listed: Those of the newest list.
        told_s: Unix time of it; None: no Manager ever answered.
        problem: Why the last question was not answered.
        places: Latitude and longitude of those that said where they stand.
    """

    areas: dict[str, tuple[str, ...]] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()
    told_s: float | None = None
    problem: str | None = None
    places: dict[str, tuple[float, float]] = field(default_factory=dict)

    def ask(self, managers: Iterable[Endpoint], fetch: Fetch, now_s: float) -> None:
        """Take the list of the first Manager that answers.

        Args:
            managers: Where to ask.
            fetch: Gives what the broker of one retains.
            now_s: Unix time.
        """
        problems = []
        for manager in managers:
            try:
                told = fetch(manager)
                self._take_places(told)
                return self.take(decode_gateways(told[GATEWAY_INFO]), now_s)
            except (BrokerError, DirectoryError) as error:
                problems.append(f"{manager}: {error}")
        self.problem = "; ".join(problems) or None
        if problems:
            log.warning("no list of gateways: %s", self.problem)
        return None

    def take(self, entries: Sequence[Entry], now_s: float) -> None:
        """Take a list."""
        areas: dict[str, tuple[str, ...]] = {}
        for entry in entries:
            name = str(Endpoint(entry.broker_info.host, entry.broker_info.port))
            areas[name] = (*areas.get(name, ()), entry.topic)
        self.areas = self.areas | areas
        self.listed, self.told_s, self.problem = frozenset(areas), now_s, None

    def _take_places(self, told: dict[str, bytes]) -> None:
        self.places = {}
        for topic, payload in told.items():
            try:
                place = None if topic == GATEWAY_INFO else decode_place(payload)
            except DirectoryError as error:
                log.warning("%s: %s", topic, error)
                continue
            if place is not None:
                name = str(Endpoint(place.broker_info.host, place.broker_info.port))
                self.places[name] = (place.latitude, place.longitude)

    def rows(self, nodes: Iterable[Node], now_s: float) -> list[dict[str, Any]]:
        """One row for each gateway that is or was, worst first."""
        served: dict[str, list[Node]] = {name: [] for name in self.areas}
        for node in nodes:
            said = node.readings.get(node_status.GATEWAY)
            if said is not None and said.text not in {None, node_status.NOTHING}:
                served.setdefault(str(said.text), []).append(node)
        rows = [self._row(name, its, now_s) for name, its in served.items()]
        return sorted(rows, key=lambda row: (ORDER.index(row["state"]), row["id"]))

    def _row(self, name: str, nodes: Sequence[Node], now_s: float) -> dict[str, Any]:
        heard_s = max((node.at_s for node in nodes), default=None)
        areas = self.areas.get(name, ())
        return {
            "id": name,
            "state": self._state(name, heard_s, now_s),
            "areas": areas,
            "place": self.places.get(name) or center_of_areas(areas),
            "exact": name in self.places,
            "nodes": len(nodes),
            "heard_s": heard_s,
        }

    def _state(self, name: str, heard_s: float | None, now_s: float) -> str:
        """In one word: ``gone`` from the list, ``silent`` or ``well``.

        Where no list is to be had, only its nodes can tell.
        """
        if self.told_s is not None and now_s - self.told_s <= OLD_S:
            return "well" if name in self.listed else "gone"
        is_heard = heard_s is not None and now_s - heard_s <= SILENT_AFTER_S
        return "well" if is_heard else "silent"


def center_of_areas(areas: Iterable[str]) -> tuple[float, float] | None:
    """Centre of the smallest area, in degrees; None where all are large."""
    cells = [cell for area in areas if (cell := _cell(area)) is not None]
    smallest = max(cells, key=lambda cell: cell.level, default=None)
    if smallest is None or smallest.level < LEAST_LEVEL:
        return None
    return smallest.center()


def _cell(area: str) -> Cell | None:
    try:
        return cell_of(area)
    except (TopicError, PositionError):
        return None
