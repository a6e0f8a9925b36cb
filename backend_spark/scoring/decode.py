"""Decoding of payloads to readings on the executors, and the tables cut from them."""

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.scoring.observation import Observation
from backend_spark.scoring.quality import flag_number, flag_single
from backend_spark.scoring.revisions import SETTLED_S
from backend_spark.tables.schemas import MESSAGES, PARSED, REJECTED, SILVER, TOUCHED
from slope_science.quality import FLAG_LABEL, Flag, Verdict
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import (
    Reason,
    ReasonError,
    decode_reasons,
    reason_to_json,
    render_english,
)
from spatial_mqtt.cells import ANALYSIS_LEVEL
from spatial_mqtt.errors import EnvelopeError, PositionError, TopicError
from spatial_mqtt.senml import ABSOLUTE_TIME_S, Pack, Reading, Value, decode_pack
from spatial_mqtt.topics import parse_cell_topic

MESSAGE_COLUMNS: Final = ("node", "boot", "seq", "pri", "topic", "age_s")
"""Columns that all readings of a message share."""

READING_COLUMNS: Final = (
    "name",
    "unit",
    "value",
    "value_text",
    "sum",
    "at",
    "synchronised",
    "why",
    "reason_codes",
    "pack_at",
    "position",
    "node_flag",
    "flag",
    "flag_why",
    "reason",
)
"""Columns of a single reading, and the reason if there is none."""

Row = tuple[Any, ...]
NO_READING: Final = tuple(
    0 if name == "position" else None for name in READING_COLUMNS[:-1]
)

_LAST_TIME_S = 253_402_300_799.0  # end of the year 9999: what a table can hold
_MICRO = 1_000_000
_MAX_FLAG = 2**31


def decode_messages(messages: pa.Table, max_ahead_s: float = math.inf) -> pa.Table:
    """Decode messages.

    Args:
        messages: The messages.
        max_ahead_s: As in `read_pack`.

    Shape:
        in: schemas.BRONZE columns, one row per message.
        out: schemas.PARSED, one row per reading; a pack that cannot be decoded gives
            one row with the reason and without a reading.
    """
    rows = zip(
        messages["payload"].to_pylist(),
        messages["age_s"].to_pylist(),
        messages["received_at"].cast(pa.int64()).to_pylist(),
        strict=True,
    )
    return tabulate_readings(
        messages,
        (
            _readings(payload, received_us / _MICRO, age_s, max_ahead_s)
            for payload, age_s, received_us in rows
        ),
    )


def tabulate_readings(messages: pa.Table, readings: Iterable[list[Row]]) -> pa.Table:
    """Table of the readings of messages.

    Args:
        messages: One row per message, with `MESSAGE_COLUMNS`, received_at and batch_id.
        readings: For each message the rows of `read_pack`.

    Shape:
        out: schemas.PARSED.
    """
    found: dict[str, list[Any]] = {name: [] for name in READING_COLUMNS}
    owners: list[int] = []
    appends = [found[name].append for name in READING_COLUMNS]
    for owner, rows in enumerate(readings):
        for row in rows:
            owners.append(owner)
            for append, value in zip(appends, row, strict=True):
                append(value)
    common = messages.select([*MESSAGE_COLUMNS, "received_at", "batch_id"])
    cells = [analysis_cell_token(topic) for topic in messages["topic"].to_pylist()]
    common = common.append_column("cell", pa.array(cells, pa.string()))
    common = common.take(pa.array(owners, pa.int64()))
    own = {n: pa.array(found[n], PARSED.field(n).type) for n in READING_COLUMNS}
    columns = {name: common[name] for name in common.column_names} | own
    return pa.table({name: columns[name] for name in PARSED.names}, schema=PARSED)


def parse_message(
    row: Mapping[str, Any], max_ahead_s: float = math.inf
) -> list[dict[str, Any]]:
    """The readings of one message, or one row with the reason if it has none.

    Args:
        row: The message.
        max_ahead_s: As in `read_pack`.
    """
    common = {name: row[name] for name in MESSAGE_COLUMNS}
    common |= {
        "received_at": row["received_at"],
        "cell": analysis_cell_token(row["topic"]),
    }
    common["batch_id"] = row.get("batch_id")
    received_s = row["received_at"].timestamp()
    readings = _readings(row["payload"], received_s, row["age_s"], max_ahead_s)
    return [common | dict(zip(READING_COLUMNS, row, strict=True)) for row in readings]


def read_reason_codes(payload: bytes) -> list[str] | None:
    """The reasons of a message as JSON texts; None without valid ones."""
    try:
        return _reason_codes(decode_pack(payload))
    except EnvelopeError:
        return None


def _reason_codes(pack: Pack) -> list[str] | None:
    try:
        codes = [reason_to_json(reason) for reason in decode_reasons(pack.reasons)]
        "".join(codes).encode()
    except (ReasonError, ValueError):
        # readers fall back to the sentence
        return None
    return codes or None


def _readings(
    payload: bytes,
    received_s: float,
    age_s: int | None,
    max_ahead_s: float = math.inf,
) -> list[Row]:
    """`READING_COLUMNS` of each reading of a pack, or one row with the reason."""
    try:
        return read_pack(decode_pack(payload), received_s, age_s, max_ahead_s)
    except EnvelopeError as error:
        return [(*NO_READING, str(error))]


