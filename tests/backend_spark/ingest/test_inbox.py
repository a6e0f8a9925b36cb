"""The inbox bounds the waiting bytes; a producer blocks while it is full."""

import threading

from backend_spark.ingest.messages import (
    BURST_BYTES,
    BURST_EVENTS,
    OVERHEAD_BYTES,
    IngestInbox,
    MessageArrived,
    StopRequested,
)
from spatial_mqtt.transport import IncomingMessage

MESSAGE = MessageArrived(
    IncomingMessage("/4/1", b"x" * 400, 1, False, None, None, None, (1, 1)), 5, 0.0
)
SIZE_BYTES = 400 + OVERHEAD_BYTES


def test_events_keep_their_order_and_free_their_bytes() -> None:
    """Bytes count from put to take."""
    inbox = IngestInbox(10_000, threading.Event().wait)
    inbox.put_message(MESSAGE, lambda: None)
    stop = StopRequested()
    inbox.put(stop)

    assert inbox.waiting_bytes == SIZE_BYTES
    assert inbox.take(1) == [MESSAGE, stop]
    assert inbox.waiting_bytes == 0
    assert inbox.take(0.01) == []
    assert inbox.is_empty()


def test_burst_is_bounded_by_number_and_bytes() -> None:
    """A loop that takes it sends its heartbeat in between."""
    inbox = IngestInbox(2**40, threading.Event().wait)
    large = MESSAGE._replace(
        message=MESSAGE.message._replace(payload=bytes(BURST_BYTES))
    )
    events = [MESSAGE] * (BURST_EVENTS + 1) + [large, MESSAGE]
    for event in events:
        inbox.put_message(event, lambda: None)

    assert inbox.take(1) == [MESSAGE] * BURST_EVENTS
    assert inbox.take(1) == [MESSAGE, large]
    assert inbox.take(1) == [MESSAGE]
    assert inbox.waiting_bytes == 0


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
    taken = 0
    while taken < 6:
        taken += len(inbox.take(10))
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
