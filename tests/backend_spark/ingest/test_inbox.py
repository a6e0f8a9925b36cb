"""The inbox bounds the waiting bytes; a producer blocks while it is full."""

import threading

from backend_spark.ingest.messages import (
    OVERHEAD_BYTES,
    IngestInbox,
    MessageArrived,
    StopRequested,
)
from spatial_mqtt.transport import IncomingMessage

MESSAGE = MessageArrived(
    IncomingMessage("/4/1", b"x" * 400, 1, False, None, None, None, (1, 1)), 5
)
SIZE_BYTES = 400 + OVERHEAD_BYTES


def test_events_keep_their_order_and_free_their_bytes() -> None:
    """Bytes count from put to get."""
    inbox = IngestInbox(10_000, threading.Event().wait)
    inbox.put_message(MESSAGE, lambda: None)
    stop = StopRequested()
    inbox.put(stop)

    assert inbox.waiting_bytes == SIZE_BYTES
    assert inbox.get(1) is MESSAGE
    assert inbox.waiting_bytes == 0
    assert inbox.get(1) is stop
    assert inbox.get(0.01) is None
    assert inbox.is_empty()


def test_full_inbox_blocks_the_producer_which_keeps_its_heartbeat() -> None:
    """It continues when an event is removed."""
    stopped, beats = threading.Event(), threading.Event()
    inbox = IngestInbox(3 * SIZE_BYTES, stopped.wait)

    def produce() -> None:
        for _ in range(6):
            inbox.put_message(MESSAGE, beats.set)

    producer = threading.Thread(target=produce)
    producer.start()
    assert beats.wait(60)
    assert inbox.waiting_bytes == 4 * SIZE_BYTES
    for _ in range(6):
        assert inbox.get(10) is MESSAGE
    producer.join(60)

    assert not producer.is_alive()
    assert inbox.waiting_bytes == 0


def test_full_inbox_releases_the_producer_at_a_stop() -> None:
    """So the network thread can be joined."""
    stopped = threading.Event()
    inbox = IngestInbox(0, stopped.wait)
    inbox.put_message(MESSAGE, lambda: None)
    producer = threading.Thread(target=inbox.put_message, args=(MESSAGE, stopped.set))
    producer.start()
    producer.join(60)

    assert not producer.is_alive()
