"""The health board: every node and gateway that is known, worst first."""

from typing import Any, Final

from backend_spark.console.live_state import Board
from backend_spark.console.nodes import Node, Reading
from spatial_mqtt import node_status

ORDER: Final = ("silent", "suspect", "late", "clock", "well")
BATTERY: Final = ("battery", "voltage", "supply")
WORDS: Final = ("under-voltage", "throttled", "disk-free", "life-used", "rssi")
"""Last words of the names of readings that tell of the machine, not of the slope."""

REPORT: Final = {
    "queued": node_status.QUEUED,
    "oldest_s": node_status.OLDEST,
    "gateway": node_status.GATEWAY,
    "dropped": node_status.DROPPED,
}


def board_of(board: Board) -> dict[str, Any]:
    """Rows for the board."""
    with board.lock:
        now_s = board.now_s()
        rows = [_row(node, now_s) for node in board.nodes.by_id.values()]
    rows.sort(key=lambda row: (ORDER.index(row["state"]), row["id"]))
    gateways = board.gateway_list()
    told = board.gateways
    return {
        "now_s": now_s,
        "rows": rows,
        "gateways": gateways,
        "managers": {"told_s": told.told_s, "problem": told.problem},
    }


def _row(node: Node, now_s: float) -> dict[str, Any]:
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
            _said(name, reading)
            for name, reading in sorted(node.readings.items())
            if name.rpartition("/")[2] in WORDS
        ],
        "doubts": doubts,
        **report_of(node),
    }


def report_of(node: Node) -> dict[str, Any]:
    """What a node told of itself, each None where it never did.

    Attributes:
        reported_s: Unix time of the report.
        queued: Messages that waited on it, by priority, such as ``5:1 3:13``.
        oldest_s: How long the oldest had waited for a receipt: the custody lag.
        gateway: In use, ``host:port``, or ``none``.
        dropped: Messages it ever gave up.
    """
    queued = node.readings.get(node_status.QUEUED)
    told = {word: node.readings.get(name) for word, name in REPORT.items()}
    plain = {word: each and _plain(each) for word, each in told.items()}
    return {"reported_s": queued and queued.at_s, **plain}


def _plain(reading: Reading) -> float | str | None:
    return reading.value if reading.text is None else reading.text


def _first(node: Node, words: tuple[str, ...]) -> dict[str, Any] | None:
    for name, reading in sorted(node.readings.items()):
        if name.rpartition("/")[2] in words:
            return _said(name, reading)
    return None


def _said(name: str, reading: Reading) -> dict[str, Any]:
    return {"name": name, "value": reading.value, "unit": reading.unit}
