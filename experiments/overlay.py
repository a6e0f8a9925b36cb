"""Evaluation of the PSG-TBPS thesis, repeated, compared with the overlay's key ranges.

Table 6.1's topics at five priorities (figures 6.1 to 6.7), and topics of one publisher
with routing tables of 60 entries (6.8, 6.9). The figures are not in the available text,
so the results are compared with its statements. One core, no network.

Source: the thesis (seed 003) chapter 6.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from experiments.bench.chart import bars, lines
from experiments.bench.table import table, verdict, write
from experiments.overlay_study.disasters import (
    SCENARIO_METHODS,
    SCENARIOS,
    ScenarioResult,
    make_terrain,
    run_scenario,
)
from experiments.overlay_study.methods import (
    ONE_PUBLISHER_SUBSCRIBERS,
    ONE_PUBLISHER_TOTAL,
    OVERLAY_SIZES,
    PATTERNS,
    TopicPattern,
)
from experiments.overlay_study.network import (
    TREES,
    DelayStatistics,
    LoadScenario,
    measure_delays,
)
from experiments.overlay_study.statistics import (
    MethodResult,
    measure_method,
    random_topics,
)

PRIORITIES = (1, 2, 3, 4, 5)
METHODS = ("psg", "patm", "v3", "v6")
TABLES = ("sg", "psg", "atm", "patm", "v3", "v6")
SAME_AS = {
    "sg": dict.fromkeys(PRIORITIES, 1),
    "atm": dict.fromkeys(PRIORITIES, 1),
    "patm": {2: 1, 3: 1, 5: 4},
}
MAX_SECONDS = 60.0

Cell = tuple[str, str, int]
"""Pattern, method, priority."""


def table_6_1(nodes: int, trials: int) -> dict[Cell, MethodResult]:
    """Measure all patterns, methods and priorities in overlays of one size."""
    results: dict[Cell, MethodResult] = {}
    for name, pattern in PATTERNS.items():
        topics = list(random_topics(pattern, nodes, trials, seed=0))
        for method, priority in product(TABLES, PRIORITIES):
            # SG and ATM have no priorities, PATM only urgent and not urgent.
            equal_priority = SAME_AS.get(method, {}).get(priority, priority)
            known = results.get((name, method, equal_priority))
            results[name, method, priority] = known or measure_method(
                topics, method, priority
            )
    return results


def one_publisher(trials: int) -> dict[tuple[int, str], MethodResult]:
    """Measure topics of one publisher and 10 to 1280 subscribers, priority 5."""
    return {
        (number, method): measure_method(topics, method, 5)
        for number in ONE_PUBLISHER_SUBSCRIBERS
        for topics in [
            list(random_topics(TopicPattern(1, number), ONE_PUBLISHER_TOTAL, trials, 0))
        ]
        for method in TABLES
    }


def loaded(span_s: float) -> dict[tuple[float, str, str], dict[int, DelayStatistics]]:
    """Measure the delay of every priority on brokers at loads of 0.5 and 0.7."""
    return {
        (load, tree, order): measure_delays(
            LoadScenario(load, tree, order == "fifo", span_s=span_s)
        )
        for load, tree, order in product((0.5, 0.7), TREES, ("fifo", "urgent first"))
    }


def disasters(trials: int) -> dict[tuple[str, str], ScenarioResult]:
    """Run each disaster scenario with 200 gateways in 20 valleys."""
    results: dict[tuple[str, str], ScenarioResult] = {}
    for scenario, method in product(SCENARIOS, SCENARIO_METHODS):
        runs = [
            run_scenario(scenario, method, make_terrain(20, 200, s), s)
            for s in range(trials)
        ]
        names = ScenarioResult.__dataclass_fields__
        means = {n: fmean(getattr(each, n) for each in runs) for n in names}
        results[scenario, method] = ScenarioResult(**means)
    return results


def by_load(
    results: Mapping[tuple[float, str, str], Mapping[int, DelayStatistics]],
) -> str:
    """Format mean and 99th percentile of the delay of every priority, in ms."""
    rows: list[list[object]] = [
        [
            f"{load}  {tree}, {order}",
            *(f"{by[p].mean_ms:.0f} / {by[p].p99_ms:.0f}" for p in PRIORITIES),
        ]
        for (load, tree, order), by in results.items()
    ]
    return table(("load, tree, order", *map(str, PRIORITIES)), rows)


def by_disaster(results: Mapping[tuple[str, str], ScenarioResult]) -> str:
    """Format the results of the disaster scenarios."""
    rows: list[list[object]] = [
        [f"{scenario}  {method}", 100 * r.reached, r.mean_ms, r.p99_ms, r.crossings]
        for (scenario, method), r in results.items()
    ]
    head = ("disaster, way", "reached %", "mean ms", "p99 ms", "copies out of valleys")
    return table(head, rows)


def by_priority(found: Mapping[Cell, MethodResult], field: str) -> str:
    """Format one field for every pattern, method and priority."""
    rows: list[list[object]] = [
        [
            f"{name}  {method}",
            *(getattr(found[name, method, p], field) for p in PRIORITIES),
            getattr(found[name, "sg", 5], field),
        ]
        for name, method in product(PATTERNS, METHODS)
    ]
    return table(("pattern, method", *map(str, PRIORITIES), "sg"), rows)


def by_subscribers(found: Mapping[tuple[int, str], MethodResult], field: str) -> str:
    """Format one field for every size and method."""
    rows: list[list[object]] = [
        [str(number), *(getattr(found[number, m], field) for m in TABLES)]
        for number in ONE_PUBLISHER_SUBSCRIBERS
    ]
    return table(("subscribers", *TABLES), rows)


def check_statements(
    found: Mapping[Cell, MethodResult], single: Mapping[tuple[int, str], MethodResult]
) -> Iterator[str]:
    """Check the thesis' statements and our targets."""
    reduction = {n: _path_reduction(found, n) for n in PATTERNS}
    largest = max(reduction.values())
    yield verdict("6.1 PSG shortens by up to 60 %, %", largest, 55.0, False)
    small = max(reduction[n] for n in ("delta", "epsilon", "zeta"))
    yield verdict("6.1 but hardly where ten take part, %", small, 20.0)
    yield verdict("6.5 priority 1 of PSG is plain, %", _extra_messages(found), 0.0)
    grown = [found["gamma", "psg", p].messages for p in (5, 1)]
    yield verdict("6.6 PSG's messages grow, times", grown[0] / grown[1], 100.0, False)
    yield verdict("6.8 ATM, 40 subscribers, hops", single[40, "atm"].path_hops, 1.0)
    yield verdict("6.8 PATM, 50 subscribers, hops", single[50, "patm"].path_hops, 1.05)
    difference = max(
        abs(1 - single[n, "patm"].path_hops / single[n, "atm"].path_hops)
        for n in ONE_PUBLISHER_SUBSCRIBERS
    )
    yield verdict("6.8 PATM differs from ATM by at most, %", 100 * difference, 5.0)
    ours = [
        *((found[n, "v6", 5], p.subscribers) for n, p in PATTERNS.items()),
        *((single[n, "v6"], n) for n in ONE_PUBLISHER_SUBSCRIBERS),
    ]
    slow = max(100 * (result.mean_ms / result.bound_ms - 1) for result, _ in ours)
    yield verdict("V6 above the least mean delay, %", slow, 5.0)
    more = max(abs(result.messages - n) for result, n in ours)
    yield verdict("V6 messages beyond one a subscriber", more, 0.0)
    deep = max(result.path_p99_hops for result, _ in ours)
    yield verdict("V6 hops, p99", float(deep), 2.0)


