"""``python -m experiments.bench.storm_load``: a storm of many nodes, in steps.

``--links`` connections share the nodes out. As many links as nodes are the nodes
themselves, each at its gateway and listening for its own receipts; fewer are
gateways at a distributed broker. It says ``ready``, waits for the files ``go.1``,
``go.2`` of ``--go go``, sends for each the next rate for ``--seconds``, and then
waits until all is receipted, or until nothing more comes. ``--ear`` is the port of a
broker where the urgent messages are heard, too. A step's numbers are written when it
is over.
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
"""So long without a receipt, and a step is over."""

_MIDS: Final = 65_535
Id = tuple[int, int]
FRACTIONS: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99, "max_s": 1.0}


@dataclass(frozen=True)
class Quantiles:
    """How long some messages took, in seconds; None without any."""

    n: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None

    @classmethod
    def of(cls, delays_s: Sequence[float]) -> "Quantiles":
        """Of delays in any order."""
        told = sorted(delays_s)
        last = len(told) - 1
        cuts = (told[round(f * last)] if told else None for f in FRACTIONS.values())
        return cls(len(told), *cuts)


class Link:
    """A connection that sends some nodes' messages and hears their receipts."""

    def __init__(
        self, at: tuple[str, int], name: str, fleet: dict[int, StormNode]
    ) -> None:
        self.sock: socket.socket = connected(*at, name, MQTT_5)
        subscribe(self.sock, [custody_topic(name)])
        self.fleet = fleet
        self._order = list(fleet)
        self._arrived = bytearray()
        self._sent = 0

    def send(self, count: int, storm: "Storm") -> None:
        """Send the next samplings, node after node."""
        wall_s, now_s = time.time(), time.monotonic()
        parts = []
        for _ in range(count):
            seq, turn = divmod(self._sent, len(self._order))
            number = self._order[turn]
            self._sent += 1
            mid = self._sent % _MIDS + 1
            parts.append(self.fleet[number].packet(seq, mid, wall_s))
            storm.sent((number, seq), self.fleet[number].priority, now_s)
        self.sock.sendall(b"".join(parts))

    def hear(self, storm: "Storm") -> None:
        """Take what has arrived.

        Raises:
            ConnectionError: The broker closed the connection.
        """
        for first, body in _arrived(self.sock, self._arrived):
            if first & 0xF0 == PUBACK:
                storm.acknowledged += 1
            elif first & 0xF0 == PUBLISH:
                _, mid, _, payload = published(first, body)
                if mid:
                    self.sock.sendall(packet(PUBACK, mid))
                storm.receipted(receipted(payload))


class Ear:
    """A plain subscriber that notes when urgent messages come."""

    def __init__(self, at: tuple[str, int]) -> None:
        self.sock: socket.socket = connected(*at, "ear", MQTT_5)
        subscribe(self.sock, [f"/{face}/#" for face in range(6)])
        self._arrived = bytearray()

    def hear(self, storm: "Storm") -> None:
        """Take what has arrived; what is no single pack is routine."""
        told = bytearray()
        for first, body in _arrived(self.sock, self._arrived):
            if first & 0xF0 != PUBLISH:
                continue
            _, mid, _, payload = published(first, body)
            if mid:
                told += packet(PUBACK, mid)
            try:
                id_, priority = decode_message_id(payload)
            except EnvelopeError:
                continue
            if priority in URGENT:
                storm.heard((int(id_.node[-5:]), id_.seq - 2**32), priority)
        if told:
            self.sock.sendall(told)


def _arrived(sock: socket.socket, buffer: bytearray) -> list[tuple[int, bytes]]:
    data = sock.recv(262_144)
    if not data:
        raise ConnectionError("the broker closed a connection")
    buffer += data
    return list(packets(buffer))


