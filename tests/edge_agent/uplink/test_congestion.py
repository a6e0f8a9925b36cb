"""The congestion window on simulated links, without a network."""

import pytest
from sizes import sizes

from edge_agent.uplink.congestion import (
    FRAME_BYTES,
    START_FRAMES,
    CongestionWindow,
    LinkEstimate,
)
from experiments.bench.simulated_link import (
    BURSTS,
    DELAYS_S,
    KINDS,
    RATES_BPS,
    LinkPlan,
    Load,
    grid,
    simulate,
)

KNOWN_MISSES = 5
"""Most links of the whole grid, of 368, that miss a bar: bursts of 16 and 64 kB at
300 ms while the rate changes, and 1 % loss. See docs/explanation/urgent-first.md."""


def misses(plan: LinkPlan, load: Load | None = None, seed: int = 1) -> list[str]:
    """Bars that a link misses."""
    return simulate(plan, load or Load.for_plan(plan), seed).misses(plan)


@pytest.mark.parametrize("rate_bps", [10e3, 64e3, 500e3])
@pytest.mark.parametrize("kind", KINDS)
def test_urgent_message_is_early_and_the_link_busy(kind: str, rate_bps: float) -> None:
    """On slow and fast links, near and far, with and without a burst."""
    plans = [
        plan
        for plan in grid(kind, (rate_bps,))
        if plan.burst_bytes in BURSTS[::2] and plan.one_way_s in DELAYS_S[::3]
    ]

    assert {plan: words for plan in plans if (words := misses(plan))} == {}


@pytest.mark.long
def test_whole_grid_reaches_the_bars() -> None:
    """Rates of 10 kbps to 10 Mbps, four bursts, four delays, four kinds of change."""
    plans = [plan for kind in KINDS for plan in grid(kind, RATES_BPS)]
    missed = {plan: words for plan in plans if (words := misses(plan))}

    assert len(plans) > 300
    assert len(missed) <= KNOWN_MISSES, missed


@pytest.mark.parametrize("message_bytes", [150, 400, 3000])
@pytest.mark.parametrize("rate_bps", sizes([30e3], [64e3, 128e3, 500e3]))
def test_size_of_the_messages_does_not_matter(
    message_bytes: int, rate_bps: list[float]
) -> None:
    """Small ones share a segment, large ones need several."""
    for each in rate_bps:
        plan = LinkPlan(each, 5000, 0.05)
        assert misses(plan, Load(message_bytes)) == []


@pytest.mark.parametrize("one_way_s", [0.001, 0.05, 0.3])
def test_gathered_acknowledgements_are_no_fast_link(one_way_s: float) -> None:
    """TCP delays acknowledgements by 40 ms; they then come together."""
    assert misses(LinkPlan(64e3, 1600, one_way_s, ack_interval_s=0.04)) == []


@pytest.mark.parametrize(
    ("old_s", "new_s"), [(0.02, 0.3), (0.3, 0.02)], ids=["longer", "shorter"]
)
@pytest.mark.parametrize("rate_bps", [30e3, 500e3])
def test_way_that_changes_is_measured_again(
    rate_bps: float, old_s: float, new_s: float
) -> None:
    """A satellite takes over from a cellular link: a longer way is no queue."""
    plan = LinkPlan(rate_bps, 1600, old_s, new_one_way_s=new_s)
    result = simulate(plan, Load(), 1)

    assert result.over_s[-1] <= 0
    assert result.goodput >= 0.75


def test_known_slow_link_is_not_overfilled_from_the_start() -> None:
    """The burst of a link is known from the connection before."""
    plan = LinkPlan(30e3, 16_000, 0.05)
    load = Load(settle_s=3.0, measure_s=20.0, known=LinkEstimate(3750.0, 16_000.0))

    assert simulate(plan, load, 1).over_s[-1] <= 0


def test_known_fast_link_is_filled_soon() -> None:
    """Without memory, a search of ten round trips of 0.6 s each would precede."""
    plan = LinkPlan(5e6, 1600, 0.3)
    known, unknown = (
        simulate(plan, Load(urgent=2, settle_s=0.7, measure_s=12.0, known=each), 1)
        for each in (LinkEstimate(625_000.0, 0.0), None)
    )

    assert known.goodput > unknown.goodput
    assert known.goodput >= 0.5


def test_unmeasured_link_gets_two_frames() -> None:
    """The first messages measure the link."""
    window = CongestionWindow(1_000_000)
    window.on_rtt_sample(0.1)

    assert window.limit_bytes == window.free_bytes(0.0) == START_FRAMES * FRAME_BYTES


def test_window_has_a_maximum() -> None:
    """The setting holds on a link of any rate."""
    window = CongestionWindow(3000, LinkEstimate(1e6, 0.0))
    window.on_rtt_sample(0.6)

    assert window.limit_bytes == 3000


def test_unacknowledged_publications_measure_nothing() -> None:
    """QoS 0 is "published" within a millisecond."""
    window = CongestionWindow(1_000_000)
    for n in range(1000):
        window.on_done(window.on_sent(1500, n * 0.001))

    assert window.bytes_in_flight == 0
    assert window.estimate() is None


@pytest.mark.parametrize(
    "stored",
    [None, 1, "x", [], [1], [0, 0], [-1.0, 0], [1e400, 0], ["a", 1], [1, 2, 3]],
)
def test_damaged_estimate_is_rejected(stored: object) -> None:
    """It comes from a file that may be damaged."""
    with pytest.raises((ValueError, TypeError)):
        LinkEstimate.parse(stored)
