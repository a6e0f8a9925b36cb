"""``python -m experiments.bench.relay``: a TCP relay that adds delay.

It reads without delay, so that the link before it stays the bottleneck, and forwards
after a fixed time.
"""

import asyncio
import socket

import click

CHUNK_BYTES = 65536


@click.command()
@click.option("--listen", type=int, required=True)
@click.option("--to", "target", required=True, help="host:port")
@click.option("--there", "there_s", type=float, default=0.0, help="Delay, seconds.")
@click.option("--back", "back_s", type=float, default=0.0, help="Delay, seconds.")
def main(listen: int, target: str, there_s: float, back_s: float) -> None:
    """Relay a port to a target."""
    asyncio.run(_serve(listen, target, there_s, back_s))


async def _serve(listen: int, target: str, there_s: float, back_s: float) -> None:
    host, port = target.rsplit(":", 1)

    async def relay(
        near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter
    ) -> None:
        try:
            far_in, far_out = await asyncio.open_connection(host, int(port))
        except OSError:
            near_out.close()
            return
        for writer in (near_out, far_out):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(
            _pump(near_in, far_out, there_s), _pump(far_in, near_out, back_s)
        )

    # IPv4 and IPv6; the namespace is its own.
    server = await asyncio.start_server(relay, None, listen)
    print("ready", flush=True)
    await server.serve_forever()


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float
) -> None:
    loop = asyncio.get_running_loop()
    try:
        while chunk := await source.read(CHUNK_BYTES):
            if delay_s > 0:
                loop.call_later(delay_s, sink.write, chunk)
            else:
                sink.write(chunk)
    except ConnectionError:
        pass
    loop.call_later(delay_s, sink.close)


if __name__ == "__main__":
    main()
