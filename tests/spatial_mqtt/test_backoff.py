"""Waits between connection attempts."""

import random

from hypothesis import given
from hypothesis import strategies as st

from spatial_mqtt.connection import Backoff


@given(seed=st.integers(0, 1000), tries=st.integers(1, 40))
def test_waits_stay_between_base_and_cap(seed: int, tries: int) -> None:
    """Attempts are neither too frequent nor infinitely rare."""
    backoff = Backoff(random.Random(seed), base_s=0.5, cap_s=60.0)

    assert all(0.5 <= backoff.next_wait_s() <= 60.0 for _ in range(tries))


def test_short_connection_does_not_reset_the_wait() -> None:
    """A broker that accepts and drops connections is tried at growing intervals."""
    backoff = Backoff(random.Random(3), base_s=1.0, cap_s=1000.0, stable_s=30.0)
    waits = []
    for _ in range(12):
        backoff.report_connection_time(0.2)
        waits.append(backoff.next_wait_s())
    assert max(waits) > 10

    backoff.report_connection_time(31.0)
    assert backoff.next_wait_s() <= 3.0


def test_reconnections_of_many_nodes_are_spread_out() -> None:
    """A thousand nodes that lost one gateway do not return at the same time."""
    seconds = [0] * 60
    for seed in range(1000):
        backoff = Backoff(random.Random(seed), base_s=0.5, cap_s=60.0)
        wait_s = sum(backoff.next_wait_s() for _ in range(4))
        seconds[min(59, int(wait_s))] += 1

    assert max(seconds) < 200


def test_urgent_wait_is_short_and_spread() -> None:
    """The first attempt is within 2 s, later ones within 8 s."""
    backoff = Backoff(random.Random(1))
    backoff.next_wait_s()
    first = {backoff.urgent_wait_s() for _ in range(100)}
    for _ in range(10):
        backoff.next_wait_s()
    later = {backoff.urgent_wait_s() for _ in range(100)}
    backoff.report_connection_time(31.0)
    backoff.next_wait_s()

    assert 0.1 <= min(first) < max(first) <= 2.0
    assert 6.0 < max(later) <= 8.0
    assert backoff.urgent_wait_s() <= 2.0


def test_urgent_wait_stays_short_while_nothing_answers() -> None:
    """Only a node's own link is lost, or all machines begin to refuse before long."""
    backoff = Backoff(random.Random(1))
    for _ in range(20):
        backoff.next_wait_s(was_answered=False)

    assert max(backoff.urgent_wait_s() for _ in range(100)) <= 2.0
