"""``python -m experiments.bench.distance``: two TAP devices with a propagation delay.

Forwards Ethernet frames between the devices, each after a fixed delay. Unlike
`experiments.bench.relay`, which relays connections, it delays TCP's own
acknowledgements too.
"""

import asyncio
import fcntl
import os
import struct

import click

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
MAX_FRAME_BYTES = 2048


@click.command()
@click.option("--near", required=True, help="Name of the device at this end.")
@click.option("--far", required=True, help="Name of the device at the other end.")
@click.option("--delay", "delay_s", type=float, required=True, help="Seconds, one way.")
def main(near: str, far: str, delay_s: float) -> None:
    """Forward frames until the process is ended."""
    asyncio.run(_forward_frames(_open_tap(near), _open_tap(far), delay_s))


def _open_tap(name: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return file


async def _forward_frames(near: int, far: int, delay_s: float) -> None:
    loop = asyncio.get_running_loop()

    def forward(source: int, sink: int) -> None:
        frame = os.read(source, MAX_FRAME_BYTES)
        loop.call_later(delay_s, os.write, sink, frame)

    loop.add_reader(near, forward, near, far)
    loop.add_reader(far, forward, far, near)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
