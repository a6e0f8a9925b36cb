"""``python -m experiments.bench.gateway_load``: gateways that deliver packs of nodes.

Each gateway is one MQTT 5 connection that receives the receipts for its messages. All
packets are encoded before the measurement, so that the load generator uses little CPU.
Prints ``ready``, waits for the file ``--go``, and writes when it began, when the last
receipt arrived and how long receipts took.
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
"""Maximum number of unacknowledged messages of a gateway."""

SEND_BATCH: Final = 64
TICK_S: Final = 0.002
QUIET_S: Final = 20.0
TIME_S: Final = 1_782_831_600.25
_PACKET_IDS: Final = 65535


def pack(node: int, seq: int) -> bytes:
    """Encode one sampling of a node with five sensors."""
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
    """One connection, its packets and the receipts for them.

    Args:
        host: Host of the broker.
        port: Port of the broker.
        number: Number of the gateway.
        seqs: Sequence numbers of each of its nodes.

    Attributes:
        indices: Index in `packets` of each message, by node and sequence number.
        delays_s: Publication to receipt.
    """

    def __init__(self, host: str, port: int, number: int, seqs: range) -> None:
        name = f"gateway-{number}"
        self.sock: socket.socket = connected(host, port, name, MQTT_5)
        subscribe(self.sock, [custody_topic(name)])
        self.packets: list[bytes] = []
        self.indices: dict[tuple[str, int], int] = {}
        self.sent_s: list[float] = []
        self.delays_s: list[float] = []
        self.acknowledged = 0
        self._buffer = bytearray()
        for seq in seqs:
            for node in range(number, NODES, GATEWAYS):
                self._encode(name, node, seq)
        self._missing = set(self.indices)

    def _encode(self, name: str, node: int, seq: int) -> None:
        topic = f"{CELL}/{node // 10}/{node % 10}"
        message = Publication(
            topic, pack(node, seq), priority=1, response_topic=custody_topic(name)
        )
        packet_id = len(self.packets) % _PACKET_IDS + 1
        self.indices[f"kochi-{node:05d}", seq] = len(self.packets)
        self.packets.append(codec.encode_publish(message, topic, None, packet_id))

    @property
    def is_complete(self) -> bool:
        """Whether every message has a receipt."""
        return not self._missing

    def send(self, max_count: int) -> int:
        """Send the next messages as far as the window allows; return how many."""
        first = len(self.sent_s)
        window = WINDOW - (first - self.acknowledged)
        batch = self.packets[first : first + min(max_count, window)]
        if batch:
            self.sock.sendall(b"".join(batch))
            self.sent_s += [time.monotonic()] * len(batch)
        return len(batch)

    def receive(self) -> int:
        """Handle the bytes that have arrived; return the number of new receipts.

        Raises:
            ConnectionError: The broker closed the connection.
        """
        data = self.sock.recv(262_144)
        if not data:
            raise ConnectionError("the broker closed a gateway's connection")
        now_s = time.monotonic()
        self._buffer += data
        before = len(self._missing)
        for first, body in packets(self._buffer):
            if first & 0xF0 == PUBACK:
                self.acknowledged += 1
            elif first & 0xF0 == PUBLISH:
                self._on_receipt(first, body, now_s)
        return before - len(self._missing)

    def _on_receipt(self, first: int, body: bytes, now_s: float) -> None:
        _, packet_id, _, payload = published(first, body)
        if packet_id:
            self.sock.sendall(packet(PUBACK, packet_id))
        receipted = {
            (node, seq)
            for (node, _), ranges in CustodyReceipt.decode(payload).ranges.items()
            for low, high in ranges
            for seq in range(low, high + 1)
        }
        new = self._missing & receipted
        self._missing -= new
        self.delays_s += [now_s - self.sent_s[self.indices[id_]] for id_ in new]


class GatewayLoad:
    """Sends the messages of all gateways.

    Args:
        gateways: The gateways.
    """

    def __init__(self, gateways: list[Gateway]) -> None:
        self.gateways = gateways
        self.last_s = 0.0
        self._poll = select.epoll()
        self._by_fd = {each.sock.fileno(): each for each in gateways}
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)

    def send(self, rate: float) -> None:
        """Send all, at a rate (1/s), or with 0 as fast as the broker accepts it."""
        total = sum(len(each.packets) for each in self.gateways)
        start_s, sent = time.monotonic(), 0
        while sent < total:
            allowed = total
            if rate:
                allowed = min(total, int((time.monotonic() - start_s) * rate))
            before = sent
            for each in self.gateways:
                sent += each.send(min(SEND_BATCH, max(0, allowed - sent)))
            self._receive(TICK_S if rate or sent == before else 0.0)

    def wait(self, with_receipts: bool) -> None:
        """Wait for all receipts or PUBACKs, or `QUIET_S` without a new receipt."""
        progress_s = time.monotonic()
        while time.monotonic() < progress_s + QUIET_S:
            if self._receive(0.1):
                progress_s = time.monotonic()
            if all(
                each.is_complete
                if with_receipts
                else each.acknowledged == len(each.packets)
                for each in self.gateways
            ):
                return

    def _receive(self, wait_s: float) -> int:
        new = 0
        for fd, _ in self._poll.poll(wait_s):
            new += self._by_fd[fd].receive()
        if new:
            self.last_s = time.monotonic()
        return new


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
    """Deliver the packs of nodes, and measure the receipts."""
    seqs = range(2**32, 2**32 + each)
    load = GatewayLoad([Gateway(host, port, n, seqs) for n in range(GATEWAYS)])
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