def _path_reduction(found: Mapping[Cell, MethodResult], name: str) -> float:
    """Return how much shorter PSG's paths are at priority 5 than at 1, in percent."""
    urgent, plain = (found[name, "psg", p].path_hops for p in (5, 1))
    return 100 * (1 - urgent / plain)


def _extra_messages(found: Mapping[Cell, MethodResult]) -> float:
    """Return PSG's messages at priority 1 beyond search and multicast, in percent."""
    result = found["delta", "psg", 1]
    return 100 * (result.messages / PATTERNS["delta"].subscribers - 1)


def charts(
    out: Path,
    found: Mapping[Cell, MethodResult],
    single: Mapping[tuple[int, str], MethodResult],
) -> Iterator[Path]:
    """Draw the figures; yield their paths."""
    names = list(PATTERNS)
    shown = ("sg", "psg", "atm", "patm", "v6")
    for figure, title, field in (
        ("6_1", "Mean path to the subscribers, priority 5", "path_hops"),
        ("6_7", "Mean delay, priority 5, every copy takes its time", "mean_ms"),
    ):
        series = {m: [getattr(found[n, m, 5], field) for n in names] for m in shown}
        path = out / f"overlay_{figure}.png"
        if bars(path, title, names, series, "hops" if field == "path_hops" else "ms"):
            yield path
    x = [float(n) for n in ONE_PUBLISHER_SUBSCRIBERS]
    path = out / "overlay_6_8.png"
    hops = {
        m: [single[n, m].path_hops for n in ONE_PUBLISHER_SUBSCRIBERS] for m in TABLES
    }
    title = "Mean path, tables of 60 entries, priority 5"
    if lines(path, title, x, hops, "subscribers", "hops"):
        yield path


