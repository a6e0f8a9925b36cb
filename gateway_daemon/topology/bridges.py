"""Mosquitto bridges of a federation that cannot go round.

A Mosquitto bridge keeps a message only from the bridge it came by, so a cycle of
bridges with ``topic # both`` carries every message for ever. Here a topic begins with
the broker where it was published, and each of these is passed on along that broker's
own tree of shortest paths, outwards only.
"""

from collections.abc import Mapping

from gateway_daemon.topology.centrality import Clients, multicast
from gateway_daemon.topology.federations import Everywhere, Federation

ROOT = "d"
"""First level of the topics that are passed on."""

Bridges = dict[str, dict[str, list[str]]]
"""For each broker and each one it passes messages to: the origins of these."""


def origin_topic(broker: str, rest: str) -> str:
    """Where a client of a broker publishes."""
    return f"{ROOT}/{broker}/{rest}"


def bridges_of(federation: Federation) -> Bridges:
    """Who passes what on to whom; nothing where clients are connected everywhere.

    Raises:
        TopologyError: There is no way from a publisher to a subscriber.
    """
    told: Bridges = {broker: {} for broker in federation.graph}
    if federation.everywhere is not Everywhere.NOBODY:
        return told
    for origin in federation.graph:
        if not federation.clients.get(origin, Clients()).publishers:
            continue
        for parent, child in multicast(federation.graph, federation.clients, origin):
            if parent is not None:
                told[parent].setdefault(child, []).append(origin)
    return told


def configuration(
    broker: str, bridges: Bridges, addresses: Mapping[str, str]
) -> list[str]:
    """Lines of a broker's mosquitto.conf for its bridges.

    Args:
        broker: Whose.
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
            *(f"topic {ROOT}/{origin}/# out 0" for origin in origins),
        ]
    return lines
