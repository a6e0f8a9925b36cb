"""Measured bandwidth of each broker and its asymmetric betweenness centrality.

    python -m experiments.centrality [--rounds 40] [--bytes 4096]

Mosquittos and clients each in a network namespace; single and A to E of the paper with
12 publishers and 12 subscribers. Target: Pearson correlation of at least 0.99, in and
out. Root only.

Source: Banno, seed 002, section 5 (the claim that the metric follows bandwidth).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation

from experiments.bench.lan import Lan
from experiments.bench.net import ROOT, run_command
from experiments.topology_study.evaluation import evaluate_federation
from experiments.topology_study.federations import (
    BROKERS,
    TOPOLOGIES,
    ConnectedToAll,
    Federation,
    compute_bridges,
    format_bridge_config,
    make_federation,
    origin_topic,
)

PORT = 1883
CLIENTS = 12
PAUSE_S = 0.15


@dataclass(frozen=True)
class Measured:
    """One broker in one federation.

    Attributes:
        federation: Name of the federation.
        broker: Name of the broker.
        predicted: Inbound and outbound centrality.
        bytes: Bytes received and sent.
    """

    federation: str
    broker: str
    predicted: tuple[float, float]
    bytes: tuple[int, int]


def clients_of(
    federation: Federation, addresses: dict[str, str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return publishers' connections with topics, and subscribers' connections."""
    publishers: list[tuple[str, str]] = []
    subscribers: list[str] = []
    for home, clients in federation.clients.items():
        every, one = list(federation.graph), [home]
        connected = federation.connected_to_all
        publish_at = every if connected is ConnectedToAll.PUBLISHERS else one
        subscribe_at = every if connected is ConnectedToAll.SUBSCRIBERS else one
        for _ in range(clients.publishers):
            publishers += [(addresses[b], origin_topic(b, "p")) for b in publish_at]
        for _ in range(clients.subscribers):
            subscribers += [addresses[b] for b in subscribe_at]
    return publishers, subscribers


def measure(
    name: str, lan: Lan, folder: Path, rounds: int, size: int
) -> list[Measured]:
    """Send all messages through a federation, and count the bytes."""
    federation = make_federation(name, CLIENTS, CLIENTS)
    addresses = {b: f"{lan.address(b)}:{PORT}" for b in BROKERS}
    bridges = compute_bridges(federation)
    with ExitStack() as stack:
        for broker in federation.graph:
            config = folder / f"{name}-{broker}.conf"
            config.write_text(
                f"listener {PORT} 0.0.0.0\nallow_anonymous true\npersistence false\n"
                "max_queued_messages 0\nset_tcp_nodelay true\n"
                + "\n".join(format_bridge_config(broker, bridges, addresses))
                + "\n"
            )
            _start(stack, lan, broker, ["mosquitto", "-c", str(config)])
        publishers, subscribers = clients_of(federation, addresses)
        settings = {
            "publishers": publishers,
            "subscribers": subscribers,
            "origins": 1
            if federation.connected_to_all is not ConnectedToAll.NO_CLIENTS
            else len(bridges),
            "bytes": size,
            "rounds": rounds,
            "pause_s": PAUSE_S,
        }
        module = ["-m", "experiments.bench.federation_clients", json.dumps(settings)]
        clients = _start(stack, lan, "clients", [sys.executable, *module])
        assert clients.stdin and clients.stdout  # noqa: S101, PT018 - we opened them
        if clients.stdout.readline() != b"ready\n":
            raise OSError("the clients did not come up")
        before = {broker: count_bytes(lan, broker) for broker in federation.graph}
        clients.stdin.write(b"\n")
        clients.stdin.flush()
        received, wanted = int(clients.stdout.readline()), rounds * CLIENTS * CLIENTS
        if received != wanted:
            raise OSError(f"{name}: {received} deliveries, {wanted} wanted")
        after = {broker: count_bytes(lan, broker) for broker in federation.graph}
    loads = evaluate_federation(federation).loads
    return [
        Measured(
            name,
            broker,
            (float(loads[broker].inbound), float(loads[broker].outbound)),
            (
                after[broker][0] - before[broker][0],
                after[broker][1] - before[broker][1],
            ),
        )
        for broker in federation.graph
    ]


def count_bytes(lan: Lan, broker: str) -> tuple[int, int]:
    """Return the bytes received and sent by a broker's machine so far."""
    folder = "/sys/class/net/lan/statistics"
    inside = f"ip netns exec {lan.namespace(broker)} cat"
    counts = run_command(f"{inside} {folder}/rx_bytes {folder}/tx_bytes").split()
    return int(counts[0]), int(counts[1])


def pearson(measured: Sequence[Measured], direction: int) -> float:
    """Return the correlation of centrality with bytes; direction 0 is in, 1 is out."""
    return correlation(
        [each.predicted[direction] for each in measured],
        [float(each.bytes[direction]) for each in measured],
    )


def _start(
    stack: ExitStack, lan: Lan, machine: str, command: list[str]
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        ["ip", "netns", "exec", lan.namespace(machine), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )

    def end() -> None:
        process.kill()
        process.communicate()

    stack.callback(end)
    return process


def main() -> None:
    """Measure all federations and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--bytes", type=int, default=4096)
    options = parser.parse_args()
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder, Lan((*BROKERS, "clients")) as lan:
        for name in TOPOLOGIES:
            rows = measure(name, lan, Path(folder), options.rounds, options.bytes)
            measured += rows
            for row in rows:
                received_mb, sent_mb = (count / 1e6 for count in row.bytes)
                print(f"{row.federation:>7} {row.broker}  in {row.predicted[0]:.4f} "
                      f"{received_mb:7.2f} MB  out {row.predicted[1]:.4f} "
                      f"{sent_mb:7.2f} MB", flush=True)  # fmt: skip
    print(f"Pearson in {pearson(measured, 0):.4f}, out {pearson(measured, 1):.4f}, "
          f"{len(measured)} brokers")  # fmt: skip


if __name__ == "__main__":
    main()
