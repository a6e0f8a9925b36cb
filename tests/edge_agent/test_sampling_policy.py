"""Sampling intervals by level and battery voltage."""

from edge_agent.sampling_loop import SamplingMode, SamplingPolicy

POLICY = SamplingPolicy(60.0, "battery", low_v=11.8, well_v=12.4, stretch=5.0)


def test_danger_level_samples_fast_even_with_a_low_battery() -> None:
    """A detected danger takes precedence over an empty battery."""
    mode = POLICY.choose_mode(3, 11.0, SamplingMode())

    assert mode == SamplingMode(is_fast=True)
    assert [mode.interval_s(s, POLICY) for s in (10.0, 600.0)] == [10.0, 60.0]


def test_low_battery_stretches_the_intervals() -> None:
    """Five times longer, until the battery voltage has recovered."""
    mode = POLICY.choose_mode(1, 11.7, SamplingMode())
    assert mode.interval_s(60.0, POLICY) == 300.0
    mode = POLICY.choose_mode(1, 12.0, mode)
    assert mode == SamplingMode(is_saving=True)

    assert POLICY.choose_mode(1, 12.4, mode) == SamplingMode()


def test_node_without_battery_reading_keeps_its_intervals() -> None:
    """A missing voltage is not a low voltage."""
    assert SamplingPolicy(60.0).choose_mode(2, None, SamplingMode()) == SamplingMode()
