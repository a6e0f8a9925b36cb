"""Decoding of payloads to rows of readings, without Spark."""

import json
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from backend_spark.scoring.decode import (
    analysis_cell_token,
    decode_messages,
    read_reason_codes,
)
from backend_spark.tables.schemas import BRONZE, LOG, PARSED, TABLES, format_ddl
from slope_science.quality import Flag
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

CELL = Cell.at(33.56, 133.53)
RECEIVED = datetime(2026, 7, 1, tzinfo=UTC)


def decoded(
    payload: bytes, topic: str | None = None, age_s: int | None = None
) -> list[dict[str, object]]:
    """Rows of one message."""
    rows = decode_messages(message_row(payload, topic, age_s))
    assert rows.schema == PARSED
    return rows.to_pylist()  # type: ignore[no-any-return]


def message_row(
    payload: bytes, topic: str | None = None, age_s: int | None = None
) -> pa.Table:
    """One message of bronze."""
    row = dict.fromkeys(LOG.names) | {
        "received_at": RECEIVED,
        "topic": topic or cell_topic(CELL),
        "payload": payload,
        "node": "n1",
        "boot": "b",
        "seq": 7,
        "pri": 4,
        "age_s": age_s,
    }
    return pa.Table.from_pylist([row], schema=BRONZE)


def pack(*readings: Reading, time_s: float = 1.8e9) -> bytes:
    """A message of node n1."""
    return encode_cbor(Pack(MessageId("n1", "b", 7), 1, time_s, readings, why="rain"))


def test_pack_gives_one_row_per_reading() -> None:
    """Numbers, sums, booleans, texts and bytes go to their columns."""
    rows = decoded(
        pack(
            Reading("rain", "mm", 0.5, 12.5),
            Reading("wire", None, True, time_s=30.0),
            Reading("state", None, "ok"),
            Reading("raw", None, b"\x00\xff"),
        )
    )

    assert [(r["name"], r["value"], r["value_text"], r["sum"]) for r in rows] == [
        ("rain", 0.5, None, 12.5),
        ("wire", 1.0, "true", None),
        ("state", None, "ok", None),
        ("raw", None, "AP8=", None),
    ]
    assert rows[0]["at"] == datetime.fromtimestamp(1.8e9, UTC)
    assert rows[1]["at"] == datetime.fromtimestamp(1.8e9 + 30, UTC)
    assert rows[0]["cell"] == CELL.parent(ANALYSIS_LEVEL).token
    assert (rows[0]["pri"], rows[0]["why"], rows[0]["reason"]) == (4, "rain", None)


def test_undecodable_pack_keeps_its_id_and_the_reason() -> None:
    """A rejected pack gives one row and raises nothing."""
    (row,) = decoded(b"\x81\xa1\x00\x01")

    assert (row["node"], row["seq"], row["name"]) == ("n1", 7, None)
    assert "must be" in str(row["reason"])


def test_relative_time_counts_from_the_receipt() -> None:
    """RFC 8428: a base time below 2**28 is relative to now."""
    (row,) = decoded(pack(Reading("rain", "mm", 0.5), time_s=-60.0))

    assert row["at"] == datetime.fromtimestamp(RECEIVED.timestamp() - 60, UTC)


@pytest.mark.parametrize("age_s", [None, 7200])
def test_unset_clock_is_corrected_by_the_age_of_the_message(age_s: int | None) -> None:
    """A node without time sends 1970-based times; queues on the way measure the age."""
    unset = Pack(
        MessageId("n1", "b", 7), 1, 3e8, (Reading("rain", "mm", 0.5, time_s=-30.0),),
        synchronised=False,
    )  # fmt: skip
    (row,) = decoded(encode_cbor(unset), age_s=age_s)

    sent_s = RECEIVED.timestamp() - (age_s or 0)
    assert row["at"] == datetime.fromtimestamp(sent_s - 30, UTC)
    assert (row["synchronised"], row["age_s"]) == (False, age_s)


