"""Messages in a second, from what a Mosquitto counts of itself."""

from gateway_daemon.manager.broker_rates import COUNT_STALE_S, ReceivedCounter
from spatial_mqtt.topics import RECEIVED_COUNT
from spatial_mqtt.transport import IncomingMessage


def told(count: bytes) -> IncomingMessage:
    return IncomingMessage(RECEIVED_COUNT, count, 0, True, None, None, None, (1, 0))


def test_rate_is_between_two_words_and_the_retained_one_is_too_old() -> None:
    """A broker says its count every ten seconds, and retains the last word."""
    now = [0.0]
    counted = ReceivedCounter(lambda: now[0])
    counted.on_up(False, 10)
    for at_s, count in ((0.0, b"5"), (3.0, b"50"), (13.0, b"350")):
        assert counted.rate_per_s(at_s) is None
        now[0] = at_s
        counted.on_message(told(count))

    assert counted.rate_per_s(13.0) == 30.0


def test_silent_broker_takes_nothing_and_a_new_one_counts_anew() -> None:
    """It says nothing when nothing changes."""
    now = [0.0]
    counted = ReceivedCounter(lambda: now[0])
    for at_s in (0.0, 10.0, 20.0):
        now[0] = at_s
        counted.on_message(told(b"%d" % (at_s * 10)))
    assert counted.rate_per_s(20.0) == 10.0
    assert counted.rate_per_s(20.0 + COUNT_STALE_S) == 0.0

    counted.on_down("restarted")
    assert counted.rate_per_s(21.0) is None


def test_broker_without_such_a_count_is_let_be() -> None:
    """It may be no Mosquitto."""
    counted = ReceivedCounter(lambda: 0.0)
    counted.on_message(told(b"many"))

    assert counted.rate_per_s(0.0) is None
