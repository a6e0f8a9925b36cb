"""``python -m experiments.bench.publishers``: many clients, one message each, at once.

Every client has its own connection, opened beforehand. The MQTT 3.1.1 packets are
encoded here: with two hundred clients a library's own cost would dominate.
"""

import json
import random
import socket
import struct
import time
from pathlib import Path

import click

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
        for sock in [_connected(port, name(is_high, n))]
    ]
    packets = [
        (name_, _publish(to, payload(name_, size_bytes)), sock)
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


def _connected(port: int, client_id: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    clean_session, keepalive_s = 2, 120
    head = _text("MQTT") + struct.pack("!BBH", 4, clean_session, keepalive_s)
    sock.sendall(_packet(0x10, head + _text(client_id)))
    connack = sock.recv(4)
    if connack != b"\x20\x02\x00\x00":
        raise ConnectionError(f"CONNACK must be a success, got {connack!r}")
    return sock


def _publish(topic: str, data: bytes) -> bytes:
    qos_1, packet_id = 0x32, 1
    return _packet(qos_1, _text(topic) + struct.pack("!H", packet_id) + data)


def _packet(kind: int, body: bytes) -> bytes:
    length, left = b"", len(body)
    while True:
        left, digit = divmod(left, 128)
        length += bytes([digit | (0x80 if left else 0)])
        if not left:
            return bytes([kind]) + length + body


def _text(text: str) -> bytes:
    return struct.pack("!H", len(text)) + text.encode()


if __name__ == "__main__":
    main()
