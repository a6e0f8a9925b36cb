"""Statistics: means of the multicast cost over random overlays."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from statistics import fmean
from typing import Any

from experiments.overlay_study.methods import (
    METHODS,
    PATTERNS,
    MulticastResult,
    SimulatedOverlay,
    SimulatedTopic,
    TopicPattern,
)
from gateway_daemon.overlay.keys import OverlayError
from gateway_daemon.overlay.partition import DEFAULT_COST, build_postal_tree

SAMPLED_PUBLISHERS = 4
"""Publishers that send in each trial, chosen at random."""

LATE_QUANTILE = 0.99

THESIS_HOP_MS = DEFAULT_COST.hop_ms + 10 * DEFAULT_COST.child_ms
"""Cost of a hop in the thesis, which assumes ten children at each: 12 ms."""


@dataclass(frozen=True)
class MethodResult:
    """Cost of one method for one topic.

    Attributes:
        path_hops: Mean length of the paths to the subscribers.
        path_p99_hops: 99th percentile of the path length.
        messages: Overlay transmissions for one publication.
        messages_each: The same per subscriber; 1 is the minimum.
        widest: Most copies that one node sent.
        hops_ms: Delay by path length alone (the thesis).
        mean_ms: Mean delay when every copy takes its time.
        p99_ms: 99th percentile of that delay.
        bound_ms: Mean delay of the fastest possible tree.
    """

    path_hops: float
    path_p99_hops: float
    messages: float
    messages_each: float
    widest: int
    hops_ms: float
    mean_ms: float
    p99_ms: float
    bound_ms: float


def random_topics(
    pattern: TopicPattern, total: int, trials: int, seed: int
) -> Iterator[SimulatedTopic]:
    """Yield one random overlay with the topic at a random position per trial.

    Raises:
        OverlayError: The topic does not fit the overlay.
    """
    if total < pattern.members:
        raise OverlayError("nodes", f"at least the topic's {pattern.members}", total)
    for trial in range(trials):
        chance = Random(f"{seed} {pattern} {total} {trial}")
        overlay = SimulatedOverlay(total, chance.getrandbits(32))
        start = chance.randrange(total - pattern.members + 1)
        yield SimulatedTopic(pattern, overlay.topic_at(start, pattern.members), total)


def measure_method(
    sampled_topics: Sequence[SimulatedTopic], method: str, priority: int, seed: int = 0
) -> MethodResult:
    """Publish in every topic, and return means.

    Raises:
        RuntimeError: A subscriber was not reached: the method is wrong.
    """
    multicasts: list[MulticastResult] = []
    for number, topic in enumerate(sampled_topics):
        chance = Random(f"{seed} {number}")
        publishers = range(topic.low)
        drawn = chance.sample(publishers, min(len(publishers), SAMPLED_PUBLISHERS))
        for publisher in drawn:
            multicast = METHODS[method](topic, publisher, priority)
            if (
                len(multicast.arrivals) != topic.pattern.subscribers
                or multicast.duplicates
            ):
                raise RuntimeError(
                    f"{method} reached {len(multicast.arrivals)} subscribers"
                )
            multicasts.append(multicast)
    return _means(multicasts, sampled_topics[0].pattern.subscribers)


def _means(multicasts: Sequence[MulticastResult], subscribers: int) -> MethodResult:
    hops = sorted(a.hops for s in multicasts for a in s.arrivals.values())
    times_ms = sorted(a.at_ms for s in multicasts for a in s.arrivals.values())
    late = min(int(LATE_QUANTILE * len(hops)), len(hops) - 1)
    messages = fmean(s.messages for s in multicasts)
    return MethodResult(
        path_hops=fmean(hops),
        path_p99_hops=hops[late],
        messages=messages,
        messages_each=messages / subscribers,
        widest=max(s.max_fan_out for s in multicasts),
        hops_ms=THESIS_HOP_MS * fmean(hops),
        mean_ms=fmean(times_ms),
        p99_ms=times_ms[late],
        bound_ms=build_postal_tree(subscribers).mean_ms,
    )


def measure_all(
    name: str,
    methods: Sequence[str],
    priorities: Sequence[int],
    *,
    nodes: int,
    trials: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Measure methods at priorities, all in the same overlays.

    Args:
        name: A key of `PATTERNS`.
        methods: Keys of `METHODS`.
        priorities: Of the messages.
        nodes: Keys of the whole overlay.
        trials: Number of random overlays.
        seed: The same seed gives the same numbers.

    Yields:
        The parameters and a `MethodResult`, as plain values.

    Raises:
        OverlayError: The topic does not fit the overlay.
    """
    topics = list(random_topics(PATTERNS[name], nodes, trials, seed))
    parameters = {"nodes": nodes, "trials": trials, "seed": seed}
    for method, priority in product(methods, priorities):
        means = asdict(measure_method(topics, method, priority, seed))
        yield {
            "pattern": name,
            "method": method,
            "priority": priority,
            **parameters,
            **means,
        }
