"""The methods, each as what a node does with a range."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gateway_daemon.overlay.delay import COST
from gateway_daemon.overlay.partition import Plan, Shape, hand_out, heads, shares
from gateway_daemon.overlay.policy import POLICIES
from gateway_daemon.overlay.simulation.patterns import Pattern
from gateway_daemon.overlay.simulation.spread import Arrival, Forward, Spread, spread
from gateway_daemon.overlay.simulation.whole import Around
from gateway_daemon.overlay.split import Part, split
from gateway_daemon.overlay.support import levels_for, supports
from gateway_daemon.overlay.tables import SIZE, URGENT_FROM, fill


@dataclass(frozen=True)
class Topic:
    """A topic at rest inside an overlay.

    Attributes:
        pattern: Its size.
        around: Its Skip Graph and what surrounds it.
        total: Keys of the whole overlay.
    """

    pattern: Pattern
    around: Around
    total: int

    @property
    def low(self) -> int:
        """Rank of the first subscriber."""
        return self.pattern.publishers

    @property
    def high(self) -> int:
        """Rank behind the last subscriber."""
        return self.pattern.members


Method = Callable[[Topic, int, int], Spread]
"""Publishes one message: (topic, rank of the publisher, priority)."""


def skip_graph(topic: Topic, publisher: int, _priority: int) -> Spread:
    """SG: every node knows its Skip Graph neighbours; priority buys nothing."""
    start = Part(publisher, topic.low, topic.high)
    return spread(start, _by_links(topic))


def _by_links(topic: Topic) -> Forward:
    graph = topic.around.graph
    return lambda own, low, high: split(low, high, graph.rights(own))


def support_nodes(topic: Topic, publisher: int, priority: int) -> Spread:
    """PSG: supports search for the subscribers' edge; one multicast runs from there.

    All searches run to their end, as in the thesis.
    """
    graph = topic.around.graph
    helpers = supports(
        publisher,
        graph.vectors,
        range(topic.low),
        levels_for(topic.total),
        priority,
    )
    hops = graph.hops_to(topic.low, publisher)
    messages, first = hops, Arrival(hops, hops * COST.at_child(1))
    for number, helper in enumerate(helpers, 2):
        hops = graph.hops_to(topic.low, helper)
        messages += 1 + hops
        at_ms = COST.at_child(number) + hops * COST.at_child(1)
        first = Arrival(min(first.hops, 1 + hops), min(first.at_ms, at_ms))
    told = spread(Part(topic.low, topic.low, topic.high), _by_links(topic), first)
    widest = max(told.widest, 1 + len(helpers))
    return Spread(told.arrivals, messages + told.messages, widest, told.doubles)


def adaptive_tables(topic: Topic, publisher: int, _priority: int) -> Spread:
    """ATM: a table of 60, links first, filled up with subscribers."""
    return _by_tables(topic, publisher, is_urgent=False)


def priority_tables(topic: Topic, publisher: int, priority: int) -> Spread:
    """PATM: an urgent topic keeps of its links only what the levels need."""
    return _by_tables(topic, publisher, is_urgent=priority >= URGENT_FROM)


def _by_tables(topic: Topic, publisher: int, is_urgent: bool) -> Spread:
    @cache
    def table(own: int) -> list[int]:
        return converged_table(topic, own, is_urgent)

    def forward(own: int, low: int, high: int) -> list[Part[int]]:
        if max(low, own + 1) >= high:
            return []
        return split(low, high, [r for r in table(own) if r > own])

    return spread(Part(publisher, topic.low, topic.high), forward)


def converged_table(topic: Topic, own: int, is_urgent: bool) -> list[int]:
    """Ranks inside the topic that the best table of a node holds."""
    graph, subscribers = topic.around.graph, range(topic.low, topic.high)
    abroad = topic.around.abroad(own)
    if not is_urgent:
        links = {*graph.rights(own), *graph.lefts(own)}
        return fill(graph, own, subscribers, links, SIZE - len(abroad.levels))
    links = {r for r in (own - 1, own + 1) if 0 <= r < topic.high}
    served = {
        level
        for level, ranks in enumerate(graph.meeting_at(own))
        if any(r in subscribers for r in ranks)
    }
    # Every level needs one entry; a second link on it makes room for a subscriber.
    empty = set(range(max(abroad.levels, default=-1) + 1)) - served
    outside = len(abroad.beside) + len(empty - set(abroad.beside))
    return fill(graph, own, subscribers, links, SIZE - outside)


def equal_ranges(topic: Topic, publisher: int, priority: int) -> Spread:
    """V3: equal key ranges; the priority buys fan-out."""
    return by_plan(topic, publisher, Plan(Shape.EQUAL, POLICIES[priority].plan.root))


def postal_ranges(topic: Topic, publisher: int, priority: int) -> Spread:
    """V6: the range that is sent first is the largest; the priority buys fan-out."""
    return by_plan(topic, publisher, Plan(Shape.POSTAL, POLICIES[priority].plan.root))


def by_policy(topic: Topic, publisher: int, priority: int) -> Spread:
    """What the live overlay does at this priority, in its first tree."""
    return by_plan(topic, publisher, POLICIES[priority].plan)


def by_plan(topic: Topic, publisher: int, plan: Plan) -> Spread:
    """Key ranges cut by a plan, with tables that hold just the heads it wants."""

    def forward(own: int, low: int, high: int) -> list[Part[int]]:
        first = max(low, own + 1)
        sizes = shares(high - first, plan, is_root=own < topic.low)
        chosen = [first + place for place in heads(sizes)]
        return hand_out(first, high, chosen)

    return spread(Part(publisher, topic.low, topic.high), forward)


METHODS: Mapping[str, Method] = MappingProxyType({
    "sg": skip_graph,
    "psg": support_nodes,
    "atm": adaptive_tables,
    "patm": priority_tables,
    "v3": equal_ranges,
    "v6": postal_ranges,
    "policy": by_policy,
})
