from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors.pulse_counter import WINDOW_S, DeadTime, PulseRateLimit


def test_rain_of_the_limit_passes() -> None:
    """20 tips a minute, evenly, are rain for ever."""
    limit = PulseRateLimit(20)
    assert all(limit.accept(3.0 * n) for n in range(1000))


def test_flapping_gets_through_once_and_then_no_more() -> None:
    """After the first 20 nothing counts until there was a calm minute."""
    limit = PulseRateLimit(20)
    flaps = [limit.accept(0.2 * n) for n in range(3000)]
    assert sum(flaps) == 20
    assert limit.accept(600 + WINDOW_S)


def test_clock_that_starts_anew_is_no_flapping() -> None:
    """A reboot sets the kernel's clock back; what came before says nothing."""
    limit = PulseRateLimit(2)
    assert [limit.accept(t) for t in (1000.0, 1001.0, 5.0, 6.0)] == [True] * 4


@given(st.lists(st.floats(0, 600), max_size=200), st.integers(1, 30))
def test_no_minute_has_more_than_the_limit(times: list[float], most: int) -> None:
    """Whatever comes, what passes is possible."""
    limit = PulseRateLimit(most)
    passed = [t for t in sorted(times) if limit.accept(t)]
    for t in passed:
        assert sum(t <= other < t + WINDOW_S for other in passed) <= most


def test_train_of_pulses_is_one_shock() -> None:
    """The first counts; the next after the hold is new, however long it lasts."""
    hold = DeadTime(0.5)
    pulses = (0.0, 0.1, 0.4, 0.6, 0.9, 1.2)
    assert [t for t in pulses if hold.accept(t)] == [0.0, 0.6, 1.2]