def _to_dicts(results: Mapping[Any, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {**dict(zip(names, key, strict=True)), **asdict(result)}
        for key, result in results.items()
    ]


def load_and_disasters(quick: bool, trials: int, verdicts: list[str]) -> dict[str, Any]:
    """Evaluate the thesis' future work: queues, and disasters on a map."""
    print("  load and disasters ...", flush=True)
    delays, scenarios = loaded(0.5 if quick else 1.0), disasters(trials)
    print(f"\nmean / p99 delay under load, ms, by priority\n{by_load(delays)}")
    print(f"\n200 gateways in 20 valleys\n{by_disaster(scenarios)}")
    urgent = delays[0.7, "policy", "urgent first"][5]
    verdicts.append(verdict("priority 5 at 0.7 load, p99 ms", urgent.p99_ms, 30.0))
    worst = max(
        scenarios[s, "v6 by valleys"].mean_ms / scenarios[s, "sg, hashed names"].mean_ms
        for s in SCENARIOS
    )
    verdicts.append(verdict("by valleys to SG in any disaster, delay", worst, 0.5))
    return {
        "load": {
            ", ".join(map(str, key)): {p: asdict(w) for p, w in by.items()}
            for key, by in delays.items()
        },
        "disasters": _to_dicts(scenarios, ("scenario", "way")),
    }


@click.command()
@click.option("--quick", is_flag=True, help="Five trials, overlays of 10,000 nodes.")
@click.option("--out", type=click.Path(path_type=Path), default="out/experiments")
def main(quick: bool, out: Path) -> None:
    """Repeat the thesis' evaluation."""
    trials, totals = (5, (10_000,)) if quick else (30, OVERLAY_SIZES)
    sizes: dict[int, dict[Cell, MethodResult]] = {}
    verdicts: list[str] = []
    for nodes in totals:
        print(f"  table 6.1 among {nodes} nodes ...", flush=True)
        before_s = time.process_time()
        sizes[nodes] = table_6_1(nodes, trials)
        took_s = time.process_time() - before_s
        verdicts.append(verdict(f"table 6.1 among {nodes}, s", took_s, MAX_SECONDS))
    print("  one publisher ...", flush=True)
    single = one_publisher(trials)
    last = sizes[totals[-1]]
    for title, field in (
        ("6.1-6.5 mean path, hops", "path_hops"),
        ("6.6 messages for each publication", "messages"),
        ("6.7 mean delay by path length, ms (thesis)", "hops_ms"),
        ("6.7 mean delay when every copy takes its time, ms", "mean_ms"),
    ):
        print(f"\n{title}, {totals[-1]} nodes\n{by_priority(last, field)}")
    for title, field in (
        ("6.8 mean path, hops", "path_hops"),
        ("6.9 messages for each subscriber", "messages_each"),
        ("mean delay, ms", "mean_ms"),
    ):
        print(f"\n{title}, one publisher, table of 60\n{by_subscribers(single, field)}")
    verdicts += check_statements(last, single)
    more = load_and_disasters(quick, trials, verdicts)
    names = ("pattern", "method", "priority")
    result = {
        "trials": trials,
        "table_6_1": {n: _to_dicts(found, names) for n, found in sizes.items()},
        "one_publisher": _to_dicts(single, ("subscribers", "method")),
        **more,
        "bars": verdicts,
    }
    paths = [write(out, "overlay", result), *charts(out, last, single)]
    print("", *verdicts, "", *(f"  {path}" for path in paths), sep="\n")


if __name__ == "__main__":
    main()
