"""``python -m experiments.bench.subscribers``: many subscribers in one process.

The plan is a JSON list with an object for each subscriber: ``host``, ``port``,
``filters``, the numbers of the publishers it expects (``expects``), ``receipts`` if it
is a store that offers custody and sends receipts, ``by_id`` if it drops repeated
message ids, as our client does. Prints ``ready``. Ends when all ``--each`` messages of
every expected publisher have arrived, after ``--quiet`` seconds without a new message,
or ``--timeout`` seconds after the first one.
"""

import json
import select
import statistics
import time
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from experiments.bench import packets
from experiments.bench.stamped_messages import read_stamp
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.senml import MessageId, decode_message_id
from spatial_mqtt.topics import offer_topic

STORE = "bench-store"
RECEIPT_S = 0.2
TAIL_S = 2.0
"""Time to wait for duplicates after the last message."""

START_TIMEOUT_S = 60.0


class Subscriber:
    """One subscriber.

    Attributes:
        seen: For each expected publisher how often each message arrived.
        extra: Messages of publishers that were not expected.
        repeated: Messages dropped because their id was known.
        ids: Messages that the next receipt names.
    """

    def __init__(self, number: int, plan: dict[str, Any], each: int) -> None:
        host, port = str(plan["host"]), int(plan["port"])
        sends_receipts = bool(plan.get("receipts"))
        name = STORE if sends_receipts else f"subscriber-{number}"
        self.sock = packets.connected(host, port, name, packets.MQTT_5)
        packets.subscribe(self.sock, list(plan["filters"]))
        self.seen = {int(p): bytearray(each) for p in plan["expects"]}
        self.extra = 0
        self.repeated = 0
        self._known_ids: set[str] | None = set() if plan.get("by_id") else None
        self.ids: list[MessageId] = []
        self.response_topic = ""
        self._sends_receipts = sends_receipts
        self._buffer = bytearray()
        if sends_receipts:
            self.publish(offer_topic(STORE), CustodyOffer(STORE, ("/#",)).encode())
        self.sock.setblocking(False)

    def receive(self, delays_s: array) -> int:  # type: ignore[type-arg]
        """Handle the bytes that have arrived; return the number of new messages."""
        data = self.sock.recv(1 << 18)
        if not data:
            raise ConnectionError("a broker closed a subscriber's connection")
        self._buffer += data
        before = len(delays_s)
        now_s = time.monotonic()
        acks: list[bytes] = []
        for first, body in packets.packets(self._buffer):
            if first & 0xF0 == packets.PUBLISH:
                topic, packet_id, *rest = packets.published(first, body)
                if packet_id:
                    acks.append(packets.packet(packets.PUBACK, packet_id))
                if not topic.startswith("/custody"):
                    self._record(*rest, now_s, delays_s)
        if acks:
            self._send(b"".join(acks))
        return len(delays_s) - before

    def send_receipt(self) -> None:
        """Send a receipt for all messages since the last one."""
        if self.ids:
            receipt = CustodyReceipt.from_ids(self.ids)
            self.publish(self.response_topic, receipt.encode())
            self.ids = []

    def publish(self, topic: str, data: bytes) -> None:
        """Publish with QoS 1."""
        self._send(packets.publish(topic, 1, data, b"\x00"))

    def _record(
        self,
        properties: bytes,
        payload: bytes,
        now_s: float,
        delays_s: array,  # type: ignore[type-arg]
    ) -> None:
        if self._known_ids is not None:
            id_ = packets.decode_properties(properties).get("id", "")
            if id_ in self._known_ids:
                self.repeated += 1
                return
            self._known_ids.add(id_)
        publisher, number, sent_ns = read_stamp(payload)
        seen = self.seen.get(publisher)
        if seen is None:
            self.extra += 1
            return
        seen[number] = min(255, seen[number] + 1)
        if seen[number] == 1:
            delays_s.append(now_s - sent_ns / 1e9)
        if self._sends_receipts:
            decoded = packets.decode_properties(properties)
            self.response_topic = decoded.get("response", "")
            with suppress(EnvelopeError):
                text = decoded.get("id")
                self.ids.append(
                    MessageId.parse(text) if text else decode_message_id(payload)[0]
                )

    def _send(self, data: bytes) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(data)
        self.sock.setblocking(False)


@click.command()
@click.option("--plan", type=click.Path(path_type=Path), required=True)
@click.option("--each", type=int, required=True, help="Messages of each publisher.")
@click.option("--quiet", type=float, default=5.0, show_default=True)
@click.option("--timeout", type=float, default=600.0, help="Seconds since the first.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(plan: Path, each: int, quiet: float, timeout: float, out: Path) -> None:
    """Measure delay, loss and duplicates of all messages."""
    subscribers = [
        Subscriber(number, one, each)
        for number, one in enumerate(json.loads(plan.read_text()))
    ]
    wanted = sum(each * len(subscriber.seen) for subscriber in subscribers)
    print("ready", flush=True)
    delays_s, span_s = _receive_all(subscribers, wanted, (quiet, timeout))
    out.write_text(json.dumps(_result(subscribers, delays_s, wanted, span_s)))


def _receive_all(
    subscribers: list[Subscriber], wanted: int, timeouts_s: tuple[float, float]
) -> tuple[array, tuple[float, float]]:  # type: ignore[type-arg]
    """Return all delays, and when the first and the last message arrived."""
    by_fd = {subscriber.sock.fileno(): subscriber for subscriber in subscribers}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    delays_s = array("d")
    first_s, last_s = 0.0, time.monotonic()
    receipted_s = last_s
    while len(delays_s) < wanted or time.monotonic() - last_s < TAIL_S:
        if sum(by_fd[fd].receive(delays_s) for fd, _ in poll.poll(RECEIPT_S / 2)):
            last_s = time.monotonic()
            first_s = first_s or last_s
        now_s = time.monotonic()
        if now_s - receipted_s >= RECEIPT_S:
            receipted_s = now_s
            for subscriber in subscribers:
                subscriber.send_receipt()
        quiet_s, max_s = timeouts_s if delays_s else (START_TIMEOUT_S, now_s)
        if now_s - last_s > quiet_s or now_s - first_s > max_s:
            break
    for subscriber in subscribers:
        subscriber.send_receipt()
    return delays_s, (first_s, last_s)


def _result(
    subscribers: list[Subscriber],
    delays_s: array,
    wanted: int,
    span_s: tuple[float, float],  # type: ignore[type-arg]
) -> dict[str, Any]:
    counts = [count for s in subscribers for seen in s.seen.values() for count in seen]
    ordered = sorted(delays_s)
    return {
        "wanted": wanted,
        "received": len(ordered),
        "lost": counts.count(0),
        "doubled": sum(count > 1 for count in counts),
        "repeated": sum(subscriber.repeated for subscriber in subscribers),
        "extra": sum(subscriber.extra for subscriber in subscribers),
        "first_s": span_s[0],
        "last_s": span_s[1],
        "mean_s": statistics.fmean(ordered) if ordered else None,
        "p50_s": _quantile(ordered, 0.50),
        "p99_s": _quantile(ordered, 0.99),
        "max_s": _quantile(ordered, 1.0),
    }


def _quantile(ordered: list[float], share: float) -> float | None:
    return (
        ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
    )


if __name__ == "__main__":
    main()
