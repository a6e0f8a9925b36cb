"""``python -m experiments.bench.storm_load``: a storm of many nodes, in steps.

The nodes are distributed over ``--links`` connections. With as many links as nodes,
each link is a node at its gateway that receives its own receipts; fewer links are
gateways at a distributed broker. Prints ``ready``. For each of the files ``go.1``,
``go.2``, ... (with ``--go go``) it sends the next rate for ``--seconds`` and waits
until all messages have receipts, or until no more receipts arrive; then it writes the
results of the steps so far. ``--urgent-port`` is the port of a broker where the urgent
messages are received, too.
"""

import json
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import click

from experiments.bench.packets import (
    MQTT_5,
    PUBACK,
    PUBLISH,
    connected,
    packet,
    packets,
    published,
    subscribe,
)
from experiments.bench.storm_packets import URGENT, StormNode, name_of, receipted
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.senml import decode_message_id
from spatial_mqtt.topics import custody_topic

TICK_S: Final = 0.002
QUIET_S: Final = 20.0
"""A step ends after this time without a receipt."""

_PACKET_IDS: Final = 65_535
Id = tuple[int, int]
FRACTIONS: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99, "max_s": 1.0}


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of delays, in seconds; None without any message."""

    n: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None

    @classmethod
    def of(cls, delays_s: Sequence[float]) -> "Quantiles":
        """Compute the quantiles of delays in any order."""
        ordered = sorted(delays_s)
        last = len(ordered) - 1
        values = (
            ordered[round(f * last)] if ordered else None for f in FRACTIONS.values()
        )
        return cls(len(ordered), *values)


class Link:
    """A connection that sends the messages of some nodes and receives the receipts."""

    def __init__(
        self, address: tuple[str, int], name: str, nodes: dict[int, StormNode]
    ) -> None:
        self.sock: socket.socket = connected(*address, name, MQTT_5)
        subscribe(self.sock, [custody_topic(name)])
        self.nodes = nodes
        self._order = list(nodes)
        self._buffer = bytearray()
        self._sent = 0

    def send(self, count: int, storm: "Storm") -> None:
        """Send the next samplings, node after node."""
        wall_s, now_s = time.time(), time.monotonic()
        parts = []
        for _ in range(count):
            seq, turn = divmod(self._sent, len(self._order))
            number = self._order[turn]
            self._sent += 1
            packet_id = self._sent % _PACKET_IDS + 1
            parts.append(self.nodes[number].packet(seq, packet_id, wall_s))
            storm.on_sent((number, seq), self.nodes[number].priority, now_s)
        self.sock.sendall(b"".join(parts))

    def receive(self, storm: "Storm") -> None:
        """Handle the bytes that have arrived.

        Raises:
            ConnectionError: The broker closed the connection.
        """
        for first, body in _read_packets(self.sock, self._buffer):
            if first & 0xF0 == PUBACK:
                storm.acknowledged += 1
            elif first & 0xF0 == PUBLISH:
                _, packet_id, _, payload = published(first, body)
                if packet_id:
                    self.sock.sendall(packet(PUBACK, packet_id))
                storm.on_receipt(receipted(payload))


class UrgentSubscriber:
    """A plain subscriber that records when urgent messages arrive."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock: socket.socket = connected(*address, "urgent-subscriber", MQTT_5)
        subscribe(self.sock, [f"/{face}/#" for face in range(6)])
        self._buffer = bytearray()

    def receive(self, storm: "Storm") -> None:
        """Handle the bytes that have arrived; a batch of packs is never urgent."""
        acks = bytearray()
        for first, body in _read_packets(self.sock, self._buffer):
            if first & 0xF0 != PUBLISH:
                continue
            _, packet_id, _, payload = published(first, body)
            if packet_id:
                acks += packet(PUBACK, packet_id)
            try:
                id_, priority = decode_message_id(payload)
            except EnvelopeError:
                continue
            if priority in URGENT:
                storm.on_urgent((int(id_.node[-5:]), id_.seq - 2**32), priority)
        if acks:
            self.sock.sendall(acks)


def _read_packets(sock: socket.socket, buffer: bytearray) -> list[tuple[int, bytes]]:
    data = sock.recv(262_144)
    if not data:
        raise ConnectionError("the broker closed a connection")
    buffer += data
    return list(packets(buffer))


