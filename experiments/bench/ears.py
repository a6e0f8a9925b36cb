"""``python -m experiments.bench.ears``: many subscribers in one process.

The plan is a JSON list, one object for each subscriber: ``host``, ``port``,
``filters``, the publishers it should hear (``hears``), ``receipts`` when it is a
store that offers and gives receipts, ``by_id`` when it drops ids that it knows, as our
client does. It says ``ready``, and ends when all that it
should hear of each of ``--each`` messages has come, nothing for ``--quiet`` seconds,
or after ``--most``.
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
from experiments.bench.stamped import read
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.errors import EnvelopeError
from spatial_mqtt.senml import MessageId, decode_message_id
from spatial_mqtt.topics import offer_topic

ME = "bench-store"
RECEIPT_S = 0.2
TAIL_S = 2.0
"""What is doubled comes soon after."""

STARTS_WITHIN_S = 60.0


class Ear:
    """One subscriber."""

    def __init__(self, number: int, plan: dict[str, Any], each: int) -> None:
        host, port = str(plan["host"]), int(plan["port"])
        gives = bool(plan.get("receipts"))
        name = ME if gives else f"ear-{number}"
        self.sock = packets.connected(host, port, name, packets.MQTT_5)
        packets.subscribe(self.sock, list(plan["filters"]))
        self.seen = {int(p): bytearray(each) for p in plan["hears"]}
        self.extra = 0
        self.repeated = 0
        self._known: set[str] | None = set() if plan.get("by_id") else None
        self.ids: list[MessageId] = []
        self.answer_to = ""
        self._gives_receipts = gives
        self._buffer = bytearray()
        if gives:
            self.say(offer_topic(ME), CustodyOffer(ME, ("/#",)).encode())
        self.sock.setblocking(False)

    def hear(self, delays_s: array) -> int:  # type: ignore[type-arg]
        """Take what has arrived; how many messages were new."""
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
                    acks.append(b"\x40\x02" + packet_id)
                if not topic.startswith("/custody"):
                    self._note(*rest, now_s, delays_s)
        if acks:
            self._send(b"".join(acks))
        return len(delays_s) - before

    def give_receipt(self) -> None:
        """Say that all that came is stored."""
        if self.ids:
            self.say(self.answer_to, CustodyReceipt.from_ids(self.ids).encode())
            self.ids = []

    def say(self, topic: str, data: bytes) -> None:
        """Publish something."""
        self._send(packets.publish(topic, 1, data, b"\x00"))

    def _note(
        self,
        properties: bytes,
        payload: bytes,
        now_s: float,
        delays_s: array,  # type: ignore[type-arg]
    ) -> None:
        if self._known is not None:
            named = packets.told(properties).get("id", "")
            if named in self._known:
                self.repeated += 1
                return
            self._known.add(named)
        publisher, number, sent_ns = read(payload)
        seen = self.seen.get(publisher)
        if seen is None:
            self.extra += 1
            return
        seen[number] = min(255, seen[number] + 1)
        if seen[number] == 1:
            delays_s.append(now_s - sent_ns / 1e9)
        if self._gives_receipts:
            told = packets.told(properties)
            self.answer_to = told.get("response", "")
            with suppress(EnvelopeError):
                named = told.get("id")
                self.ids.append(
                    MessageId.parse(named) if named else decode_message_id(payload)[0]
                )

    def _send(self, data: bytes) -> None:
        self.sock.setblocking(True)
        self.sock.sendall(data)
        self.sock.setblocking(False)


@click.command()
@click.option("--plan", type=click.Path(path_type=Path), required=True)
@click.option("--each", type=int, required=True, help="Messages of each publisher.")
@click.option("--quiet", type=float, default=5.0, show_default=True)
@click.option("--most", type=float, default=600.0, help="Seconds since the first.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(plan: Path, each: int, quiet: float, most: float, out: Path) -> None:
    """Note how late, how often and whether each message came."""
    ears = [
        Ear(number, one, each)
        for number, one in enumerate(json.loads(plan.read_text()))
    ]
    wanted = sum(each * len(ear.seen) for ear in ears)
    print("ready", flush=True)
    delays_s, span_s = _listen(ears, wanted, (quiet, most))
    out.write_text(json.dumps(_result(ears, delays_s, wanted, span_s)))


def _listen(
    ears: list[Ear], wanted: int, patience_s: tuple[float, float]
) -> tuple[array, tuple[float, float]]:  # type: ignore[type-arg]
    """Delays of all that came, and when the first and the last did."""
    by_fd = {ear.sock.fileno(): ear for ear in ears}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    delays_s = array("d")
    first_s, last_s = 0.0, time.monotonic()
    receipted_s = last_s
    while len(delays_s) < wanted or time.monotonic() - last_s < TAIL_S:
        if sum(by_fd[fd].hear(delays_s) for fd, _ in poll.poll(RECEIPT_S / 2)):
            last_s = time.monotonic()
            first_s = first_s or last_s
        now_s = time.monotonic()
        if now_s - receipted_s >= RECEIPT_S:
            receipted_s = now_s
            for ear in ears:
                ear.give_receipt()
        quiet_s, most_s = patience_s if delays_s else (STARTS_WITHIN_S, now_s)
        if now_s - last_s > quiet_s or now_s - first_s > most_s:
            break
    for ear in ears:
        ear.give_receipt()
    return delays_s, (first_s, last_s)


def _result(
    ears: list[Ear],
    delays_s: array,
    wanted: int,
    span_s: tuple[float, float],  # type: ignore[type-arg]
) -> dict[str, Any]:
    counts = [count for ear in ears for seen in ear.seen.values() for count in seen]
    ordered = sorted(delays_s)
    return {
        "wanted": wanted,
        "heard": len(ordered),
        "lost": counts.count(0),
        "doubled": sum(count > 1 for count in counts),
        "repeated": sum(ear.repeated for ear in ears),
        "extra": sum(ear.extra for ear in ears),
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
