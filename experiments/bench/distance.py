"""``python -m experiments.bench.distance``: a cable whose other end is far away.

Makes two network devices and carries Ethernet frames between them, each after a
fixed time. TCP notices: its acknowledgements take as long as everybody's, which
a relay of connections (`experiments.bench.relay`) cannot give.
"""

import asyncio
import fcntl
import os
import struct

import click

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
MOST_FRAME_BYTES = 2048


@click.command()
@click.option("--near", required=True, help="Name of the device at this end.")
@click.option("--far", required=True, help="Name of the device at the other end.")
@click.option("--delay", "delay_s", type=float, required=True, help="Seconds, one way.")
def main(near: str, far: str, delay_s: float) -> None:
    """Carry frames until told to stop."""
    asyncio.run(_carry(_device(near), _device(far), delay_s))


def _device(name: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return file


async def _carry(near: int, far: int, delay_s: float) -> None:
    loop = asyncio.get_running_loop()

    def forward(source: int, sink: int) -> None:
        frame = os.read(source, MOST_FRAME_BYTES)
        loop.call_later(delay_s, os.write, sink, frame)

    loop.add_reader(near, forward, near, far)
    loop.add_reader(far, forward, far, near)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
