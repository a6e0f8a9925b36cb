"""When a gateway answers, decided without a broker."""

from edge_agent.queue.base import MessageDraft
from gateway_daemon.gateway.ingress_buffers import (
    GATHER_S,
    MAX_GATHERED,
    ReceiptBatcher,
)
from gateway_daemon.gateway.ingress_messages import ParsedMessage
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import IncomingMessage


def taken(
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
    """One answer a second is enough for who asks again after fifteen."""
    receipts = ReceiptBatcher()
    receipts.add(taken(1), 10.0)
    receipts.add(taken(2), 10.5)

    assert receipts.pop_due(10.5) == []
    assert receipts.wait_s(10.5) == GATHER_S - 0.5
    assert receipts.pop_due(10.0 + GATHER_S) == [("/custody/n", receipt(1, 2))]
    assert receipts.wait_s(20.0) is None


def test_urgent_message_is_answered_at_once_with_what_waits() -> None:
    """A warning's sender should know, and the others cost nothing more."""
    receipts = ReceiptBatcher()
    receipts.add(taken(1), 10.0)
    receipts.add(taken(2, priority=5), 10.1)

    assert receipts.pop_due(10.1) == [("/custody/n", receipt(1, 2))]


def test_many_are_answered_at_once() -> None:
    """A sender that drains a backlog has a bound on what it may await."""
    receipts = ReceiptBatcher()
    for seq in range(MAX_GATHERED):
        receipts.add(taken(seq), 10.0)

    assert receipts.pop_due(10.0) == [("/custody/n", receipt(*range(MAX_GATHERED)))]


def test_each_sender_gets_its_own() -> None:
    """A receipt goes where its sender listens; who named no place gets none."""
    receipts = ReceiptBatcher()
    receipts.add(taken(1, topic="/custody/a"), 10.0)
    receipts.add(taken(2, topic="/custody/b"), 10.0)
    receipts.add(taken(3, topic=None), 10.0)

    assert receipts.pop_due(11.0) == [
        ("/custody/a", receipt(1)),
        ("/custody/b", receipt(2)),
    ]
