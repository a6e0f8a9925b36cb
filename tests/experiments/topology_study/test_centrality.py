from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.topology_study.centrality import (
    ClientCounts,
    Graph,
    TopologyError,
    chain_graph,
    compute_centrality,
    mesh_graph,
    star_graph,
)

FOUR = ["b1", "b2", "b3", "b4"]
EVEN = dict.fromkeys(FOUR, ClientCounts(3, 3))


def side(graph: Graph, start: str, cut: str) -> set[str]:
    """Brokers on the side of `start` after the link to `cut` is removed."""
    found, waiting = {start}, [start]
    while waiting:
        for neighbour in graph[waiting.pop()]:
            if neighbour not in found and neighbour != cut:
                found.add(neighbour)
                waiting.append(neighbour)
    return found


def by_formula(
    graph: Graph, clients: Mapping[str, ClientCounts]
) -> dict[str, tuple[Fraction, Fraction]]:
    """Inbound and outbound centrality by the paper's formulas, for trees."""
    publishers = sum(c.publishers for c in clients.values())
    subscribers = sum(c.subscribers for c in clients.values())

    def psg(j: str, i: str) -> int:
        return sum(clients[b].publishers for b in side(graph, j, i))

    def has(j: str, i: str) -> bool:
        return any(clients[b].subscribers for b in side(graph, j, i))

    centrality = {}
    for i, near in graph.items():
        entering = clients[i].publishers + sum(psg(j, i) * has(i, j) for j in near)
        leaving = clients[i].publishers * (
            sum(has(j, i) for j in near) + clients[i].subscribers
        ) + sum(
            psg(j, i)
            * (sum(has(k, i) for k in near if k != j) + clients[i].subscribers)
            for j in near
        )
        centrality[i] = (
            Fraction(entering, publishers),
            Fraction(leaving, publishers * subscribers),
        )
    return centrality


@st.composite
def federations(draw: st.DrawFn) -> tuple[Graph, dict[str, ClientCounts]]:
    """A random tree with random clients."""
    names = [f"b{n}" for n in range(draw(st.integers(1, 9)))]
    graph: dict[str, list[str]] = {name: [] for name in names}
    for number in range(1, len(names)):
        other = draw(st.integers(0, number - 1))
        graph[names[number]].append(names[other])
        graph[names[other]].append(names[number])
    few = st.integers(0, 4)
    clients = {name: ClientCounts(draw(few), draw(few)) for name in names}
    first = names[0]
    if not any(c.publishers for c in clients.values()):
        clients[first] = ClientCounts(1, clients[first].subscribers)
    if not any(c.subscribers for c in clients.values()):
        clients[first] = ClientCounts(clients[first].publishers, 1)
    return graph, clients


@given(federations())
def test_centrality_of_trees_equals_the_formula(
    federation: tuple[Graph, dict[str, ClientCounts]],
) -> None:
    """On any tree of brokers with any clients, exactly."""
    graph, clients = federation

    found = compute_centrality(graph, clients)

    expected = by_formula(graph, clients)
    assert {b: (c.inbound, c.outbound) for b, c in found.items()} == expected


@given(federations())
def test_messages_are_conserved(
    federation: tuple[Graph, dict[str, ClientCounts]],
) -> None:
    """Messages sent to brokers enter brokers, and every subscriber gets its copy."""
    graph, clients = federation
    publishers = sum(c.publishers for c in clients.values())
    subscribers = sum(c.subscribers for c in clients.values())
    found = compute_centrality(graph, clients).values()

    bridged = sum(c.inbound for c in found) * publishers - publishers
    left = sum(c.outbound for c in found) * publishers * subscribers

    assert left - publishers * subscribers == bridged


@pytest.mark.parametrize(
    ("graph", "inbound", "outbound"),
    [
        (star_graph("b1", FOUR), [1, 1, 1, 1], ["7/16", "13/48", "13/48", "13/48"]),
        (chain_graph(FOUR), [1, 1, 1, 1], ["13/48", "17/48", "17/48", "13/48"]),
        (mesh_graph(FOUR), [1, 1, 1, 1], ["5/16"] * 4),
    ],
    ids=["star", "chain", "mesh"],
)
def test_topologies_of_the_paper(
    graph: Graph, inbound: list[int], outbound: list[str]
) -> None:
    """Four brokers, three publishers and three subscribers on each."""
    found = compute_centrality(graph, EVEN)

    assert [found[b].inbound for b in FOUR] == inbound
    assert [found[b].outbound for b in FOUR] == [Fraction(x) for x in outbound]


def test_single_broker_has_centrality_one() -> None:
    """Inbound and outbound, for any number of clients."""
    (load,) = compute_centrality({"b": []}, {"b": ClientCounts(7, 9)}).values()

    assert (load.inbound, load.outbound) == (1, 1)


def test_disconnected_federation_is_refused() -> None:
    """The error names two brokers without a path."""
    graph: Graph = {"a": [], "b": []}
    with pytest.raises(TopologyError, match="graph must be a way from a to b"):
        compute_centrality(graph, {"a": ClientCounts(1, 0), "b": ClientCounts(0, 1)})


def test_federation_without_publishers_is_refused() -> None:
    """The centrality would divide by zero."""
    with pytest.raises(TopologyError, match="clients must be publishers and"):
        compute_centrality({"a": []}, {"a": ClientCounts(0, 3)})