class Storm:
    """All links, and the state of the messages of the current step."""

    def __init__(self, links: list[Link], subscriber: UrgentSubscriber | None) -> None:
        self._links = links
        self._by_fd: dict[int, Link | UrgentSubscriber] = {
            each.sock.fileno(): each for each in links
        }
        if subscriber is not None:
            self._by_fd[subscriber.sock.fileno()] = subscriber
        self._poll = select.epoll()
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)
        self._has_subscriber = subscriber is not None
        self._next_link = 0
        self.begin()

    def begin(self) -> None:
        """Begin a step."""
        self.acknowledged = 0
        self.count = 0
        self.changed_s = time.monotonic()
        self._without_receipt: dict[Id, float] = {}
        self._undelivered: dict[Id, float] = {}
        self.custody_s: list[float] = []
        self.urgent_s: dict[int, list[float]] = {priority: [] for priority in URGENT}

    def on_sent(self, id_: Id, priority: int, now_s: float) -> None:
        """Record that a message was handed to the kernel."""
        self.count += 1
        self._without_receipt[id_] = now_s
        if self._has_subscriber and priority in URGENT:
            self._undelivered[id_] = now_s

    def on_receipt(self, ids: set[Id]) -> None:
        """Record a receipt."""
        self.changed_s = time.monotonic()
        sent_s = (self._without_receipt.pop(id_, None) for id_ in ids)
        self.custody_s += [self.changed_s - s for s in sent_s if s is not None]

    def on_urgent(self, id_: Id, priority: int) -> None:
        """Record the arrival of an urgent message at the subscriber."""
        sent_s = self._undelivered.pop(id_, None)
        if sent_s is not None:
            self.changed_s = time.monotonic()
            self.urgent_s[priority].append(self.changed_s - sent_s)

    @property
    def open(self) -> int:
        """Messages without a receipt, plus urgent ones that have not arrived."""
        return len(self._without_receipt) + len(self._undelivered)

    def send(self, rate: float, seconds: float) -> float:
        """Send at a rate (1/s); return the maximum lag behind it, in seconds."""
        start_s, total = time.monotonic(), round(rate * seconds)
        behind_s = 0.0
        while self.count < total:
            passed_s = time.monotonic() - start_s
            due = min(total, int(passed_s * rate) + 1) - self.count
            behind_s = max(behind_s, passed_s - self.count / rate)
            for link, count in self._share(min(due, 64 * len(self._links))):
                link.send(count, self)
            self.receive(TICK_S)
        return behind_s

    def wait(self) -> None:
        """Wait until no message is open, or for `QUIET_S` without progress."""
        self.changed_s = time.monotonic()
        while self.open and time.monotonic() < self.changed_s + QUIET_S:
            self.receive(0.1)

    def receive(self, wait_s: float) -> None:
        """Handle the bytes that have arrived on any connection."""
        for fd, _ in self._poll.poll(wait_s):
            self._by_fd[fd].receive(self)

    def _share(self, count: int) -> list[tuple[Link, int]]:
        links = len(self._links)
        share, rest = divmod(count, links)
        first, self._next_link = self._next_link, (self._next_link + rest) % links
        order = [*self._links[first:], *self._links[:first]]
        shares = [(link, share + (at < rest)) for at, link in enumerate(order)]
        return list(islice(shares, links if share else rest))


@dataclass(frozen=True)
class Step:
    """Result of one rate.

    Attributes:
        rate: Nominal rate, messages/s.
        began_s: On the monotonic clock, as are sent_s and ended_s.
        sent_s: When the last message was sent.
        ended_s: When the last receipt arrived.
        sent: Number of messages.
        open: Messages without a receipt, plus urgent ones not received, at the end.
        behind_s: Maximum lag of the sender behind its rate.
        custody: Publication to receipt.
        urgent: Publication to arrival at the urgent subscriber, by priority.
    """

    rate: float
    began_s: float
    sent_s: float
    ended_s: float
    sent: int
    open: int
    behind_s: float
    custody: Quantiles
    urgent: dict[int, Quantiles]


def run_step(storm: Storm, rate: float, seconds: float) -> Step:
    """Run one rate, from its first message to its last receipt."""
    storm.begin()
    began_s = time.monotonic()
    behind_s = storm.send(rate, seconds)
    sent_s = time.monotonic()
    storm.wait()
    return Step(
        rate, began_s, sent_s, storm.changed_s, storm.count, storm.open, behind_s,
        Quantiles.of(storm.custody_s),
        {p: Quantiles.of(delays_s) for p, delays_s in storm.urgent_s.items()},
    )  # fmt: skip


def make_storm(
    address: tuple[str, int], nodes: int, links: int, urgent_port: int | None
) -> Storm:
    """Connect everything; with fewer links than nodes the links are gateways."""
    connected_links = []
    for number in range(links):
        name = name_of(number) if links == nodes else f"gateway-{number}"
        relay = None if links == nodes else custody_topic(name)
        storm_nodes = {n: StormNode(n, relay) for n in range(number, nodes, links)}
        connected_links.append(Link(address, name, storm_nodes))
    subscriber = (
        None if urgent_port is None else UrgentSubscriber((address[0], urgent_port))
    )
    return Storm(connected_links, subscriber)


@click.command()
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=int, required=True)
@click.option("--urgent-port", type=int, help="Of the broker with urgent messages.")
@click.option("--nodes", type=int, required=True)
@click.option("--links", type=int, required=True)
@click.option("--rates", required=True, help="Messages/s of all, one step each: 9,90.")
@click.option("--seconds", required=True, help="Of each step, or of each one: 20,60.")
@click.option("--go", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    host: str, port: int, urgent_port: int | None, nodes: int, links: int,
    rates: str, seconds: str, go: Path, out: Path,
) -> None:  # fmt: skip
    """Send a storm in steps, and write the result of each."""
    storm = make_storm((host, port), nodes, links, urgent_port)
    print("ready", flush=True)
    steps: list[dict[str, object]] = []
    step_rates = list(map(float, rates.split(",")))
    durations_s = list(map(float, seconds.split(",")))
    for rate, duration_s in zip(step_rates, cycle(durations_s), strict=False):
        while not go.with_suffix(f".{len(steps) + 1}").exists():
            storm.receive(0.01)
        steps.append(asdict(run_step(storm, rate, duration_s)))
        fresh = out.with_suffix(".new")
        fresh.write_text(json.dumps(steps))
        fresh.replace(out)
        print(f"step {len(steps)} ended", flush=True)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
