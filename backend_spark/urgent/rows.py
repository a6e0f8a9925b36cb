"""From a segment's urgent messages to rows of alerts: pure, one row a message."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.ingest.arrival import URGENT_FROM
from backend_spark.schemas import ALERTS
from backend_spark.transforms.decode import parse

SHARED = ("node", "boot", "seq", "pri", "topic", "cell", "received_at", "age_s")


def urgent(segment: pa.Table) -> list[dict[str, Any]]:
    """Rows of a segment whose priority cannot wait.

    Shape:
        in: schemas.LOG.
    """
    rows: list[dict[str, Any]] = segment.filter(
        pc.greater_equal(segment["pri"], URGENT_FROM)
    ).to_pylist()
    return rows


def alerts(messages: Iterable[Mapping[str, Any]]) -> pa.Table:
    """One row a message; one that does not decode has its reason instead.

    Shape:
        in: schemas.LOG rows.
        out: schemas.ALERTS.
    """
    return pa.Table.from_pylist([alert(row) for row in messages], schema=ALERTS)


def alert(message: Mapping[str, Any]) -> dict[str, Any]:
    """The row of one message."""
    readings = parse(message)
    first = readings[0]
    return {name: first[name] for name in SHARED} | {
        "at": first.get("pack_at"),
        "synchronised": first.get("synchronised"),
        "why": first.get("why"),
        "readings": list(_said(readings)),
        "reason": first.get("reason"),
    }


def _said(readings: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for reading in readings:
        if reading.get("name") is not None:
            told = reading["value_text"] or reading["value"]
            told = reading["sum"] if told is None else told
            shown = f"{told:g}" if isinstance(told, float) else str(told)
            yield " ".join(filter(None, (reading["name"], shown, reading["unit"])))
