"""The congestion window on a simulated link, without a network."""

import math
from collections import deque

import pytest

from edge_agent.uplink.congestion import (
    MIN_ROUND_TRIP_S,
    MIN_WINDOW_BYTES,
    CongestionWindow,
    SendSample,
)


class SimulatedLink:
    """A link with a rate and a delay that is kept as busy as the window allows."""

    def __init__(
        self,
        rate: float,
        delay_s: float,
        max_bytes: int = 64_000,
        ack_interval_s: float = 0,
    ) -> None:
        self.window = CongestionWindow(max_bytes)
        self.now_s = 0.0
        self.delivered = 0
        self._rate, self._delay_s, self._ack_interval_s = rate, delay_s, ack_interval_s
        self._free_s = 0.0
        self._out: deque[tuple[float, SendSample]] = deque()
        self._in_flight = 0

    def run(self, size_bytes: int, until_s: float) -> None:
        """Send messages of this size back to back."""
        while self.now_s < until_s:
            while self._in_flight < self.window.limit_bytes(self.now_s):
                self._send(size_bytes)
            ack_at_s, sample = self._out.popleft()
            self.now_s = max(self.now_s, ack_at_s)
            self.delivered += sample.size_bytes
            self._in_flight -= sample.size_bytes
            self.window.on_ack(sample, self.now_s)

    def _send(self, size: int) -> None:
        self._free_s = max(self._free_s, self.now_s) + size / self._rate
        ack_at_s = self._free_s + self._delay_s
        if self._ack_interval_s:
            ack_at_s = math.ceil(ack_at_s / self._ack_interval_s) * self._ack_interval_s
        is_alone = self._in_flight == 0
        sample = SendSample(
            size, self.now_s, is_alone, self.window.delivered_bytes, size
        )
        self._out.append((ack_at_s, sample))
        self._in_flight += size


@pytest.mark.parametrize("rate", [3750, 6250, 8000, 62_500])
@pytest.mark.parametrize("delay_s", [0.01, 0.1, 0.6])
@pytest.mark.parametrize("size", [250, 1000])
def test_link_is_kept_busy_with_little_in_flight(
    rate: int, delay_s: float, size: int
) -> None:
    """At least 85 % of the rate; at most rate x round trip + 2 messages in flight."""
    link = SimulatedLink(rate, delay_s)
    link.run(size, until_s=90)

    assert link.delivered / (rate * link.now_s) >= 0.85
    round_trip_s = max(MIN_ROUND_TRIP_S, delay_s + size / rate)
    max_expected_bytes = max(MIN_WINDOW_BYTES, rate * round_trip_s * 1.1 + 2 * size)
    assert link.window.limit_bytes(link.now_s) <= max_expected_bytes


def test_link_that_became_slow_is_measured_again() -> None:
    """A mobile link that lost nine tenths of its rate gets a smaller window."""
    link = SimulatedLink(62_500, 0.1)
    link.run(500, until_s=30)
    fast = link.window.limit_bytes(link.now_s)
    link._rate = 6250  # noqa: SLF001 - simulates bad weather
    link.run(500, until_s=90)

    assert link.window.limit_bytes(link.now_s) < fast / 3


def test_unmeasured_link_gets_one_message() -> None:
    """The first message measures the link."""
    assert CongestionWindow(3000).limit_bytes(0.0) == 1


@pytest.mark.parametrize("size", [230, 1000])
def test_bunched_acknowledgements_do_not_widen_the_window(size: int) -> None:
    """A broker that acknowledges eight at once is no faster link."""
    link = SimulatedLink(62_500, 0.06, ack_interval_s=0.05)
    link.run(size, until_s=30)

    assert link.window.limit_bytes(link.now_s) <= 62_500 * (0.06 + 0.05) * 2 + 2 * size


def test_window_opens_within_a_few_round_trips() -> None:
    """A drain of a second must not be half over before the window is open."""
    link = SimulatedLink(62_500, 0.06)
    link.run(230, until_s=0.5)

    assert link.window.limit_bytes(link.now_s) >= 62_500 * 0.06


def test_window_has_a_minimum_and_a_maximum() -> None:
    """Neither a very slow link nor a satellite gives an unusable window."""
    slow, far = CongestionWindow(3000), CongestionWindow(3000)
    for n in range(10):
        slow.on_ack(SendSample(50, n - 0.2, True, slow.delivered_bytes, 50), n * 1.0)
        far.on_ack(SendSample(1000, n * 0.01 - 5.0, True, 0, 1000), n * 0.01)

    assert slow.limit_bytes(10.0) == MIN_WINDOW_BYTES
    assert far.limit_bytes(1.0) == 3000


def test_reset_discards_measurements() -> None:
    """Measurements of one gateway do not apply to the next."""
    window = CongestionWindow(3000)
    window.on_ack(SendSample(50, 0.9, True, 0, 50), 1.0)
    window.reset()

    assert window.limit_bytes(1.0) == 1


def test_slow_link_is_not_overfilled_while_it_is_measured() -> None:
    """After three seconds at most rate x round trip and a message are in flight.

    An urgent message would wait behind them: with round trips of a second, the
    search for the rate takes ten seconds.
    """
    link = SimulatedLink(3750, 0.6)
    link.run(1000, until_s=3.0)

    assert (
        link.window.limit_bytes(link.now_s) <= 3750 * (0.6 + 1000 / 3750) * 1.1 + 1000
    )
