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


def of(
    pattern: TopicPattern, method: str, priority: int, nodes: int = 1_000
) -> MethodResult:
    return measure_method(
        list(random_topics(pattern, nodes, TRIALS, 7)), method, priority
    )


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 60), st.data())
def test_links_abroad_are_those_of_the_whole_overlay(
    seed: int, nodes: int, members: int, data: st.DataObject
) -> None:
    """Arrays over all nodes find what a Skip Graph of all nodes has."""
    members = min(members, nodes)
    start = data.draw(st.integers(0, nodes - members))
    whole = SimulatedOverlay(nodes, seed)
    everybody = SkipGraph([int(v) for v in whole.vectors])
    around = whole.topic_at(start, members)

    for rank in range(members):
        links = {
            *everybody.right_neighbours(start + rank),
            *everybody.left_neighbours(start + rank),
        }
        out = [r for r in links if not start <= r < start + members]
        own = everybody.vectors[start + rank]
        found = around.outside_links(rank)
        assert sorted(found.levels) == sorted(
            common_prefix_bits(own, everybody.vectors[r]) for r in out
        )
        assert len(found.level0_levels) == sum(abs(r - start - rank) == 1 for r in out)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_method_reaches_everybody_once(method: str, pattern: str) -> None:
    """`measure_method` raises where a subscriber is missed or gets two copies."""
    for told in measure_all(
        pattern, [method], [1, 3, 5], nodes=1_000, trials=2, seed=3
    ):
        assert told["messages_each"] >= 1.0
        assert told["path_hops"] >= 1.0
        if method in {"atm", "patm", "v3", "v6", "policy"}:
            assert told["messages_each"] == 1.0


@pytest.mark.parametrize(
    "nodes", [1_000, pytest.param(100_000, marks=pytest.mark.long)]
)
def test_path_of_sg_does_not_depend_on_the_other_topics(nodes: int) -> None:
    """About eight hops to 990 subscribers, whoever else is there."""
    assert of(TopicPattern(10, 990), "sg", 5, nodes).path_hops == pytest.approx(
        8.0, rel=0.05
    )


def test_support_nodes_keep_the_promise_of_the_thesis() -> None:
    """Up to 60 % shorter where publishers are many, paid with messages."""
    plain = of(TopicPattern(990, 10), "psg", 1)
    urgent = of(TopicPattern(990, 10), "psg", 5)

    assert 1 - urgent.path_hops / plain.path_hops == pytest.approx(0.60, abs=0.05)
    assert urgent.messages / plain.messages == pytest.approx(137, rel=0.15)


def test_priority_1_of_psg_is_plain() -> None:
    """No supports: the messages of one search and one multicast."""
    plain = of(TopicPattern(10, 990), "psg", 1)

    assert plain.path_hops == pytest.approx(10.55, rel=0.05)
    assert plain.messages == pytest.approx(992, rel=0.005)


@pytest.mark.parametrize(
    ("subscribers", "hops"), [(10, 1.0), (40, 1.0), (50, 1.03), (320, 2.2)]
)
def test_tables_of_60_reach_50_subscribers_in_one_hop(
    subscribers: int, hops: float
) -> None:
    """ATM goes over to several hops by itself, PATM stays within 5 % of it."""
    made = list(random_topics(TopicPattern(1, subscribers), 50_000, 10, 7))
    plain, urgent = measure_method(made, "atm", 5), measure_method(made, "patm", 5)

    assert plain.path_hops == pytest.approx(hops, rel=0.05)
    assert urgent.path_hops == pytest.approx(plain.path_hops, rel=0.05)
    assert plain.messages == urgent.messages == subscribers


@pytest.mark.parametrize(
    "pattern", [SIZES[0], *(pytest.param(p, marks=pytest.mark.long) for p in SIZES[1:])]
)
def test_ranges_beat_supports_and_tables(pattern: TopicPattern) -> None:
    """Two hops at most, exactly one message a subscriber, 5 % from the least delay."""
    told = of(pattern, "v6", 5)

    assert told.path_p99_hops <= 2
    assert told.messages == pattern.subscribers
    assert told.mean_ms <= 1.05 * told.bound_ms
    assert told.p99_ms <= 28.0
    assert told.mean_ms <= of(pattern, "patm", 5).mean_ms


def test_simulate_prints_json() -> None:
    """What a program asks for comes as plain numbers with what was asked."""
    done = _simulate("--method", "v6", "--pattern", "delta", "--json", "--trials", "2")

    (told,) = json.loads(done.stdout)
    assert (told["pattern"], told["method"], told["nodes"]) == ("delta", "v6", 10_000)
    assert told["messages"] == 9


def test_an_overlay_too_small_for_the_topic_is_refused() -> None:
    """The message says what fits."""
    done = _simulate("--pattern", "alpha", "--nodes", "999")

    assert done.returncode == 64
    assert "nodes must be at least the topic's 1000, got 999" in done.stderr


def test_a_gateway_without_numpy_runs_and_says_what_the_simulator_needs() -> None:
    """A Raspberry Pi installs no numpy; the command line loads all the same."""
    code = (
        "import sys; sys.modules.update(numpy=None, pandas=None);"
        "from gateway_daemon.cli import cli; cli(['overlay', 'simulate'])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "simulator needs numpy; install with pip install" in done.stderr


def _simulate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway_daemon", "overlay", "simulate", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)
