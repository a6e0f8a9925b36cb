"""Way back of a cell: its notice or drill, from the backend to the alarms.

Every stage is read where it is known: what `notify` published and which brokers
accepted it, and what each node of the cell reports of itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from backend_spark.config import CONSOLE_FOLDER
from backend_spark.console.nodes import (
    NewestReading,
    NodeState,
    alarm_states,
    reported_text,
)
from backend_spark.notices.notice_state import (
    DRILLS_FILE,
    DrillRequests,
    SentOrder,
    read_notices,
    read_sent,
)
from spatial_mqtt import senml
from spatial_mqtt.announcements import Drill, Notice
from spatial_mqtt.cells import Cell
from spatial_mqtt.topics import cell_topic, drill_topic, notice_topic

NOTICES_FILE: Final = "notices.json"
SAME_S: Final = 0.002
"""Reported times have milliseconds."""


@dataclass(frozen=True)
class OrderReport:
    """A notice or drill as a node reports it.

    Attributes:
        level: Its level.
        at_s: Unix time of its creation.
        received_s: Unix time of its receipt; 0 if it is from before a restart.
    """

    level: int
    at_s: float
    received_s: float

    @classmethod
    def parse(cls, text: str | None) -> "OrderReport | None":
        """Parse `senml.STATUS_NOTICE`; None for none, and for other texts."""
        parts = (text or "").split()
        try:
            level, at_s, received_s = int(parts[0]), float(parts[1]), float(parts[2])
        except (IndexError, ValueError):
            return None
        return cls(level, at_s, received_s)


@dataclass(frozen=True)
class WayBack:
    """Reads the way back of cells.

    Attributes:
        data: The data folder.
        drills: Requests for drills.
    """

    data: Path
    drills: DrillRequests

    @classmethod
    def open(cls, data: Path) -> "WayBack":
        """The way back of a data folder."""
        return cls(data, DrillRequests(data / CONSOLE_FOLDER / DRILLS_FILE))

    def of_cell(
        self, token: str, nodes: Iterable[NodeState], now_s: float
    ) -> dict[str, Any]:
        """The way back of a cell.

        Args:
            token: Of the cell.
            nodes: The nodes in it.
            now_s: Unix time.
        """
        area = cell_topic(Cell.from_token(token))
        sent = read_sent(self.data)
        notice = read_notices(self.data / NOTICES_FILE).get(notice_topic(area))
        drill = self.drills.read().get(token)
        return {
            "now_s": now_s,
            "notice": notice and _order(notice, sent.get(notice_topic(area)), now_s),
            "drill": drill and _order(drill, sent.get(drill_topic(area)), now_s),
            "nodes": [_node(node, notice, drill) for node in nodes],
        }


def _order(
    order: Notice | Drill, sent: SentOrder | None, now_s: float
) -> dict[str, Any]:
    """A notice or drill, and when each Manager's broker accepted it."""
    accepted = sent.accepted if sent is not None and _is_same(sent.at_s, order) else {}
    return {
        "level": order.level,
        "at_s": order.at_s,
        "until_s": order.until_s,
        "withdrawn": order.withdrawn,
        "in_force": not order.withdrawn and now_s < order.until_s,
        "held": isinstance(order, Notice) and order.state == "held",
        "accepted": [
            {"broker": broker, "at_s": at_s}
            for broker, at_s in sorted(accepted.items())
        ],
    }


def _node(
    node: NodeState, notice: Notice | None, drill: Drill | None
) -> dict[str, Any]:
    """What a node reports: gateway, receipt, and the state of its outputs."""
    alarms = node.readings.get(senml.STATUS_ALARMS)
    gateway = node.readings.get(senml.STATUS_GATEWAY)
    return {
        "id": node.id,
        "reported_s": alarms and alarms.at_s,
        "gateway": reported_text(gateway),
        "outputs": alarm_states(node.readings),
        "notice": _receipt(node.readings.get(senml.STATUS_NOTICE), notice),
        "drill": _receipt(node.readings.get(senml.STATUS_DRILL), drill),
    }


def _receipt(
    reading: NewestReading | None, order: Notice | Drill | None
) -> dict[str, Any] | None:
    """The notice or drill that a node reports, and whether it is the newest sent."""
    found = OrderReport.parse(None if reading is None else reading.text)
    if found is None:
        return None
    is_newest = order is not None and _is_same(found.at_s, order)
    return {
        "level": found.level,
        "at_s": found.at_s,
        "received_s": found.received_s or None,
        "is_newest": is_newest,
    }


def _is_same(at_s: float, order: Notice | Drill) -> bool:
    return abs(at_s - order.at_s) < SAME_S
