"""How often sensors are read."""

from edge_agent.schedule import SamplingMode, SamplingPolicy

HABITS = SamplingPolicy(60.0, "battery", low_v=11.8, well_v=12.4, stretch=5.0)


def test_danger_makes_it_fast_whatever_the_battery_says() -> None:
    """An empty battery tomorrow is better than a missed slide today."""
    pace = HABITS.choose_mode(3, 11.0, SamplingMode())

    assert pace == SamplingMode(is_fast=True)
    assert [pace.interval_s(s, HABITS) for s in (10.0, 600.0)] == [10.0, 60.0]


def test_low_battery_stretches_the_intervals() -> None:
    """Five times longer, until the battery is well again."""
    pace = HABITS.choose_mode(1, 11.7, SamplingMode())
    assert pace.interval_s(60.0, HABITS) == 300.0
    pace = HABITS.choose_mode(1, 12.0, pace)
    assert pace == SamplingMode(is_saving=True)

    assert HABITS.choose_mode(1, 12.4, pace) == SamplingMode()


def test_node_without_battery_never_saves() -> None:
    """No voltage is no low voltage."""
    assert SamplingPolicy(60.0).choose_mode(2, None, SamplingMode()) == SamplingMode()
