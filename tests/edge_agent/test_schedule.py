"""Detection of clock steps, and the trigger that tolerates them."""

from datetime import UTC, datetime, timedelta

import pytest

from edge_agent.sampling_loop import (
    MIN_STEP_S,
    ClockStepDetector,
    SteadyIntervalTrigger,
)

NOW = datetime(2026, 7, 1, tzinfo=UTC)


class Clocks:
    """A wall clock that can be set, and a monotonic one."""

    wall_s = 1_800_000_000.0
    mono_s = 50.0

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.mono_s += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def steps(clocks: Clocks) -> ClockStepDetector:
    return ClockStepDetector(lambda: clocks.wall_s, lambda: clocks.mono_s)


def test_elapsed_time_is_not_a_step(steps: ClockStepDetector, clocks: Clocks) -> None:
    """However long the time since the last call."""
    clocks.pass_s(86_400)

    assert steps.detect_step() == 0.0


@pytest.mark.parametrize("step_s", [3.0, -3600.0, 3e7])
def test_step_is_detected_once(
    steps: ClockStepDetector, clocks: Clocks, step_s: float
) -> None:
    """Forward and back, with its length; the next call returns zero."""
    clocks.pass_s(10)
    clocks.wall_s += step_s

    assert steps.detect_step() == pytest.approx(step_s)
    assert steps.detect_step() == 0.0


def test_small_steps_add_up(steps: ClockStepDetector, clocks: Clocks) -> None:
    """A clock that drifts second by second is detected too."""
    seen = []
    for _ in range(4):
        clocks.wall_s += MIN_STEP_S * 0.75
        seen.append(steps.detect_step())

    assert seen == [0.0, pytest.approx(3.0), 0.0, pytest.approx(3.0)]


@pytest.mark.parametrize(
    ("previous", "expected"),
    [
        (None, NOW),
        (NOW - timedelta(seconds=4), NOW + timedelta(seconds=6)),
        (NOW - timedelta(days=365), NOW + timedelta(seconds=10)),
        (NOW + timedelta(hours=1), NOW + timedelta(seconds=10)),
    ],
    ids=["first", "usual", "set forth", "set back"],
)
def test_next_time_is_at_most_an_interval_away(
    previous: datetime | None, expected: datetime
) -> None:
    """A year forward gives one time, not three million; an hour back does not pause."""
    assert SteadyIntervalTrigger(10.0).get_next_fire_time(previous, NOW) == expected
