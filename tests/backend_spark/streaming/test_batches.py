"""What executors write and return, without Spark."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backend_spark.ingest.segment_log import (
    DAMAGED_ROW,
    LogRow,
    SegmentWriter,
    read_intact_segment,
)
from backend_spark.streaming import batches
from backend_spark.streaming.batches import (
    NODE_ROWS,
    TOUCHED_ROWS,
    DecodingWorker,
    ReceivedChanges,
    result_files,
    result_rows,
)
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.schemas import LOG, RECEIVED, SPARK_TABLES, TABLES
from spatial_mqtt.cells import Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

T0 = 1_750_000_200
TOPIC = cell_topic(Cell.at(33.56, 133.53))


def messages(late_s: int = 2) -> list[pa.RecordBatch]:
    """Nine packs in three batches, one of them foreign, one from the future."""
    made = []
    for seq in range(9):
        at_s = T0 + 600 * seq + (10**6 if seq == 4 else 0)
        readings = (Reading("rain", "mm", None, seq), Reading("wire", None, False))
        pack = Pack(MessageId("n", "b", seq), 1, at_s, readings)
        payload = b"foreign" if seq == 5 else encode_cbor(pack)
        received_us = (T0 + 600 * seq + late_s) * 1_000_000
        row = {"received_at": received_us, "topic": TOPIC, "payload": payload}
        made.append(row | {"node": "n", "boot": "b", "seq": seq, "pri": 1})
    return pa.Table.from_pylist(made, schema=LOG).to_batches(max_chunksize=3)


def process_messages(tables: Path, names: tuple[str, ...], late_s: int = 2) -> pa.Table:
    """Result rows of the chunks of those messages."""
    worker = DecodingWorker(
        tables, tables.parent, frozenset(names), 7, 600, 60 * 86_400
    )
    return pa.Table.from_batches(list(worker.process(messages(late_s))))


@pytest.mark.parametrize("rows", [1, 5, 100])
def test_chunks_of_any_size_write_every_row_once(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To bronze, silver, rejected and messages."""
    monkeypatch.setattr(batches, "CHUNK_ROWS", rows)
    tables = tmp_path / "tables"
    create_tables(tables, SPARK_TABLES)
    results = process_messages(tables, RECEIVED)
    found = {
        name: pa.concat_tables(
            pq.read_table(tables / name / part.file, schema=TABLES[name])
            for part in result_files(results, name)
        ).sort_by("seq")
        for name in RECEIVED
    }

    counts = {name: table.num_rows for name, table in found.items()}
    assert counts == {"bronze": 9, "silver": 16, "rejected": 1, "messages": 9}
    assert found["rejected"]["seq"].to_pylist() == [5]
    assert set(found["bronze"]["batch_id"].to_pylist()) == {7}
    ahead = [r for r in found["silver"].to_pylist() if r["seq"] == 4]
    assert {(r["flag"], r["synchronised"]) for r in ahead} == {(3, False)}
    assert {r["at"] for r in ahead} == {r["received_at"] for r in ahead}


def test_damage_in_the_log_costs_the_damaged_messages_only(tmp_path: Path) -> None:
    """A flipped bit in a payload that still decodes, and a segment cut short."""
    tables, writer = tmp_path / "tables", SegmentWriter(tmp_path / "log", "i.0a")
    create_tables(tables, SPARK_TABLES)
    paths = []
    for batch in messages():
        columns = batch.set_column(
            0, "received_at", batch.column(0).cast(pa.int64())
        ).to_pylist()
        paths.append(writer.append([LogRow(*row.values()) for row in columns]))
    whole = bytearray(paths[0].read_bytes())
    # The last byte of the payload is the value of the wire: cut instead of whole.
    payload = messages()[0].column("payload")[1].as_py()
    whole[whole.index(payload) + len(payload) - 1] ^= 1
    paths[0].write_bytes(whole)
    paths[1].write_bytes(paths[1].read_bytes()[:300])
    worker = DecodingWorker(
        tables, tables.parent, frozenset(RECEIVED), 7, 600, 60 * 86_400
    )
    rows = pa.concat_tables([read_intact_segment(path) for path in paths])
    results = pa.Table.from_batches(list(worker.process(rows.to_batches())))
    found = {
        name: pa.concat_tables(
            pq.read_table(tables / name / part.file, schema=TABLES[name])
            for part in result_files(results, name)
        )
        for name in RECEIVED
    }

    assert sorted(found["messages"]["seq"].to_pylist()) == [0, 1, 2, 6, 7, 8]
    assert set(found["silver"]["seq"].to_pylist()) == {0, 2, 6, 7, 8}
    reasons = {r["seq"]: r["reason"] for r in found["rejected"].to_pylist()}
    assert reasons[1] == DAMAGED_ROW
    assert "cannot be read" in reasons[None]
    assert reasons.keys() == {1, None}


def test_chunk_returns_its_affected_range(tmp_path: Path) -> None:
    """The earliest plausible reading and the late ones; no file is written."""
    tables = tmp_path / "tables"
    results = process_messages(tables, (), late_s=7200)
    (node_row,) = result_rows(results, NODE_ROWS)
    (row,) = result_rows(results, TOUCHED_ROWS)

    assert row["earliest_us"] == T0 * 1_000_000
    # the one from the future is timed by its receipt
    assert (row["rejected"], row["late"]) == (1, 16 - 2)
    assert row["first_us"] == T0 * 1_000_000
    assert row["last_us"] == (T0 + 8 * 600) * 1_000_000
    assert row["wait_us"] == 7200 * 1_000_000
    newest_us = (T0 + 4 * 600 + 7200) * 1_000_000
    assert (node_row["node"], node_row["at"]) == ("n", newest_us)
    assert node_row["received_at"] == newest_us
    assert not tables.exists()


def test_reading_before_the_horizon_changes_no_level() -> None:
    """As dated by a clock that was set to 1980: only the horizon is scored again."""
    day_us = 86_400_000_000
    newest = {"a": 100 * day_us, "b": 100 * day_us}
    changes = ReceivedChanges({"a": 0, "b": 90 * day_us, "c": 5}, 0, {})

    assert changes.within_horizon(newest, 60 * day_us).earliest_us == {
        "a": 40 * day_us,
        "b": 90 * day_us,
        "c": 5,
    }
