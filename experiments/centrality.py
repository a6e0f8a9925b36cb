"""Real bandwidth of each broker beside its asymmetric betweenness centrality.

    python -m experiments.centrality [--rounds 40] [--bytes 4096]

Mosquittos and clients each in a network namespace; single and A to E of the paper with
12 publishers and 12 subscribers. Bar: Pearson at least 0.99, in and out. Root only.

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
        federation: Its name.
        broker: Its name.
        predicted: Inbound and outbound centrality.
        bytes: That came in and went out.
    """

    federation: str
    broker: str
    predicted: tuple[float, float]
    bytes: tuple[int, int]


def clients_of(
    federation: Federation, addresses: dict[str, str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Connections of publishers, with their topics, and of subscribers."""
    publishers: list[tuple[str, str]] = []
    subscribers: list[str] = []
    for home, clients in federation.clients.items():
        everywhere, one = list(federation.graph), [home]
        is_all = federation.connected_to_all
        talk = everywhere if is_all is ConnectedToAll.PUBLISHERS else one
        listen = everywhere if is_all is ConnectedToAll.SUBSCRIBERS else one
        for _ in range(clients.publishers):
            publishers += [(addresses[b], origin_topic(b, "p")) for b in talk]
        for _ in range(clients.subscribers):
            subscribers += [addresses[b] for b in listen]
    return publishers, subscribers


def measure(
    name: str, lan: Lan, folder: Path, rounds: int, size: int
) -> list[Measured]:
    """Let a federation carry its messages, and count."""
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
        asked = {
            "publishers": publishers,
            "subscribers": subscribers,
            "origins": 1
            if federation.connected_to_all.value != "nobody"
            else len(bridges),
            "bytes": size,
            "rounds": rounds,
            "pause_s": PAUSE_S,
        }
        module = [sys.executable, "-m", "experiments.bench.crowd", json.dumps(asked)]
        crowd = _start(stack, lan, "clients", module)
        assert crowd.stdin and crowd.stdout  # noqa: S101, PT018 - we opened them
        if crowd.stdout.readline() != b"ready\n":
            raise OSError("the clients did not come up")
        before = {broker: counted(lan, broker) for broker in federation.graph}
        crowd.stdin.write(b"\n")
        crowd.stdin.flush()
        got, wanted = int(crowd.stdout.readline()), rounds * CLIENTS * CLIENTS
        if got != wanted:
            raise OSError(f"{name}: {got} deliveries, {wanted} wanted")
        after = {broker: counted(lan, broker) for broker in federation.graph}
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


def counted(lan: Lan, broker: str) -> tuple[int, int]:
    """Bytes in and out of a broker's machine so far."""
    folder = "/sys/class/net/lan/statistics"
    inside = f"ip netns exec {lan.namespace(broker)} cat"
    told = run_command(f"{inside} {folder}/rx_bytes {folder}/tx_bytes").split()
    return int(told[0]), int(told[1])


def pearson(measured: Sequence[Measured], way: int) -> float:
    """Correlation of centrality with bytes, 0 in and 1 out."""
    return correlation(
        [each.predicted[way] for each in measured],
        [float(each.bytes[way]) for each in measured],
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
    """All federations, as a table for people."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--bytes", type=int, default=4096)
    asked = parser.parse_args()
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder, Lan((*BROKERS, "clients")) as lan:
        for name in TOPOLOGIES:
            rows = measure(name, lan, Path(folder), asked.rounds, asked.bytes)
            measured += rows
            for row in rows:
                came, went = (count / 1e6 for count in row.bytes)
                print(f"{row.federation:>7} {row.broker}  in {row.predicted[0]:.4f} "
                      f"{came:7.2f} MB  out {row.predicted[1]:.4f} {went:7.2f} MB",
                      flush=True)  # fmt: skip
    print(f"Pearson in {pearson(measured, 0):.4f}, out {pearson(measured, 1):.4f}, "
          f"{len(measured)} brokers")  # fmt: skip


if __name__ == "__main__":
    main()
