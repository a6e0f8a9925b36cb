"""Kinds of simulated links and loads: the rows of `experiments.link_grid`.

The first four are complete: every rate, burst and delay. The others take fewer of each.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from edge_agent.uplink.link_rate import LinkEstimate
from experiments.bench.link_load import RELEARN_S, Load
from experiments.bench.net import FRAME_BURST_BYTES
from experiments.bench.simulated_link import LinkPlan

RATES_BPS = (10e3, 30e3, 64e3, 128e3, 500e3, 2e6, 10e6)
BURSTS = (FRAME_BURST_BYTES, 5000, 16_000, 64_000)
DELAYS_S = (0.001, 0.02, 0.05, 0.3)

FEWER_RATES_BPS = (10e3, 30e3, 64e3, 500e3, 2e6)
FEWER_BURSTS = (FRAME_BURST_BYTES, 16_000)
FEWER_DELAYS_S = (0.001, 0.05, 0.3)

Cell = tuple[LinkPlan, Load]


def plans(
    rates_bps: Sequence[float] = FEWER_RATES_BPS,
    bursts: Sequence[int] = FEWER_BURSTS,
    delays_s: Sequence[float] = FEWER_DELAYS_S,
) -> Iterator[LinkPlan]:
    """Constant links of every combination."""
    for rate_bps, burst, delay_s in itertools.product(rates_bps, bursts, delays_s):
        yield LinkPlan(rate_bps, burst, delay_s)


def cell(plan: LinkPlan, **load: object) -> Cell:
    """A link with its usual load, of which some values differ."""
    return plan, replace(Load.for_plan(plan), **load)  # type: ignore[arg-type]


def whole_grid(factor: float = 1.0, loss: float = 0.0) -> Iterator[Cell]:
    """Every combination whose rates, before and after a change, are in the grid."""
    for plan in plans(RATES_BPS, BURSTS, DELAYS_S):
        if RATES_BPS[0] <= plan.rate_bps * factor <= RATES_BPS[-1]:
            yield cell(replace(plan, rate_factor=factor, loss=loss))


def jitter() -> Iterator[Cell]:
    """A delay that wanders from 20 to 200 ms, as on cellular links."""
    for plan in plans(delays_s=(0.02,)):
        yield cell(replace(plan, jitter_s=0.18))


def outages() -> Iterator[Cell]:
    """A link that stands still for 1, 10 or 30 s in the middle of a drain."""
    for plan, outage_s in itertools.product(
        plans(delays_s=(0.001, 0.05)), (1.0, 10.0, 30.0)
    ):
        yield cell(replace(plan, outage_s=outage_s))


def walks() -> Iterator[Cell]:
    """A rate that goes up and down by a factor of four within seconds."""
    for plan in plans():
        yield cell(replace(plan, walk=4.0))


def slow_answers() -> Iterator[Cell]:
    """An opposite direction of an eighth or a twentieth of the rate."""
    for plan, part in itertools.product(plans(), (8, 20)):
        yield cell(replace(plan, answer_bps=plan.rate_bps / part))


def policers() -> Iterator[Cell]:
    """A link that drops what exceeds its rate and burst."""
    for plan in plans(bursts=BURSTS[1:]):
        yield cell(replace(plan, is_policer=True))


def gathered_answers() -> Iterator[Cell]:
    """Acknowledgements that come together every 0.2 to 1 s."""
    for plan, interval_s in itertools.product(
        plans(bursts=FEWER_BURSTS[:1]), (0.2, 0.5, 1.0)
    ):
        yield cell(replace(plan, ack_interval_s=interval_s))


def wrong_memory() -> Iterator[Cell]:
    """A remembered rate that is wrong, since the node or its modem was changed."""
    for plan, factor in itertools.product(plans(), (0.01, 0.1, 10.0, 100.0)):
        known = LinkEstimate(plan.rate * factor, 0.0)
        yield cell(plan, known=known, settle_s=RELEARN_S)


def sizes() -> Iterator[Cell]:
    """Many tiny messages, few large ones, and both."""
    for plan, each in itertools.product(
        plans(), ((50,), (20_000,), (50, 50, 50, 400, 1000, 3000))
    ):
        yield cell(plan, sizes=each)


def urgent_together() -> Iterator[Cell]:
    """Two urgent messages at the same moment, and fifty."""
    for plan in plans():
        yield cell(plan, urgent_together=2)
        yield cell(plan, urgent_together=50, urgent=3)


def two_uplinks() -> Iterator[Cell]:
    """Two nodes on one link; the second connects while the first fills it."""
    for plan in plans():
        yield cell(plan, uplinks=2)


def other_traffic() -> Iterator[Cell]:
    """Traffic of others that takes half of the link, every other 5 s."""
    for plan in plans():
        yield cell(replace(plan, other_share=0.5))


KINDS: dict[str, Callable[[], Iterator[Cell]]] = {
    "constant": whole_grid,
    "10 times slower": lambda: whole_grid(factor=0.1),
    "10 times faster": lambda: whole_grid(factor=10.0),
    "1 % loss": lambda: whole_grid(loss=0.01),
    "delay of 20 to 200 ms": jitter,
    "outages of 1 to 30 s": outages,
    "rate wanders by 4": walks,
    "slow answers": slow_answers,
    "policer": policers,
    "answers every 0.2 to 1 s": gathered_answers,
    "wrong memory": wrong_memory,
    "50 B to 20 kB": sizes,
    "2 or 50 urgent at once": urgent_together,
    "two uplinks": two_uplinks,
    "half for others": other_traffic,
}