@pytest.mark.parametrize(
    ("ahead_s", "age_s", "is_set"),
    [(600, None, True), (601, None, False), (32_400, 7200, False)],
)
def test_time_after_its_receipt_is_corrected_by_the_age_of_the_message(
    ahead_s: float, age_s: int | None, is_set: bool
) -> None:
    """No delay makes a reading newer than its receipt, so that its clock is wrong."""
    received_s = RECEIVED.timestamp()
    readings = (Reading("tilt/x", "deg", 0.5, time_s=-30.0),)
    ahead = Pack(MessageId("n1", "b", 7), 1, received_s + ahead_s, readings)
    message = message_row(encode_cbor(ahead), age_s=age_s)
    (row,) = decode_messages(message, 600).to_pylist()

    put_s = received_s + ahead_s if is_set else received_s - (age_s or 0)
    assert row["at"] == datetime.fromtimestamp(put_s - 30, UTC)
    assert row["synchronised"] == is_set
    assert row["flag"] == (Flag.GOOD if is_set else Flag.SUSPECT)


def test_clock_at_the_epoch_is_not_set_whatever_the_node_states() -> None:
    """A small time is relative to now (RFC 8428 4.5.3), and here in the future."""
    message = message_row(pack(Reading("rain", "mm", 0.5), time_s=7200.0))
    (row,) = decode_messages(message, 600).to_pylist()

    assert row["at"] == RECEIVED
    assert (row["synchronised"], row["flag"]) == (False, Flag.SUSPECT)


def test_time_out_of_range_is_rejected() -> None:
    """A finite but absurd time gives a reason, not an overflow."""
    (row,) = decoded(pack(Reading("rain", "mm", 0.5), time_s=1e300))

    assert "between the years 1970 and 9999" in str(row["reason"])


def test_topic_without_an_analysis_cell_has_no_cell() -> None:
    """A foreign topic, or one of a larger cell, has no cell of level 13."""
    assert analysis_cell_token("/weather/kochi") is None
    assert analysis_cell_token("/4/1/2") is None
    assert analysis_cell_token(cell_topic(CELL)) is not None


def test_every_table_can_be_written_as_ddl() -> None:
    """Spark uses the same column definitions."""
    assert "`assumed` array<string>, `official_level` int" in format_ddl(
        TABLES["levels"]
    )
    assert "`reasons` array<string>" in format_ddl(TABLES["levels"])


@pytest.mark.parametrize(
    "reasons",
    [
        [],
        ["frost"],
        [{"frost": -2}],
        [["frost", "cold"]],
        [["held", *[["held"]] * 3]],
        [["text", "x"]] * 100,
        [["text", "\ud800"]],
        [["of_a_newer_version", "\ud800"]],
        [["of_a_newer_version", 10**5000]],
        [["held", ["held", ["held", ["held", ["held", ["held", ["held", ["held", [
            "held", ["frost", -2]]]]]]]]]]],
    ],
)  # fmt: skip
def test_invalid_reason_codes_are_left_out(reasons: list[Any]) -> None:
    """A hostile reason code must not fail the message or the table."""
    head = {"bn": "n/", "bt": 1.0, "boot": "b", "seq": 1, "n": "rain", "v": 1.0}
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    payload = json.dumps([head | {"rs": reasons}]).encode()
    sys.set_int_max_str_digits(limit)

    assert read_reason_codes(payload) is None


def test_reason_codes_are_stored_as_json_text() -> None:
    """A code of a newer program version is kept unchanged."""
    given = [["frost", -2], ["of_a_newer_version", "x", ["frost", 1.5]]]
    readings = (Reading("rain", "mm", 1.0),)
    sent = Pack(MessageId("n1", "b", 7), 4, 1.8e9, readings, reasons=given)

    assert [
        json.loads(code) for code in read_reason_codes(encode_cbor(sent)) or ()
    ] == given
