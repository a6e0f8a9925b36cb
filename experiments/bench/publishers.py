"""``python -m experiments.bench.publishers``: many clients, one message each, at once.

Every client has its own connection, opened beforehand, without a client library: with
two hundred clients its own cost would dominate.
"""

import json
import random
import time
from pathlib import Path

import click

from experiments.bench.packets import connected, publish
from experiments.bench.wire import name, payload

HIGH = "5"
LOW = "1"


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--each", type=int, default=100, help="Clients of each priority.")
@click.option("--bytes", "size_bytes", type=int, default=120)
@click.option("--topic", required=True, help="{pri} becomes 5 or 1.")
@click.option("--low-topic", default="", help="For low priority, if different.")
@click.option("--seed", type=int, default=1)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(  # noqa: PLR0913, PLR0917 - one for each option
    port: int,
    each: int,
    size_bytes: int,
    topic: str,
    low_topic: str,
    seed: int,
    out: Path,
) -> None:
    """Publish from all clients at the same moment, and record the times."""
    topics = {
        True: topic.replace("{pri}", HIGH),
        False: (low_topic or topic).replace("{pri}", LOW),
    }
    clients = [
        (name(is_high, n), topics[is_high], sock)
        for n in range(each)
        for is_high in (True, False)
        for sock in [connected("127.0.0.1", port, name(is_high, n))]
    ]
    packets = [
        (name_, publish(to, 1, payload(name_, size_bytes)), sock)
        for name_, to, sock in clients
    ]
    random.Random(seed).shuffle(packets)  # noqa: S311
    print("ready", flush=True)
    time.sleep(0.3)
    sent: dict[str, float] = {}
    for name_, packet, sock in packets:
        sent[name_] = time.monotonic()
        sock.sendall(packet)
    out.write_text(json.dumps(sent))
    for _, _, sock in clients:
        sock.recv(4)
    print("acknowledged", flush=True)
    time.sleep(120)


if __name__ == "__main__":
    main()
