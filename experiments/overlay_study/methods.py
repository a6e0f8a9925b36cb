"""Multicast methods: one message through an overlay at rest, and its cost.

Contains the topics of the thesis, the overlay around a topic as arrays over all nodes,
and one function per method. Routing inside a topic never leaves it, so the path of a
message does not depend on other nodes; the table entries of their links do.

Source: the thesis, table 6.1 and 6.1 (50,000 keys: 10,000 nodes in 5 topics each).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from experiments.overlay_study.baselines import (
    TABLE_SIZE,
    URGENT_FROM,
    SkipGraph,
    choose_supports,
    fill_table,
    max_level,
)
from gateway_daemon.overlay.keys import VECTOR_BITS, common_prefix_bits
from gateway_daemon.overlay.partition import (
    DEFAULT_COST,
    POLICIES,
    HopCost,
    RangePart,
    SplitPlan,
    SplitShape,
    assign_range,
    head_positions,
    split_range,
    subtree_sizes,
)


@dataclass(frozen=True)
class TopicPattern:
    """Size of a topic.

    Attributes:
        publishers: Number of publishers, at least one.
        subscribers: Number of subscribers, at least one.
    """

    publishers: int
    subscribers: int

    @property
    def members(self) -> int:
        """Number of keys of the topic."""
        return self.publishers + self.subscribers


PATTERNS: Mapping[str, TopicPattern] = MappingProxyType({
    "alpha": TopicPattern(10, 990),
    "beta": TopicPattern(500, 500),
    "gamma": TopicPattern(990, 10),
    "delta": TopicPattern(1, 9),
    "epsilon": TopicPattern(5, 5),
    "zeta": TopicPattern(9, 1),
})
OVERLAY_SIZES = (1_000, 10_000, 100_000)

ONE_PUBLISHER_SUBSCRIBERS = (10, 20, 40, 50, 60, 80, 160, 320, 640, 1280)
ONE_PUBLISHER_TOTAL = 50_000


ForwardRange = Callable[[int, int, int], Sequence[RangePart[int]]]
"""Splits a range: (own rank, low, high) to parts."""


class CopyArrival(NamedTuple):
    """Arrival of a copy at a node.

    Attributes:
        hops: Overlay transmissions since the publisher.
        at_ms: Time.
    """

    hops: int
    at_ms: float


AT_START = CopyArrival(0, 0.0)


@dataclass(frozen=True)
class MulticastResult:
    """Result of one multicast.

    Attributes:
        arrivals: First arrival by rank, of subscribers only.
        messages: All overlay transmissions.
        max_fan_out: Most copies that one node sent.
        duplicates: Copies beyond the first that subscribers received.
    """

    arrivals: Mapping[int, CopyArrival]
    messages: int
    max_fan_out: int
    duplicates: int


def run_multicast(
    start: RangePart[int],
    forward: ForwardRange,
    at: CopyArrival = AT_START,
    cost: HopCost = DEFAULT_COST,
) -> MulticastResult:
    """Run a range multicast to its end.

    Args:
        start: The first node and the subscribers' range.
        forward: How every node splits a range.
        at: Time and hops at which the first node got the message.
        cost: Cost of a hop; larger ranges are sent first.
    """
    arrivals: dict[int, CopyArrival] = {}
    waiting = [(start, at)]
    messages = widest = duplicates = 0
    while waiting:
        (own, low, high), here = waiting.pop()
        if start.low <= own < start.high:
            duplicates += own in arrivals
            arrivals.setdefault(own, here)
        parts = sorted(forward(own, low, high), key=lambda p: p.low - p.high)
        messages += len(parts)
        widest = max(widest, len(parts))
        for number, part in enumerate(parts, 1):
            then_ms = here.at_ms + cost.child_delay_ms(number)
            waiting.append((part, CopyArrival(here.hops + 1, then_ms)))
    return MulticastResult(arrivals, messages, widest, duplicates)


try:
    import numpy as np
except ImportError as error:  # gateways run without numpy
    raise ImportError(
        "the simulator needs numpy; install with pip install yamamori[backend]"
    ) from error

Vectors: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint64]]"
Places: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"

MAX_VECTOR = (1 << VECTOR_BITS) - 1


@dataclass(frozen=True)
class OutsideLinks:
    """Skip Graph links of one node that lead out of its topic.

    Attributes:
        levels: Bits shared with each of them, one value per link.
        level0_levels: The same for its neighbours on level 0.
    """

    levels: tuple[int, ...]
    level0_levels: tuple[int, ...]


class SimulatedOverlay:
    """All nodes of an overlay, in key order.

    Attributes:
        vectors: Membership vectors, shape (nodes,), uint64.
    """

    def __init__(self, nodes: int, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.vectors = chance.integers(0, MAX_VECTOR, nodes, np.uint64, endpoint=True)

    def topic_at(self, start: int, members: int) -> "TopicSurroundings":
        """Return the surroundings of the topic whose keys begin at this rank."""
        return TopicSurroundings(self.vectors, start, start + members)


class TopicSurroundings:
    """Surroundings of a topic.

    Attributes:
        graph: The Skip Graph of the topic's own keys.
    """

    def __init__(self, vectors: Vectors, start: int, stop: int) -> None:
        own = vectors[start:stop]
        self.graph = SkipGraph(own.tolist())
        self._sides = [
            (side, _nearest(side, own), inner)
            for side, inner in (
                (vectors[:start][::-1], self.graph.left),
                (vectors[stop:], self.graph.right),
            )
        ]

    def outside_links(self, rank: int) -> OutsideLinks:
        """Return the links of a node of the topic that lead out of it."""
        levels: list[int] = []
        beside: list[int] = []
        for side, nearest, inner in self._sides:
            # The neighbours on lower levels are inside the topic.
            level = sum(other is not None for other in inner[rank])
            is_beside = level == 0
            while level < len(nearest) and nearest[level][rank] < len(side):
                other = int(side[nearest[level][rank]])
                meeting = common_prefix_bits(self.graph.vectors[rank], other)
                levels.append(meeting)
                if is_beside:
                    beside.append(meeting)
                is_beside = False
                level = meeting + 1
        return OutsideLinks(tuple(levels), tuple(beside))


def _nearest(side: Vectors, own: Vectors) -> list[Places]:
    """Return for each level and each node of a topic its nearest neighbour on one side.

    Args:
        side: Vectors beyond the topic's edge, the nearest first.
        own: Vectors of the topic's nodes.

    Returns:
        Positions in ``side`` for each level, each of shape (own,); the length of
        ``side`` if there is none.
    """
    no_neighbour = len(side)
    order = np.argsort(side)
    ordered = side[order]
    found: list[Places] = []
    for level in range(VECTOR_BITS if no_neighbour else 0):
        shift = np.uint64(min(VECTOR_BITS - level, VECTOR_BITS - 1))
        names, wanted = (
            (ordered >> shift, own >> shift)
            if level
            else (np.zeros_like(ordered), np.zeros_like(own))
        )
        starts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]])
        firsts = np.minimum.reduceat(order, starts)
        at = np.minimum(np.searchsorted(names[starts], wanted), len(starts) - 1)
        is_there = names[starts][at] == wanted
        if not is_there.any():
            break
        found.append(np.where(is_there, firsts[at], no_neighbour))
    return found


@dataclass(frozen=True)
class SimulatedTopic:
    """A topic at rest inside an overlay.

    Attributes:
        pattern: Its size.
        surroundings: Its Skip Graph and the keys around it.
        total: Keys of the whole overlay.
    """

    pattern: TopicPattern
    surroundings: TopicSurroundings
    total: int

    @property
    def low(self) -> int:
        """Rank of the first subscriber."""
        return self.pattern.publishers

    @property
    def high(self) -> int:
        """Rank after the last subscriber."""
        return self.pattern.members


PublishMethod = Callable[[SimulatedTopic, int, int], MulticastResult]
"""Publishes one message: (topic, rank of the publisher, priority)."""


def publish_skip_graph(
    topic: SimulatedTopic, publisher: int, _priority: int
) -> MulticastResult:
    """SG: every node knows its Skip Graph neighbours; the priority has no effect."""
    start = RangePart(publisher, topic.low, topic.high)
    return run_multicast(start, _by_links(topic))


def _by_links(topic: SimulatedTopic) -> ForwardRange:
    graph = topic.surroundings.graph
    return lambda own, low, high: split_range(low, high, graph.right_neighbours(own))


def publish_support_nodes(
    topic: SimulatedTopic, publisher: int, priority: int
) -> MulticastResult:
    """PSG: supports search for the subscribers' edge; one multicast starts there.

    All searches run to their end, as in the thesis.
    """
    graph = topic.surroundings.graph
    helpers = choose_supports(
        publisher,
        graph.vectors,
        range(topic.low),
        max_level(topic.total),
        priority,
    )
    hops = graph.hops_to(topic.low, publisher)
    messages, first = hops, CopyArrival(hops, hops * DEFAULT_COST.child_delay_ms(1))
    for number, helper in enumerate(helpers, 2):
        hops = graph.hops_to(topic.low, helper)
        messages += 1 + hops
        at_ms = DEFAULT_COST.child_delay_ms(
            number
        ) + hops * DEFAULT_COST.child_delay_ms(1)
        first = CopyArrival(min(first.hops, 1 + hops), min(first.at_ms, at_ms))
    result = run_multicast(
        RangePart(topic.low, topic.low, topic.high), _by_links(topic), first
    )
    widest = max(result.max_fan_out, 1 + len(helpers))
    return MulticastResult(
        result.arrivals, messages + result.messages, widest, result.duplicates
    )


def publish_adaptive_tables(
    topic: SimulatedTopic, publisher: int, _priority: int
) -> MulticastResult:
    """ATM: a table of 60, links first, then subscribers."""
    return _by_tables(topic, publisher, is_urgent=False)


def publish_priority_tables(
    topic: SimulatedTopic, publisher: int, priority: int
) -> MulticastResult:
    """PATM: an urgent topic keeps only the links that the levels need."""
    return _by_tables(topic, publisher, is_urgent=priority >= URGENT_FROM)


def _by_tables(
    topic: SimulatedTopic, publisher: int, is_urgent: bool
) -> MulticastResult:
    @cache
    def table(own: int) -> list[int]:
        return compute_converged_table(topic, own, is_urgent)

    def forward(own: int, low: int, high: int) -> list[RangePart[int]]:
        if max(low, own + 1) >= high:
            return []
        return split_range(low, high, [r for r in table(own) if r > own])

    return run_multicast(RangePart(publisher, topic.low, topic.high), forward)


def compute_converged_table(
    topic: SimulatedTopic, own: int, is_urgent: bool
) -> list[int]:
    """Return the ranks inside the topic that the best table of a node contains."""
    graph, subscribers = topic.surroundings.graph, range(topic.low, topic.high)
    outside = topic.surroundings.outside_links(own)
    if not is_urgent:
        links = {*graph.right_neighbours(own), *graph.left_neighbours(own)}
        return fill_table(
            graph, own, subscribers, links, TABLE_SIZE - len(outside.levels)
        )
    links = {r for r in (own - 1, own + 1) if 0 <= r < topic.high}
    served = {
        level
        for level, ranks in enumerate(graph.ranks_by_common_bits(own))
        if any(r in subscribers for r in ranks)
    }
    # Every level needs one entry; a second link on it is replaced by a subscriber.
    empty = set(range(max(outside.levels, default=-1) + 1)) - served
    level0 = outside.level0_levels
    outside_count = len(level0) + len(empty - set(level0))
    return fill_table(graph, own, subscribers, links, TABLE_SIZE - outside_count)


def _by_shape(shape: SplitShape) -> PublishMethod:
    """V3 and V6: ranges of one shape; the priority sets the fan-out."""

    def publish(
        topic: SimulatedTopic, publisher: int, priority: int
    ) -> MulticastResult:
        plan = SplitPlan(shape, POLICIES[priority].plan.root_fan_out)
        return publish_by_plan(topic, publisher, plan)

    return publish


def publish_by_policy(
    topic: SimulatedTopic, publisher: int, priority: int
) -> MulticastResult:
    """The live overlay at this priority, in its first tree."""
    return publish_by_plan(topic, publisher, POLICIES[priority].plan)


def publish_by_plan(
    topic: SimulatedTopic, publisher: int, plan: SplitPlan
) -> MulticastResult:
    """Key ranges cut by a plan, with tables that contain exactly its heads."""

    def forward(own: int, low: int, high: int) -> list[RangePart[int]]:
        first = max(low, own + 1)
        sizes = subtree_sizes(high - first, plan, is_root=own < topic.low)
        chosen = [first + place for place in head_positions(sizes)]
        return assign_range(first, high, chosen)

    return run_multicast(RangePart(publisher, topic.low, topic.high), forward)


METHODS: Mapping[str, PublishMethod] = MappingProxyType({
    "sg": publish_skip_graph,
    "psg": publish_support_nodes,
    "atm": publish_adaptive_tables,
    "patm": publish_priority_tables,
    "v3": _by_shape(SplitShape.EQUAL),
    "v6": _by_shape(SplitShape.POSTAL),  # the first range sent is the largest
    "policy": publish_by_policy,
})
