"""When a batch is flushed, and what is logged, quarantined and receipted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_spark.ingest.deduplication import MessageIdSet
from backend_spark.ingest.messages import (
    MAX_MESSAGES,
    ClassifiedMessage,
    IngestBatch,
    classify_message,
    make_receipts,
    plan_flush,
)
from spatial_mqtt.custody import MAX_RECEIPT_BYTES, CustodyReceipt
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.transport import IncomingMessage

READINGS = (Reading("rain", "mm", 0.5),)


def arrival(
    seq: int,
    pri: int = 1,
    hop: int | None = None,
    answer: str | None = None,
    node: str = "node-1",
) -> ClassifiedMessage:
    """A message as it arrives."""
    payload = encode_cbor(Pack(MessageId(node, "b", seq), pri, 1.7e9, READINGS))
    return classify_message(
        IncomingMessage("/4/1", payload, 1, False, hop, answer, None, (1, seq)), 5
    )


def malformed() -> ClassifiedMessage:
    """A message without an id."""
    return classify_message(
        IncomingMessage("/4/1", b"hello", 1, False, None, None, None, (1, 1)), 5
    )


def test_age_of_a_message_is_stored() -> None:
    """The row has the time that the message waited on its way, in seconds."""
    payload = encode_cbor(Pack(MessageId("node-1", "b", 1), 1, 1.7e9, READINGS))
    late = IncomingMessage(
        "/4/1", payload, 1, False, None, None, None, (1, 1), age_s=4000
    )
    assert classify_message(late, 5).row.age_s == 4000
    assert arrival(1).row.age_s is None


def test_message_with_a_long_topic_is_quarantined() -> None:
    """Readers of the log keep topics in caches."""
    message = arrival(1).message._replace(topic="/4/" + "x" * 60_000)
    found = classify_message(message, 5)

    assert found.is_quarantined
    assert found.id is None
    assert "at most 512 characters" in str(found.row.reason)
    assert len(str(found.row.reason)) < 300


def test_user_property_overrides_the_priority_of_the_payload() -> None:
    """A hop may change the priority; a value out of range is ignored."""
    assert arrival(1, pri=2, hop=5).row.pri == 5
    assert arrival(1, pri=2, hop=9).row.pri == 2
    assert arrival(1, pri=2).row.pri == 2


def test_message_without_id_is_quarantined_with_bytes_and_reason() -> None:
    """The payload is kept unchanged."""
    bad = malformed()

    assert bad.id is None
    assert bad.row.payload == b"hello"
    assert bad.row.reason is not None
    assert "payload must be SenML" in bad.row.reason


def test_foreign_message_has_the_id_of_its_gateway() -> None:
    """A payload without an id has the id that its last hop assigned."""
    named = IncomingMessage(
        "/4/1", b"hello", 1, False, 3, "/custody/gw", "gw:b:7", (1, 1)
    )
    foreign = classify_message(named, 5)

    assert foreign.id == MessageId("gw", "b", 7)
    assert foreign.row.pri == 3
    assert foreign.row.reason is None


def test_batch_of_routine_messages_waits_for_the_flush_time() -> None:
    """Routine messages share an fsync within the flush time."""
    batch = IngestBatch(flush_s=0.2)
    batch.add(arrival(1), now_s=10.0)
    batch.add(arrival(2), now_s=10.1)

    assert not batch.is_due(10.19, has_more=False)
    assert batch.is_due(10.2, has_more=True)


@pytest.mark.parametrize("pri", [4, 5])
def test_urgent_message_is_flushed_at_once(pri: int) -> None:
    """Priorities 4 and 5 wait only for messages that have already arrived."""
    batch = IngestBatch(flush_s=0.2)
    batch.add(arrival(1, pri=pri), now_s=10.0)

    assert batch.is_due(10.0, has_more=False)
    assert not batch.is_due(10.0, has_more=True)


def test_batch_of_the_size_of_the_receive_window_is_flushed() -> None:
    """The broker sends no more before an acknowledgement."""
    batch = IngestBatch(flush_s=0.2, window=2)
    batch.add(arrival(1), now_s=10.0)
    batch.add(arrival(2), now_s=10.0)

    assert batch.is_due(10.0, has_more=False)


def test_full_batch_is_flushed() -> None:
    """Even if more messages are waiting."""
    batch = IngestBatch(flush_s=0.2)
    batch.arrivals = [arrival(1)] * MAX_MESSAGES
    batch.due_s = 99.0

    assert batch.is_due(10.0, has_more=True)


def test_empty_batch_is_never_due() -> None:
    """Nothing is written if nothing arrived."""
    batch = IngestBatch(flush_s=0.2)
    batch.add(arrival(1), now_s=10.0)
    batch.take_all()

    assert not batch.is_due(99.0, has_more=False)


def test_plan_logs_each_id_once() -> None:
    """Known ids and repeats within the batch are counted, not logged."""
    seen = MessageIdSet()
    seen.add([MessageId("node-1", "b", 1)])
    todo = plan_flush([arrival(1), arrival(2), arrival(2), malformed()], seen)

    assert [row.seq for row in todo.log] == [2]
    assert todo.new_ids == [MessageId("node-1", "b", 2)]
    assert todo.duplicates == 2
    assert len(todo.quarantine) == 1


def test_receipts_go_to_the_relay_or_the_node() -> None:
    """Each sender gets one receipt for all its messages, duplicates included."""
    batch = [arrival(1), arrival(2), arrival(2), arrival(3, answer="/custody/gw")]
    sent = {
        topic: CustodyReceipt.decode(payload) for topic, payload in make_receipts(batch)
    }

    assert set(sent) == {"/custody/node-1", "/custody/gw"}
    assert sent["/custody/node-1"].ranges == {("node-1", "b"): ((1, 2),)}


@given(st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=700))
def test_receipts_name_every_id_and_can_be_decoded(seqs: set[int]) -> None:
    """Even for scattered ids each receipt is within `MAX_RECEIPT_BYTES`."""
    batch = [
        ClassifiedMessage(
            IncomingMessage("/4/1", b"", 1, False, None, "/custody/gw", None, (1, 1)),
            arrival(1).row,
            MessageId(f"node-{seq}".ljust(63, "x"), "b" * 32, seq),
        )
        for seq in seqs
    ]
    payloads = [payload for _, payload in make_receipts(batch)]

    assert all(len(payload) <= MAX_RECEIPT_BYTES for payload in payloads)
    got = [CustodyReceipt.decode(payload) for payload in payloads]
    assert all(any(a.id in receipt for receipt in got) for a in batch)


def test_receipt_of_consecutive_ids_is_one_range() -> None:
    """Thousands of ids of one node need one receipt of a few bytes."""
    [(_, payload)] = make_receipts([arrival(seq) for seq in range(3000)])

    assert CustodyReceipt.decode(payload).ranges == {("node-1", "b"): ((0, 2999),)}
    assert len(payload) < 64
