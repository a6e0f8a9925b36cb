"""Which loops are alive, on a clock that the test moves."""

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
def pulse(clock: Clock) -> LoopWatchdog:
    return LoopWatchdog(clock)


def test_loop_that_beats_is_not_late(pulse: LoopWatchdog, clock: Clock) -> None:
    """Each beat gives it its whole time again."""
    with pulse.watch_loop("uplink", 5) as beat:
        clock.now_s += 4
        beat()
        clock.now_s += 4

        assert pulse.find_late_loops() == ()


def test_late_loop_is_named_with_its_silence(pulse: LoopWatchdog, clock: Clock) -> None:
    """One is enough, whatever the others do, and each has its own time."""
    with pulse.watch_loop("uplink", 5), pulse.watch_loop("gateway list", 60):
        clock.now_s += 7

        assert pulse.find_late_loops() == ("uplink is silent for 7 s",)


def test_loop_that_ended_is_not_missed(pulse: LoopWatchdog, clock: Clock) -> None:
    """Also when it ended with an error, which is told in another way."""
    with pytest.raises(ValueError, match="broken"), pulse.watch_loop("lane", 5):
        raise ValueError("broken")
    clock.now_s += 100

    assert pulse.find_late_loops() == ()


def test_two_loops_of_one_name_are_two(pulse: LoopWatchdog, clock: Clock) -> None:
    """The end of one does not hide the other."""
    with pulse.watch_loop("sampling", 5):
        with pulse.watch_loop("sampling", 5):
            pass
        clock.now_s += 6

        assert pulse.find_late_loops() == ("sampling is silent for 6 s",)


def test_dead_thread_of_a_library_is_named(pulse: LoopWatchdog) -> None:
    """It cannot beat, so it is asked."""
    lives = True
    pulse.watch_thread("lgpio's thread", lambda: lives)
    before = pulse.find_late_loops()
    lives = False

    assert before == ()
    assert pulse.find_late_loops() == ("lgpio's thread is dead",)
