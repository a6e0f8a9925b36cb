"""When custody receipts are sent, tested without a broker."""

from edge_agent.queue.base import MessageDraft
from gateway_daemon.gateway.incoming import ParsedMessage
from gateway_daemon.gateway.ingress import (
    GATHER_RECEIPTS_S,
    MAX_GATHERED,
    ReceiptBatcher,
)
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import IncomingMessage


def parsed(
    seq: int, priority: int = 1, topic: str | None = "/custody/n"
) -> ParsedMessage:
    message_id = MessageId("n", "b", seq)
    draft = MessageDraft(priority, "/1", lambda _: b"", message_id)
    return ParsedMessage(
        draft, topic, IncomingMessage("", b"", 1, False, None, None, None, (1, 1))
    )


def receipt(*seqs: int) -> CustodyReceipt:
    return CustodyReceipt.from_ids(MessageId("n", "b", seq) for seq in seqs)


def test_routine_receipts_are_gathered() -> None:
    """One receipt a second suffices: senders repeat after fifteen."""
    batcher = ReceiptBatcher()
    batcher.add(parsed(1), 10.0)
    batcher.add(parsed(2), 10.5)

    assert batcher.pop_due(10.5) == []
    assert batcher.wait_s(10.5) == GATHER_RECEIPTS_S - 0.5
    assert batcher.pop_due(10.0 + GATHER_RECEIPTS_S) == [("/custody/n", receipt(1, 2))]
    assert batcher.wait_s(20.0) is None


def test_urgent_message_is_acknowledged_at_once_with_pending_receipts() -> None:
    """The sender of a warning gets its receipt early; the others cost nothing more."""
    batcher = ReceiptBatcher()
    batcher.add(parsed(1), 10.0)
    batcher.add(parsed(2, priority=5), 10.1)

    assert batcher.pop_due(10.1) == [("/custody/n", receipt(1, 2))]


def test_full_batch_of_receipts_is_sent_at_once() -> None:
    """A sender that drains a backlog limits how many receipts it can wait for."""
    batcher = ReceiptBatcher()
    for seq in range(MAX_GATHERED):
        batcher.add(parsed(seq), 10.0)

    assert batcher.pop_due(10.0) == [("/custody/n", receipt(*range(MAX_GATHERED)))]


def test_each_sender_gets_its_own_receipts() -> None:
    """A receipt goes to the sender's topic; without a topic there is no receipt."""
    batcher = ReceiptBatcher()
    batcher.add(parsed(1, topic="/custody/a"), 10.0)
    batcher.add(parsed(2, topic="/custody/b"), 10.0)
    batcher.add(parsed(3, topic=None), 10.0)

    assert batcher.pop_due(11.0) == [
        ("/custody/a", receipt(1)),
        ("/custody/b", receipt(2)),
    ]


def test_next_receipt_is_the_earliest_of_all_senders() -> None:
    batcher = ReceiptBatcher()
    batcher.add(parsed(1, topic="/custody/a"), 10.0)
    batcher.add(parsed(2, topic="/custody/b"), 10.5)

    assert batcher.wait_s(10.5) == GATHER_RECEIPTS_S - 0.5
