"""``python -m experiments.link_grid``: the congestion window on simulated links.

Rates, bursts and delays in every combination, and what else happens to links. A bar is
missed when an urgent message takes longer than a segment's time, the link's delay and
0.5 s (with bursts of 16 kB and more: nine of ten, and the worst longer than the burst's
time and 1.0 s), when the backlog uses less than 90 % of the link (75 % at 300 ms), or
when one of two uplinks gets less than a quarter of it.
"""

import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from experiments.bench.link_kinds import KINDS, Cell
from experiments.bench.link_load import Load, Result, simulate
from experiments.bench.simulated_link import LinkPlan
from experiments.bench.table import table, write

SEEDS = (1, 2)
QUICK_BPS = 500e3


def run(cell: Cell, seeds: Sequence[int] = SEEDS) -> Result:
    """Results of a link over all seeds, as one."""
    results = [simulate(*cell, seed) for seed in seeds]
    return Result(
        sorted(s for each in results for s in each.over_s),
        sorted(s for each in results for s in each.over_burst_s),
        min(each.goodput for each in results),
        min(each.least_share for each in results),
    )


def describe(plan: LinkPlan, load: Load) -> str:
    """Name of a cell: what is unusual about it."""
    rate_kbps, one_way_ms = plan.rate_bps / 1e3, plan.one_way_s * 1e3
    words = [f"{rate_kbps:g} kbps, burst {plan.burst_bytes}, {one_way_ms:g} ms"]
    usual = asdict(LinkPlan(0)) | asdict(Load.for_plan(plan))
    left_out = {"rate_bps", "burst_bytes", "one_way_s", "settle_s", "urgent"}
    words += [
        f"{name} {value}"
        for name, value in (asdict(plan) | asdict(load)).items()
        if name not in left_out and value != usual[name]
    ]
    return ", ".join(words)


def _row(kind: str, results: dict[Cell, Result]) -> list[object]:
    small = [(c, r) for c, r in results.items() if c[0].has_small_burst]
    large = [(c, r) for c, r in results.items() if not c[0].has_small_burst]
    near = [r for c, r in results.items() if not c[0].is_far]
    far = [r for c, r in results.items() if c[0].is_far]
    return [
        kind,
        len(results),
        sum(not each.misses(plan) for (plan, _), each in results.items()),
        max(r.over_bar_s(plan) for (plan, _), r in results.items()),
        max((each.over_s[-1] for _, each in small), default=None),
        max((each.p90_over_s for _, each in large), default=None),
        min((each.goodput for each in near), default=None),
        min((each.goodput for each in far), default=None),
    ]


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
@click.option("--only", type=click.Choice(list(KINDS)), help="One kind of link.")
@click.option("--quick", is_flag=True, help="One seed, and links of up to 500 kbps.")
def main(out: Path, only: str | None, quick: bool) -> None:
    """Print a row for each kind of link, and each link that misses a bar."""
    rows: list[list[object]] = []
    missed: list[str] = []
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for kind in [only] if only else KINDS:
            cells = [
                each
                for each in KINDS[kind]()
                if not quick or each[0].rate_bps <= QUICK_BPS
            ]
            seeds = SEEDS[:1] if quick else SEEDS
            found = pool.starmap(run, [(each, seeds) for each in cells], 1)
            results = dict(zip(cells, found, strict=True))
            rows.append(_row(kind, results))
            print(f"  {kind} ...", flush=True)
            missed += [
                f"  {kind}, {describe(*cell)}: {', '.join(words)}"
                for cell, each in results.items()
                if (words := each.misses(cell[0]))
            ]
    head = ("kind", "links", "all bars", "s over the bar",
            "worst s over, burst <= 5 kB", "p90 s over, others",
            "least goodput", "at 300 ms")  # fmt: skip
    result = {"rows": rows, "missed": missed}
    print(f"{table(head, rows)}\n", *missed, sep="\n")
    print(f"\n  {write(out, 'link_grid', result)}")


if __name__ == "__main__":
    main()
