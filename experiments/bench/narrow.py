"""``python -m experiments.bench.narrow``: a broker that bears only so much.

A relay in front of it that takes so many bytes in a second from all its clients
together. What comes back is not held up.
"""

import asyncio
import socket

import click

PIECE_BYTES = 2048
BUFFER_BYTES = 8192
"""Little waits in the kernel: what cannot go stays with its sender."""


class Narrow:
    """The relay.

    Args:
        target: Port on this machine.
        rate: Bytes in a second.
    """

    def __init__(self, target: int, rate: float) -> None:
        self._target = target
        self._rate = rate
        self._free_at_s = 0.0

    async def serve(
        self, near: asyncio.StreamReader, back: asyncio.StreamWriter
    ) -> None:
        """One client, until either side ends."""
        far, there = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(
            self._pump(near, there, is_held=True),
            self._pump(far, back, is_held=False),
            return_exceptions=True,
        )

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_held: bool
    ) -> None:
        try:
            while piece := await source.read(PIECE_BYTES):
                if is_held:
                    await self._wait(len(piece))
                sink.write(piece)
                await sink.drain()
        finally:
            sink.close()

    async def _wait(self, size: int) -> None:
        now_s = asyncio.get_running_loop().time()
        self._free_at_s = max(self._free_at_s, now_s) + size / self._rate
        await asyncio.sleep(self._free_at_s - now_s)


async def _run(listen: int, target: int, rate: float) -> None:
    sock = socket.create_server(("127.0.0.1", listen))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    server = await asyncio.start_server(
        Narrow(target, rate).serve, sock=sock, limit=BUFFER_BYTES
    )
    print("ready", flush=True)
    await server.serve_forever()


@click.command()
@click.option("--listen", type=int, required=True)
@click.option("--to", "target", type=int, required=True)
@click.option("--rate", type=float, required=True, help="Bytes in a second.")
def main(listen: int, target: int, rate: float) -> None:
    """Relay one port to another, narrowly."""
    asyncio.run(_run(listen, target, rate))


if __name__ == "__main__":
    main()
