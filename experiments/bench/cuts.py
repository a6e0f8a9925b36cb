"""``python -m experiments.bench.cuts``: a TCP relay that dies at given moments.

When it dies, every connection through it ends, as often as not in the middle of an
MQTT packet: of what it holds in each direction a random part still gets through.
Then nobody can connect for a while.
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
"""How long it holds what it passes on, so that there is something to cut."""

CHUNK_BYTES = 65536
RESET = struct.pack("ii", 1, 0)


def outages(seed: int, until_s: float, up_s: float) -> list[tuple[float, float]]:
    """When the relay dies and for how long it is away, in seconds.

    Args:
        seed: The same one gives the same outages.
        until_s: None begins after that.
        up_s: Mean time between an outage's end and the next one.
    """
    rng = random.Random(seed)  # noqa: S311 - chance, no secrets
    at_s, made = 0.0, []
    while (at_s := at_s + 0.3 + rng.expovariate(1 / up_s)) < until_s:
        away_s = rng.uniform(0.2, 2.0)
        made.append((at_s, away_s))
        at_s += away_s
    return made


@click.command()
@click.option("--listen", type=int, required=True)
@click.option("--to", "target", required=True, help="host:port")
@click.option("--begin", "begin_s", type=float, required=True, help="Monotonic time.")
@click.option("--outages", "file", type=click.Path(path_type=Path), required=True)
@click.option("--seed", type=int, required=True)
def main(listen: int, target: str, begin_s: float, file: Path, seed: int) -> None:
    """Relay a port to a target, with outages."""
    rng = random.Random(seed)  # noqa: S311 - chance, no secrets
    asyncio.run(Relay(listen, target, rng).serve(begin_s, json.loads(file.read_text())))


class Relay:
    """Passes connections on until it dies, and comes back."""

    def __init__(self, listen: int, target: str, rng: random.Random) -> None:
        self._listen = listen
        self._target = target
        self._rng = rng
        self._pipes: list[Pipe] = []

    async def serve(self, begin_s: float, outages_: list[tuple[float, float]]) -> None:
        """Live through some outages, then serve for ever."""
        server = await self._open()
        print("ready", flush=True)
        for at_s, away_s in outages_:
            await asyncio.sleep(begin_s + at_s - time.monotonic())
            server.close()
            for pipe in self._pipes:
                pipe.cut(self._rng)
            print(f"cut {len(self._pipes)} at {at_s:.2f} s", flush=True)
            self._pipes = []
            await asyncio.sleep(away_s)
            server = await self._open()
        await server.serve_forever()

    async def _open(self) -> asyncio.Server:
        # In its own namespace.
        return await asyncio.start_server(self._join, "0.0.0.0", self._listen)  # noqa: S104

    async def _join(
        self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter
    ) -> None:
        host, port = self._target.rsplit(":", 1)
        try:
            far_in, far_out = await asyncio.open_connection(host, int(port))
        except OSError:
            near_out.close()
            return
        pipes = [Pipe(near_in, far_out), Pipe(far_in, near_out)]
        self._pipes += pipes
        await asyncio.gather(*(pipe.run() for pipe in pipes))


class Pipe:
    """One direction of a connection."""

    def __init__(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        self._source = source
        self._sink = sink
        self._held: deque[bytes] = deque()
        self._is_cut = False
        sock = sink.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def run(self) -> None:
        """Pass on until either side ends."""
        loop = asyncio.get_running_loop()
        try:
            while chunk := await self._source.read(CHUNK_BYTES):
                self._held.append(chunk)
                loop.call_later(HOLD_S, self._pass_on)
        except ConnectionError:
            pass
        loop.call_later(HOLD_S, self._sink.close)

    def cut(self, rng: random.Random) -> None:
        """End it now, with part of what is held."""
        self._is_cut = True
        held = b"".join(self._held)
        self._held.clear()
        if self._sink.is_closing():
            return
        self._sink.write(held[: rng.randint(0, len(held))])
        if rng.random() < 0.5:  # noqa: PLR2004 - a coin
            sock = self._sink.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._sink.close()

    def _pass_on(self) -> None:
        if not self._is_cut and not self._sink.is_closing():
            self._sink.write(self._held.popleft())


if __name__ == "__main__":
    main()
