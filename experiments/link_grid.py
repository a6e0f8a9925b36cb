"""``python -m experiments.link_grid``: the congestion window on 368 simulated links.

Every combination of rate, burst, delay and kind of change. A bar is missed when an
urgent message takes longer than a segment's time, the link's delay and 0.5 s (with
bursts of 16 kB and more: nine of ten, and the worst longer than the burst's time and
1.0 s), or when the backlog uses less than 90 % of the link (75 % at 300 ms).
"""

from collections.abc import Sequence
from pathlib import Path

import click

from experiments.bench.simulated_link import (
    KINDS,
    LinkPlan,
    Load,
    Result,
    grid,
    simulate,
)
from experiments.bench.table import table, write

SEEDS = (1, 2)


def run(plan: LinkPlan, seeds: Sequence[int] = SEEDS) -> Result:
    """Results of a link over all seeds, as one."""
    results = [simulate(plan, Load.for_plan(plan), seed) for seed in seeds]
    return Result(
        sorted(s for each in results for s in each.over_s),
        sorted(s for each in results for s in each.over_burst_s),
        min(each.goodput for each in results),
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(out: Path) -> None:
    """Print a row for each kind of link, and each link that misses a bar."""
    rows: list[list[object]] = []
    missed: list[str] = []
    for kind in KINDS:
        results = {plan: run(plan) for plan in grid(kind)}
        misses = {plan: each.misses(plan) for plan, each in results.items()}
        missed += [
            f"  {kind}, {plan.rate_bps / 1e3:g} kbps, burst {plan.burst_bytes}, "
            f"{plan.one_way_s * 1e3:g} ms: {', '.join(words)}"
            for plan, words in misses.items()
            if words
        ]
        rows.append([
            kind,
            len(results),
            sum(not words for words in misses.values()),
            max(each.over_s[-1] for p, each in results.items() if p.has_small_burst),
            max(r.p90_over_s for p, r in results.items() if not p.has_small_burst),
            min(each.goodput for p, each in results.items() if not p.is_far),
            min(each.goodput for p, each in results.items() if p.is_far),
        ])  # fmt: skip
    head = ("kind", "links", "all bars", "worst s over, burst <= 5 kB",
            "p90 s over, others", "least goodput", "at 300 ms")  # fmt: skip
    result = {"rows": rows, "missed": missed}
    print(f"{table(head, rows)}\n", *missed, sep="\n")
    print(f"\n  {write(out, 'link_grid', result)}")


if __name__ == "__main__":
    main()