def read_pack(
    pack: Pack,
    received_s: float,
    age_s: int | None = None,
    max_ahead_s: float = math.inf,
) -> list[Row]:
    """`READING_COLUMNS` of each reading of a pack.

    Args:
        pack: The pack.
        received_s: Unix time of its receipt.
        age_s: Wait in queues; None: not late.
        max_ahead_s: Lead over its receipt above which the clock of a node is taken for
            unset, whatever the node states: no delay makes a reading newer than that.

    Raises:
        EnvelopeError: A time is out of range.
    """
    is_ahead = received_s + max_ahead_s < _absolute_s(pack.time_s, received_s)
    is_ahead &= pack.time_s <= _LAST_TIME_S
    if is_ahead or not pack.synchronised:
        pack = _corrected(pack, received_s - (age_s or 0))
    message = _at_us(pack.time_s, received_s), _reason_codes(pack)
    return [
        _reading_row(pack, message, position, reading, received_s)
        for position, reading in enumerate(pack.readings)
    ]


def _corrected(pack: Pack, put_s: float) -> Pack:
    """A pack of a node without a right clock, with the time at which it was queued.

    The waiting time comes from monotonic clocks; it lacks the times below the threshold
    for late messages and those without power.
    """
    return replace(pack, time_s=put_s, synchronised=False)


@lru_cache(maxsize=65536)
def analysis_cell_token(topic: str) -> str | None:
    """Token of the analysis cell of a topic.

    None if the topic is not a cell's, or its cell is larger than an analysis cell.
    """
    try:
        return parse_cell_topic(topic).parent(ANALYSIS_LEVEL).token
    except (TopicError, PositionError):
        return None


def _reading_row(
    pack: Pack,
    message: tuple[int, list[str] | None],
    position: int,
    reading: Reading,
    received_s: float,
) -> Row:
    """Row of a reading; `message` has the columns pack_at and reason_codes."""
    pack_at, codes = message
    value, text = _value(reading.value)
    given = reading.extra.get(FLAG_LABEL) if reading.extra else None
    node_flag = given if isinstance(given, int) and abs(given) < _MAX_FLAG else None
    if value is not None and pack.synchronised and node_flag is None:
        verdict = flag_number(reading.name, reading.unit, value)
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
        codes,
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
    value: tuple[float | None, str | None],
    node_flag: int | None,
) -> Verdict:
    """Verdict of a reading that has more than a plain number."""
    return flag_single(
        Observation(
            0.0,
            "",
            reading.name,
            reading.unit,
            *value,
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


def _absolute_s(time_s: float, received_s: float) -> float:
    """Unix time; a small one is relative to now, which is the receipt here."""
    return time_s if time_s >= ABSOLUTE_TIME_S else received_s + time_s


def _at_us(time_s: float, received_s: float) -> int:
    absolute_s = _absolute_s(time_s, received_s)
    if not 0 <= absolute_s <= _LAST_TIME_S:
        raise EnvelopeError("time", "between the years 1970 and 9999", time_s)
    return round(absolute_s * _MICRO)


IMPLAUSIBLE_TIME = render_english(Reason(ReasonCode.CLOCK_IMPLAUSIBLE))


def has_plausible_time(
    rows: pa.Table, max_ahead_s: int, horizon_s: int
) -> pa.ChunkedArray:
    """Whether a reading may be scored: its time is plausible.

    A clock that runs ahead must not push real readings out of the horizon. A clock that
    was not set gives times in the past.

    Args:
        rows: Rows with the columns at, received_at and synchronised.
        max_ahead_s: Maximum time of a reading after its receipt.
        horizon_s: Maximum time before its receipt, without a set clock.
    """
    ahead_us = pc.subtract(_micros(rows, "at"), _micros(rows, "received_at"))
    recent = pc.greater_equal(ahead_us, -horizon_s * _MICRO)
    not_ahead = pc.less_equal(ahead_us, max_ahead_s * _MICRO)
    return pc.and_(not_ahead, pc.or_(rows["synchronised"], recent))


def filter_received(rows: pa.Table, until_us: int) -> pa.Table:
    """Readings received up to a time, Unix microseconds."""
    return rows.filter(pc.less_equal(_micros(rows, "received_at"), until_us))


def cut_silver(rows: pa.Table, counts: pa.ChunkedArray) -> pa.Table:
    """Silver rows from schemas.PARSED; readings that cannot count have failed."""
    flag = pc.if_else(counts, rows["flag"], pa.scalar(int(Flag.FAIL), pa.int32()))
    why = pc.if_else(counts, rows["flag_why"], pa.scalar(IMPLAUSIBLE_TIME))
    for name, column in (("flag", flag), ("flag_why", why)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), column)
    return rows.filter(pc.is_null(rows["reason"])).select(SILVER.names)


def cut_rejected(rows: pa.Table) -> pa.Table:
    """Packs that could not be decoded, from schemas.PARSED."""
    return rows.filter(pc.is_valid(rows["reason"])).select(REJECTED.names)


def cut_message_ids(rows: pa.Table) -> pa.Table:
    """One row per message id, including rejected ones, from schemas.PARSED.

    A segment of the log that cannot be read has a row without an id.
    """
    is_first = pc.equal(rows["position"], 0)
    first = rows.filter(pc.and_(is_first, pc.is_valid(rows["node"])))
    at = first.schema.get_field_index("at")
    return first.set_column(at, "at", first["pack_at"]).select(MESSAGES.names)


def summarize_changes(rows: pa.Table, counts: pa.ChunkedArray) -> pa.Table:
    """Changes by a batch of messages, by cell and node.

    Args:
        rows: Rows of schemas.PARSED.
        counts: Result of `has_plausible_time` for them.

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
    grouped = (
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
    return grouped.rename_columns(TOUCHED.names).cast(TOUCHED)


def _micros(rows: pa.Table, name: str) -> pa.ChunkedArray:
    return rows[name].cast(pa.int64())
