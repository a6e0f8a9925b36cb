"""Messages per second, from the counters in Mosquitto's `$SYS` topics."""

from queue import SimpleQueue

from gateway_daemon.manager.autoscaler import CommandResult, run_command_in_thread
from gateway_daemon.manager.scaling_policy import ScalingDecision
from gateway_daemon.manager.server_probes import COUNT_STALE_S, ReceivedCounter
from spatial_mqtt.topics import RECEIVED_COUNT
from spatial_mqtt.transport import IncomingMessage


def count_message(count: bytes) -> IncomingMessage:
    return IncomingMessage(RECEIVED_COUNT, count, 0, True, None, None, None, (1, 0))


def test_rate_is_between_two_counts_without_the_retained_one() -> None:
    """A broker publishes its count every ten seconds, retained."""
    now = [0.0]
    counter = ReceivedCounter(lambda: now[0])
    counter.on_up(False, 10)
    for at_s, count in ((0.0, b"5"), (3.0, b"50"), (13.0, b"350")):
        assert counter.rate_per_s(at_s) is None
        now[0] = at_s
        counter.on_message(count_message(count))

    assert counter.rate_per_s(13.0) == 30.0


def test_silent_broker_has_rate_zero_and_a_restarted_one_starts_anew() -> None:
    """A broker publishes nothing when the count does not change."""
    now = [0.0]
    counter = ReceivedCounter(lambda: now[0])
    for at_s in (0.0, 10.0, 20.0):
        now[0] = at_s
        counter.on_message(count_message(b"%d" % (at_s * 10)))
    assert counter.rate_per_s(20.0) == 10.0
    assert counter.rate_per_s(20.0 + COUNT_STALE_S) == 0.0

    counter.on_down("restarted")
    assert counter.rate_per_s(21.0) is None


def test_invalid_count_gives_no_rate() -> None:
    """The broker may not be Mosquitto."""
    counter = ReceivedCounter(lambda: 0.0)
    counter.on_message(count_message(b"many"))

    assert counter.rate_per_s(0.0) is None


def test_output_of_a_command_may_be_in_any_encoding() -> None:
    """It ended the thread of the command, and with it the Manager."""
    results: SimpleQueue[CommandResult] = SimpleQueue()
    decision = ScalingDecision("start", "broker", "/1", None, "hot")
    run_command_in_thread(["printf", "caf\\351\\n"], decision, results.put)

    assert results.get(timeout=60).output == "caf\N{REPLACEMENT CHARACTER}"
