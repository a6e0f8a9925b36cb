"""The congestion window on simulated links, without a network."""

from dataclasses import replace

import pytest
from sizes import sizes

from edge_agent.uplink.congestion import START_FRAMES, CongestionWindow
from edge_agent.uplink.link_rate import FRAME_BYTES, LinkEstimate
from experiments.bench.link_kinds import BURSTS, DELAYS_S, KINDS, Cell, cell
from experiments.bench.link_load import Load, simulate
from experiments.bench.simulated_link import LinkPlan

COMPLETE_KINDS = tuple(KINDS)[:4]

SLOW_TO_GROW = LinkPlan(500e3, 16_000, 0.3, rate_factor=10.0)
"""Its goodput is 0.745 instead of 0.75: the burst hides that the link became faster."""

KNOWN_MISSES = {
    "10 times faster": 2,
    "delay of 20 to 200 ms": 5,
    "outages of 1 to 30 s": 2,
    "rate wanders by 4": 3,
    "slow answers": 8,
    "policer": 5,
    "answers every 0.2 to 1 s": 27,
    "50 B to 20 kB": 12,
    "2 or 50 urgent at once": 3,
    "two uplinks": 14,
    "half for others": 8,
}
"""Most links of a kind that miss a bar. See docs/explanation/urgent-first.md."""


def misses(plan: LinkPlan, load: Load | None = None, seed: int = 1) -> list[str]:
    """Bars that a link misses."""
    return simulate(plan, load or Load.for_plan(plan), seed).misses(plan)


def missed(cells: list[Cell]) -> dict[Cell, list[str]]:
    """Bars that are missed, by link and load."""
    return {each: words for each in cells if (words := misses(*each))}


@pytest.mark.parametrize("rate_bps", [10e3, 64e3, 500e3])
@pytest.mark.parametrize("kind", COMPLETE_KINDS)
def test_urgent_message_is_early_and_the_link_busy(kind: str, rate_bps: float) -> None:
    """On slow and fast links, near and far, with and without a burst."""
    cells = [
        (plan, load)
        for plan, load in KINDS[kind]()
        if plan.rate_bps == rate_bps
        and plan.burst_bytes in BURSTS[::2]
        and plan.one_way_s in DELAYS_S[::3]
    ]

    assert {plan for plan, _ in missed(cells)} <= {SLOW_TO_GROW}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_whole_grid_reaches_the_bars(kind: str) -> None:
    """Every rate, burst and delay of a kind of link."""
    cells = list(KINDS[kind]())
    late = missed(cells)

    assert len(cells) >= 10
    assert len(late) <= KNOWN_MISSES.get(kind, 0), late


@pytest.mark.parametrize("factor", [0.01, 0.1, 10.0, 100.0])
@pytest.mark.parametrize("rate_bps", [10e3, 64e3])
def test_wrong_memory_of_a_link_is_corrected(rate_bps: float, factor: float) -> None:
    """A rate that is much too low would permit a queue of minutes."""
    plan = LinkPlan(rate_bps, 1600, 0.05)
    known = LinkEstimate(plan.rate * factor, 0.0)

    assert missed([cell(plan, known=known, settle_s=12.0)]) == {}


@pytest.mark.parametrize(
    "plan",
    [
        LinkPlan(10e3, 16_000, 0.05, answer_bps=500.0),
        LinkPlan(10e3, 16_000, 0.3, answer_bps=1250.0),
    ],
    ids=["near", "far"],
)
def test_answers_that_come_fast_after_a_wait_are_no_fast_link(plan: LinkPlan) -> None:
    """Answers wait on their own way; the messages did not pass that fast."""
    assert simulate(*cell(plan), 1).over_bar_s(plan) <= 0


@pytest.mark.parametrize("outage_s", [1.0, 30.0])
def test_outage_is_no_slow_link(outage_s: float) -> None:
    """Within the outage, no message can arrive; after it, all are as fast as before."""
    plan = LinkPlan(64e3, 16_000, 0.05, outage_s=outage_s)

    assert missed([cell(plan)]) == {}


