"""What the tables tell of each node: where it is, what it last read, and how late."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from spatial_mqtt import self_report
from spatial_mqtt.cells import Cell
from spatial_mqtt.errors import PositionError, TopicError
from spatial_mqtt.topics import cell_of

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
    (self_report.QUEUED, None, "queued"),
    (self_report.OLDEST, "s", "oldest_s"),
    (self_report.GATEWAY, None, "gateway"),
    (self_report.DROPPED, "count", "dropped"),
    (self_report.BATTERY, "V", "battery_v"),
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
    if row["reported_at"] is None or self_report.QUEUED in node.readings:
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
