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
    """How often each broker gets a message that is published at one; it must end."""
    got, waiting = Counter([origin]), [origin]
    while waiting:
        here = waiting.pop()
        for there, origins in bridges[here].items():
            if origin in origins:
                got[there] += 1
                waiting.append(there)
        assert got.total() < 1000, "it goes round"
    return got


@given(st.integers(2, 8), st.data())
def test_a_message_reaches_every_broker_once_in_any_graph(
    size: int, data: st.DataObject
) -> None:
    """Whatever cycles there are."""
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


def test_a_mesh_passes_on_one_hop_only() -> None:
    """And who is connected everywhere needs no bridge."""
    bridges = compute_bridges(make_federation("E", 12, 12))

    assert bridges["b1"] == {other: ["b1"] for other in BROKERS[1:]}
    assert not any(compute_bridges(make_federation("A", 12, 12)).values())


@pytest.mark.broker
def test_a_full_mesh_of_mosquittos_does_not_go_round(
    make_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Twelve messages become 36 deliveries: each broker's subscriber has all once."""
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
    heard = {n: Client(b.endpoint, f"ear-{n}", "d/#") for n, b in brokers.items()}
    talkers = {n: Client(b.endpoint, f"mouth-{n}") for n, b in brokers.items()}

    def is_bridged() -> bool:
        for name, talker in talkers.items():
            talker.publish(origin_topic(name, "probe"), b"")
        time.sleep(0.2)
        probes = {(n, m.topic) for n, ear in heard.items() for m in ear.got}
        return len(probes) == 9

    wait_until(is_bridged)
    for name, talker in talkers.items():
        for number in range(4):
            talker.publish(origin_topic(name, "warning"), b"%d" % number)
    topics = [origin_topic(name, "warning") for name in names]
    wait_until(lambda: all(len(e.on(t)) == 4 for e in heard.values() for t in topics))
    time.sleep(1.0)

    for ear in heard.values():
        assert all(sorted(ear.on(t)) == [b"0", b"1", b"2", b"3"] for t in topics)
