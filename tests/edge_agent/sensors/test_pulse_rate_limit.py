from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sensors.rain_gauge_and_vibration import (
    WINDOW_S,
    DeadTime,
    PulseRateLimit,
)


def test_rain_at_the_limit_is_accepted() -> None:
    """20 tips a minute at equal intervals are always accepted."""
    limit = PulseRateLimit(20)
    assert all(limit.accept(3.0 * n) for n in range(1000))


def test_flapping_is_accepted_only_up_to_the_limit() -> None:
    """After the first 20 none is accepted until there was a quiet minute."""
    limit = PulseRateLimit(20)
    flaps = [limit.accept(0.2 * n) for n in range(3000)]
    assert sum(flaps) == 20
    assert limit.accept(600 + WINDOW_S)


def test_clock_reset_is_no_flapping() -> None:
    """A reboot resets the kernel's clock, so earlier times do not count."""
    limit = PulseRateLimit(2)
    assert [limit.accept(t) for t in (1000.0, 1001.0, 5.0, 6.0)] == [True] * 4


@given(st.lists(st.floats(0, 600), max_size=200), st.integers(1, 30))
def test_no_minute_has_more_than_the_limit(times: list[float], max_count: int) -> None:
    """For any times, the accepted rate is possible."""
    limit = PulseRateLimit(max_count)
    accepted = [t for t in sorted(times) if limit.accept(t)]
    for t in accepted:
        assert sum(t <= other < t + WINDOW_S for other in accepted) <= max_count


def test_train_of_pulses_is_one_shock() -> None:
    """The first counts; the next counts after the dead time, however long it lasts."""
    dead_time = DeadTime(0.5)
    pulses = (0.0, 0.1, 0.4, 0.6, 0.9, 1.2)
    assert [t for t in pulses if dead_time.accept(t)] == [0.0, 0.6, 1.2]
