"""A publisher at a fixed rate and a subscriber, on sockets of their own.

A client library for Python needs half a core at 6,000 messages/s and queues what it
cannot send: such a delay is not that of the programs measured. These packets are
encoded here (QoS 1, MQTT 3.1.1 to publish, MQTT 5 to subscribe), and a message gets its
stamp when it is written to the socket.
"""

import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from experiments.bench import packets
from experiments.bench.stamped_messages import Stamper, read_stamp

TIMEOUT_S = 60.0
"""Time without a new message after which the others are lost."""

_PACKET_IDS = 65535


class Arrivals(NamedTuple):
    """What arrived of one series of messages; delays in milliseconds, in order."""

    delays_ms: list[float]
    urgent_ms: list[float]
    doubled: int
    reached: float


class Traffic:
    """A publisher at one broker and a subscriber at another.

    Every `urgent_every`-th message has priority 5. These come from a client of its own,
    as an alarm does from another node than a flood: it does not wait in the socket
    behind what the publisher of the others has written.

    Args:
        publish_port: Port of the publisher's broker.
        subscribe_port: Port of the subscriber's broker.
        topics: Topics in turn, without ``/forward``.
        filter_: What the subscriber subscribes to.
        size_bytes: Size of each payload.
        urgent_every: One message in so many has priority 5.
    """

    def __init__(
        self,
        publish_port: int,
        subscribe_port: int,
        topics: Sequence[str],
        filter_: str,
        *,
        size_bytes: int,
        urgent_every: int,
    ) -> None:
        self._topics = topics
        self._urgent_every = urgent_every
        self._delays_ns: dict[int, int] = {}
        self._received = 0
        self._stamper = Stamper(0, size_bytes, 1, is_pack=False)
        self._numbers = count()
        self._subscriber = packets.connected(
            "127.0.0.1", subscribe_port, "bench-subscriber", packets.MQTT_5
        )
        packets.subscribe(self._subscriber, [filter_])
        self._plain, self._urgent = (
            packets.connected("127.0.0.1", publish_port, name)
            for name in ("bench-publisher", "bench-urgent")
        )
        self._is_closed = False
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._receiver.start()

    def send(self, number: int, rate: float) -> Arrivals:
        """Send messages at a rate and wait until they have arrived."""
        self._delays_ns.clear()
        self._received = 0
        began_s = time.monotonic()
        for _ in pace(number, rate):
            self._publish(next(self._numbers))
        reached = number / (time.monotonic() - began_s)
        self._wait_for(number)
        arrived = [(n, delay / 1e6) for n, delay in self._delays_ns.items()]
        delays_ms = sorted(delay for _, delay in arrived)
        every = self._urgent_every
        urgent_ms = sorted(delay for n, delay in arrived if n % every == 0)
        doubled = self._received - len(delays_ms)
        return Arrivals(delays_ms, urgent_ms, doubled, reached)

    def close(self) -> None:
        """Disconnect."""
        self._is_closed = True
        self._receiver.join()
        for sock in (self._subscriber, self._plain, self._urgent):
            sock.close()

    def _publish(self, message: int) -> None:
        topic = f"/forward{self._topics[message % len(self._topics)]}"
        sock = self._plain
        if message % self._urgent_every == 0:
            topic, sock = f"{topic}/pri5", self._urgent
        payload = self._stamper.payload(message)
        sock.sendall(packets.publish(topic, message % _PACKET_IDS + 1, payload))

    def _wait_for(self, number: int) -> None:
        """Wait until so many have arrived, or none for `TIMEOUT_S`."""
        last, last_s = 0, time.monotonic()
        while len(self._delays_ns) < number and time.monotonic() < last_s + TIMEOUT_S:
            time.sleep(0.05)
            if len(self._delays_ns) != last:
                last, last_s = len(self._delays_ns), time.monotonic()

    def _receive(self) -> None:
        buffers = {
            sock: bytearray() for sock in (self._subscriber, self._plain, self._urgent)
        }
        while not self._is_closed:
            for sock in select.select(buffers, (), (), 0.2)[0]:
                buffers[sock] += sock.recv(1 << 16)
                self._handle(sock, buffers[sock])

    def _handle(self, sock: socket.socket, buffer: bytearray) -> None:
        """Record the messages received, and acknowledge them."""
        now_ns = time.monotonic_ns()
        acks: list[bytes] = []
        for first, body in packets.packets(buffer):
            if first & 0xF0 == packets.PUBLISH:
                _, packet_id, _, payload = packets.published(first, body)
                acks.append(packets.packet(packets.PUBACK, packet_id))
                _, number, sent_ns = read_stamp(payload)
                self._received += 1
                self._delays_ns.setdefault(number, now_ns - sent_ns)
        if acks:
            sock.sendall(b"".join(acks))


def pace(number: int, rate: float) -> Iterator[int]:
    """Yield numbers at a rate per second; without a pause if they are late."""
    began_s = time.monotonic()
    for each in range(number):
        wait_s = began_s + each / rate - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        yield each
