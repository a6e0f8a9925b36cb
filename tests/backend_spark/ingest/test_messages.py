"""When a batch is flushed, what is logged, quarantined and receipted, and checks."""

import json
import os
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_spark.ingest.deduplication import MessageIdSet
from backend_spark.ingest.messages import (
    FORGET_S,
    MAX_MESSAGES,
    MAX_NODES,
    ClassifiedMessage,
    ClockCorrection,
    IngestBatch,
    PublisherAreaCheck,
    classify_message,
    make_receipts,
    plan_flush,
)
from service_runtime.settings import SettingsError
from spatial_mqtt.cells import Cell
from spatial_mqtt.custody import MAX_RECEIPT_BYTES, CustodyReceipt
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic
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


T0 = 1_780_000_000
TOPIC = cell_topic(Cell.at(33.56, 133.53))
seqs = count()


def arrival_from(node: str, topic: str, answer: str | None = None) -> ClassifiedMessage:
    pack = Pack(MessageId(node, "b", 1), 5, 1.7e9, (Reading("rain", "mm", 0.5),))
    payload = encode_cbor(pack)
    return classify_message(
        IncomingMessage(topic, payload, 1, False, 5, answer, None, (1, 1)), 5
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "places.json"
    path.write_text(json.dumps({"n1": ["/3/1"], "gw": ["/3", "/4"]}))
    return path


@pytest.mark.parametrize(
    ("node", "topic", "is_quarantined"),
    [
        ("n1", "/3/1", False),
        ("n1", "/3/1/2", False),
        ("n1", "/3/2", True),
        ("n1", "/3", True),
        ("n1", "/3/11", True),
        ("gw", "/4/0", False),
        ("gw", "/5", True),
        ("new", "/5", False),
    ],
)
def test_node_id_is_accepted_only_in_its_areas(
    node: str, topic: str, is_quarantined: bool, path: Path
) -> None:
    """An id that is not in the file is accepted: its certificate may be new."""
    checked = PublisherAreaCheck(path).check(arrival_from(node, topic))

    assert checked.is_quarantined == is_quarantined
    assert (checked.row.node is None) == is_quarantined


def test_impostor_is_quarantined_and_its_id_stays_free(path: Path) -> None:
    """The real message of that number counts as new; the relay gets a receipt."""
    false = PublisherAreaCheck(path).check(arrival_from("n1", "/3/2", "/custody/gw"))
    plan = plan_flush([false, arrival_from("n1", "/3/1")], MessageIdSet())
    (topic, payload), *_ = make_receipts([false])

    assert [row.topic for row in plan.log] == ["/3/1"]
    assert (plan.impostors, plan.duplicates) == (1, 0)
    assert "topic must be in /3/1, where the certificate of n1" in str(
        plan.quarantine[0].reason
    )
    assert topic == "/custody/gw"
    assert MessageId("n1", "b", 1) in CustodyReceipt.decode(payload)


def test_impostor_without_relay_gets_no_receipt(path: Path) -> None:
    """A receipt would make the real node delete a message that was not received."""
    false = PublisherAreaCheck(path).check(arrival_from("n1", "/3/2"))

    assert list(make_receipts([false])) == []


def test_file_is_reloaded_when_it_changes(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new node needs no restart, and an invalid file is ignored."""
    area_check = PublisherAreaCheck(path)
    new = path.with_name("new")
    for number, text in enumerate(["{", json.dumps({"n1": ["/3/2"]})]):
        new.write_text(text)
        os.utime(new, ns=(number, number))
        new.replace(path)
        area_check.reload_if_changed()
        assert area_check.check(arrival_from("n1", "/3/2")).is_quarantined == (
            number == 0
        )
    path.unlink()
    area_check.reload_if_changed()

    assert not area_check.check(arrival_from("n1", "/3/2")).is_quarantined
    assert caplog.text.count("is ignored") == 2


@pytest.mark.parametrize("text", ["", "[]", '{"n1": "/3"}', "{", "\udcff"])
def test_invalid_file_is_rejected_at_the_start(text: str, path: Path) -> None:
    """The error names the remedy; accepting all ids instead would hide the fault."""
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(SettingsError, match="gateway-daemon ca places --out"):
        PublisherAreaCheck(path)


def test_without_a_file_all_node_ids_are_accepted() -> None:
    """The demonstration runs like this."""
    area_check = PublisherAreaCheck(None)
    area_check.reload_if_changed()

    assert not area_check.check(arrival_from("n1", "/5")).is_quarantined


def message(
    node: str, lead_s: float, *, synchronised: bool = True, now_s: float = 0.0
) -> ClassifiedMessage:
    """A message that is received at `T0` plus `now_s`, dated later by the lead."""
    pack = Pack(
        MessageId(node, "b", next(seqs)),
        1,
        T0 + now_s + lead_s,
        (Reading("rain", "mm", 0.0),),
        synchronised=synchronised,
    )
    incoming = IncomingMessage(
        TOPIC, encode_cbor(pack), 1, False, None, None, None, (1, 1)
    )
    return classify_message(incoming, round((T0 + now_s) * 1e6))


def receipts(
    clock: ClockCorrection, *messages: ClassifiedMessage, now_s: float = 0.0
) -> list[float]:
    """Correction of each message's time of receipt, in seconds."""
    return [
        (clock.correct(each, now_s).row.received_us - each.row.received_us) / 1e6
        for each in messages
    ]


def test_clock_behind_those_of_most_nodes_is_corrected() -> None:
    """20 minutes; a node whose clock is right by chance changes nothing."""
    clock = ClockCorrection()
    leads = {"a": 1195.0, "b": 1170.0, "c": 0.0, "d": 1190.0, "e": 1198.0}
    found = receipts(clock, *(message(node, lead) for node, lead in leads.items()))

    assert found == [0.0, 0.0, 1170.0, 1180.0, 1190.0]
    assert clock.offset_s == 1190.0


@pytest.mark.parametrize(
    "leads",
    [
        (5000.0, 5000.0),
        (5000.0, -3.0, -60.0),
        (-3.0, -60.0, -20.0, 5000.0, 5000.0),
        (-3.0, -86_400.0, -86_400.0, -86_400.0),
        (200.0, 200.0, 200.0, 200.0),
    ],
    ids=["two nodes", "one node ahead", "a minority", "a backlog", "little"],
)
def test_clock_stays_without_agreement(leads: tuple[float, ...]) -> None:
    clock = ClockCorrection()
    found = receipts(clock, *(message(f"n{i}", lead) for i, lead in enumerate(leads)))

    assert set(found) == {0.0}


def test_clock_that_was_set_is_not_corrected_any_more() -> None:
    """Not even for the first messages, before the nodes have been read again.

    A node without a set clock has the times of receipt: dated months ahead, all later
    readings of its cell would be older than the horizon, and change no level.
    """
    month_s = 30 * 86_400.0
    clock = ClockCorrection()
    receipts(clock, *(message(node, month_s) for node in "abc"))
    before = clock.offset_s
    set_s = month_s + 5.0
    unset = message("d", 0.0, synchronised=False, now_s=set_s)
    found = receipts(clock, unset, message("a", -2.0, now_s=set_s), now_s=5.0)

    assert before == month_s
    assert found == [0.0, 0.0]


def test_clock_that_was_set_wrong_is_corrected_at_once() -> None:
    clock = ClockCorrection()
    receipts(clock, *(message(node, 0.0) for node in "abc"))
    before = clock.offset_s
    unset = message("d", 0.0, synchronised=False, now_s=-1200.0)

    assert before == 0.0
    assert receipts(clock, unset, now_s=5.0) == [1205.0]


def test_nodes_whose_clocks_were_set_back_are_read_again() -> None:
    clock = ClockCorrection()
    receipts(clock, *(message(node, 1200.0) for node in "abc"))
    later = (message(node, -2.0, now_s=120.0) for node in "abc")

    assert receipts(clock, *later, now_s=120.0) == [1200.0, 0.0, 0.0]


def test_nodes_without_a_set_clock_are_no_evidence() -> None:
    clock = ClockCorrection()
    receipts(clock, *(message(node, 1200.0, synchronised=False) for node in "abcd"))

    assert clock.offset_s == 0.0


def test_node_counts_once_and_old_ones_are_forgotten() -> None:
    """A stolen card that sends much is one node; memory is bounded."""
    now_s = 0.0
    clock = ClockCorrection()
    for _ in range(5):
        receipts(clock, message("a", 9000.0, now_s=now_s), now_s=now_s)
        now_s += 61.0
    one = clock.offset_s
    many = (message(f"n{i}", -2.0, now_s=now_s) for i in range(MAX_NODES + 5))
    receipts(clock, *many, now_s=now_s)
    now_s += FORGET_S + 1
    ahead = (message(node, 1200.0, now_s=now_s) for node in "bcd")
    receipts(clock, *ahead, now_s=now_s)

    assert one == 0.0
    assert clock.offset_s == 1200.0
