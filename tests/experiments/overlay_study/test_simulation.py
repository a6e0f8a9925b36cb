import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.overlay_study.baselines import SkipGraph
from experiments.overlay_study.methods import (
    METHODS,
    PATTERNS,
    SimulatedOverlay,
    TopicPattern,
)
from experiments.overlay_study.statistics import (
    MethodResult,
    measure_all,
    measure_method,
    random_topics,
)
from gateway_daemon.overlay.keys import common_prefix_bits

TRIALS = 30
SIZES = [TopicPattern(10, 990), TopicPattern(500, 500), TopicPattern(990, 10)]


def measure(
    pattern: TopicPattern,
    method: str,
    priority: int,
    nodes: int = 1_000,
    trials: int = TRIALS,
) -> MethodResult:
    return measure_method(
        list(random_topics(pattern, nodes, trials, 7)), method, priority
    )


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 60), st.data())
def test_outside_links_are_those_of_the_whole_overlay(
    seed: int, nodes: int, members: int, data: st.DataObject
) -> None:
    """The array model finds the same links as a Skip Graph of all nodes."""
    members = min(members, nodes)
    start = data.draw(st.integers(0, nodes - members))
    whole = SimulatedOverlay(nodes, seed)
    graph = SkipGraph([int(v) for v in whole.vectors])
    around = whole.topic_at(start, members)

    for rank in range(members):
        links = {
            *graph.right_neighbours(start + rank),
            *graph.left_neighbours(start + rank),
        }
        out = [r for r in links if not start <= r < start + members]
        own = graph.vectors[start + rank]
        found = around.outside_links(rank)
        assert sorted(found.levels) == sorted(
            common_prefix_bits(own, graph.vectors[r]) for r in out
        )
        assert len(found.level0_levels) == sum(abs(r - start - rank) == 1 for r in out)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_method_reaches_every_subscriber_once(method: str, pattern: str) -> None:
    """`measure_method` raises if a subscriber is missed or gets two copies."""
    for row in measure_all(pattern, [method], [1, 3, 5], nodes=1_000, trials=2, seed=3):
        assert row["messages_each"] >= 1.0
        assert row["path_hops"] >= 1.0
        if method in {"atm", "patm", "v3", "v6", "policy"}:
            assert row["messages_each"] == 1.0


@pytest.mark.parametrize(
    "nodes", [1_000, pytest.param(100_000, marks=pytest.mark.long)]
)
def test_path_of_sg_does_not_depend_on_the_other_topics(nodes: int) -> None:
    """About eight hops to 990 subscribers, for any size of the overlay."""
    assert measure(TopicPattern(10, 990), "sg", 5, nodes).path_hops == pytest.approx(
        8.0, rel=0.05
    )


def test_support_nodes_shorten_paths_as_in_the_thesis() -> None:
    """Up to 60 % shorter with many publishers, at the cost of messages."""
    plain = measure(TopicPattern(990, 10), "psg", 1)
    urgent = measure(TopicPattern(990, 10), "psg", 5)

    assert 1 - urgent.path_hops / plain.path_hops == pytest.approx(0.60, abs=0.05)
    assert urgent.messages / plain.messages == pytest.approx(137, rel=0.15)


def test_priority_1_of_psg_uses_no_supports() -> None:
    """The messages of one search and one multicast."""
    plain = measure(TopicPattern(10, 990), "psg", 1)

    assert plain.path_hops == pytest.approx(10.55, rel=0.05)
    assert plain.messages == pytest.approx(992, rel=0.005)


@pytest.mark.parametrize(
    ("subscribers", "hops"), [(10, 1.0), (40, 1.0), (50, 1.03), (320, 2.2)]
)
def test_tables_of_60_reach_50_subscribers_in_one_hop(
    subscribers: int, hops: float
) -> None:
    """ATM changes to several hops automatically, PATM stays within 5 % of it."""
    made = list(random_topics(TopicPattern(1, subscribers), 50_000, 10, 7))
    plain, urgent = measure_method(made, "atm", 5), measure_method(made, "patm", 5)

    assert plain.path_hops == pytest.approx(hops, rel=0.05)
    assert urgent.path_hops == pytest.approx(plain.path_hops, rel=0.05)
    assert plain.messages == urgent.messages == subscribers


@pytest.mark.parametrize(
    ("pattern", "trials"),
    [
        (SIZES[0], 3),
        *(pytest.param(p, TRIALS, marks=pytest.mark.long) for p in SIZES),
    ],
)
def test_ranges_beat_supports_and_tables(pattern: TopicPattern, trials: int) -> None:
    """At most two hops, one message per subscriber, within 5 % of the minimum delay."""
    result = measure(pattern, "v6", 5, trials=trials)

    assert result.path_p99_hops <= 2
    assert result.messages == pattern.subscribers
    assert result.mean_ms <= 1.05 * result.bound_ms
    assert result.p99_ms <= 28.0
    tables = measure(pattern, "patm", 5, trials=trials)
    assert result.mean_ms <= tables.mean_ms


def test_simulate_prints_json() -> None:
    """The output has the parameters and the results."""
    done = _simulate("--method", "v6", "--pattern", "delta", "--json", "--trials", "2")

    (row,) = json.loads(done.stdout)
    assert (row["pattern"], row["method"], row["nodes"]) == ("delta", "v6", 10_000)
    assert row["messages"] == 9


def test_overlay_too_small_for_the_topic_is_refused() -> None:
    """The error states the minimum size."""
    done = _simulate("--pattern", "alpha", "--nodes", "999")

    assert done.returncode == 64
    assert "nodes must be at least the topic's 1000, got 999" in done.stderr


def test_gateway_without_numpy_reports_what_the_simulator_needs() -> None:
    """A Raspberry Pi has no numpy; the command line must load without it."""
    code = (
        "import sys; sys.modules.update(numpy=None, pandas=None);"
        "from gateway_daemon.cli import cli; cli(['overlay', 'simulate'])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "simulator needs numpy; install with pip install" in done.stderr


def _simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "gateway_daemon",
        "overlay",
        "simulate",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)
