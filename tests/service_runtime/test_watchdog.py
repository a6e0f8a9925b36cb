"""Watchdog of loops, with a clock that the test sets."""

import pytest

from service_runtime.watchdog import LoopWatchdog


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watchdog(clock: Clock) -> LoopWatchdog:
    return LoopWatchdog(clock)


def test_loop_with_heartbeats_is_not_late(watchdog: LoopWatchdog, clock: Clock) -> None:
    """Each heartbeat restarts its timeout."""
    with watchdog.watch_loop("uplink", 5) as beat:
        clock.now_s += 4
        beat()
        clock.now_s += 4

        assert watchdog.find_late_loops() == ()


def test_late_loop_is_named_with_its_silence(
    watchdog: LoopWatchdog, clock: Clock
) -> None:
    """Every loop has its own timeout."""
    with watchdog.watch_loop("uplink", 5), watchdog.watch_loop("gateway list", 60):
        clock.now_s += 7

        assert watchdog.find_late_loops() == ("uplink is silent for 7 s",)


def test_ended_loop_is_not_late(watchdog: LoopWatchdog, clock: Clock) -> None:
    """Also when it ended with an error, which is reported elsewhere."""
    with pytest.raises(ValueError, match="broken"), watchdog.watch_loop("lane", 5):
        raise ValueError("broken")
    clock.now_s += 100

    assert watchdog.find_late_loops() == ()


def test_two_loops_of_one_name_are_separate(
    watchdog: LoopWatchdog, clock: Clock
) -> None:
    """The end of one does not hide the other."""
    with watchdog.watch_loop("sampling", 5):
        with watchdog.watch_loop("sampling", 5):
            pass
        clock.now_s += 6

        assert watchdog.find_late_loops() == ("sampling is silent for 6 s",)


def test_dead_thread_of_a_library_is_named(watchdog: LoopWatchdog) -> None:
    """It sends no heartbeat, so its liveness is polled."""
    is_alive = True
    watchdog.watch_thread("lgpio's thread", lambda: is_alive)
    before = watchdog.find_late_loops()
    is_alive = False

    assert before == ()
    assert watchdog.find_late_loops() == ("lgpio's thread is dead",)
