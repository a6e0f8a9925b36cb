"""From payloads to readings: one row per SenML record, on the executors.

Cuts of what decoding made: Arrow in, Arrow out.
"""

import base64
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.quality import alone, number
from backend_spark.scoring.revisions import SETTLED_S
from backend_spark.tables.schemas import MESSAGES, PARSED, REJECTED, SILVER, TOUCHED
from slope_science.quality import LABEL, Flag, Verdict
from slope_science.reason_text import english
from slope_science.reasons import (
    Reason,
    ReasonCode,
    ReasonError,
    decode_all,
    dumps,
)
from spatial_mqtt.cells import ANALYSIS_LEVEL
from spatial_mqtt.errors import EnvelopeError, PositionError, TopicError
from spatial_mqtt.senml import Pack, Reading, Value, decode
from spatial_mqtt.topics import cell_of

ABSOLUTE_TIME_S: Final = 2**28
"""RFC 8428 4.5.3: a smaller time counts from now, which is the receipt here."""

COMMON: Final = ("node", "boot", "seq", "pri", "topic", "age_s")
"""What all readings of a message share, as its row has it."""

TOLD: Final = (
    "name",
    "unit",
    "value",
    "value_text",
    "sum",
    "at",
    "synchronised",
    "why",
    "pack_at",
    "position",
    "node_flag",
    "flag",
    "flag_why",
    "reason",
)
"""What a reading tells by itself, and why there is none."""

Row = tuple[Any, ...]
UNTOLD: Final = tuple(0 if name == "position" else None for name in TOLD[:-1])

_LAST_TIME_S = 253_402_300_799.0  # end of the year 9999: what a table can hold
_MICRO = 1_000_000
_MOST_FLAG = 2**31


def decode_messages(messages: pa.Table) -> pa.Table:
    """Decode messages.

    Shape:
        in: schemas.BRONZE columns, one row a message.
        out: schemas.PARSED, one row a reading; a pack that does not decode makes
            one row with its reason and without a reading.
    """
    told: dict[str, list[Any]] = {name: [] for name in TOLD}
    owners: list[int] = []
    keep = [told[name].append for name in TOLD]
    rows = zip(
        messages["payload"].to_pylist(),
        messages["age_s"].to_pylist(),
        messages["received_at"].cast(pa.int64()).to_pylist(),
        strict=True,
    )
    for owner, (payload, age_s, received_us) in enumerate(rows):
        for row in _readings(payload, received_us / _MICRO, age_s):
            owners.append(owner)
            for add, value in zip(keep, row, strict=True):
                add(value)
    common = messages.select([*COMMON, "received_at", "batch_id"])
    cells = [analysis_cell(topic) for topic in messages["topic"].to_pylist()]
    common = common.append_column("cell", pa.array(cells, pa.string()))
    common = common.take(pa.array(owners, pa.int64()))
    told_columns = {n: pa.array(told[n], PARSED.field(n).type) for n in TOLD}
    columns = {name: common[name] for name in common.column_names} | told_columns
    return pa.table({name: columns[name] for name in PARSED.names}, schema=PARSED)


