import pytest

from edge_agent.sensors.base import Hardware
from edge_agent.sensors.rain_gauge_and_vibration import PinPulseSource, PulseInput
from edge_agent.simulator.buses import SlopePinFactory

WRAP_S = 100.0


class WrappingFactory(SlopePinFactory):
    """Pins whose clock restarts every 100 s, as pigpio's does after an hour."""

    def ticks(self) -> float:
        """Time since the last wrap."""
        return self.now_s % WRAP_S

    @staticmethod
    def ticks_diff(later: float, earlier: float) -> float:
        """Difference, across a wrap."""
        return (later - earlier) % WRAP_S


def pulse(factory: SlopePinFactory, at_s: float) -> None:
    """Close and open the switch once."""
    factory.now_s = at_s
    factory.pin(17).hold(level=False)
    factory.pin(17).release()


def test_clock_of_the_pins_may_wrap() -> None:
    """Only differences of its ticks are meaningful."""
    factory = WrappingFactory()
    pulses = PinPulseSource(PulseInput(17), "rain", Hardware(factory, lambda _: None))
    for at_s in (60.0, 95.0, 130.0):
        pulse(factory, at_s)
    assert pulses.drain().times_s == pytest.approx((60.0, 95.0, 130.0))


def test_pulses_beyond_a_limit_are_counted_without_times() -> None:
    """A contact that flaps for hours needs bounded memory, and is still counted."""
    factory = SlopePinFactory()
    pulses = PinPulseSource(PulseInput(17), "rain", Hardware(factory, lambda _: None))
    for at in range(10_020):
        pulse(factory, at / 100)
    drained = pulses.drain()
    assert (len(drained.times_s), drained.untimed_count) == (10_000, 20)
    assert pulses.drain().times_s == ()
    pulses.close()