class Storm:
    """All links, and what became of the messages of the step in hand."""

    def __init__(self, links: list[Link], ear: Ear | None) -> None:
        self._links = links
        self._by_fd: dict[int, Link | Ear] = {
            each.sock.fileno(): each for each in links
        }
        if ear is not None:
            self._by_fd[ear.sock.fileno()] = ear
        self._poll = select.epoll()
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)
        self._has_ear = ear is not None
        self._turn = 0
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.acknowledged = 0
        self.count = 0
        self.changed_s = time.monotonic()
        self._waits: dict[Id, float] = {}
        self._unheard: dict[Id, float] = {}
        self.custody_s: list[float] = []
        self.urgent_s: dict[int, list[float]] = {priority: [] for priority in URGENT}

    def sent(self, id_: Id, priority: int, now_s: float) -> None:
        """A message was handed to the kernel."""
        self.count += 1
        self._waits[id_] = now_s
        if self._has_ear and priority in URGENT:
            self._unheard[id_] = now_s

    def receipted(self, ids: set[Id]) -> None:
        """A receipt came."""
        self.changed_s = time.monotonic()
        sent_s = (self._waits.pop(id_, None) for id_ in ids)
        self.custody_s += [self.changed_s - s for s in sent_s if s is not None]

    def heard(self, id_: Id, priority: int) -> None:
        """An urgent message came out on the other side."""
        sent_s = self._unheard.pop(id_, None)
        if sent_s is not None:
            self.changed_s = time.monotonic()
            self.urgent_s[priority].append(self.changed_s - sent_s)

    @property
    def open(self) -> int:
        """Messages that are not receipted, or urgent ones that are not heard."""
        return len(self._waits) + len(self._unheard)

    def send(self, rate: float, seconds: float) -> float:
        """Send at a rate (1/s); how far behind it fell, in seconds."""
        start_s, total = time.monotonic(), round(rate * seconds)
        behind_s = 0.0
        while self.count < total:
            passed_s = time.monotonic() - start_s
            due = min(total, int(passed_s * rate) + 1) - self.count
            behind_s = max(behind_s, passed_s - self.count / rate)
            for link, count in self._share(min(due, 64 * len(self._links))):
                link.send(count, self)
            self.hear(TICK_S)
        return behind_s

    def wait(self) -> None:
        """Wait for what is due, until nothing more comes."""
        self.changed_s = time.monotonic()
        while self.open and time.monotonic() < self.changed_s + QUIET_S:
            self.hear(0.1)

    def hear(self, wait_s: float) -> None:
        """Take what has arrived on any connection."""
        for fd, _ in self._poll.poll(wait_s):
            self._by_fd[fd].hear(self)

    def _share(self, count: int) -> list[tuple[Link, int]]:
        links = len(self._links)
        every, more = divmod(count, links)
        first, self._turn = self._turn, (self._turn + more) % links
        order = [*self._links[first:], *self._links[:first]]
        shares = [(link, every + (at < more)) for at, link in enumerate(order)]
        return list(islice(shares, links if every else more))


@dataclass(frozen=True)
class Step:
    """What one rate showed.

    Attributes:
        rate: Asked for, messages/s.
        began_s: On the monotonic clock, as are sent_s and ended_s.
        sent_s: When the last message was handed over.
        ended_s: When the last receipt came.
        sent: Messages.
        open: Messages without a receipt, and urgent ones not heard, at the end.
        behind_s: How far the sender fell behind its rate.
        custody: Publication to receipt.
        urgent: Publication to ear, by priority.
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
    """One rate, from its first message to its last receipt."""
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


def make_storm(at: tuple[str, int], nodes: int, links: int, ear: int | None) -> Storm:
    """Connect everything; fewer links than nodes are gateways."""
    made = []
    for number in range(links):
        name = name_of(number) if links == nodes else f"gateway-{number}"
        relay = None if links == nodes else custody_topic(name)
        fleet = {n: StormNode(n, relay) for n in range(number, nodes, links)}
        made.append(Link(at, name, fleet))
    return Storm(made, None if ear is None else Ear((at[0], ear)))


@click.command()
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=int, required=True)
@click.option("--ear", type=int, help="Port of the broker of the other side.")
@click.option("--nodes", type=int, required=True)
@click.option("--links", type=int, required=True)
@click.option("--rates", required=True, help="Messages/s of all, one step each: 9,90.")
@click.option("--seconds", required=True, help="Of each step, or of each one: 20,60.")
@click.option("--go", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    host: str, port: int, ear: int | None, nodes: int, links: int,
    rates: str, seconds: str, go: Path, out: Path,
) -> None:  # fmt: skip
    """Send a storm in steps, and note how each went."""
    storm = make_storm((host, port), nodes, links, ear)
    print("ready", flush=True)
    steps: list[dict[str, object]] = []
    asked = list(map(float, rates.split(",")))
    lasting = list(map(float, seconds.split(",")))
    for rate, lasts_s in zip(asked, cycle(lasting), strict=False):
        while not go.with_suffix(f".{len(steps) + 1}").exists():
            storm.hear(0.01)
        steps.append(asdict(run_step(storm, rate, lasts_s)))
        fresh = out.with_suffix(".new")
        fresh.write_text(json.dumps(steps))
        fresh.replace(out)
        print(f"step {len(steps)} ended", flush=True)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
