"""Asymmetric betweenness centrality: the load of each broker of a federation.

For every publisher there is a tree of shortest paths to all subscribers. `inbound` of a
broker is the share of trees that enter it; `outbound` counts the edges by which they
leave it, to brokers and to subscribers. A single broker has 1 and 1. In a good
federation all values are small and similar.

Source: Banno, seed 002 (the metric, for trees); counting trees extends it to any graph
and equals its formulas on trees.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from service_runtime.errors import FieldError

Graph = Mapping[str, Collection[str]]
"""Neighbours of each broker, both ways."""


class TopologyError(FieldError):
    """A federation that cannot deliver its messages."""


@dataclass(frozen=True)
class ClientCounts:
    """Clients of a broker.

    Attributes:
        publishers: Number of publishers.
        subscribers: Number of subscribers.
    """

    publishers: int = 0
    subscribers: int = 0


@dataclass(frozen=True)
class Centrality:
    """Load of one broker; a single broker has 1 and 1.

    Attributes:
        inbound: Trees that enter it, as a share of all publishers.
        outbound: Edges by which they leave it, as a share of all publisher-subscriber
            pairs.
    """

    inbound: Fraction
    outbound: Fraction


def compute_centrality(
    graph: Graph, clients: Mapping[str, ClientCounts]
) -> dict[str, Centrality]:
    """Compute the load of every broker.

    Args:
        graph: The bridges. Of equally short paths the one by the earlier name counts.
        clients: Clients of each broker; a missing broker has none.

    Raises:
        TopologyError: There is no publisher or no subscriber, or no path between.
    """
    publishers = sum(c.publishers for c in clients.values())
    subscribers = sum(c.subscribers for c in clients.values())
    if not publishers or not subscribers:
        raise TopologyError("clients", "publishers and subscribers", dict(clients))
    enters = dict.fromkeys(graph, 0)
    leaves = dict.fromkeys(graph, 0)
    for root in graph:
        number = clients.get(root, ClientCounts()).publishers
        if not number:
            continue
        for parent, broker in multicast_tree(graph, clients, root):
            enters[broker] += number
            leaves[broker] += number * clients.get(broker, ClientCounts()).subscribers
            if parent is not None:
                leaves[parent] += number
    return {
        broker: Centrality(
            Fraction(enters[broker], publishers),
            Fraction(leaves[broker], publishers * subscribers),
        )
        for broker in graph
    }


def find_parents(graph: Graph, start: str) -> dict[str, str | None]:
    """Return the reachable brokers, each with the sender of its first copy."""
    parents: dict[str, str | None] = {start: None}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for there in sorted(graph[here]):
            if there not in parents:
                parents[there] = here
                waiting.append(there)
    return parents


def multicast_tree(
    graph: Graph, clients: Mapping[str, ClientCounts], root: str
) -> Iterator[tuple[str | None, str]]:
    """Return the edges of the tree from a broker to all with subscribers, root first.

    Raises:
        TopologyError: One of them cannot be reached.
    """
    parents = find_parents(graph, root)
    wanted = {root}
    for broker, served in clients.items():
        at: str | None = broker if served.subscribers else None
        if at is not None and at not in parents:
            raise TopologyError("graph", f"a way from {root} to {at}", dict(graph))
        while at is not None and at not in wanted:
            wanted.add(at)
            at = parents[at]
    return ((parents[broker], broker) for broker in parents if broker in wanted)


def max_load(loads: Mapping[str, Centrality]) -> Fraction:
    """Return the largest load of all brokers: capacity is its inverse."""
    return max(max(load.inbound, load.outbound) for load in loads.values())


def star_graph(hub: str, brokers: Iterable[str]) -> Graph:
    """Connect all brokers to one hub."""
    leaves = [broker for broker in brokers if broker != hub]
    return {hub: leaves, **{leaf: [hub] for leaf in leaves}}


def chain_graph(brokers: Sequence[str]) -> Graph:
    """Connect each broker to the next."""
    ends = range(len(brokers))
    return {brokers[i]: [brokers[j] for j in (i - 1, i + 1) if j in ends] for i in ends}


def mesh_graph(brokers: Collection[str]) -> Graph:
    """Connect every broker to every other."""
    return {
        broker: [other for other in brokers if other != broker] for broker in brokers
    }
