"""The token bucket never passes more than rate and burst allow."""

import math

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.uplink.link_rate import TokenBucket


@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    rate=st.floats(100, 1e6),
    burst=st.floats(100, 1e4),
)
def test_bytes_sent_stay_under_rate_and_burst(
    sizes: list[int], rate: float, burst: float
) -> None:
    """Over any run, bytes sent <= burst + rate x time + the one message in debt."""
    bucket = TokenBucket(rate, burst)
    now_s, sent = 0.0, 0
    for size in sizes:
        now_s += bucket.wait_s(now_s) + 1e-9
        bucket.spend(size, now_s)
        sent += size

        assert sent <= burst + rate * now_s + max(sizes) + 1e-3


def test_unlimited_rate_never_waits() -> None:
    """For a gateway on a LAN."""
    bucket = TokenBucket(math.inf, 1)
    bucket.spend(10**9, 0.0)

    assert bucket.wait_s(0.0) == 0


def test_burst_of_a_slow_link_is_one_packet() -> None:
    """What the bucket passes at once waits in the modem."""
    bucket = TokenBucket.for_rate(3750)
    bucket.spend(1500, 0.0)
    bucket.spend(1, 0.0)

    assert bucket.wait_s(0.0) > 0
    assert TokenBucket.for_rate(None).wait_s(0.0) == 0
