"""Repetitions of a cause are counted, and logged once a minute."""

from service_runtime import log_limit
from service_runtime.log_limit import LOG_EVERY_S, MAX_CAUSES, MAX_LINES, LogLimit


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_cause_is_logged_at_once_and_then_once_a_minute_with_its_count() -> None:
    """The first line comes without delay."""
    clock = Clock()
    limit = LogLimit(clock)
    assert limit.count("a") == 1
    assert [limit.count("a") for _ in range(5)] == [None] * 5
    assert limit.count("b", 7) == 7
    clock.now_s = LOG_EVERY_S
    assert limit.count("a") == 6


def test_invented_causes_are_bounded_in_lines_and_memory() -> None:
    """A sender may use a new topic for each message."""
    clock = Clock()
    limit = LogLimit(clock)
    counts = [limit.count(n) for n in range(10 * MAX_CAUSES)]
    assert len([count for count in counts if count is not None]) == MAX_LINES
    assert len(limit._causes) == log_limit.MAX_CAUSES  # noqa: SLF001
    clock.now_s = LOG_EVERY_S
    assert limit.count("another") == 1
