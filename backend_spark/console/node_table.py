"""Node table: every known node and gateway with its state, worst first."""

from typing import Any, Final

from backend_spark.console.live_state import LiveState
from backend_spark.console.nodes import NewestReading, NodeState
from backend_spark.console.way_back import alarm_states
from spatial_mqtt import senml

NODE_STATES: Final = ("silent", "suspect", "late", "clock", "well")
BATTERY: Final = ("battery", "voltage", "supply")
MACHINE: Final = ("under-voltage", "throttled", "disk-free", "life-used", "rssi")
"""Last parts of the names of readings about the node's hardware."""

REPORT_READINGS: Final = {
    "queued": senml.STATUS_QUEUED,
    "oldest_s": senml.STATUS_OLDEST,
    "gateway": senml.STATUS_GATEWAY,
    "dropped": senml.STATUS_DROPPED,
}


def build_node_table(live_state: LiveState) -> dict[str, Any]:
    """Rows of nodes and gateways, worst first."""
    with live_state.lock:
        now_s = live_state.now_s()
        rows = [_row(node, now_s) for node in live_state.nodes.by_id.values()]
    rows.sort(key=lambda row: (NODE_STATES.index(row["state"]), row["id"]))
    gateways = live_state.gateways
    return {
        "now_s": now_s,
        "rows": rows,
        "gateways": live_state.gateway_rows(),
        "managers": {"told_s": gateways.listed_at_s, "problem": gateways.problem},
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
