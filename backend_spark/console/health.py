"""The health board: every node and gateway that the tables know, worst first."""

from typing import Any, Final

from backend_spark.console.board import Board
from backend_spark.console.nodes import Node, Reading

ORDER: Final = ("silent", "suspect", "late", "clock", "well")
BATTERY: Final = ("battery", "voltage", "supply")
WORDS: Final = ("under-voltage", "throttled", "disk-free", "life-used", "queue", "rssi")
"""Last words of the names of readings that tell of the machine, not of the slope."""


def board_of(board: Board) -> dict[str, Any]:
    """Rows for the board."""
    with board.lock:
        now_s = board.now_s()
        rows = [_row(node, now_s) for node in board.nodes.by_id.values()]
    rows.sort(key=lambda row: (ORDER.index(row["state"]), row["id"]))
    return {"now_s": now_s, "rows": rows}


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
    }


def _first(node: Node, words: tuple[str, ...]) -> dict[str, Any] | None:
    for name, reading in sorted(node.readings.items()):
        if name.rpartition("/")[2] in words:
            return _said(name, reading)
    return None


def _said(name: str, reading: Reading) -> dict[str, Any]:
    return {"name": name, "value": reading.value, "unit": reading.unit}
