"""``python -m experiments.bench.slope_load``: gateways that bring the packs of nodes.

Each gateway is one MQTT 5 connection that names itself as the receiver of receipts
and hears them. Packets are made before the clock starts, so that the load costs
the machine little. It says ``ready``, waits for the file ``--go``, and writes when
it began, when the last receipt came and how long receipts took.
"""

import json
import select
import socket
import time
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
from experiments.bench.wire import CELL
from spatial_mqtt import codec
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import custody_topic
from spatial_mqtt.transport import Publication

GATEWAYS: Final = 8
NODES: Final = 200
WINDOW: Final = 2000
"""Messages of a gateway that its broker has not acknowledged."""

AT_ONCE: Final = 64
TICK_S: Final = 0.002
QUIET_S: Final = 20.0
TIME_S: Final = 1_782_831_600.25
_MIDS: Final = 65535


def pack(node: int, seq: int) -> bytes:
    """One sampling of a node with five sensors."""
    readings = (
        Reading("rain", "mm", 0.5, 0.5 * seq),
        Reading("tilt/x", "deg", 0.0123 + seq % 7 / 1000),
        Reading("tilt/y", "deg", -0.0047),
        Reading("moisture/0", "%", 34.25),
        Reading("pore", "kPa", 3.75),
    )
    id_ = MessageId(f"kochi-{node:05d}", "0ce93c39", seq)
    return encode_cbor(Pack(id_, 1, TIME_S + 600 * seq, readings, mono_s=86400.5))


class Gateway:
    """One connection, its packets and what it heard.

    Args:
        host: Of the broker.
        port: Of the broker.
        number: Of the gateway.
        seqs: Sequence numbers of each of its nodes.
    """

    def __init__(self, host: str, port: int, number: int, seqs: range) -> None:
        name = f"gateway-{number}"
        self.sock: socket.socket = connected(host, port, name, MQTT_5)
        subscribe(self.sock, [custody_topic(name)])
        self.packets: list[bytes] = []
        self.place: dict[tuple[str, int], int] = {}
        self.sent_s: list[float] = []
        self.delays_s: list[float] = []
        self.acknowledged = 0
        self._arrived = bytearray()
        for seq in seqs:
            for node in range(number, NODES, GATEWAYS):
                self._make(name, node, seq)
        self._missing = set(self.place)

    def _make(self, name: str, node: int, seq: int) -> None:
        topic = f"{CELL}/{node // 10}/{node % 10}"
        message = Publication(
            topic, pack(node, seq), priority=1, response_topic=custody_topic(name)
        )
        mid = len(self.packets) % _MIDS + 1
        self.place[f"kochi-{node:05d}", seq] = len(self.packets)
        self.packets.append(codec.encode_publish(message, topic, None, mid))

    @property
    def is_served(self) -> bool:
        """Whether every message has its receipt."""
        return not self._missing

    def send(self, most: int) -> int:
        """Send some of the next messages; how many."""
        first = len(self.sent_s)
        room = WINDOW - (first - self.acknowledged)
        some = self.packets[first : first + min(most, room)]
        if some:
            self.sock.sendall(b"".join(some))
            self.sent_s += [time.monotonic()] * len(some)
        return len(some)

    def hear(self) -> int:
        """Take what has arrived; how many ids were receipted for the first time.

        Raises:
            ConnectionError: The broker closed the connection.
        """
        data = self.sock.recv(262_144)
        if not data:
            raise ConnectionError("the broker closed a gateway's connection")
        now_s = time.monotonic()
        self._arrived += data
        before = len(self._missing)
        for first, body in packets(self._arrived):
            if first & 0xF0 == PUBACK:
                self.acknowledged += 1
            elif first & 0xF0 == PUBLISH:
                self._receipted(first, body, now_s)
        return before - len(self._missing)

    def _receipted(self, first: int, body: bytes, now_s: float) -> None:
        _, mid, _, payload = published(first, body)
        if mid:
            self.sock.sendall(packet(PUBACK, mid))
        told = {
            (node, seq)
            for (node, _), ranges in CustodyReceipt.decode(payload).ranges.items()
            for low, high in ranges
            for seq in range(low, high + 1)
        }
        fresh = self._missing & told
        self._missing -= fresh
        self.delays_s += [now_s - self.sent_s[self.place[id_]] for id_ in fresh]


class Load:
    """All gateways.

    Args:
        gateways: They.
    """

    def __init__(self, gateways: list[Gateway]) -> None:
        self.gateways = gateways
        self.last_s = 0.0
        self._poll = select.epoll()
        self._by_fd = {each.sock.fileno(): each for each in gateways}
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)

    def send(self, rate: float) -> None:
        """Send all, at a rate (1/s) or as fast as the broker takes it."""
        total = sum(len(each.packets) for each in self.gateways)
        start_s, sent = time.monotonic(), 0
        while sent < total:
            allowed = total
            if rate:
                allowed = min(total, int((time.monotonic() - start_s) * rate))
            before = sent
            for each in self.gateways:
                sent += each.send(min(AT_ONCE, max(0, allowed - sent)))
            self._hear(TICK_S if rate or sent == before else 0.0)

    def wait(self, with_receipts: bool) -> None:
        """Wait for what is due, until nothing more comes."""
        heard_s = time.monotonic()
        while time.monotonic() < heard_s + QUIET_S:
            if self._hear(0.1):
                heard_s = time.monotonic()
            if all(
                each.is_served
                if with_receipts
                else each.acknowledged == len(each.packets)
                for each in self.gateways
            ):
                return

    def _hear(self, wait_s: float) -> int:
        fresh = 0
        for fd, _ in self._poll.poll(wait_s):
            fresh += self._by_fd[fd].hear()
        if fresh:
            self.last_s = time.monotonic()
        return fresh


@click.command()
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=int, required=True)
@click.option("--each", type=int, required=True, help="Messages of each node.")
@click.option("--rate", type=float, default=0.0, help="Of all, 1/s; 0: a flood.")
@click.option("--receipts/--no-receipts", default=True)
@click.option("--go", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    host: str, port: int, each: int, rate: float, receipts: bool, go: Path, out: Path
) -> None:
    """Bring the packs of nodes, and note what was receipted."""
    seqs = range(2**32, 2**32 + each)
    load = Load([Gateway(host, port, n, seqs) for n in range(GATEWAYS)])
    print("ready", flush=True)
    while not go.exists():
        time.sleep(0.01)
    began_s = time.monotonic()
    load.send(rate)
    sent_s = time.monotonic()
    load.wait(receipts)
    delays_s = sorted(delay for one in load.gateways for delay in one.delays_s)
    fractions = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
    result = {
        "began_s": began_s,
        "sent_s": sent_s,
        "last_s": load.last_s,
        "sent": sum(len(one.packets) for one in load.gateways),
        "receipted": len(delays_s),
        "mean_bytes": sum(len(p) for p in load.gateways[0].packets)
        / len(load.gateways[0].packets),
        **{
            name: delays_s[int(part * (len(delays_s) - 1))] if delays_s else None
            for name, part in fractions.items()
        },
    }
    out.write_text(json.dumps(result))
    print("finished", flush=True)


if __name__ == "__main__":
    main()
