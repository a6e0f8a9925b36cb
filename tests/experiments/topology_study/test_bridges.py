import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from hypothesis import given
from hypothesis import strategies as st
from programs import Client

from experiments.topology_study.centrality import ClientCounts, mesh_graph
from experiments.topology_study.federations import (
    BROKERS,
    BridgeTable,
    Federation,
    compute_bridges,
    format_bridge_config,
    make_federation,
    origin_topic,
)


def copies(bridges: BridgeTable, origin: str) -> Counter[str]:
    """How often each broker gets a message published at `origin`; fails on a loop."""
    got, waiting = Counter([origin]), [origin]
    while waiting:
        broker = waiting.pop()
        for target, origins in bridges[broker].items():
            if origin in origins:
                got[target] += 1
                waiting.append(target)
        assert got.total() < 1000, "the message loops"
    return got


@given(st.integers(2, 8), st.data())
def test_message_reaches_every_broker_once_in_any_graph(
    size: int, data: st.DataObject
) -> None:
    """Also in graphs with cycles."""
    names = [f"b{n}" for n in range(size)]
    graph: dict[str, set[str]] = {name: set() for name in names}
    for one in range(1, size):
        others = data.draw(st.sets(st.integers(0, one - 1), min_size=1))
        for other in others:
            graph[names[one]].add(names[other])
            graph[names[other]].add(names[one])
    ordered = {name: sorted(near) for name, near in graph.items()}
    bridges = compute_bridges(
        Federation(ordered, dict.fromkeys(names, ClientCounts(1, 1)))
    )

    for origin in names:
        assert copies(bridges, origin) == Counter(names)


def test_bridges_of_a_mesh_forward_over_one_hop_only() -> None:
    """Topology A, whose clients connect to all brokers, needs no bridges."""
    bridges = compute_bridges(make_federation("E", 12, 12))

    assert bridges["b1"] == {other: ["b1"] for other in BROKERS[1:]}
    assert not any(compute_bridges(make_federation("A", 12, 12)).values())


@pytest.mark.broker
def test_full_mesh_of_mosquitto_brokers_does_not_loop(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Twelve messages cause 36 deliveries: each broker's subscriber gets each once."""
    names = ("b1", "b2", "b3")
    brokers = {name: make_broker() for name in names}
    addresses = {name: str(brokers[name].endpoint) for name in names}
    clients = dict.fromkeys(names, ClientCounts(4, 1))
    bridges = compute_bridges(Federation(mesh_graph(names), clients))
    for name, broker in brokers.items():
        broker.kill()
        path = tmp_path / f"mosquitto-{broker.port}.conf"
        lines = format_bridge_config(name, bridges, addresses)
        path.write_text(path.read_text() + "\n".join(lines) + "\n")
        broker.start()
    subscribers = {n: Client(b.endpoint, f"sub-{n}", "d/#") for n, b in brokers.items()}
    publishers = {n: Client(b.endpoint, f"pub-{n}") for n, b in brokers.items()}

    def is_bridged() -> bool:
        for name, publisher in publishers.items():
            publisher.publish(origin_topic(name, "probe"), b"")
        time.sleep(0.2)
        probes = {(n, m.topic) for n, each in subscribers.items() for m in each.got}
        return len(probes) == 9

    wait_until(is_bridged)
    for name, publisher in publishers.items():
        for number in range(4):
            publisher.publish(origin_topic(name, "warning"), b"%d" % number)
    topics = [origin_topic(name, "warning") for name in names]
    receivers = subscribers.values()
    wait_until(lambda: all(len(r.on(t)) == 4 for r in receivers for t in topics))
    time.sleep(1.0)

    for each in receivers:
        assert all(sorted(each.on(t)) == [b"0", b"1", b"2", b"3"] for t in topics)
