"""From payloads to readings: one row per SenML record, on the executors."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from backend_spark.schemas import PARSED
from backend_spark.transforms.observation import Observation
from backend_spark.transforms.quality import alone
from slope_science.quality import LABEL
from spatial_mqtt.cells import ANALYSIS_LEVEL
from spatial_mqtt.envelope import Pack, Reading, Value, decode
from spatial_mqtt.errors import EnvelopeError, PositionError, TopicError
from spatial_mqtt.topics import cell_of

ABSOLUTE_TIME_S: Final = 2**28
"""RFC 8428 4.5.3: a smaller time counts from now, which is the receipt here."""

COMMON: Final = ("node", "boot", "seq", "pri", "topic", "age_s")
"""What all readings of a message share, as its row has it."""

_LAST_TIME_S = 253_402_300_799.0  # end of the year 9999: what a table can hold
_MICRO = 1_000_000
_MOST_FLAG = 2**31


def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode messages; for `mapInArrow`.

    Shape:
        in: schemas.BRONZE columns, one row a message.
        out: schemas.PARSED, one row a reading; a pack that does not decode makes
            one row with its reason and without a reading.
    """
    for batch in batches:
        rows = [parsed for row in batch.to_pylist() for parsed in parse(row)]
        yield pa.RecordBatch.from_pylist(rows, schema=PARSED)


def parse(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The readings of one message, or the reason why there are none."""
    common = {name: row[name] for name in COMMON}
    common |= {"received_at": row["received_at"], "cell": analysis_cell(row["topic"])}
    common["batch_id"] = row.get("batch_id")
    try:
        pack = decode(row["payload"])
        received_s = row["received_at"].timestamp()
        if not pack.synchronised:
            pack = _corrected(pack, received_s - (row["age_s"] or 0))
        return [
            common | _columns(pack, position, reading, received_s)
            for position, reading in enumerate(pack.readings)
        ]
    except EnvelopeError as error:
        return [common | {"position": 0, "reason": str(error)}]


def _corrected(pack: Pack, put_s: float) -> Pack:
    """A pack of a node whose clock was not set, at the time it was put.

    The time it waited was measured by clocks that need no setting; what it waited
    less than is called late, and while its machine was off, is not in it.
    """
    return replace(pack, time_s=put_s)


@lru_cache(maxsize=65536)
def analysis_cell(topic: str) -> str | None:
    """Token of the cell that a topic's messages are scored in.

    None when the topic is no cell's, or its cell is larger than an analysis cell.
    """
    try:
        return cell_of(topic).parent(ANALYSIS_LEVEL).token
    except (TopicError, PositionError):
        return None


def _columns(
    pack: Pack, position: int, reading: Reading, received_s: float
) -> dict[str, Any]:
    number, text = _value(reading.value)
    told = reading.extra.get(LABEL)
    node_flag = told if isinstance(told, int) and abs(told) < _MOST_FLAG else None
    verdict = alone(
        Observation(
            0.0,
            "",
            reading.name,
            reading.unit,
            number,
            text,
            reading.sum,
            synchronised=pack.synchronised,
            node_flag=node_flag,
        )
    )
    return {
        "name": reading.name,
        "unit": reading.unit,
        "value": number,
        "value_text": text,
        "sum": reading.sum,
        "at": _at_us(pack.time_s + reading.time_s, received_s),
        "synchronised": pack.synchronised,
        "why": pack.why,
        "pack_at": _at_us(pack.time_s, received_s),
        "position": position,
        "node_flag": node_flag,
        "flag": int(verdict.flag),
        "flag_why": verdict.why or None,
    }


def _value(value: Value) -> tuple[float | None, str | None]:
    match value:
        case bool():
            return float(value), str(value).lower()
        case float():
            return value, None
        case bytes():
            return None, base64.urlsafe_b64encode(value).decode()
        case _:
            return None, value


def _at_us(time_s: float, received_s: float) -> int:
    absolute_s = time_s if time_s >= ABSOLUTE_TIME_S else received_s + time_s
    if not 0 <= absolute_s <= _LAST_TIME_S:
        raise EnvelopeError("time", "between the years 1970 and 9999", time_s)
    return round(absolute_s * _MICRO)
