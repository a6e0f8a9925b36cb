"""``python -m experiments.bench.rate_limiter``: TCP relay with a limited byte rate.

The limit applies to all bytes from the clients to the target together; the direction
back is not limited.
"""

import asyncio
import socket

import click

CHUNK_BYTES = 2048
BUFFER_BYTES = 8192
"""Small kernel buffers, so that messages wait at their sender."""


class RateLimiter:
    """Relay with a common byte rate for all connections.

    Args:
        target: Port on this machine.
        rate: Bytes per second.
    """

    def __init__(self, target: int, rate: float) -> None:
        self._target = target
        self._rate = rate
        self._free_at_s = 0.0

    async def serve(
        self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter
    ) -> None:
        """Relay one connection until either side closes it."""
        target_in, target_out = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(
            self._pump(client_in, target_out, is_limited=True),
            self._pump(target_in, client_out, is_limited=False),
            return_exceptions=True,
        )

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        *,
        is_limited: bool,
    ) -> None:
        try:
            while chunk := await source.read(CHUNK_BYTES):
                if is_limited:
                    await self._wait(len(chunk))
                sink.write(chunk)
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
        RateLimiter(target, rate).serve, sock=sock, limit=BUFFER_BYTES
    )
    print("ready", flush=True)
    await server.serve_forever()


@click.command()
@click.option("--listen", type=int, required=True)
@click.option("--to", "target", type=int, required=True)
@click.option("--rate", type=float, required=True, help="Bytes per second.")
def main(listen: int, target: int, rate: float) -> None:
    """Relay one port to another at a limited rate."""
    asyncio.run(_run(listen, target, rate))


if __name__ == "__main__":
    main()
