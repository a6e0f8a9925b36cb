"""``python -m experiments.bench.fault_relay``: TCP relay with planned outages.

An outage closes every connection, often in the middle of an MQTT packet: of the bytes
buffered in each direction a random part is still forwarded. Until the outage ends, new
connections are refused.
"""

import asyncio
import json
import random
import socket
import struct
import time
from collections import deque
from pathlib import Path

import click

HOLD_S = 0.02
"""Delay of each chunk, so that an outage finds bytes in the buffer."""

CHUNK_BYTES = 65536
RESET = struct.pack("ii", 1, 0)


def outages(seed: int, until_s: float, up_s: float) -> list[tuple[float, float]]:
    """Return beginning and duration of each outage, in seconds.

    Args:
        seed: The same seed gives the same outages.
        until_s: No outage begins after this time.
        up_s: Mean time between the end of an outage and the next one.
    """
    rng = random.Random(seed)  # noqa: S311 - chance, no secrets
    at_s, planned = 0.0, []
    while (at_s := at_s + 0.3 + rng.expovariate(1 / up_s)) < until_s:
        down_s = rng.uniform(0.2, 2.0)
        planned.append((at_s, down_s))
        at_s += down_s
    return planned


@click.command()
@click.option("--listen", type=int, required=True)
@click.option("--to", "target", required=True, help="host:port")
@click.option("--begin", "begin_s", type=float, required=True, help="Monotonic time.")
@click.option("--outages", "file", type=click.Path(path_type=Path), required=True)
@click.option("--seed", type=int, required=True)
def main(listen: int, target: str, begin_s: float, file: Path, seed: int) -> None:
    """Relay a port to a target, with outages."""
    rng = random.Random(seed)  # noqa: S311 - chance, no secrets
    planned = json.loads(file.read_text())
    asyncio.run(FaultRelay(listen, target, rng).serve(begin_s, planned))


class FaultRelay:
    """Relays connections, with outages."""

    def __init__(self, listen: int, target: str, rng: random.Random) -> None:
        self._listen = listen
        self._target = target
        self._rng = rng
        self._pipes: list[Pipe] = []

    async def serve(self, begin_s: float, planned: list[tuple[float, float]]) -> None:
        """Serve with the planned outages, then without end."""
        server = await self._open()
        print("ready", flush=True)
        for at_s, down_s in planned:
            await asyncio.sleep(begin_s + at_s - time.monotonic())
            server.close()
            for pipe in self._pipes:
                pipe.cut(self._rng)
            print(f"cut {len(self._pipes)} at {at_s:.2f} s", flush=True)
            self._pipes = []
            await asyncio.sleep(down_s)
            server = await self._open()
        await server.serve_forever()

    async def _open(self) -> asyncio.Server:
        # All addresses of its own network namespace.
        return await asyncio.start_server(self._connect, "0.0.0.0", self._listen)  # noqa: S104

    async def _connect(
        self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter
    ) -> None:
        host, port = self._target.rsplit(":", 1)
        try:
            target_in, target_out = await asyncio.open_connection(host, int(port))
        except OSError:
            client_out.close()
            return
        pipes = [Pipe(client_in, target_out), Pipe(target_in, client_out)]
        self._pipes += pipes
        await asyncio.gather(*(pipe.run() for pipe in pipes))


class Pipe:
    """One direction of a connection."""

    def __init__(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        self._source = source
        self._sink = sink
        self._buffered: deque[bytes] = deque()
        self._is_cut = False
        sock = sink.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def run(self) -> None:
        """Forward until the source ends."""
        loop = asyncio.get_running_loop()
        try:
            while chunk := await self._source.read(CHUNK_BYTES):
                self._buffered.append(chunk)
                loop.call_later(HOLD_S, self._forward)
        except ConnectionError:
            pass
        loop.call_later(HOLD_S, self._sink.close)

    def cut(self, rng: random.Random) -> None:
        """Close the connection after forwarding a random part of the buffer."""
        self._is_cut = True
        buffered = b"".join(self._buffered)
        self._buffered.clear()
        if self._sink.is_closing():
            return
        self._sink.write(buffered[: rng.randint(0, len(buffered))])
        if rng.random() < 0.5:  # noqa: PLR2004 - reset or orderly close
            sock = self._sink.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._sink.close()

    def _forward(self) -> None:
        if not self._is_cut and not self._sink.is_closing():
            self._sink.write(self._buffered.popleft())


if __name__ == "__main__":
    main()
