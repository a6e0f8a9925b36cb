"""Federations of brokers: topologies of the paper or of a file, and their bridges.

The topologies have four brokers each: single, A (publishers on all brokers), B
(subscribers on all), C (star), D (chain), E (full mesh).

A Mosquitto bridge suppresses an echo only to the bridge a message came from, so a cycle
of bridges with ``topic # both`` forwards every message forever. Therefore a topic
starts with the broker where it was published, and is forwarded only outwards along that
broker's own tree of shortest paths.

Source: Banno, seed 002.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from experiments.topology_study.centrality import (
    ClientCounts,
    Graph,
    TopologyError,
    chain_graph,
    mesh_graph,
    multicast_tree,
    star_graph,
)
from service_runtime.settings import KeyRule, key

TOPOLOGIES = ("single", "A", "B", "C", "D", "E")
PLACEMENTS = ("even", "leaves", "apart")

BROKERS = ("b1", "b2", "b3", "b4")
"""Number of brokers as in the paper."""


class ConnectedToAll(Enum):
    """Clients that are connected to every broker, so that brokers need no bridges."""

    NO_CLIENTS = "nobody"
    PUBLISHERS = "publishers"
    SUBSCRIBERS = "subscribers"


@dataclass(frozen=True)
class Federation:
    """Brokers, bridges and clients.

    Attributes:
        graph: The bridges.
        clients: Of each broker; a client connected to all is counted at one of them.
        connected_to_all: Clients that are connected to every broker.
    """

    graph: Graph
    clients: dict[str, ClientCounts]
    connected_to_all: ConnectedToAll = ConnectedToAll.NO_CLIENTS


def place_clients(
    brokers: Sequence[str], publishers: int, subscribers: int, placement: str = "even"
) -> dict[str, ClientCounts]:
    """Distribute clients over brokers.

    Args:
        brokers: The first is the hub of a star.
        publishers: Their number.
        subscribers: Their number.
        placement: ``even`` distributes them evenly; ``leaves`` omits the first broker;
            ``apart`` puts publishers on the first and subscribers on the last.

    Raises:
        TopologyError: There is no publisher or no subscriber.
    """
    for name, number in (("publishers", publishers), ("subscribers", subscribers)):
        if number < 1:
            raise TopologyError(name, "at least 1", number)
    if placement == "apart":
        ends = {brokers[0]: ClientCounts(publishers, 0)}
        last = ends.get(brokers[-1], ClientCounts()).publishers
        ends[brokers[-1]] = ClientCounts(last, subscribers)
        return {broker: ends.get(broker, ClientCounts()) for broker in brokers}
    served = brokers[1:] if placement == "leaves" and len(brokers) > 1 else brokers
    each = {
        broker: ClientCounts(
            _share(publishers, len(served), at), _share(subscribers, len(served), at)
        )
        for at, broker in enumerate(served)
    }
    return {broker: each.get(broker, ClientCounts()) for broker in brokers}


def make_federation(
    name: str, publishers: int, subscribers: int, placement: str = "even"
) -> Federation:
    """Make one of the paper's federations.

    Raises:
        TopologyError: The name is unknown, or there are no clients.
    """
    if name not in TOPOLOGIES:
        raise TopologyError(
            "topology", f"a file or one of {', '.join(TOPOLOGIES)}", name
        )
    brokers = BROKERS[:1] if name == "single" else BROKERS
    clients = place_clients(brokers, publishers, subscribers, placement)
    apart: Graph = {broker: [] for broker in brokers}
    return {
        "single": Federation(apart, clients),
        "A": Federation(apart, clients, ConnectedToAll.PUBLISHERS),
        "B": Federation(apart, clients, ConnectedToAll.SUBSCRIBERS),
        "C": Federation(star_graph(brokers[0], brokers), clients),
        "D": Federation(chain_graph(brokers), clients),
        "E": Federation(mesh_graph(brokers), clients),
    }[name]


@dataclass(frozen=True)
class FederationBroker:
    """``[[broker]]`` of a federation's file."""

    name: str = key(KeyRule("Name of the broker."))
    links: tuple[str, ...] = key(
        KeyRule("Brokers that it is bridged to; one of the two need say so."), ()
    )
    publishers: int = key(KeyRule("Publishers connected to it.", low=0), 0)
    subscribers: int = key(KeyRule("Subscribers connected to it.", low=0), 0)


@dataclass(frozen=True)
class FederationFile:
    """File that describes a federation."""

    broker: tuple[FederationBroker, ...] = key(KeyRule("The brokers."), ())

    def to_federation(self) -> Federation:
        """Make the federation.

        Raises:
            TopologyError: A broker occurs twice, or a bridge has no other end.
        """
        names = [each.name for each in self.broker]
        if not names:
            raise TopologyError("broker", "at least one [[broker]]", names)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TopologyError("broker.name", "a name of its own", twice)
        graph: dict[str, set[str]] = {name: set() for name in names}
        for each in self.broker:
            for other in each.links:
                if other not in graph or other == each.name:
                    rule = f"another broker of the file (links of {each.name})"
                    raise TopologyError("broker.links", rule, other)
                graph[each.name].add(other)
                graph[other].add(each.name)
        clients = {
            b.name: ClientCounts(b.publishers, b.subscribers) for b in self.broker
        }
        return Federation({b: sorted(near) for b, near in graph.items()}, clients)


def _share(whole: int, parts: int, at: int) -> int:
    return whole // parts + (at < whole % parts)


TOPIC_ROOT = "d"
"""First level of the topics that bridges forward."""

BridgeTable = dict[str, dict[str, list[str]]]
"""For each broker and each neighbour: the origins whose messages it forwards there."""


def origin_topic(broker: str, rest: str) -> str:
    """Return the topic where a client of a broker publishes."""
    return f"{TOPIC_ROOT}/{broker}/{rest}"


def compute_bridges(federation: Federation) -> BridgeTable:
    """Compute the bridges; none where clients are connected to all.

    Raises:
        TopologyError: There is no path from a publisher to a subscriber.
    """
    forwarded: BridgeTable = {broker: {} for broker in federation.graph}
    if federation.connected_to_all is not ConnectedToAll.NO_CLIENTS:
        return forwarded
    for origin in federation.graph:
        if not federation.clients.get(origin, ClientCounts()).publishers:
            continue
        for parent, child in multicast_tree(
            federation.graph, federation.clients, origin
        ):
            if parent is not None:
                forwarded[parent].setdefault(child, []).append(origin)
    return forwarded


def format_bridge_config(
    broker: str, bridges: BridgeTable, addresses: Mapping[str, str]
) -> list[str]:
    """Return the lines of a broker's mosquitto.conf for its bridges.

    Args:
        broker: The broker.
        bridges: Of the whole federation.
        addresses: ``host:port`` of each broker.
    """
    lines: list[str] = []
    for other, origins in bridges[broker].items():
        lines += [
            f"connection {broker}-{other}",
            f"address {addresses[other]}",
            f"remote_clientid bridge-{broker}-{other}",
            f"local_clientid local-{broker}-{other}",
            "notifications false",
            "cleansession true",
            "bridge_protocol_version mqttv311",
            "restart_timeout 1",
            *(f"topic {TOPIC_ROOT}/{origin}/# out 0" for origin in origins),
        ]
    return lines