def test_gathered_acknowledgements_do_not_hide_a_queue() -> None:
    """The last of them have waited least: a queue of 0.7 s was none."""
    plan = LinkPlan(500e3, 1600, 0.001, ack_interval_s=1.0)

    assert simulate(*cell(plan), 1).over_s[-1] <= 0.5


@pytest.mark.parametrize("rate_bps", [10e3, 64e3])
def test_one_large_message_is_in_flight(rate_bps: float) -> None:
    """A second one of 20 kB would be seconds more; a plain broker gets no fragments."""
    plan = LinkPlan(rate_bps, 1600, 0.05)

    assert missed([cell(plan, sizes=(20_000,))]) == {}


@pytest.mark.parametrize(
    "each",
    [
        cell(LinkPlan(64e3, 1600, 0.05), uplinks=2),
        cell(LinkPlan(64e3, 1600, 0.05), urgent_together=50, urgent=3),
        cell(LinkPlan(64e3, 1600, 0.05, walk=4.0)),
        cell(LinkPlan(64e3, 5000, 0.05, is_policer=True)),
        cell(LinkPlan(64e3, 16_000, 0.05, other_share=0.5)),
    ],
    ids=["two uplinks", "fifty urgent", "wandering rate", "policer", "other traffic"],
)
def test_unsteady_or_shared_link_reaches_the_bars(each: Cell) -> None:
    """What the window was not made for."""
    assert missed([each]) == {}


def test_delay_that_wanders_keeps_nothing_waiting() -> None:
    """The window is small then: the link carries less, but the urgent are early."""
    plan = LinkPlan(64e3, 1600, 0.02, jitter_s=0.18)

    assert simulate(*cell(plan), 1).over_s[-1] <= 0


@pytest.mark.parametrize("message_bytes", [150, 400, 3000])
@pytest.mark.parametrize("rate_bps", sizes([30e3], [64e3, 128e3, 500e3]))
def test_size_of_the_messages_does_not_matter(
    message_bytes: int, rate_bps: list[float]
) -> None:
    """Small ones share a segment, large ones need several."""
    for each in rate_bps:
        plan = LinkPlan(each, 5000, 0.05)
        assert misses(plan, replace(Load(), sizes=(message_bytes,))) == []


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


@pytest.mark.parametrize(
    ("rate_bps", "burst_bytes", "round_trip_s", "message_bytes"),
    [
        (30e3, 1600, 1.0, (1000,)),
        (30e3, 1600, 4.0, (1000,)),
        (30e3, 1514, 6.0, (1000,)),
        (34e3, 1150, 6.0, (1000,)),
        (26e3, 1600, 6.0, (950,)),
        (1200, 1600, 60.0, tuple(range(850, 1001, 10))),
    ],
)
def test_queue_that_empties_in_each_round_trip_does_not_keep_the_window_small(
    rate_bps: float,
    burst_bytes: int,
    round_trip_s: float,
    message_bytes: tuple[int, ...],
) -> None:
    """Two messages in flight: the second is late each time, and nothing else is."""
    plan = LinkPlan(rate_bps, burst_bytes, round_trip_s / 2)
    settle_s = 40 * round_trip_s + 20.0
    load = Load(message_bytes, settle_s=settle_s, measure_s=20 * round_trip_s)

    assert simulate(plan, replace(load, urgent=1), 1).goodput >= 0.85


def test_probe_of_an_unknown_link_with_a_burst_does_not_overfill_it() -> None:
    """Most of the two frames pass as a burst, and look like a fast link."""
    plan = LinkPlan(24e3, 2900, 1.0)
    load = Load((1400,), settle_s=3.0, measure_s=80.0, urgent=24)

    assert simulate(plan, load, 1).over_s[-1] <= 3.0


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
