"""Node table: nodes with their state, worst first, and every known gateway."""

import heapq
from typing import Any, Final

from backend_spark.console.live_state import LiveState
from backend_spark.console.nodes import NewestReading, NodeState
from backend_spark.console.way_back import alarm_states
from spatial_mqtt import senml

NODE_STATES: Final = ("silent", "suspect", "late", "clock", "well")
_RANKS: Final = {state: rank for rank, state in enumerate(NODE_STATES)}
MAX_ROWS: Final = 300
"""Nodes in the table at most: its size does not grow with their number."""

BATTERY: Final = ("battery", "voltage", "supply")
MACHINE: Final = ("under-voltage", "throttled", "disk-free", "life-used", "rssi")
"""Last parts of the names of readings about the node's hardware."""

REPORT_READINGS: Final = {
    "queued": senml.STATUS_QUEUED,
    "oldest_s": senml.STATUS_OLDEST,
    "gateway": senml.STATUS_GATEWAY,
    "dropped": senml.STATUS_DROPPED,
}


def build_node_table(live_state: LiveState, part: str = "") -> dict[str, Any]:
    """Rows of the worst nodes, and of all gateways.

    Args:
        live_state: Nodes and gateways.
        part: Part of the ids of the nodes, in any case; empty for all nodes.

    Returns:
        At most `MAX_ROWS` rows; ``all`` is the number of all nodes.
    """
    part = part.lower()
    with live_state.lock:
        now_s = live_state.now_s()
        nodes = live_state.nodes.by_id
        found = [
            (_RANKS[node.state(now_s)], name)
            for name, node in nodes.items()
            if part in name.lower()
        ]
        worst = heapq.nsmallest(MAX_ROWS, found)
        rows = [_row(nodes[name], now_s) for _, name in worst]
    gateways = live_state.gateways
    return {
        "now_s": now_s,
        "rows": rows,
        "all": len(nodes),
        "gateways": live_state.gateway_rows(),
        "managers": {"listed_s": gateways.listed_at_s, "problem": gateways.problem},
    }


def _row(node: NodeState, now_s: float) -> dict[str, Any]:
    doubts = [
        {"name": name, "flag": reading.flag}
        for name, reading in sorted(node.readings.items())
        if reading.flag in {3, 4, 9}
    ]
    return {
        "id": node.id,
        "cell": node.cell,
        "state": node.state(now_s),
        "at_s": node.at_s,
        "received_s": node.received_s,
        "lag_s": max(0.0, node.received_s - node.at_s),
        "age_s": node.age_s,
        "synchronised": node.synchronised,
        "battery": _first(node, BATTERY),
        "machine": [
            _reading(name, reading)
            for name, reading in sorted(node.readings.items())
            if name.rpartition("/")[2] in MACHINE
        ],
        "doubts": doubts,
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
    values = {key: reading and _plain(reading) for key, reading in readings.items()}
    alarms = alarm_states(node.readings)
    return {"reported_s": queued and queued.at_s, **values, "alarms": alarms}


def _plain(reading: NewestReading) -> float | str | None:
    return reading.value if reading.text is None else reading.text


def _first(node: NodeState, last_parts: tuple[str, ...]) -> dict[str, Any] | None:
    for name, reading in sorted(node.readings.items()):
        if name.rpartition("/")[2] in last_parts:
            return _reading(name, reading)
    return None


def _reading(name: str, reading: NewestReading) -> dict[str, Any]:
    return {"name": name, "value": reading.value, "unit": reading.unit}
