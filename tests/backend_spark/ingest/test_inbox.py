"""What waits for the loop is bounded, and the one who brings more waits."""

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


def test_events_come_out_in_their_order_and_give_room_back() -> None:
    """Bytes are counted from put to get."""
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


def test_full_inbox_holds_the_bringer_who_says_that_he_lives() -> None:
    """He goes on when something was taken out."""
    stopped, beats = threading.Event(), threading.Event()
    inbox = IngestInbox(3 * SIZE_BYTES, stopped.wait)

    def bring() -> None:
        for _ in range(6):
            inbox.put_message(MESSAGE, beats.set)

    bringer = threading.Thread(target=bring)
    bringer.start()
    assert beats.wait(60)
    assert inbox.waiting_bytes == 4 * SIZE_BYTES
    for _ in range(6):
        assert inbox.get(10) is MESSAGE
    bringer.join(60)

    assert not bringer.is_alive()
    assert inbox.waiting_bytes == 0


def test_full_inbox_lets_go_when_all_stops() -> None:
    """The network thread can be joined."""
    stopped = threading.Event()
    inbox = IngestInbox(0, stopped.wait)
    inbox.put_message(MESSAGE, lambda: None)
    bringer = threading.Thread(target=inbox.put_message, args=(MESSAGE, stopped.set))
    bringer.start()
    bringer.join(60)

    assert not bringer.is_alive()
