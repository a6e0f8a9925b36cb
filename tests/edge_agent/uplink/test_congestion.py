"""The window follows the link: measured on a simulated one, without a network."""

import math
from collections import deque

import pytest

from edge_agent.uplink.congestion import (
    MIN_ROUND_TRIP_S,
    MIN_WINDOW_BYTES,
    CongestionWindow,
    SendSample,
)


class Pipe:
    """A link of a rate and a delay, kept as busy as the window allows."""

    def __init__(
        self, rate: float, delay_s: float, most_bytes: int = 64_000, bunch_s: float = 0
    ) -> None:
        self.window = CongestionWindow(most_bytes)
        self.now_s = 0.0
        self.delivered = 0
        self._rate, self._delay_s, self._bunch_s = rate, delay_s, bunch_s
        self._free_s = 0.0
        self._out: deque[tuple[float, SendSample]] = deque()
        self._in_flight = 0

    def run(self, size_bytes: int, until_s: float) -> None:
        """Send messages of a size back to back."""
        while self.now_s < until_s:
            while self._in_flight < self.window.limit_bytes(self.now_s):
                self._send(size_bytes)
            back_s, trip = self._out.popleft()
            self.now_s = max(self.now_s, back_s)
            self.delivered += trip.size_bytes
            self._in_flight -= trip.size_bytes
            self.window.on_ack(trip, self.now_s)

    def _send(self, size: int) -> None:
        self._free_s = max(self._free_s, self.now_s) + size / self._rate
        back_s = self._free_s + self._delay_s
        if self._bunch_s:
            back_s = math.ceil(back_s / self._bunch_s) * self._bunch_s
        is_alone = self._in_flight == 0
        trip = SendSample(size, self.now_s, is_alone, self.window.delivered_bytes, size)
        self._out.append((back_s, trip))
        self._in_flight += size


@pytest.mark.parametrize("rate", [3750, 6250, 8000, 62_500])
@pytest.mark.parametrize("delay_s", [0.01, 0.1, 0.6])
@pytest.mark.parametrize("size", [250, 1000])
def test_link_is_kept_busy_with_little_in_flight(
    rate: int, delay_s: float, size: int
) -> None:
    """At least 85 % of the rate, and no more in flight than rate x trip + 2."""
    pipe = Pipe(rate, delay_s)
    pipe.run(size, until_s=90)

    assert pipe.delivered / (rate * pipe.now_s) >= 0.85
    trip_s = max(MIN_ROUND_TRIP_S, delay_s + size / rate)
    most = max(MIN_WINDOW_BYTES, rate * trip_s * 1.1 + 2 * size)
    assert pipe.window.limit_bytes(pipe.now_s) <= most


def test_link_that_became_slow_is_measured_anew() -> None:
    """A mobile link that lost nine tenths of its rate gets a smaller window."""
    pipe = Pipe(62_500, 0.1)
    pipe.run(500, until_s=30)
    fast = pipe.window.limit_bytes(pipe.now_s)
    pipe._rate = 6250  # noqa: SLF001 - the weather does it
    pipe.run(500, until_s=90)

    assert pipe.window.limit_bytes(pipe.now_s) < fast / 3


def test_unmeasured_link_gets_one_message() -> None:
    """The first message finds out."""
    assert CongestionWindow(3000).limit_bytes(0.0) == 1


@pytest.mark.parametrize("size", [230, 1000])
def test_acknowledgements_in_bunches_do_not_open_the_window(size: int) -> None:
    """A broker that answers eight at once is no faster link."""
    pipe = Pipe(62_500, 0.06, bunch_s=0.05)
    pipe.run(size, until_s=30)

    assert pipe.window.limit_bytes(pipe.now_s) <= 62_500 * (0.06 + 0.05) * 2 + 2 * size


def test_window_opens_within_a_few_round_trips() -> None:
    """A drain of a second must not be half over before the window is open."""
    pipe = Pipe(62_500, 0.06)
    pipe.run(230, until_s=0.5)

    assert pipe.window.limit_bytes(pipe.now_s) >= 62_500 * 0.06


def test_window_has_a_floor_and_a_ceiling() -> None:
    """Neither a trickle nor a satellite makes it absurd."""
    slow, far = CongestionWindow(3000), CongestionWindow(3000)
    for n in range(10):
        slow.on_ack(SendSample(50, n - 0.2, True, slow.delivered_bytes, 50), n * 1.0)
        far.on_ack(SendSample(1000, n * 0.01 - 5.0, True, 0, 1000), n * 0.01)

    assert slow.limit_bytes(10.0) == MIN_WINDOW_BYTES
    assert far.limit_bytes(1.0) == 3000


def test_another_link_is_measured_anew() -> None:
    """What was learnt of one gateway does not hold for the next."""
    window = CongestionWindow(3000)
    window.on_ack(SendSample(50, 0.9, True, 0, 50), 1.0)
    window.reset()

    assert window.limit_bytes(1.0) == 1


def test_a_slow_link_is_not_overfilled_while_it_is_learnt() -> None:
    """After three seconds no more is in flight than rate x trip and a message.

    An urgent message would wait behind it: round trips of a second make the search
    for the rate itself a matter of ten seconds.
    """
    pipe = Pipe(3750, 0.6)
    pipe.run(1000, until_s=3.0)

    assert (
        pipe.window.limit_bytes(pipe.now_s) <= 3750 * (0.6 + 1000 / 3750) * 1.1 + 1000
    )
