"""``python -m experiments.bench.traffic_generator``: many publishers in one process.

The plan is a JSON list with an object for each publisher: ``host``, ``port``, ``topic``
and ``priority``. They publish in turn, at an even total rate. Prints ``ready``, waits
for the file ``--go``, publishes, writes the result and prints ``finished``.
"""

import json
import select
import socket
import time
from pathlib import Path

import click

from experiments.bench.packets import connected, publish
from experiments.bench.stamped_messages import Stamper

TICK_S = 0.002
FLOOD_BATCH = 64
"""Messages of one publisher in one write when there is no rate limit."""

DRAIN_S = 30.0


@click.command()
@click.option("--plan", type=click.Path(path_type=Path), required=True)
@click.option("--each", type=int, required=True, help="Messages of each publisher.")
@click.option("--rate", type=float, default=0.0, help="Of each, 1/s; 0: no limit.")
@click.option("--bytes", "size_bytes", type=int, default=150)
@click.option("--packs", is_flag=True, help="Packs of nodes, with an id.")
@click.option("--go", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    plan: Path,
    each: int,
    rate: float,
    size_bytes: int,
    packs: bool,
    go: Path,
    out: Path,
) -> None:
    """Publish by a plan and record beginning and end."""
    generator = _TrafficGenerator(
        json.loads(plan.read_text()), size_bytes, is_pack=packs
    )
    print("ready", flush=True)
    while not go.exists():
        time.sleep(0.01)
    began_s = time.monotonic()
    latest_s = generator.pace(each, rate) if rate > 0 else generator.flood(each)
    ended_s = time.monotonic()
    generator.drain()
    result = {
        "began_s": began_s, "ended_s": ended_s, "sent": generator.sent,
        "acknowledged": generator.acknowledged, "latest_s": latest_s,
    }  # fmt: skip
    out.write_text(json.dumps(result))
    print("finished", flush=True)


class _TrafficGenerator:
    """The publishers of a plan."""

    def __init__(
        self, plan: list[dict[str, object]], size_bytes: int, *, is_pack: bool
    ) -> None:
        self.sent = 0
        self.acknowledged = 0
        self._topics = [str(each["topic"]) for each in plan]
        self._stampers = [
            Stamper(number, size_bytes, int(str(each["priority"])), is_pack=is_pack)
            for number, each in enumerate(plan)
        ]
        self._socks = [
            connected(str(each["host"]), int(str(each["port"])), f"load-{number}")
            for number, each in enumerate(plan)
        ]
        self._poll = select.epoll()
        self._by_fd = {sock.fileno(): sock for sock in self._socks}
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)

    def pace(self, each: int, rate: float) -> float:
        """Publish at a rate; return the maximum delay behind schedule, in seconds."""
        count = len(self._socks)
        interval_s = 1.0 / (rate * count)
        start_s = time.monotonic()
        number, latest_s = 0, 0.0
        while number < each * count:
            late_s = time.monotonic() - start_s - number * interval_s
            if late_s < 0:
                self._receive(min(TICK_S, -late_s))
                continue
            latest_s = max(latest_s, late_s)
            self._send(number % count, number // count, 1)
            number += 1
        return latest_s

    def flood(self, each: int) -> float:
        """Publish as fast as the brokers accept messages."""
        for first in range(0, each, FLOOD_BATCH):
            for publisher in range(len(self._socks)):
                self._send(publisher, first, min(FLOOD_BATCH, each - first))
            self._receive(0.0)
        return 0.0

    def drain(self) -> None:
        """Wait until every message is acknowledged."""
        deadline_s = time.monotonic() + DRAIN_S
        while self.acknowledged < self.sent and time.monotonic() < deadline_s:
            self._receive(0.1)

    def _send(self, publisher: int, first: int, count: int) -> None:
        topic, stamper = self._topics[publisher], self._stampers[publisher]
        self._socks[publisher].sendall(
            b"".join(
                publish(topic, number % 65535 + 1, stamper.payload(number))
                for number in range(first, first + count)
            )
        )
        self.sent += count

    def _receive(self, wait_s: float) -> None:
        for fd, _ in self._poll.poll(wait_s):
            sock: socket.socket = self._by_fd[fd]
            data = sock.recv(65536)
            if not data:
                raise ConnectionError("a broker closed a publisher's connection")
            self.acknowledged += len(data) // 4


if __name__ == "__main__":
    main()
