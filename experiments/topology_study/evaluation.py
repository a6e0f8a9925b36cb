"""Cost of a federation for brokers and clients, and the effect of a failure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from experiments.topology_study.centrality import (
    Centrality,
    ClientCounts,
    Graph,
    TopologyError,
    compute_centrality,
    find_parents,
    max_load,
)
from experiments.topology_study.federations import (
    ConnectedToAll,
    Federation,
    make_federation,
)


@dataclass(frozen=True)
class FederationCost:
    """Cost of a federation.

    Attributes:
        loads: Load of each broker; a single broker has 1 and 1.
        copies: Copies that a publisher sends of each message.
        connections: Connections of each subscriber.
    """

    loads: dict[str, Centrality]
    copies: int = 1
    connections: int = 1


def evaluate_federation(
    federation: Federation, *, has_duplicates: bool = False
) -> FederationCost:
    """Compute the load of each broker, and the cost for clients.

    Args:
        federation: The federation.
        has_duplicates: Whether each broker forwards its first copy to all neighbours
            but the sender, so that cycles produce duplicates.

    Raises:
        TopologyError: There is no publisher or no subscriber, or no path between.
    """
    graph, clients = federation.graph, federation.clients
    if federation.connected_to_all is ConnectedToAll.NO_CLIENTS:
        count = _flooded if has_duplicates else compute_centrality
        return FederationCost(count(graph, clients))
    publishers, subscribers = _totals(clients)
    is_all = federation.connected_to_all is ConnectedToAll.PUBLISHERS
    loads = {}
    for broker in graph:
        own = clients[broker]
        enter = publishers if is_all else own.publishers
        leave = enter * (own.subscribers if is_all else subscribers)
        loads[broker] = Centrality(
            Fraction(enter, publishers), Fraction(leave, publishers * subscribers)
        )
    number = len(graph)
    return FederationCost(loads, number if is_all else 1, 1 if is_all else number)


def share_lost_without(federation: Federation, failed: str) -> Fraction:
    """Return the share of publisher-subscriber pairs that a failure separates."""
    graph, clients = federation.graph, federation.clients
    publishers, subscribers = _totals(clients)
    left = {b: [n for n in near if n != failed] for b, near in graph.items()}
    left.pop(failed)
    served = 0
    if federation.connected_to_all is ConnectedToAll.PUBLISHERS:
        served = publishers * sum(clients[b].subscribers for b in left)
    elif federation.connected_to_all is ConnectedToAll.SUBSCRIBERS:
        served = subscribers * sum(clients[b].publishers for b in left)
    else:
        for broker in left:
            around = find_parents(left, broker)
            received = sum(clients[b].subscribers for b in around)
            served += clients[broker].publishers * received
    return 1 - Fraction(served, publishers * subscribers)


@dataclass(frozen=True)
class TopologyAdvice:
    """Result of one topology for a placement.

    Attributes:
        name: The topology.
        cost: Its cost.
        max_load: The largest load of all brokers: capacity is its inverse.
        worst: The broker whose failure separates most pairs, and their share.
    """

    name: str
    cost: FederationCost
    max_load: Fraction
    worst: tuple[str, Fraction]


def rank_topologies(
    names: Collection[str], publishers: int, subscribers: int, placement: str
) -> list[TopologyAdvice]:
    """Rank topologies for a placement, the best first.

    The lower the largest load, the better; then the smaller effect of a broker's
    failure, then the lower cost for clients.

    Raises:
        TopologyError: There is no publisher or no subscriber.
    """
    ranked = []
    for name in names:
        federation = make_federation(name, publishers, subscribers, placement)
        evaluation = evaluate_federation(federation)
        worst = max(
            (
                (broker, share_lost_without(federation, broker))
                for broker in federation.graph
            ),
            key=lambda each: each[1],
        )
        ranked.append(
            TopologyAdvice(name, evaluation, max_load(evaluation.loads), worst)
        )
    return sorted(ranked, key=_merit)


def _merit(advice: TopologyAdvice) -> tuple[Fraction, Fraction, Fraction, int]:
    """Return the sort key; the largest outbound load breaks ties of `max_load`."""
    leaves = max(load.outbound for load in advice.cost.loads.values())
    price = advice.cost.copies * advice.cost.connections
    return advice.max_load, leaves, advice.worst[1], price


def _totals(clients: Mapping[str, ClientCounts]) -> tuple[int, int]:
    publishers = sum(each.publishers for each in clients.values())
    subscribers = sum(each.subscribers for each in clients.values())
    if not publishers or not subscribers:
        raise TopologyError("clients", "publishers and subscribers", dict(clients))
    return publishers, subscribers


def _flooded(
    graph: Graph, clients: Mapping[str, ClientCounts]
) -> dict[str, Centrality]:
    publishers, subscribers = _totals(clients)
    enters, leaves = dict.fromkeys(graph, 0), dict.fromkeys(graph, 0)
    for root in graph:
        number = clients.get(root, ClientCounts()).publishers
        parents = find_parents(graph, root) if number else {}
        for broker, first_from in parents.items():
            onward = [n for n in graph[broker] if n != first_from]
            comes_from = [n for n in graph[broker] if parents[n] != broker]
            copies = len(comes_from) + (broker == root)
            served = copies * clients.get(broker, ClientCounts()).subscribers
            enters[broker] += number * copies
            leaves[broker] += number * (len(onward) + served)
    return {
        broker: Centrality(
            Fraction(enters[broker], publishers),
            Fraction(leaves[broker], publishers * subscribers),
        )
        for broker in graph
    }