def parse(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The readings of one message, or the reason why there are none."""
    common = {name: row[name] for name in COMMON}
    common |= {"received_at": row["received_at"], "cell": analysis_cell(row["topic"])}
    common["batch_id"] = row.get("batch_id")
    received_s = row["received_at"].timestamp()
    readings = _readings(row["payload"], received_s, row["age_s"])
    return [common | dict(zip(TOLD, told, strict=True)) for told in readings]


def reason_codes(payload: bytes) -> list[str] | None:
    """The reasons of a message as JSON texts; None where it carries none of use."""
    try:
        codes = [dumps(reason) for reason in decode_all(decode(payload).reasons)]
        "".join(codes).encode()
    except (EnvelopeError, ReasonError, ValueError):
        # the sentence of such a message is shown instead
        return None
    return codes or None


def _readings(payload: bytes, received_s: float, age_s: int | None) -> list[Row]:
    """`TOLD` of each reading of a pack, or of none with the reason."""
    try:
        pack = decode(payload)
        if not pack.synchronised:
            pack = _corrected(pack, received_s - (age_s or 0))
        pack_at = _at_us(pack.time_s, received_s)
        return [
            _told(pack, pack_at, position, reading, received_s)
            for position, reading in enumerate(pack.readings)
        ]
    except EnvelopeError as error:
        return [(*UNTOLD, str(error))]


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


def _told(
    pack: Pack, pack_at: int, position: int, reading: Reading, received_s: float
) -> Row:
    value, text = _value(reading.value)
    told = reading.extra.get(LABEL) if reading.extra else None
    node_flag = told if isinstance(told, int) and abs(told) < _MOST_FLAG else None
    if value is not None and pack.synchronised and node_flag is None:
        verdict = number(reading.name, reading.unit, value)
    else:
        verdict = _alone(pack, reading, (value, text), node_flag)
    at_us = _at_us(pack.time_s + reading.time_s, received_s)
    return (
        reading.name,
        reading.unit,
        value,
        text,
        reading.sum,
        at_us,
        pack.synchronised,
        pack.why,
        pack_at,
        position,
        node_flag,
        int(verdict.flag),
        verdict.why or None,
        None,
    )


def _alone(
    pack: Pack,
    reading: Reading,
    told: tuple[float | None, str | None],
    node_flag: int | None,
) -> Verdict:
    """What the columns of a reading tell where there is more than a number."""
    return alone(
        Observation(
            0.0,
            "",
            reading.name,
            reading.unit,
            *told,
            reading.sum,
            synchronised=pack.synchronised,
            node_flag=node_flag,
        )
    )


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


IMPLAUSIBLE_TIME = english(Reason(ReasonCode.CLOCK_IMPLAUSIBLE))


def can_count(rows: pa.Table, max_ahead_s: int, horizon_s: int) -> pa.ChunkedArray:
    """Whether a reading may be scored: its time is believable.

    No reading can be from the future; one clock that runs ahead must not push the
    real readings out of the horizon. A clock that was never set reads the past.

    Args:
        rows: With the columns at, received_at and synchronised.
        max_ahead_s: How far ahead of its receipt a reading may be.
        horizon_s: How far behind, without a set clock.
    """
    ahead_us = pc.subtract(_micros(rows, "at"), _micros(rows, "received_at"))
    recent = pc.greater_equal(ahead_us, -horizon_s * _MICRO)
    not_ahead = pc.less_equal(ahead_us, max_ahead_s * _MICRO)
    return pc.and_(not_ahead, pc.or_(rows["synchronised"], recent))


def received_by(rows: pa.Table, until_us: int) -> pa.Table:
    """Readings that were received by a time, Unix microseconds."""
    return rows.filter(pc.less_equal(_micros(rows, "received_at"), until_us))


def silver(rows: pa.Table, counts: pa.ChunkedArray) -> pa.Table:
    """One row a reading, out of schemas.PARSED; one that cannot count has failed."""
    flag = pc.if_else(counts, rows["flag"], pa.scalar(int(Flag.FAIL), pa.int32()))
    why = pc.if_else(counts, rows["flag_why"], pa.scalar(IMPLAUSIBLE_TIME))
    for name, column in (("flag", flag), ("flag_why", why)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), column)
    return rows.filter(pc.is_null(rows["reason"])).select(SILVER.names)


def rejected(rows: pa.Table) -> pa.Table:
    """Packs that did not decode, out of schemas.PARSED."""
    return rows.filter(pc.is_valid(rows["reason"])).select(REJECTED.names)


def message_ids(rows: pa.Table) -> pa.Table:
    """One row per message id, rejected ones included, out of schemas.PARSED."""
    first = rows.filter(pc.equal(rows["position"], 0))
    at = first.schema.get_field_index("at")
    return first.set_column(at, "at", first["pack_at"]).select(MESSAGES.names)


def touched(rows: pa.Table, counts: pa.ChunkedArray) -> pa.Table:
    """What a lot of messages changes, cell by cell and node by node.

    Args:
        rows: Of schemas.PARSED.
        counts: What `can_count` tells of them.

    Shape:
        out: schemas.TOUCHED.
    """
    at, received = _micros(rows, "at"), _micros(rows, "received_at")
    none = pa.scalar(None, pa.int64())
    at = pc.if_else(counts, at, none)
    wait = pc.subtract(received, at)
    late = pc.if_else(pc.greater(wait, int(SETTLED_S) * _MICRO), at, none)
    columns = {
        "cell": rows["cell"],
        "node": rows["node"],
        "at": at,
        "reason": rows["reason"],
        "received": received,
        "late": late,
        "wait": wait,
    }
    told = (
        pa
        .table(columns)
        .group_by(["cell", "node"])
        .aggregate([
            ("at", "min"),
            ("reason", "count"),
            ("received", "max"),
            ("late", "count"),
            ("late", "min"),
            ("late", "max"),
            ("wait", "max"),
        ])
    )
    return told.rename_columns(TOUCHED.names).cast(TOUCHED)


def _micros(rows: pa.Table, name: str) -> pa.ChunkedArray:
    return rows[name].cast(pa.int64())
